"""Compare the usual training with the training that adapts to few judged questions.

`python -m experiments.small_sets.run NAME=BEIR_FOLDER SIZES SEEDS` draws judged questions from the
training split. It divides them as Freshet divides the questions of `freshet judge`, and trains a
dense retriever twice. Test questions are searched among a sample of the documents. SIZES and SEEDS
are lists with commas, such as 50,200. Results for other sizes, seeds or data sets are kept.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.tables import write_tables
from model_code.corpus.settings import QuerySplitSettings
from model_code.corpus.sources.readers import read_rows
from model_code.corpus.splits import split_queries
from model_code.corpus.tables import Corpus, make_table
from model_code.encoding.encoder import Encoder
from model_code.evaluation.metrics import evaluate_run
from model_code.files import read_json, write_json
from model_code.queries.pseudo_queries import InverseCloze
from model_code.queries.settings import ClozeSettings
from model_code.retrieval.bm25_index import Bm25Index
from model_code.training.settings import TrainingSettings
from model_code.training.small_sets import adapt_to_small_set
from model_code.training.tables import TrainingTables
from model_code.training.trainer import Trainer

HERE = Path(__file__).parent
BASE = "sentence-transformers/all-MiniLM-L6-v2"
MAX_TOKENS = 128
DOCUMENTS = 600
TEST_QUERIES = 120
METRIC = "nDCG@10"
DEPTH = 100
# Constant of reciprocal rank fusion (Cormack et al., 2009).
RRF = 60
# The training of a project that `freshet init` made, without the hierarchy.
USUAL = TrainingSettings(
    epochs=2,
    batch_size=32,
    unsupervised_share=0.25,
    learning_rate=2e-4,
    hierarchy_weight=0,
    negatives="bm25",
    negatives_per_query=1,
    dev_passages=250,
)

Qrels = dict[str, dict[str, int]]


def read_beir(
    folder: Path,
) -> tuple[dict[str, Mapping[str, Any]], dict[str, str], dict[str, Qrels]]:
    """Return the documents by id, the queries by id, and the qrels of train and test."""
    documents = {}
    for row in read_rows(folder / "corpus.jsonl.gz", "documents", "corpus"):
        documents[str(row.values["_id"])] = row.values
    queries = {}
    for row in read_rows(folder / "queries.jsonl.gz", "queries", "queries"):
        queries[str(row.values["_id"])] = row.values["text"]

    splits: dict[str, Qrels] = {}
    for split in ("train", "test"):
        path = next((folder / "qrels").glob(f"{split}.tsv*"))
        qrels: Qrels = {}
        for row in read_rows(path, "qrels", split):
            grade = int(row.values["score"])
            query = str(row.values["query-id"])
            if grade > 0:
                qrels.setdefault(query, {})[str(row.values["corpus-id"])] = grade
        splits[split] = qrels
    return documents, queries, splits


def measure(folder: Path, size: int, seed: int) -> dict[str, Any]:
    """Train on `size` judged questions, and return the metric of each system."""
    documents, queries, splits = read_beir(folder)
    draw = random.Random(seed)
    judged = dict(draw.sample(sorted(splits["train"].items()), size))
    test = dict(draw.sample(sorted(splits["test"].items()), TEST_QUERIES))
    answers = {document for qrels in (judged, test) for row in qrels.values() for document in row}
    others = sorted(documents.keys() - answers)
    draw.shuffle(others)
    kept = sorted(answers) + others[: max(0, DOCUMENTS - len(answers))]

    split_of = split_queries(dict.fromkeys(judged), QuerySplitSettings())
    tables = TrainingTables(
        make_corpus({name: documents[name] for name in kept}, queries, judged, split_of),
        make_pseudo_queries({name: documents[name]["text"] for name in kept}),
        include_title=True,
    )
    result: dict[str, Any] = {
        "size": size,
        "seed": seed,
        "training_queries": len(tables.train.queries),
    }
    result["base"] = evaluate(Encoder.load(BASE, MAX_TOKENS), tables, queries, test)
    for name, adapted in (("usual", False), ("adapted", True)):
        started = time.process_time()
        encoder, steps = train(tables, adapted, seed)
        result[name] = evaluate(encoder, tables, queries, test)
        result[name]["steps"] = steps
        result[name]["cpu_seconds"] = round(time.process_time() - started)
    return result


def make_corpus(
    documents: Mapping[str, Mapping[str, Any]],
    queries: Mapping[str, str],
    judged: Qrels,
    split_of: Mapping[str, str],
) -> Corpus:
    """Return the tables of a corpus with one passage per document."""
    rows = [
        {"document_id": name, "ordinal": 0, "title": row.get("title", ""), "text": row["text"]}
        for name, row in documents.items()
    ]
    query_rows = [
        {"query_id": query, "text": queries[query], "split": split_of[query]} for query in judged
    ]
    qrel_rows = []
    for query, grades in judged.items():
        for document, grade in grades.items():
            qrel_rows.append(
                {
                    "query_id": query,
                    "document_id": document,
                    "relevance": grade,
                    "split": split_of[query],
                }
            )
    return Corpus(
        make_table("documents", rows),
        make_table("passages", rows),
        make_table("queries", query_rows),
        make_table("qrels", qrel_rows),
    )


def make_pseudo_queries(texts: Mapping[str, str]) -> pd.DataFrame:
    """Return the pseudo-queries that a project with default settings generates."""
    generator = InverseCloze(
        "inverse_cloze", ClozeSettings(per_document=3, min_words=16, max_words=64)
    )
    rows = []
    for number, query in enumerate(generator.generate(texts, 0)):
        rows.append(
            {
                "query_id": str(number),
                "document_id": query.document_id,
                "text": query.text,
                "kind": query.kind,
            }
        )
    return make_table("pseudo_queries", rows)


def train(tables: TrainingTables, adapted: bool, seed: int) -> tuple[Encoder, int]:
    """Train with the usual or the adapted settings; return the encoder and the number of steps."""
    data = tables.training_data(USUAL)
    dev = tables.dev_evaluator(USUAL, seed)
    settings = USUAL
    if adapted:
        settings = adapt_to_small_set(USUAL, len(data.supervised), dev is not None)
    encoder = Encoder.load(BASE, MAX_TOKENS)
    trainer = Trainer(encoder, data, settings, seed, dev=dev)
    state = trainer.fit()
    return encoder, state.step


def evaluate(
    encoder: Encoder, tables: TrainingTables, queries: Mapping[str, str], test: Qrels
) -> dict[str, Any]:
    """Return the metric of the encoder, and of its fusion with BM25 by reciprocal ranks."""
    names = tables.corpus.passages["document_id"].tolist()
    texts = tables.passages.texts
    bm25 = Bm25Index.build(texts, names)
    vectors = encoder.encode_documents(texts)
    asked = encoder.encode([queries[query] for query in test])

    dense: dict[str, list[tuple[str, float]]] = {}
    fused: dict[str, list[tuple[str, float]]] = {}
    for query, vector in zip(test, asked, strict=True):
        products = vectors @ vector
        sums = reciprocal_ranks(products) + reciprocal_ranks(bm25.scores(queries[query]))
        dense[query] = best(names, products)
        fused[query] = best(names, sums)
    return {"dense": mean_metric(dense, test), "fused": mean_metric(fused, test)}


def mean_metric(rankings: Mapping[str, Sequence[tuple[str, float]]], test: Qrels) -> float:
    """Return the mean metric over the test queries."""
    by_query = evaluate_run(rankings, test, [METRIC])[METRIC]
    return round(float(np.mean(list(by_query.values()))), 4)


def reciprocal_ranks(scores: np.ndarray) -> np.ndarray:
    """Return 1 / (RRF + rank) of each score, (documents,)."""
    ranks = np.empty(len(scores))
    ranks[np.argsort(-scores, kind="stable")] = np.arange(1, len(scores) + 1)
    return 1 / (RRF + ranks)


def best(names: Sequence[str], scores: np.ndarray) -> list[tuple[str, float]]:
    """Return the documents with the highest scores."""
    order = np.argsort(-scores, kind="stable")[:DEPTH]
    return [(names[row], float(scores[row])) for row in order]


def tables(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows of the page, one for each set, size and seed."""
    lines = [
        "| set | judged questions | training | seed | base | usual | adapted "
        "| base in the fusion | usual | adapted | steps usual / adapted |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in results:
        systems = [row["base"], row["usual"], row["adapted"]]
        dense = " | ".join(f"{system['dense']:.4f}" for system in systems)
        fused = " | ".join(f"{system['fused']:.4f}" for system in systems)
        lines.append(
            f"| {row['set']} | {row['size']} | {row['training_queries']} | {row['seed']} "
            f"| {dense} | {fused} | {row['usual']['steps']} / {row['adapted']['steps']} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure every size with every seed, and write the results after each of them."""
    source, sizes, seeds = sys.argv[1:4]
    name, _, folder = source.partition("=")
    path = HERE / "result.json"
    results = read_json(path) if path.is_file() else []
    for size in map(int, sizes.split(",")):
        for seed in map(int, seeds.split(",")):
            measured = {"set": name, **measure(Path(folder), size, seed)}
            results = [row for row in results if run_key(row) != run_key(measured)]
            results.append(measured)
            results.sort(key=run_key)
            write_json(path, results)
            write_tables(HERE, tables(results))
            print(measured, flush=True)


def run_key(row: Mapping[str, Any]) -> tuple[str, int, int]:
    """Return the values that identify a run: data set, number of questions, and seed."""
    return row["set"], row["size"], row["seed"]


if __name__ == "__main__":
    main()
