"""The stage `index`: encode the initial passages with a trained encoder, and index their vectors."""

from __future__ import annotations

from typing import Any

from model_code.corpus.tables import load_corpus, passage_texts
from model_code.encoding.encoder import Encoder
from model_code.encoding.resumable import encode_resumably
from model_code.index.dense_index import DenseIndex
from model_code.stages.context import StageContext


def run(context: StageContext) -> dict[str, Any]:
    """Read `inputs["corpus"]` and the encoder in `inputs["encoder"]`, write the folder `index/`, return its counts."""
    return index_passages(context, Encoder.from_settings(context.settings["encoder"], context.inputs["encoder"]))


def index_passages(context: StageContext, encoder: Encoder) -> dict[str, Any]:
    """Index the passages of `inputs["corpus"]` under `encoder`; row i of the index is passage i."""
    passages = load_corpus(context.inputs["corpus"]).passages
    texts = passage_texts(passages, context.settings["encoder"].include_title)
    vectors = encode_resumably(encoder, texts, context.checkpoints, context.progress("encode"))
    index = DenseIndex.build(
        vectors, passages["document_id"].tolist(), encoder.fingerprint(), context.settings["index"]
    )
    index.save(context.output / "index")  # apart from the report, as its manifest lists every file of its folder
    return {
        "passages": len(index.ids),
        "documents": index.ids.documents,
        "dimension": index.dimension,
        "factory": index.factory,
        "fingerprint": index.fingerprint,
    }
