"""The stage `baselines`: what needs no training, `bm25` and `zero_shot`, evaluated exactly as a retriever is."""

from __future__ import annotations

from typing import Any

from model_code.corpus.tables import load_corpus, passage_texts
from model_code.encoding.encoder import Encoder
from model_code.evaluation.system_evaluation import Search
from model_code.index.bm25 import Bm25
from model_code.index.dense_index import DenseIndex
from model_code.retrievers.dense import DenseRetriever
from model_code.stages.context import StageContext
from model_code.stages.evaluate import Bench


def run(context: StageContext) -> dict[str, Any]:
    """Write one evaluation folder per baseline, with variants below `zero_shot/`; the report has the means of each."""
    bench = Bench.load(context)
    bm25 = bench.search(_bm25(context))
    encoder = Encoder.from_settings(context.settings["encoder"])
    zero_shot = DenseRetriever(encoder, DenseIndex.load(context.inputs["base_index"]))
    return {
        "bm25": bench.evaluate("bm25", bm25, context.output / "bm25"),
        "zero_shot": bench.evaluate_retriever("zero_shot", zero_shot, bm25, context.output / "zero_shot"),
    }


def _bm25(context: StageContext) -> Search:
    """BM25 over the very texts that the encoder sees, titles included or not."""
    passages = load_corpus(context.inputs["corpus"]).passages
    texts = passage_texts(passages, context.settings["encoder"].include_title)
    return Bm25(texts, passages["document_id"].tolist(), context.settings["bm25"]).search
