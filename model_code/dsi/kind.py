"""Kind `dsi`: retrievers that search one learned vector per document.

Slow libraries are imported inside functions, because commands import this module to read settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model_code.dsi.settings import DocumentVectorSettings
from model_code.retrieval.kinds import RetrieverKind
from model_code.settings import require

if TYPE_CHECKING:
    from model_code.context import StageContext
    from model_code.dsi.retriever import DsiRetriever
    from model_code.training.settings import TrainingSettings
    from model_code.training.tables import TrainingTables


def train(context: StageContext, tables: TrainingTables) -> dict[str, Any]:
    """Train the document vectors; write `encoder/`, `history.json` and `document_vectors/`."""
    from model_code.dsi.fit import fit_document_vectors

    return fit_document_vectors(context, tables)


def index(context: StageContext) -> dict[str, Any]:
    """Index the trained vectors, one per document; see `model_code.dsi.fit.index_documents`."""
    from model_code.dsi.fit import index_documents

    return index_documents(context)


def open_folders(encoder: Path, index: Path, **loading: Any) -> DsiRetriever:
    """Open the retriever in two folders; `loading` is passed to `load_search_encoder`."""
    from model_code.dsi.retriever import DsiRetriever
    from model_code.encoding.query_encoder import load_search_encoder
    from model_code.retrieval.dense_index import DenseIndex

    return DsiRetriever(load_search_encoder(encoder, **loading), DenseIndex.load(index), index)


def check_index(folder: Path, manifest: Mapping[str, Any], documents: Sequence[str]) -> None:
    """Raise FreshetError if a folder of vectors breaks the contract; see `dsi.contract`."""
    from model_code.dsi import contract

    contract.check_index(folder, manifest, documents)


def check_trained(context: StageContext) -> None:
    """Raise FreshetError if the trained vectors are not complete; see `dsi.contract`."""
    from model_code.dsi import contract

    contract.check_trained(context)


def check_settings(training: TrainingSettings, settings: DocumentVectorSettings) -> None:
    """Refuse settings of training that learned document vectors do not support.

    The hierarchy loss needs an encoder that is trained. Co-training clusters encoded passages
    again, and no passage is encoded here.

    Raises:
        SettingsError: If the settings ask for one of the two.
    """
    require(
        settings.train_encoder or training.hierarchy_weight == 0,
        f"hierarchy_weight is {training.hierarchy_weight}, but the hierarchy loss teaches the "
        "query encoder, which train_encoder: false keeps; set hierarchy_weight: 0, or "
        "document_vectors.train_encoder: true",
    )
    require(
        not (training.cotraining and training.hierarchy_weight),
        "cotraining clusters passages that the encoder encodes, and a dsi encodes none; set "
        "cotraining: false",
    )


KIND = RetrieverKind(
    name="dsi",
    description="a learned vector per document",
    train=train,
    index=index,
    open_folders=open_folders,
    check_index=check_index,
    settings_group="document_vectors",
    settings_class=DocumentVectorSettings,
    check_settings=check_settings,
    check_trained=check_trained,
    one_row_per_document=True,
    learns_documents=True,
)
