"""What goes over the wire: requests and responses, typed, as the OpenAPI page shows them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

EXAMPLE = [
    {"_id": "numpy.sort", "title": "numpy.sort", "text": "Return a sorted copy of an array.", "package": "numpy"}
]


class SearchRequest(BaseModel):
    """A search, with the options of `freshet search`."""

    model_config = ConfigDict(extra="forbid")

    text: str = Field(description="What you are looking for.")
    k: int = Field(default=10, ge=1, description="How many documents.")
    filters: list[str] = Field(default=[], description="Only documents with these fields, each a text: package=numpy.")
    hybrid: bool = Field(default=False, description="Fuse the ranking with BM25's.")
    explain: bool = Field(default=False, description="Say which tokens matched (lexical retrievers).")
    retriever: str | None = Field(default=None, description="Another retriever that is live than the champion.")


class SearchQuery(SearchRequest):
    """The same in an address, where a filter is given as `filter=package=numpy` or `filters=package=numpy`."""

    filter: list[str] = Field(default=[], description="As filters.")

    @property
    def request(self) -> SearchRequest:
        """The search that is asked for."""
        search = self.model_dump(exclude={"filter"})
        return SearchRequest(**search | {"filters": [*self.filters, *self.filter]})


class Token(BaseModel):
    """A token of the query that a document has too."""

    token: str
    weight: float
    expanded: bool


class Found(BaseModel):
    """A document found."""

    rank: int = Field(description="From 1.")
    score: float
    document_id: str
    title: str
    snippet: str
    path: list[int] = Field(description="The hierarchy's nodes above the document's best passage, root first.")
    tokens: list[Token] | None = Field(default=None, description="What matched, if the search asked to explain.")


class SearchResponse(BaseModel):
    """The hits, and the one generation that all of them come from."""

    retriever: str
    generation: int
    hits: list[Found]


class AddRequest(BaseModel):
    """Documents to add; those whose id is known already are updated."""

    model_config = ConfigDict(extra="forbid")

    documents: list[dict[str, Any]] = Field(
        min_length=1,
        description="Rows as in a JSONL file of the corpus: by default `_id`, `title`, `text`; others become fields.",
        examples=[EXAMPLE],
    )
    source: str = Field(default="service", max_length=1000, description="Where they come from, for the ledger.")


def _text(value: Any) -> str:
    """The value if it is a text: one that is no UTF-8, too, so that it is refused alone, and not its whole request."""
    if not isinstance(value, str):
        raise ValueError("an id is a text")
    return value


class DeleteRequest(BaseModel):
    """Documents to delete."""

    model_config = ConfigDict(extra="forbid")

    ids: list[Annotated[Any, AfterValidator(_text), WithJsonSchema({"type": "string"})]] = Field(min_length=1)
    source: str = Field(default="service", max_length=1000, description="Who deletes them, for the ledger.")


class Rejected(BaseModel):
    """A row that was refused."""

    row: int = Field(description="Its number in the request, from 1.")
    document_id: str | None
    reason: str


class ChangeResponse(BaseModel):
    """What became of a change. With `searchable` false it is safe in the ledger and will be searchable soon."""

    searchable: bool
    generation: int | None = Field(description="A generation that contains the change, once it is searchable.")
    received: int = Field(description="Rows that came: new events, unchanged and rejected ones.")
    unchanged: int = Field(description="Documents that are so already, or are gone already.")
    rejected: list[Rejected]
    events: list[int] = Field(description="The ledger's numbers of these changes.")


class RefusedResponse(ChangeResponse):
    """A change of which every row was refused: nothing is searchable, `rejected` says why."""

    error: str


class LiveState(BaseModel):
    """One retriever that is open for searching."""

    retriever: str
    generation: int
    documents: int


class StatusResponse(BaseModel):
    """Where the service stands."""

    ready: bool
    reason: str | None = Field(description="Why it is not ready, or serves an older generation, or cannot add.")
    pid: int
    started: str
    default_retriever: str | None
    open: list[LiveState]
    swaps: int
    waiting_documents: int
    running_searches: int
    behind: dict[str, str] = Field(description="Why a live retriever could not take in what arrived, by its name.")
    freshness: dict[str, Any] | None = Field(
        description="The ledger's account, as under `live` in `freshet status --json`."
    )


class HealthResponse(BaseModel):
    """Live: the process answers. Ready: it can search."""

    live: bool
    ready: bool
    reason: str | None = None


class ErrorResponse(BaseModel):
    """A request that was refused: one line that says why and what to do."""

    error: str
