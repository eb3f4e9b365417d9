"""Passages of a corpus, encoded and indexed."""

from __future__ import annotations

from typing import Any

from model_code.context import StageContext
from model_code.corpus.tables import load_corpus, passage_texts
from model_code.distributed.encoding import encode_resumably, encode_tokens_resumably
from model_code.encoding.encoder import Encoder
from model_code.retrieval.dense_index import DenseIndex, require_faiss


def index_passages(context: StageContext, encoder: Encoder) -> dict[str, Any]:
    """Index the passages of `inputs["corpus"]` under `encoder` in the folder `index/`, in the order
    of their table.

    Passage i is row i, or rows v * i to v * i + v - 1 where the encoder gives v vectors per
    passage. FreshetError, before anything is encoded, if they are so many that they need FAISS, and
    it is not there.
    """
    passages = load_corpus(context.inputs["corpus"]).passages
    texts = passage_texts(passages, context.settings["encoder"].include_title)
    per_passage, settings = encoder.vectors_per_passage, context.settings["index"]
    require_faiss(settings, len(texts) * per_passage)
    progress = context.progress("encode")
    if settings.late_interaction and per_passage == 1:
        vectors, tokens = encode_tokens_resumably(encoder, texts, context.checkpoints, progress)
    else:
        vectors, tokens = (
            encode_resumably(encoder, texts, context.checkpoints, progress, "encode_documents"),
            None,
        )
    document_ids = passages["document_id"].repeat(per_passage).tolist()
    index = DenseIndex.build(
        vectors, document_ids, encoder.fingerprint(), settings, per_passage, tokens
    )
    return save_index(index, context)


def save_index(index: DenseIndex, context: StageContext) -> dict[str, Any]:
    """Write the folder `index/`, apart from the report, as its manifest lists every file of its
    folder.
    """
    facts = index.save(context.output / "index")
    return {
        name: facts[name]
        for name in ("passages", "documents", "dimension", "factory", "fingerprint")
    }
