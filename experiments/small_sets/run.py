"""Compare trainings with few judged questions, and known queries, which need no training.

`python -m experiments.small_sets.run --data FOLDER` draws judged questions from the training split
of each data set. It divides them as Freshet divides the questions of `freshet judge`, and trains a
dense retriever twice: as usual, and as Freshet does with few pairs. Test questions are searched
among a sample of the documents. Results of earlier runs are kept and not measured again.
"""

from __future__ import annotations

import argparse
import random
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from model_code.errors import FreshetError
from model_code.evaluation.metrics import evaluate_run
from model_code.evaluation.significance import interval_over_seeds
from model_code.files import read_json, write_json
from model_code.queries.pseudo_queries import InverseCloze
from model_code.queries.settings import ClozeSettings
from model_code.retrieval.bm25 import Bm25Retriever
from model_code.retrieval.bm25_known import KnownWords
from model_code.retrieval.index_settings import Bm25Settings
from model_code.retrieval.indexed import NewPassages
from model_code.settings import parse
from model_code.stages.known_words import DEFAULT_IN_LENGTH, DEFAULT_WEIGHT
from model_code.text.known_queries import KnownQuery, by_document
from model_code.training.settings import TrainingSettings
from model_code.training.small_sets import adapt_to_small_set
from model_code.training.tables import TrainingTables
from model_code.training.trainer import Trainer

HERE = Path(__file__).parent
SETTINGS = HERE / "settings.toml"
RESULT = "result.json"
# BM25 with the words of known queries.
KNOWN = "known"
# Numbers of the result are rounded to so many digits.
DIGITS = 4
# Largest change of BM25's mean with which a stored row may be extended.
MAX_CHANGE = 0.002
# The systems of the table, and what they are.
SYSTEMS = {
    "bm25": "BM25",
    "known": "BM25 with known queries",
    "base": "base encoder",
    "usual": "usual training",
    "adapted": "adapted training",
    "base+bm25": "base encoder and BM25: the untrained fusion",
    "base+known": "the same with known queries",
    "usual+bm25": "usual training and BM25",
    "adapted+bm25": "adapted training and BM25",
    "adapted+known": "adapted training and BM25 with known queries",
}
# Rows of the table of differences: a system and the one that it is compared with.
COMPARISONS = (
    ("known", "bm25"),
    ("base+known", "base+bm25"),
    ("usual+bm25", "base+bm25"),
    ("adapted+bm25", "base+bm25"),
    ("adapted+bm25", "usual+bm25"),
    ("adapted+known", "base+known"),
)

Qrels = dict[str, dict[str, int]]
# Score of each document by system and query text.
Scores = dict[str, dict[str, np.ndarray]]


