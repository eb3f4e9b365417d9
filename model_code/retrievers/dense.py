"""Dense retrieval: one vector per passage (or several), searched by inner product. `contrastive`, HCE and MLR."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from model_code.context import StageContext
from model_code.encoding.encoder import Encoder
from model_code.encoding.sides import joined, require_sides
from model_code.errors import FreshetError
from model_code.files import read_json
from model_code.index.dense_index import DenseIndex
from model_code.manifest import MANIFEST
from model_code.retriever import Ranking, Search, TokenMatch
from model_code.retrievers.encoded import TextSearches

if TYPE_CHECKING:
    from model_code.retrievers.settings import RetrieverSettings
    from model_code.training.tables import TrainingTables


class DenseRetriever(TextSearches[np.ndarray]):
    """An encoder and the index of its vectors; see `Retriever`. Encoded queries are their vectors (q, H).

    Of a `TwoSided` encoder with two sides, queries are encoded by one and new documents by the other.
    """

    encoding_scale = 1.0  # factor on the encoding of a document that is added

    def __init__(self, encoder: Encoder, index: DenseIndex, fingerprint: str | None = None) -> None:
        """The index refuses every search if its vectors are not this encoder's.

        fingerprint: the encoder's, for callers that have computed it before.
        """
        self.encoder, self.index, self.fingerprint = encoder, index, fingerprint or encoder.fingerprint()

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        """The vectors (q, H) of query texts."""
        return self.encoder.encode(texts)

    def search_encoded(self, queries: np.ndarray, k: int, allowed: Collection[str] | None = None) -> list[Ranking]:
        """`search` for queries (q, H)."""
        if allowed is None:
            return self.index.search(queries, k, self.fingerprint)
        return self.index.search_among(queries, k, allowed, self.fingerprint)

    def rerank_encoded(self, queries: np.ndarray, candidates: Sequence[Collection[str]]) -> list[Ranking]:
        """`rerank` for queries (q, H)."""
        return self.index.rank(queries, candidates, self.fingerprint)

    def best_passage_encoded(self, query: np.ndarray, document_id: str) -> int:
        """`best_passage` for a query (1, H)."""
        return self.index.best_passage(query[0], document_id)

    def variants(self) -> Mapping[str, Search]:
        """None."""
        return {}

    def explain(self, text: str, document_id: str) -> list[TokenMatch]:
        """Not possible: a dense score has no tokens."""
        raise FreshetError("a dense retriever does not score by token; --explain needs a lexical one (kind: lexical)")


def train(context: StageContext, tables: TrainingTables) -> dict[str, Any]:
    """Fine-tune the base encoder; writes `encoder/` and `history.json`."""
    from model_code.training.fit import fit_encoder

    own: RetrieverSettings = context.settings["retriever"]
    return fit_encoder(context, tables, own.training, own.layers, separate=own.encoders == "separate")


def index(context: StageContext) -> dict[str, Any]:
    """Encode and index the corpus's passages with the encoder in `inputs["trained"]`."""
    from model_code.retrievers.indexing import index_passages

    return index_passages(
        context, Encoder.from_settings(context.settings["encoder"], _encoder(context), for_search=True)
    )


def open_folders(encoder: Path, index: Path, **loading: Any) -> DenseRetriever:
    """The retriever in two folders; loading: what else `Encoder.load` takes.

    FingerprintMismatch if the index says which sides of an encoder built it, and one of these is another.
    """
    loaded, built = Encoder.load(encoder, **loading), DenseIndex.load(index)
    fingerprints = loaded.fingerprints()
    require_sides(fingerprints, read_json(index / MANIFEST), index)
    return DenseRetriever(loaded, built, joined(fingerprints))


def _encoder(context: StageContext) -> Path:
    return context.inputs["trained"] / "encoder"
