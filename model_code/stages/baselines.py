"""The stage `baselines`: what needs no training, evaluated exactly as a retriever is, and built so
that it can go live.

`bm25`, `zero_shot` (the base encoder as it comes), `untrained`, which fuses the two, and, where a
model writes queries, `bm25_generated`: BM25 over documents with the queries that were written for
them (docT5query, Nogueira and Lin, 2019). Where training and judged queries ask for the same
documents, `zero_shot.nearest_query` finds those that the nearest training queries ask for: so much
of a trained retriever's score may be memory of these.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from model_code.context import StageContext
from model_code.corpus.tables import Judgements, load_corpus, passage_texts
from model_code.encoding.encoder import Encoder
from model_code.evaluation.scores import VARIANTS_FOLDER
from model_code.files import add_to_manifest
from model_code.queries.pseudo_queries import expand_texts, queries_by_document
from model_code.retrieval import bm25
from model_code.retrieval.indexed import IndexedRetriever
from model_code.retrieval.kinds import PRECISION, open_retriever
from model_code.retrieval.protocol import Ranking, Search
from model_code.retriever_settings import FusionSettings
from model_code.stages.evaluate import EvaluationSet
from model_code.stages.fuse import BUILD, Folders, fuse

NEAREST_QUERY = "nearest_query"
UNTRAINED = FusionSettings(of=("zero_shot", "bm25"), feedback=0.3)


def run(context: StageContext) -> dict[str, Any]:
    """Write one evaluation folder per baseline, with variants below `zero_shot/`; the report has
    the means of each.

    Those that can be registered have the retriever itself below `build/`.
    """
    bench, output = EvaluationSet.load(context), context.output
    parts = {
        "zero_shot": _zero_shot(context, output / "zero_shot"),
        "bm25": _bm25(context, output / "bm25"),
    }
    opened = {
        name: open_retriever(*folders, settings=context.settings["encoder"])
        for name, folders in parts.items()
    }
    searched = {name: bench.strip_own_queries(retriever) for name, retriever in opened.items()}
    by_words = bench.search(searched["bm25"].search)
    report = {
        "bm25": bench.evaluate("bm25", by_words, output / "bm25"),
        "zero_shot": bench.evaluate_retriever(
            "zero_shot", searched["zero_shot"], by_words, output / "zero_shot"
        ),
        "untrained": fuse(bench, "untrained", parts, UNTRAINED, context, output / "untrained"),
    }
    train = load_corpus(context.inputs["corpus"]).judgements("train")
    if bench.settings.variants and _documents(train) & _documents(*bench.judgements.values()):
        runs = bench.search(nearest_query(opened["zero_shot"], train))
        folder = output / "zero_shot" / VARIANTS_FOLDER / NEAREST_QUERY
        report["zero_shot"]["variants"][NEAREST_QUERY] = bench.evaluate(
            f"zero_shot.{NEAREST_QUERY}", runs, folder
        )
    if "sequence_to_sequence" in context.settings["pseudo_queries.generators"]:
        written = queries_by_document(
            pd.read_parquet(context.inputs["pseudo_queries"] / "pseudo_queries.parquet")
        )
        folders = _bm25(context, context.checkpoints / "bm25_generated", written)
        runs = bench.search(bench.strip_own_queries(open_retriever(*folders), written).search)
        report["bm25_generated"] = bench.evaluate("bm25_generated", runs, output / "bm25_generated")
    return report


def nearest_query(retriever: IndexedRetriever, train: Judgements) -> Search:
    """The search of the k documents whose best training query is nearest, with its product; reads
    none of them.

    retriever: a dense one, for its query encoder.
    """
    relevant = [sorted(train.qrels[query]) for query in train.queries]
    vectors = retriever.encode_queries(list(train.queries.values()))  # (n, H)

    def search(texts: Sequence[str], k: int) -> list[Ranking]:
        rankings = []
        for scores in retriever.encode_queries(texts) @ vectors.T:
            best: dict[str, float] = {}
            for row in np.argsort(-scores, kind="stable").tolist():
                for document in relevant[row]:
                    best.setdefault(document, float(scores[row]))
                if len(best) >= k:
                    break
            rankings.append(list(best.items())[:k])
        return rankings

    return search


def _documents(*judgements: Judgements) -> set[str]:
    return {
        document
        for split in judgements
        for relevant in split.qrels.values()
        for document in relevant
    }


def _zero_shot(context: StageContext, folder: Path) -> Folders:
    """The base encoder, and a copy of its index."""
    encoder, index = folder / BUILD / "encoder", folder / BUILD / "index"
    Encoder.from_settings(context.settings["encoder"]).save(encoder)
    shutil.copytree(context.inputs["base_index"], index)
    add_to_manifest(index, {PRECISION: context.settings["encoder"].precision})
    return encoder, index


def _bm25(
    context: StageContext, folder: Path, written: Mapping[str, Sequence[str]] | None = None
) -> Folders:
    """BM25 over the very texts that the encoder sees, titles included or not, with queries behind
    them if any are.
    """
    passages = load_corpus(context.inputs["corpus"]).passages
    texts, ids = (
        passage_texts(passages, context.settings["encoder"].include_title),
        passages["document_id"].tolist(),
    )
    texts = expand_texts(texts, ids, written or {})
    encoder, index = folder / BUILD / "encoder", folder / BUILD / "index"
    bm25.build_folders(texts, ids, context.settings["bm25"], encoder, index)
    return encoder, index
