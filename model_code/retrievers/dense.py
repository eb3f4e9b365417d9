"""Dense retrieval: one vector per passage (or several), searched by inner product. `contrastive`, HCE and MLR."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model_code.encoding.encoder import Encoder
from model_code.errors import FreshetError
from model_code.index.dense_index import DenseIndex
from model_code.index.top_k import Ranking
from model_code.retrievers.retriever import Search, TokenMatch
from model_code.stages.context import StageContext

if TYPE_CHECKING:
    from model_code.training.tables import TrainingTables


class DenseRetriever:
    """An encoder and the index of its vectors; see `Retriever`."""

    def __init__(self, encoder: Encoder, index: DenseIndex) -> None:
        """The index refuses every search if its vectors are not this encoder's."""
        self.encoder, self.index, self.fingerprint = encoder, index, encoder.fingerprint()

    def search(self, texts: Sequence[str], k: int, allowed: Collection[str] | None = None) -> list[Ranking]:
        """The k best documents for each query text, best first; of `allowed` documents only, unless None."""
        vectors = self.encoder.encode(texts)
        if allowed is None:
            return self.index.search(vectors, k, self.fingerprint)
        return [ranking[:k] for ranking in self.index.rank(vectors, [allowed] * len(texts), self.fingerprint)]

    def rerank(self, texts: Sequence[str], candidates: Sequence[Collection[str]]) -> list[Ranking]:
        """Each query's `candidates`, scored and sorted as `search` would."""
        return self.index.rank(self.encoder.encode(texts), candidates, self.fingerprint)

    def best_passage(self, text: str, document_id: str) -> int:
        """Which of the document's passages (0, 1, ...) answers the query best."""
        return self.index.best_passage(self.encoder.encode([text])[0], document_id)

    def variants(self) -> Mapping[str, Search]:
        """None."""
        return {}

    def explain(self, text: str, document_id: str) -> list[TokenMatch]:
        """Not possible: a dense score has no tokens."""
        raise FreshetError("a dense retriever does not score by token; --explain needs a lexical one (kind: lexical)")


def train(context: StageContext, tables: TrainingTables) -> dict[str, Any]:
    """Fine-tune the base encoder; writes `encoder/` and `history.json`."""
    from model_code.training.fit import fit_encoder

    return fit_encoder(context, tables)


def index(context: StageContext) -> dict[str, Any]:
    """Encode and index the corpus's passages with the encoder in `inputs["trained"]`."""
    from model_code.retrievers.indexing import index_passages

    return index_passages(context, Encoder.from_settings(context.settings["encoder"], _encoder(context)))


def open_folders(encoder: Path, index: Path, **loading: Any) -> DenseRetriever:
    """The retriever in two folders; loading: what else `Encoder.load` takes."""
    return DenseRetriever(Encoder.load(encoder, **loading), DenseIndex.load(index))


def _encoder(context: StageContext) -> Path:
    return context.inputs["trained"] / "encoder"
