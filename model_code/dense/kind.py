"""Kind `dense`: a retriever with one vector per passage, or with one per passage and encoder layer.

Slow libraries are imported inside functions, because commands import this module to read settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model_code.mlr.settings import LayerSettings
from model_code.retrieval.kinds import RetrieverKind

if TYPE_CHECKING:
    from model_code.context import StageContext
    from model_code.retrieval.dense import DenseRetriever
    from model_code.training.tables import TrainingTables


def train(context: StageContext, tables: TrainingTables) -> dict[str, Any]:
    """Fine-tune the base encoder; write `encoder/` and `history.json`."""
    from model_code.dense.fit import fit_dense_encoder

    return fit_dense_encoder(context, tables)


def index(context: StageContext) -> dict[str, Any]:
    """Encode and index the corpus's passages with the encoder in `inputs["trained"]`."""
    from model_code.encoding.encoder import Encoder
    from model_code.retrieval.indexing import index_passages

    folder = context.inputs["trained"] / "encoder"
    encoder = Encoder.from_settings(context.settings["encoder"], folder, for_search=True)
    return index_passages(context, encoder)


def open_folders(encoder: Path, index: Path, **loading: Any) -> DenseRetriever:
    """Open the retriever in two folders; `loading` is passed to `load_search_encoder`."""
    from model_code.encoding.query_encoder import load_search_encoder
    from model_code.retrieval.dense import DenseRetriever
    from model_code.retrieval.dense_index import DenseIndex

    return DenseRetriever(load_search_encoder(encoder, **loading), DenseIndex.load(index))


def check_index(folder: Path, manifest: Mapping[str, Any], documents: Sequence[str]) -> None:
    """Raise FreshetError if an index folder breaks the contract of `model_code.dense.contract`."""
    from model_code.dense import contract

    contract.check_index(folder, manifest, documents)


KIND = RetrieverKind(
    name="dense",
    description="a vector per passage, or several with layers: contrastive, HCE, MLR",
    train=train,
    index=index,
    open_folders=open_folders,
    check_index=check_index,
    settings_group="layers",
    settings_class=LayerSettings,
    shares_steps=True,
)
