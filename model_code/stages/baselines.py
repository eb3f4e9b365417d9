"""The stage `baselines`: what needs no training, `bm25` and `zero_shot`, evaluated exactly as a retriever is."""

from __future__ import annotations

from typing import Any

from model_code.corpus.tables import load_corpus, passage_texts
from model_code.encoding.encoder import Encoder
from model_code.evaluation.system_evaluation import Search
from model_code.index.bm25 import Bm25
from model_code.stages.context import StageContext
from model_code.stages.evaluate import dense_search, evaluate_searches


def run(context: StageContext) -> dict[str, Any]:
    """Write one evaluation folder per baseline; the report holds the means of each."""
    encoder = Encoder.from_settings(context.settings["encoder"])
    searches = {"bm25": _bm25(context), "zero_shot": dense_search(encoder, context.inputs["base_index"])}
    folders = {name: context.output / name for name in searches}
    for folder in folders.values():
        folder.mkdir()
    return evaluate_searches(context, {name: (search, folders[name]) for name, search in searches.items()})


def _bm25(context: StageContext) -> Search:
    """BM25 over the very texts that the encoder sees, titles included or not."""
    passages = load_corpus(context.inputs["corpus"]).passages
    texts = passage_texts(passages, context.settings["encoder"].include_title)
    return Bm25(texts, passages["document_id"].tolist(), context.settings["bm25"]).search
