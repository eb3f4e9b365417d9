"""Encode and index the passages of a corpus."""

from __future__ import annotations

from typing import Any

from model_code.context import StageContext
from model_code.corpus.tables import load_corpus, passage_texts
from model_code.distributed.encoding import encode_resumably, encode_with_signs_resumably
from model_code.encoding.encoder import Encoder
from model_code.retrieval.dense_index import DenseIndex, require_faiss


def index_passages(context: StageContext, encoder: Encoder) -> dict[str, Any]:
    """Index the passages of `inputs["corpus"]` in the folder `index/` of a stage's output.

    Passage i of the corpus's table is row i of the index. If a passage has v vectors, its rows are
    v * i to v * i + v - 1.

    Args:
        context: Stage with the input `corpus` and the settings `encoder` and `index`.
        encoder: Encoder of the passages.

    Returns:
        The stage's report.

    Raises:
        FreshetError: If the number of passages requires FAISS and it is not installed. This is
            checked before anything is encoded.
    """
    passages = load_corpus(context.inputs["corpus"]).passages
    texts = passage_texts(passages, context.settings["encoder"].include_title)
    settings = context.settings["index"]
    vectors_per_passage = encoder.vectors_per_passage
    require_faiss(settings, len(texts) * vectors_per_passage)

    progress = context.progress("encode")
    token_signs = None
    if settings.late_interaction and vectors_per_passage == 1:
        vectors, token_signs = encode_with_signs_resumably(
            encoder, texts, context.checkpoints, progress
        )
    else:
        vectors = encode_resumably(
            encoder, texts, context.checkpoints, progress, "encode_documents"
        )

    document_ids = passages["document_id"].repeat(vectors_per_passage).tolist()
    index = DenseIndex.build(
        vectors, document_ids, encoder.fingerprint(), settings, vectors_per_passage, token_signs
    )
    return save_index(index, context)


def save_index(index: DenseIndex, context: StageContext) -> dict[str, Any]:
    """Write an index to the folder `index/` of a stage's output, and return the stage's report.

    The stage writes its report outside `index/`, because the manifest lists every file in `index/`.
    """
    manifest = index.save(context.output / "index")
    reported = ("passages", "documents", "dimension", "factory", "fingerprint")
    return {name: manifest[name] for name in reported}