@dataclass(frozen=True)
class DataSet:
    """A data set in the form of BEIR.

    Attributes:
        documents: Title and text by document id.
        queries: Texts by query id.
        qrels: Relevant documents with their grades, by split ("train" or "test") and query.
    """

    documents: Mapping[str, Mapping[str, Any]]
    queries: Mapping[str, str]
    qrels: Mapping[str, Qrels]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the result lacks, and write the tables.

    The result is written after each measurement, so that an interrupted run can go on.
    """
    options = _parser().parse_args(arguments)
    settings = tomllib.loads(options.settings.read_text(encoding="utf-8"))
    path = options.output / RESULT
    rows = read_json(path) if path.is_file() else []
    measured = {run_key(row) for row in rows}
    for name, folder in settings["sets"].items():
        data_set = read_beir(options.data / folder)
        for row in rows:
            if row["set"] == name and KNOWN not in row["scores"]:
                add_known_scores(row, data_set, settings)
                write_json(path, rows)
        for seed in settings["seeds"]:
            for size in settings["sizes"]:
                if (name, size, seed) in measured:
                    continue
                row = {"set": name, **measure(data_set, settings, size, seed)}
                rows = sorted([*rows, row], key=run_key)
                write_json(path, rows)
                means = {system: np.mean(values) for system, values in row["scores"].items()}
                print(name, size, seed, {key: round(mean, 3) for key, mean in means.items()})
    if (options.output / "README.md").is_file():
        write_tables(options.output, result_tables(rows))


def run_key(row: Mapping[str, Any]) -> tuple[str, int, int]:
    """Return the values that identify a run: data set, number of questions, and seed."""
    return row["set"], row["size"], row["seed"]


def read_beir(folder: Path) -> DataSet:
    """Read a data set in the form of BEIR."""
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
    return DataSet(documents, queries, splits)


def measure(data_set: DataSet, settings: Mapping[str, Any], size: int, seed: int) -> dict[str, Any]:
    """Train on `size` judged questions, and return the metric of each system and test question.

    Args:
        data_set: The data set.
        settings: All settings.
        size: Number of judged questions. Only some of them are trained on.
        seed: Seed of the drawn questions and of the trainings.
    """
    tables, test = draw_tables(data_set, settings, size, seed)
    test_texts = [data_set.queries[query] for query in test]
    scores: Scores = {}
    for name, known in (("bm25", False), (KNOWN, True)):
        scores[name] = bm25_scores(tables, test_texts, known)
    base = Encoder.load(settings["base"], settings["max_tokens"])
    scores["base"] = dense_scores(base, tables, test_texts)

    trainings = {}
    for name, is_adapted in (("usual", False), ("adapted", True)):
        started = time.process_time()
        encoder, steps = train(tables, settings, is_adapted, seed)
        seconds = round(time.process_time() - started)
        trainings[name] = {"steps": steps, "cpu_seconds": seconds}
        scores[name] = dense_scores(encoder, tables, test_texts)

    measured = {}
    for system in SYSTEMS:
        measured[system] = score_system(system, scores, tables, data_set, test, settings)
    return {
        "size": size,
        "seed": seed,
        "training_queries": len(tables.train.queries),
        "trainings": trainings,
        "scores": measured,
    }


def draw_tables(
    data_set: DataSet, settings: Mapping[str, Any], size: int, seed: int
) -> tuple[TrainingTables, Qrels]:
    """Return a corpus with `size` judged questions, and the qrels of the test questions."""
    test = draw_queries(data_set.qrels["test"], settings["test_queries"], seed=0)
    judged = draw_queries(data_set.qrels["train"], size, seed)
    kept = draw_documents(data_set, (judged, test), settings["documents"], seed)

    split_of = split_queries(dict.fromkeys(judged), QuerySplitSettings())
    tables = TrainingTables(
        make_corpus(kept, data_set.queries, judged, split_of),
        make_pseudo_queries(kept, settings),
        include_title=True,
    )
    return tables, test


def add_known_scores(row: dict[str, Any], data_set: DataSet, settings: Mapping[str, Any]) -> None:
    """Add the scores of BM25 with known queries to a row that was measured without them.

    Raises:
        FreshetError: If BM25 without known queries no longer has the scores of the row, so that
            the row cannot be extended.
    """
    tables, test = draw_tables(data_set, settings, row["size"], row["seed"])
    test_texts = [data_set.queries[query] for query in test]
    scores: Scores = {}
    for name, known in (("bm25", False), (KNOWN, True)):
        scores[name] = bm25_scores(tables, test_texts, known)

    repeated = score_system("bm25", scores, tables, data_set, test, settings)
    change = abs(float(np.mean(repeated) - np.mean(row["scores"]["bm25"])))
    if change > MAX_CHANGE:
        raise FreshetError(
            f"BM25 differs by {change:.4f} from the stored row {run_key(row)}; "
            f"delete the row from {RESULT}, so that it is measured again"
        )
    row["scores"][KNOWN] = score_system(KNOWN, scores, tables, data_set, test, settings)


def draw_queries(qrels: Qrels, count: int, seed: int) -> Qrels:
    """Return the qrels of `count` queries that are drawn at random."""
    return dict(random.Random(seed).sample(sorted(qrels.items()), count))


def draw_documents(
    data_set: DataSet, judgements: Sequence[Qrels], count: int, seed: int
) -> dict[str, Mapping[str, Any]]:
    """Return all relevant documents, and others up to `count`."""
    answers: set[str] = set()
    for qrels in judgements:
        for grades in qrels.values():
            answers.update(grades)
    others = sorted(data_set.documents.keys() - answers)
    random.Random(seed).shuffle(others)
    missing = max(0, count - len(answers))
    names = [*sorted(answers), *others[:missing]]
    return {name: data_set.documents[name] for name in names}


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


def make_pseudo_queries(
    documents: Mapping[str, Mapping[str, Any]], settings: Mapping[str, Any]
) -> pd.DataFrame:
    """Return the pseudo-queries that a project with default settings generates."""
    cloze = parse(ClozeSettings, settings["cloze"], "cloze")
    texts = {name: row["text"] for name, row in documents.items()}
    rows = []
    for number, query in enumerate(InverseCloze("inverse_cloze", cloze).generate(texts, 0)):
        rows.append(
            {
                "query_id": str(number),
                "document_id": query.document_id,
                "text": query.text,
                "kind": query.kind,
            }
        )
    return make_table("pseudo_queries", rows)


def train(
    tables: TrainingTables, settings: Mapping[str, Any], is_adapted: bool, seed: int
) -> tuple[Encoder, int]:
    """Train the base encoder; return the trained encoder and the number of steps.

    Args:
        tables: The corpus with its judged questions and pseudo-queries.
        settings: All settings.
        is_adapted: Whether the training adapts to the number of pairs.
        seed: Seed of the training.
    """
    training = parse(TrainingSettings, settings["training"], "training")
    data = tables.training_data(training)
    dev = tables.dev_evaluator(training, seed)
    if is_adapted:
        training = adapt_to_small_set(training, len(data.supervised), dev is not None)
    encoder = Encoder.load(settings["base"], settings["max_tokens"])
    state = Trainer(encoder, data, training, seed, dev=dev).fit()
    return encoder, state.step


def dense_scores(
    encoder: Encoder, tables: TrainingTables, test_texts: Sequence[str]
) -> dict[str, np.ndarray]:
    """Return the inner products of each test question with all documents, (documents,) each."""
    documents = encoder.encode_documents(tables.passages.texts)
    queries = encoder.encode_queries(list(test_texts))
    return {text: documents @ query for text, query in zip(test_texts, queries, strict=True)}


def bm25_scores(
    tables: TrainingTables, test_texts: Sequence[str], with_known_queries: bool
) -> dict[str, np.ndarray]:
    """Return the BM25 scores of all documents for each test question, (documents,) each.

    Args:
        tables: The corpus with its judged questions.
        test_texts: The test questions.
        with_known_queries: Whether the words of judged training questions count as words of their
            documents, with the default weight.
    """
    words = None
    known: dict[str, list[KnownQuery]] = {}
    if with_known_queries:
        words = KnownWords(DEFAULT_WEIGHT, DEFAULT_IN_LENGTH)
        known = known_queries(tables)
    names = tables.corpus.passages["document_id"].tolist()
    passages = NewPassages(tables.passages.texts, names, known=known)
    index = Bm25Retriever.index(passages, Bm25Settings(), words)
    return {text: index.scores(text) for text in test_texts}


def known_queries(tables: TrainingTables) -> dict[str, list[KnownQuery]]:
    """Return the judged training questions by the documents that answer them."""
    known = []
    for query, grades in tables.train.qrels.items():
        text = tables.train.queries[query]
        for document, grade in grades.items():
            known.append(KnownQuery(document, text, "qrels", float(grade)))
    return by_document(known)


def score_system(
    system: str,
    scores: Scores,
    tables: TrainingTables,
    data_set: DataSet,
    test: Qrels,
    settings: Mapping[str, Any],
) -> list[float]:
    """Return the metric of each test question, in the order of their ids.

    Args:
        system: One of `SYSTEMS`. Names that a plus joins are fused by their reciprocal ranks.
        scores: Scores of the components.
        tables: The corpus, whose documents the scores are about.
        data_set: The data set, for the texts of the questions.
        test: Qrels of the test questions.
        settings: All settings.
    """
    names = tables.corpus.passages["document_id"].tolist()
    components = system.split("+")
    run = {}
    for query in test:
        text = data_set.queries[query]
        fused = scores[components[0]][text]
        if len(components) > 1:
            fused = sum(
                reciprocal_ranks(scores[component][text], settings["rrf"])
                for component in components
            )
        run[query] = best(names, fused, settings["depth"])
    metric = settings["metric"]
    by_query = evaluate_run(run, test, [metric])[metric]
    return [round(by_query[query], DIGITS) for query in sorted(test)]


def reciprocal_ranks(scores: np.ndarray, constant: int) -> np.ndarray:
    """Return 1 / (constant + rank) of each score, (documents,)."""
    ranks = np.empty(len(scores))
    ranks[np.argsort(-scores, kind="stable")] = np.arange(1, len(scores) + 1)
    return 1 / (constant + ranks)


def best(names: Sequence[str], scores: np.ndarray, depth: int) -> list[tuple[str, float]]:
    """Return the documents with the highest scores."""
    order = np.argsort(-scores, kind="stable")[:depth]
    return [(names[row], float(scores[row])) for row in order]


def result_tables(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return two tables for each data set: the means, and the differences with intervals."""
    tables = []
    for name in dict.fromkeys(row["set"] for row in rows):
        own_rows = [row for row in rows if row["set"] == name]
        sizes = sorted({row["size"] for row in own_rows})
        by_size = [[row for row in own_rows if row["size"] == size] for size in sizes]
        header = f"| {' | '.join(f'{size} judged' for size in sizes)} |"
        line = "---|" * len(sizes)

        means = [f"| system {header}", f"|---|{line}"]
        for system, label in SYSTEMS.items():
            cells = [f"{all_scores(group, system).mean():.3f}" for group in by_size]
            means.append(f"| {label} | {' | '.join(cells)} |")

        differences = [f"| difference {header}", f"|---|{line}"]
        for system, other in COMPARISONS:
            cells = [difference_cell(group, system, other) for group in by_size]
            label = f"{SYSTEMS[system]}, less {SYSTEMS[other]}"
            differences.append(f"| {label} | {' | '.join(cells)} |")

        trained_on = [str(mean_of(group, "training_queries")) for group in by_size]
        trainings = str(max(len(group) for group in by_size))
        title = (
            f"**{name}**: {trainings} trainings for each number of judged questions. Of the judged "
            f"questions, {', '.join(trained_on)} were trained on."
        )
        tables += [title, "", *means, "", *differences, ""]
    return "\n".join(tables)


def all_scores(rows: Sequence[Mapping[str, Any]], system: str) -> np.ndarray:
    """Return the metric of each training and test question, (trainings, questions)."""
    return np.array([row["scores"][system] for row in rows])


def difference_cell(rows: Sequence[Mapping[str, Any]], system: str, other: str) -> str:
    """Return the mean difference of two systems, with its interval if there are three trainings."""
    differences = all_scores(rows, system) - all_scores(rows, other)
    cell = f"{differences.mean():+.3f}"
    if len(rows) >= 3:
        low, high = interval_over_seeds(differences[:, :, None], lowest=-1.0)
        cell += f" [{low[0]:+.3f}, {high[0]:+.3f}]"
    return cell


def mean_of(rows: Sequence[Mapping[str, Any]], key: str) -> int:
    """Return the rounded mean of a number of the rows."""
    return round(float(np.mean([row[key] for row in rows])))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--settings", type=Path, default=SETTINGS, help="another settings file")
    parser.add_argument("--output", type=Path, default=HERE, help="folder of result and page")
    return parser


if __name__ == "__main__":
    main()
