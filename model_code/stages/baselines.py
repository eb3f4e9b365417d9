"""The stage `baselines`: what needs no training, evaluated exactly as a retriever is.

`bm25`, `zero_shot` and, where a model writes queries, `bm25_generated`: BM25 over documents with the queries that were
written for them (docT5query, Nogueira and Lin, 2019).
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from model_code.context import StageContext
from model_code.corpus.tables import load_corpus, passage_texts
from model_code.encoding.encoder import Encoder
from model_code.evaluation.system_evaluation import Search
from model_code.index.bm25 import Bm25
from model_code.index.dense_index import DenseIndex
from model_code.queries.pseudo_queries import expanded_texts, generated_queries
from model_code.retrievers.dense import DenseRetriever
from model_code.stages.evaluate import Bench


def run(context: StageContext) -> dict[str, Any]:
    """Write one evaluation folder per baseline, with variants below `zero_shot/`; the report has the means of each."""
    bench = Bench.load(context)
    bm25 = bench.search(_bm25(context))
    encoder = Encoder.from_settings(context.settings["encoder"], for_search=True)
    zero_shot = DenseRetriever(encoder, DenseIndex.load(context.inputs["base_index"]))
    report = {
        "bm25": bench.evaluate("bm25", bm25, context.output / "bm25"),
        "zero_shot": bench.evaluate_retriever("zero_shot", zero_shot, bm25, context.output / "zero_shot"),
    }
    if "sequence_to_sequence" in context.settings["pseudo_queries.generators"]:
        runs = bench.search(_bm25(context, generated=True))
        report["bm25_generated"] = bench.evaluate("bm25_generated", runs, context.output / "bm25_generated")
    return report


def _bm25(context: StageContext, generated: bool = False) -> Search:
    """BM25 over the very texts that the encoder sees, titles included or not; with generated queries, if so asked."""
    passages = load_corpus(context.inputs["corpus"]).passages
    texts, ids = passage_texts(passages, context.settings["encoder"].include_title), passages["document_id"].tolist()
    if generated:
        table = pd.read_parquet(context.inputs["pseudo_queries"] / "pseudo_queries.parquet")
        texts = expanded_texts(texts, ids, generated_queries(table))
    return Bm25(texts, ids, context.settings["bm25"]).search
