"""A LangChain retriever and vector store over a `Client` or a `Project`.

The module needs the extra `langchain`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document as LangChainDocument
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import VectorStore
from pydantic import ConfigDict, Field

from freshet.client import Client
from freshet.errors import InvalidRequest, NotFoundError
from freshet.results import Hit, StoredDocument

# Attributes of a hit that the metadata of a LangChain document repeats.
PASSAGE_KEYS = ("document_id", "title", "section", "start", "end", "date", "score", "generation")


class FreshetRetriever(BaseRetriever):
    """A retriever that returns passages.

    `page_content` is the passage. `metadata` has the rest of the hit, with its fields.

    Attributes:
        client: A `Client` or a `Project`.
        k: Number of passages.
        options: Options of `Client.search`, such as `filters`.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    client: Any
    k: int = 10
    options: dict[str, Any] = Field(default_factory=dict)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[LangChainDocument]:
        """Return the best passages for a query. LangChain calls this method in `invoke`."""
        number = self.k if k is None else k
        hits = self.client.search(query, number, **self.options).hits
        return [hit_to_passage(hit) for hit in hits]


def hit_to_passage(hit: Hit) -> LangChainDocument:
    """Return a hit as a document of LangChain, with all its metadata."""
    metadata = dict(hit.fields)
    for key in PASSAGE_KEYS:
        metadata[key] = getattr(hit, key)
    return LangChainDocument(id=hit.document_id, page_content=hit.text, metadata=metadata)


def to_langchain_document(result: Hit | StoredDocument) -> LangChainDocument:
    """Return a passage or a document with the metadata that `add_texts` accepts."""
    metadata = dict(result.fields)
    for key in ("title", "date"):
        value = getattr(result, key)
        if value:
            metadata[key] = value
    return LangChainDocument(id=result.document_id, page_content=result.text, metadata=metadata)


class FreshetVectorStore(VectorStore):
    """A live index as a vector store.

    The index encodes texts with its own retriever, so that no embeddings are used.

    Args:
        client: A `Client` or a `Project`.
    """

    def __init__(self, client: Any) -> None:
        self.client = client

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[Any, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        url: str = "http://127.0.0.1:8765",
        **options: Any,
    ) -> Self:
        """Add texts to the service at `url`. `embedding` is not used."""
        store = cls(Client(url))
        store.add_texts(texts, metadatas, ids=ids, **options)
        return store

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: Sequence[Mapping[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **options: Any,
    ) -> list[str]:
        """Add or update texts.

        Args:
            texts: The texts.
            metadatas: Metadata of each text. `title` and `date` belong to the document; all other
                keys become fields.
            ids: Ids of the texts. Missing ids are created.
            **options: Ignored.

        Returns:
            The ids of the texts.

        Raises:
            InvalidRequest: If a text is rejected. The message names the first one.
        """
        _refuse_text(texts, "texts")
        text_list = list(texts)
        given_ids = ids or [None] * len(text_list)
        text_ids = [given_id or str(uuid.uuid4()) for given_id in given_ids]

        rows = []
        all_metadata = metadatas or [{}] * len(text_list)
        for text_id, text, metadata in zip(text_ids, text_list, all_metadata, strict=True):
            rows.append(_row(text_id, text, metadata))
        if not rows:
            return text_ids

        rejected = self.client.add(rows).rejected
        if rejected:
            raise InvalidRequest(
                f"row {rejected[0].row} of {len(rows)} was refused: {rejected[0].reason}"
            )
        return text_ids

    def delete(self, ids: list[str] | None = None, **options: Any) -> bool:
        """Delete documents. Unknown ids are ignored.

        Raises:
            ValueError: If there are no ids, which LangChain defines as all documents.
        """
        if ids is None:
            raise ValueError("ids are missing; this store does not delete all documents at once")
        _refuse_text(ids, "ids")
        known_ids = [document.id for document in self.get_by_ids(ids)]
        if known_ids:
            self.client.delete(known_ids)
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[LangChainDocument]:
        """Return whole documents in the order of `ids`, without unknown ones."""
        _refuse_text(ids, "ids")
        documents = []
        for document_id in ids:
            with suppress(NotFoundError):
                documents.append(to_langchain_document(self.client.get(document_id)))
        return documents

    def similarity_search(
        self, query: str, k: int = 4, filter: Mapping[str, Any] | None = None, **options: Any
    ) -> list[LangChainDocument]:
        """Return the k best passages; for `filter` see `Client.search`."""
        scored = self.similarity_search_with_score(query, k, filter, **options)
        return [document for document, _ in scored]

    def similarity_search_with_score(
        self, query: str, k: int = 4, filter: Mapping[str, Any] | None = None, **options: Any
    ) -> list[tuple[LangChainDocument, float]]:
        """Return the k best passages with the scores of the retriever; higher is better."""
        hits = self.client.search(query, k, filters=filter or {}, **options).hits
        return [(to_langchain_document(hit), hit.score) for hit in hits]

    def _similarity_search_with_relevance_scores(
        self, query: str, k: int = 4, **options: Any
    ) -> list[tuple[LangChainDocument, float]]:
        """Return the k best passages with relevances between 0 and 1; see `relevance`."""
        scored = self.similarity_search_with_score(query, k, **options)
        return [(document, relevance(score)) for document, score in scored]

    def max_marginal_relevance_search(
        self,
        query: str,
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        filter: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> list[LangChainDocument]:
        """Return k passages that answer the query and differ from each other.

        The service chooses them by maximal marginal relevance, with the option `diversity`.

        Args:
            query: The query.
            k: Number of passages.
            fetch_k: Number of best passages to choose from, up to 1,000.
            lambda_mult: 1 for the best passages only, 0 for the most different ones.
            filter: Conditions on fields; see `Client.search`.
            **options: Further options of `Client.search`.
        """
        hits = self.client.search(
            query,
            k,
            filters=filter or {},
            window=max(k, fetch_k),
            diversity=1.0 - lambda_mult,
            **options,
        ).hits
        return [to_langchain_document(hit) for hit in hits]


def relevance(score: float) -> float:
    """Map a score to a relevance between 0 and 1, as LangChain's thresholds expect.

    The order of scores stays. Scores of different retrievers have different scales, so a threshold
    is valid for one retriever.

    >>> relevance(0.0), relevance(1.0), relevance(-3.0)
    (0.5, 0.75, 0.125)
    """
    # The fraction maps all numbers to -1 to 1, and keeps their order.
    signed = score / (1 + abs(score))
    return (1 + signed) / 2


def _refuse_text(values: Iterable[str], name: str) -> None:
    """Raise `InvalidRequest` for a single text in place of a list.

    Python would iterate over the letters of the text.
    """
    if isinstance(values, str):
        raise InvalidRequest(
            f"{name} is the text {values[:80]!r}, but it must be a list; put it into brackets"
        )


def _row(document_id: str, text: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document of LangChain as a row for `Client.add`."""
    row: dict[str, Any] = {"_id": document_id, "text": text, "title": ""}
    fields = dict(metadata)
    for key in ("title", "date"):
        if key in fields:
            row[key] = fields.pop(key)
    row["fields"] = fields
    return row
