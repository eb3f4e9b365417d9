"""How dense retrievers are trained, indexed and opened; see `retrieval.kinds`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from model_code.encoding.encoder import Encoder
from model_code.retrieval.dense import DenseRetriever
from model_code.retrieval.dense_index import DenseIndex

if TYPE_CHECKING:
    from model_code.context import StageContext
    from model_code.training.tables import TrainingTables


def train(context: StageContext, tables: TrainingTables) -> dict[str, Any]:
    """Fine-tune the base encoder; writes `encoder/` and `history.json`."""
    from model_code.training.fit import fit_encoder  # with pandas, too

    retriever = context.settings["retriever"]
    return fit_encoder(context, tables, retriever.training, retriever.layers)


def index(context: StageContext) -> dict[str, Any]:
    """Encode and index the corpus's passages with the encoder in `inputs["trained"]`."""
    # with pandas, which a search does without
    from model_code.retrieval.indexing import index_passages

    folder = context.inputs["trained"] / "encoder"
    return index_passages(
        context, Encoder.from_settings(context.settings["encoder"], folder, for_search=True)
    )


def open_folders(encoder: Path, index: Path, **loading: Any) -> DenseRetriever:
    """The retriever in two folders; loading: what else `Encoder.load` takes."""
    return DenseRetriever(Encoder.load(encoder, **loading), DenseIndex.load(index))
