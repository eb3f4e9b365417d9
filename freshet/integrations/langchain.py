"""A LangChain retriever and vector store over a `Client` or a `Project`; needs the extra `langchain`."""

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
from model_code.collection.results import Hit, StoredDocument


class FreshetRetriever(BaseRetriever):
    """Passages for a query: `page_content` is the passage, `metadata` the rest of the hit, the
    fields among it.

    client: a `Client` or a `Project`. options: those of `Client.search`, such as `filters`.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    client: Any
    k: int = 10
    options: dict[str, Any] = Field(default_factory=dict)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[LangChainDocument]:
        hits = self.client.search(query, self.k if k is None else k, **self.options).hits
        return [passage_of(hit) for hit in hits]


def passage_of(hit: Hit) -> LangChainDocument:
    """A hit as LangChain has it."""
    names = ("document_id", "title", "section", "start", "end", "date", "score", "generation")
    metadata = {**hit.fields} | {name: getattr(hit, name) for name in names}
    return LangChainDocument(id=hit.document_id, page_content=hit.text, metadata=metadata)


def document_of(result: Hit | StoredDocument) -> LangChainDocument:
    """A passage or a document with the metadata that `add_texts` takes."""
    metadata = {**result.fields} | {
        name: value for name in ("title", "date") if (value := getattr(result, name))
    }
    return LangChainDocument(id=result.document_id, page_content=result.text, metadata=metadata)


class FreshetVectorStore(VectorStore):
    """A live collection as a vector store. It encodes by its own retriever, so it takes no
    embeddings.
    """

    def __init__(self, client: Any) -> None:
        """client: a `Client` or a `Project`."""
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
        """Add texts to the service at `url`; `embedding` is not asked."""
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
        """Add or update texts; their ids, made where none is given. `title` and `date` in metadata
        are the document's.

        InvalidRequest names the first that was refused.
        """
        bodies = list(texts)
        names = [name or str(uuid.uuid4()) for name in ids or [None] * len(bodies)]
        rows = [
            _row(*each) for each in zip(names, bodies, metadatas or [{}] * len(bodies), strict=True)
        ]
        if rows and (rejected := self.client.add(rows).rejected):
            raise InvalidRequest(
                f"row {rejected[0].row} of {len(rows)} was refused: {rejected[0].reason}"
            )
        return names

    def delete(self, ids: list[str] | None = None, **options: Any) -> bool:
        """Delete documents; those that are not there are passed over. ValueError without ids, which
        would be all.
        """
        if ids is None:
            raise ValueError(
                "name the ids to delete; a live collection is not emptied by leaving them out"
            )
        if existing := [document.id for document in self.get_by_ids(ids)]:
            self.client.delete(existing)
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[LangChainDocument]:
        """Whole documents, in the order of `ids`, without those that are not there."""
        documents = []
        for name in ids:
            with suppress(NotFoundError):
                documents.append(document_of(self.client.get(name)))
        return documents

    def similarity_search(
        self, query: str, k: int = 4, filter: Mapping[str, Any] | None = None, **options: Any
    ) -> list[LangChainDocument]:
        """The k best passages; filter: see `Client.search`."""
        return [
            document
            for document, _ in self.similarity_search_with_score(query, k, filter, **options)
        ]

    def similarity_search_with_score(
        self, query: str, k: int = 4, filter: Mapping[str, Any] | None = None, **options: Any
    ) -> list[tuple[LangChainDocument, float]]:
        """The same with the retriever's scores, of which more is better."""
        hits = self.client.search(query, k, filters=filter or {}, **options).hits
        return [(document_of(hit), hit.score) for hit in hits]


def _row(name: str, text: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    fields = dict(metadata)
    header = {key: fields.pop(key) for key in ("title", "date") if key in fields}
    return {"_id": name, "text": text, "title": "", **header, "fields": fields}
