"""Atomic document ids (DSI): one learned vector per document, searched by inner product with the encoded query."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from model_code.context import StageContext
from model_code.corpus.tables import load_corpus
from model_code.dsi.folder import DocumentVectors, Representatives
from model_code.errors import FreshetError
from model_code.files import read_json
from model_code.index.dense_index import DenseIndex
from model_code.manifest import MANIFEST, add_facts
from model_code.retrievers.dense import DenseRetriever
from model_code.retrievers.dense import open_folders as open_dense
from model_code.retrievers.indexing import save_index

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
    complete(context.output / "index", trained.representatives, Scales(trained.logit_scale, trained.encoding_scale))
    return report


class Scales(NamedTuple):
    """Of a dsi: what multiplies scores in training's softmax, and the encoding of a document that is added later."""

    logit: float
    encoding: float


def complete(folder: Path, representatives: Representatives, scales: Scales) -> None:
    """Make a dense index's folder one of this kind."""
    representatives.save(folder)
    add_facts(folder, {"kind": KIND, "logit_scale": scales.logit, "encoding_scale": scales.encoding})


class DsiRetriever(DenseRetriever):
    """A dense retriever of one learned vector per document, with what learning one for a new document needs."""

    def __init__(self, dense: DenseRetriever, representatives: Representatives, scales: Scales) -> None:
        super().__init__(dense.encoder, dense.index, dense.fingerprint)
        self.representatives, self.scales, self.encoding_scale = representatives, scales, scales.encoding


def open_folders(encoder: Path, index: Path, **loading: Any) -> DsiRetriever:
    """The retriever in two folders; loading: what else `Encoder.load` takes."""
    return with_representatives(open_dense(encoder, index, **loading), index)


def with_representatives(dense: DenseRetriever, index: Path) -> DsiRetriever:
    """A dense retriever whose index is that of the folder, with what else lies there."""
    facts = read_json(index / MANIFEST)
    scales = Scales(facts["logit_scale"], facts.get("encoding_scale", 1.0))  # indexes of before it was measured: 1
    return DsiRetriever(dense, Representatives.load(index), scales)


def _check_documents(trained: DocumentVectors, corpus: set[str]) -> None:
    differ = sorted(corpus ^ set(trained.document_ids))
    if differ:
        raise FreshetError(
            f"the corpus and the trained vectors differ by {len(differ)} documents ({differ[0]!r} is one); every "
            "document needs a vector: train again"
        )
