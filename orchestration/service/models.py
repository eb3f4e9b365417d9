"""What goes over the wire: requests and responses, typed, as the OpenAPI page shows them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

from model_code.collection.ledger.events import Opinion
from model_code.collection.results import RejectedRow, SearchResult

EXAMPLE = [
    {
        "_id": "numpy.sort",
        "title": "numpy.sort",
        "text": "Return a sorted copy of an array.",
        "package": "numpy",
    }
]


Filters = list[str] | dict[str, Any]
FILTERS = """Only documents that fit: an object such as {"package": ["numpy", "scipy"], "year": {">=": 2020}}, or a list
of texts such as ["package=numpy", "year>=2020"]; see docs/application.md."""


class StrictModel(BaseModel):
    """A request, of which nothing is passed over."""

    model_config = ConfigDict(extra="forbid")


class BaseSearchRequest(StrictModel):
    """The options of `freshet search`."""

    k: int = Field(default=10, ge=1, description="How many documents.")
    filters: Filters = Field(default=[], description=FILTERS)
    explain: bool = Field(
        default=False, description="Say what each score is made of (lexical and fused retrievers)."
    )
    retriever: str | None = Field(
        default=None, description="Another retriever that is live than the champion."
    )
    min_generation: int | None = Field(
        default=None,
        description="Answer from this generation or a newer one, such as the one that an addition named.",
    )


class SearchRequest(BaseSearchRequest):
    """A search."""

    text: str = Field(description="What you are looking for.")


class BatchRequest(BaseSearchRequest):
    """Several searches, answered from one generation."""

    texts: list[str] = Field(
        min_length=1, description="What you are looking for, each a search of its own."
    )


class SearchQuery(SearchRequest):
    """The same in an address, where a filter is given as `filter=package=numpy` or
    `filters=package=numpy`.
    """

    filters: list[str] = Field(
        default=[], description="Only documents with these fields, as package=numpy."
    )
    filter: list[str] = Field(default=[], description="As filters.")

    @property
    def request(self) -> SearchRequest:
        """The search that is asked for."""
        search = self.model_dump(exclude={"filter"})
        return SearchRequest(**search | {"filters": [*self.filters, *self.filter]})


class BatchResponse(BaseModel):
    """One result per text, in their order."""

    results: list[SearchResult]


class AddRequest(StrictModel):
    """Documents to add; those whose id is known already are updated."""

    documents: list[dict[str, Any]] = Field(
        min_length=1,
        description="Rows as in a JSONL file of the corpus: by default `_id`, `title`, `text`; others become fields.",
        examples=[EXAMPLE],
    )
    source: str = Field(
        default="service", max_length=1000, description="Where they come from, for the ledger."
    )
    only_known: bool = Field(
        default=False, description="Update only: refuse documents that are not there yet."
    )


def _text(value: Any) -> str:
    """The value if it is a text: one that is no UTF-8, too, so that it is refused alone, and not
    its whole request.
    """
    if not isinstance(value, str):
        raise ValueError("an id is a text")
    return value


class DeleteRequest(StrictModel):
    """Documents to delete."""

    ids: list[Annotated[Any, AfterValidator(_text), WithJsonSchema({"type": "string"})]] = Field(
        min_length=1
    )
    source: str = Field(
        default="service", max_length=1000, description="Who deletes them, for the ledger."
    )


class SyncRequest(StrictModel):
    """How the index is to follow the project's source."""

    force: bool = Field(default=False, description="Delete even if much of the source is gone.")
    dry_run: bool = Field(default=False, description="Only say what would come of it.")


class FeedbackRequest(StrictModel):
    """What a person says of a hit."""

    query: str = Field(min_length=1, max_length=1000, description="The text that was searched.")
    document_id: str = Field(max_length=2048, description="A document that it found.")
    verdict: Opinion = Field(description="A thumb up or down, or that it was opened.")
    rank: int = Field(
        default=1, ge=1, le=1000, description="The hit's, by which a click is discounted."
    )
    who: str = Field(
        default="",
        max_length=100,
        pattern=r"^[A-Za-z0-9._@:+-]*$",
        description="Of one person, query and document the latest verdict counts; a click takes no thumb back.",
    )


class FeedbackResponse(BaseModel):
    """The verdict that counts now."""

    verdict: Opinion


class RefusedResponse(BaseModel):
    """A change of which every row was refused: nothing is searchable, `rejected` says why."""

    error: str
    rejected: list[RejectedRow]


class LiveState(BaseModel):
    """One retriever that is open for searching."""

    retriever: str
    generation: int
    documents: int
    seconds: float | None = Field(description="Since the generation was made.")
    explains: bool = Field(
        description="Whether a search may ask by `explain` what scores are made of."
    )


class StatusResponse(BaseModel):
    """Where the service stands."""

    ready: bool
    reason: str | None = Field(
        description="Why it is not ready, or serves an older generation, or cannot add."
    )
    pid: int
    started: str
    default_retriever: str | None
    live: list[str] = Field(
        description="The retrievers that a search may name; one is opened by its first search."
    )
    open: list[LiveState]
    swaps: int
    waiting_documents: int
    running_searches: int
    behind: dict[str, str] = Field(
        description="Why a live retriever could not take in what arrived, by its name."
    )
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
