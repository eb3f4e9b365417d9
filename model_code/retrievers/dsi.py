"""Atomic document ids (DSI): one learned vector per document, searched by inner product with the encoded query."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from model_code.corpus.tables import load_corpus
from model_code.dsi.folder import DocumentVectors
from model_code.errors import FreshetError
from model_code.files import read_json
from model_code.index.dense_index import DenseIndex
from model_code.index.manifest import MANIFEST, seal
from model_code.retrievers.dense import DenseRetriever
from model_code.retrievers.dense import open_folders as open_dense
from model_code.retrievers.indexing import save_index
from model_code.stages.context import StageContext

if TYPE_CHECKING:
    from model_code.training.tables import TrainingTables

KIND = "dsi"


def train(context: StageContext, tables: TrainingTables) -> dict[str, Any]:
    """Train the document vectors; writes `encoder/`, `history.json` and `document_vectors/`."""
    from model_code.dsi.fit import fit_document_vectors

    return fit_document_vectors(context, tables)


def index(context: StageContext) -> dict[str, Any]:
    """Index the vectors in `inputs["trained"]`, one per document; nothing is encoded.

    The folder `index/` is a `DenseIndex`, so its passages are the documents, with the representatives of `folder.py`
    beside it: what goes live can be added to. FreshetError if the corpus has other documents than were trained on.
    """
    trained = DocumentVectors.load(context.inputs["trained"] / "document_vectors")
    _check_documents(trained, set(load_corpus(context.inputs["corpus"]).passages["document_id"]))
    dense = DenseIndex.build(trained.vectors, trained.document_ids, trained.fingerprint, context.settings["index"])
    report = save_index(dense, context)
    folder = context.output / "index"
    trained.representatives.save(folder)
    manifest = read_json(folder / MANIFEST)
    facts = {key: value for key, value in manifest.items() if key not in ("format", "checksums")}
    seal(folder, manifest["format"], facts | {"kind": KIND, "logit_scale": trained.logit_scale})
    return report


def open_folders(encoder: Path, index: Path, **loading: Any) -> DenseRetriever:
    """The retriever in two folders; loading: what else `Encoder.load` takes."""
    return open_dense(encoder, index, **loading)


def _check_documents(trained: DocumentVectors, corpus: set[str]) -> None:
    differ = sorted(corpus ^ set(trained.document_ids))
    if differ:
        raise FreshetError(
            f"the corpus and the trained vectors differ by {len(differ)} documents ({differ[0]!r} is one); every "
            "document needs a vector: train again"
        )
