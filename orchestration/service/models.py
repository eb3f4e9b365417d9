"""Requests and responses of the HTTP service, as the OpenAPI page shows them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema, model_validator

from freshet.json_values import read_id_value
from freshet.results import ReadingNote, RejectedRow, SearchResult, SourceState
from model_code.collection.generations.boosts import MAX_WEIGHT
from model_code.collection.generations.query_options import DEFAULT_WINDOW, MAX_WINDOW
from model_code.collection.ledger.events import Opinion

# Limits of the values of requests.
MAX_SOURCE_CHARACTERS = 1000
MAX_QUERY_CHARACTERS = 1000
MAX_ID_CHARACTERS = 2048
MAX_USER_CHARACTERS = 100
USER_PATTERN = r"^[A-Za-z0-9._@:+-]*$"
MAX_FEEDBACK_RANK = 1000
# The examples of all requests are about one document, so that they can be executed in turn.
EXAMPLE_ID = "example"
MAX_VECTOR_COMPONENTS = 10_000
EXAMPLE_DOCUMENTS = [
    {
        "_id": EXAMPLE_ID,
        "title": "An example",
        "text": "How to sort an array, and how to split a string.",
        "kind": "example",
    }
]
_SCALAR_SCHEMA: dict[str, Any] = {"type": ["string", "number", "boolean", "null"]}
_VALUES_SCHEMA: dict[str, Any] = {"type": "array", "items": _SCALAR_SCHEMA}
_BOUND_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "number"},
        {"type": "string", "pattern": r"^[0-9]{4}(-(0[1-9]|1[0-2])(-(0[1-9]|1[0-9]|2[0-8]))?)?$"},
    ],
    "description": "A number, or a date: a year, a month, a day or an instant in ISO format.",
}
_TEXT_SCHEMA: dict[str, Any] = {"type": "string", "minLength": 1}
_COMPARISON_SCHEMA: dict[str, Any] = {
    "type": "object",
    "minProperties": 1,
    "additionalProperties": False,
    "properties": {
        "=": {**_SCALAR_SCHEMA, "description": "Equal; null for a field without a value."},
        "!=": {**_SCALAR_SCHEMA, "description": "Not equal, or without a value."},
        ">": _BOUND_SCHEMA,
        ">=": _BOUND_SCHEMA,
        "<": _BOUND_SCHEMA,
        "<=": _BOUND_SCHEMA,
        "in": {**_VALUES_SCHEMA, "description": "Equal to one of these values."},
        "exists": {"type": "boolean", "description": "Whether the field has a value."},
        "prefix": {**_TEXT_SCHEMA, "description": "Begins with this text, in any case."},
        "contains": {**_TEXT_SCHEMA, "description": "Contains this text, in any case."},
    },
}
# `and` and `or` combine a list of filters. A field may have one of these names, and is then
# compared with a value that is no list.
_COMBINATION_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "array", "items": {"type": "object"}},
        _SCALAR_SCHEMA,
        _COMPARISON_SCHEMA,
    ]
}
FILTER_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "Conditions by field, all of which must hold. `and`, `or` and `not` combine "
    "such objects. The field `a.b` is the field `b` of the object `a`. Numbers compare as numbers, "
    "also if they are written as texts. Days are whole and in UTC. Null and empty texts do not "
    "exist.",
    "properties": {
        "and": {**_COMBINATION_SCHEMA, "description": "Filter objects that all must hold."},
        "or": {**_COMBINATION_SCHEMA, "description": "Filter objects of which one must hold."},
        "not": {"type": "object", "description": "A filter object that must not hold."},
    },
    "additionalProperties": {"anyOf": [_SCALAR_SCHEMA, _VALUES_SCHEMA, _COMPARISON_SCHEMA]},
}
FilterObject = Annotated[dict[str, Any], WithJsonSchema(FILTER_SCHEMA)]
Filters = list[str] | FilterObject
FILTERS_DESCRIPTION = (
    'Only documents that match: an object such as {"package": ["numpy", "scipy"], '
    '"year": {">=": 2020}}, or a list of texts such as ["package=numpy", "year>=2020"]. '
    "See docs/application.md."
)
BOOST_SCHEMA: dict[str, Any] = {
    "type": "object",
    "additionalProperties": {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "half_life": {
                "type": "string",
                "pattern": r"^[1-9][0-9]{0,3}[hdwy]$",
                "description": "Age at which a date has half the strength: hours, days, weeks or "
                "years.",
            },
            "pivot": {
                "type": "number",
                "exclusiveMinimum": 0,
                "description": "Number with half the strength; the median of the window by "
                "default. It excludes `half_life`.",
            },
            "weight": {
                "type": "number",
                "exclusiveMinimum": 0,
                "maximum": MAX_WEIGHT,
                "description": "Largest addition, as a share of the difference between the best "
                "and the last score of the window.",
            },
        },
    },
}
Boosts = list[str] | Annotated[dict[str, Any], WithJsonSchema(BOOST_SCHEMA)]
BOOST_DESCRIPTION = (
    'Fields that raise scores: an object such as {"date": {"half_life": "30d"}, "downloads": '
    '{"weight": 0.2}}, or a list of texts such as ["date:30d", "downloads:0.2"]. '
    "See docs/application.md."
)


class StrictModel(BaseModel):
    """A request model that refuses a body with unknown keys."""

    model_config = ConfigDict(extra="forbid")


def _with_example(**values: Any) -> ConfigDict:
    """Return the configuration of a request whose example on the OpenAPI page can be executed."""
    return ConfigDict(extra="forbid", json_schema_extra={"examples": [values]})


class BaseSearchRequest(StrictModel):
    """Options that all kinds of search requests have."""

    k: int = Field(default=10, ge=1, description="Number of documents.")
    filters: Filters = Field(default=[], description=FILTERS_DESCRIPTION)
    explain: bool = Field(
        default=False,
        description="Whether to return the contributions to each score (lexical and fused "
        "retrievers).",
    )
    offset: int = Field(
        default=0, ge=0, description="Number of documents to skip, for the next page."
    )
    window: int = Field(
        default=DEFAULT_WINDOW,
        ge=1,
        le=MAX_WINDOW,
        description="Number of best documents that `sort`, `group_by`, `boost` and `facets` "
        "look at.",
    )
    sort: list[str] = Field(
        default=[],
        description="Fields to sort the window by, such as `year`, or `-date` for the newest "
        "first. Documents without a value come last.",
        examples=[["-date"]],
    )
    group_by: str | None = Field(
        default=None, description="Return only the best document for each value of this field."
    )
    facets: list[str] = Field(
        default=[],
        description="Fields whose values are counted in the window.",
        examples=[["package"]],
    )
    boost: Boosts = Field(default=[], description=BOOST_DESCRIPTION)
    syntax: bool = Field(
        default=True,
        description='Whether "phrases", -excluded words and title:word are conditions. Otherwise '
        "they are text.",
    )
    typos: bool = Field(
        default=True,
        description="Whether one typo is tolerated in longer words that no document contains.",
    )
    prefix: bool = Field(
        default=False,
        description="Whether the last word may be unfinished, as while somebody types.",
    )
    min_score: float | None = Field(
        default=None, allow_inf_nan=False, description="Lowest score of a hit."
    )
    diversity: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="How much documents of the window that resemble better ones are moved down, "
        "from 0 (not at all) to 1.",
    )
    rerank: bool = Field(
        default=True,
        description="Whether the project's reranker, if it has one, reranks the best documents.",
    )
    retriever: str | None = Field(
        default=None, description="A live retriever; the champion by default."
    )
    min_generation: int | None = Field(
        default=None,
        description="Search this generation of the index or a newer one. A change of documents "
        "returns the number of the generation that contains it.",
    )


class SearchRequest(BaseSearchRequest):
    """One search: by a text, by a document that the hits resemble, or by a vector."""

    model_config = _with_example(text="sort an array", k=3)

    text: str | None = Field(
        default=None, description="The query. Give exactly one of `text`, `like` and `vector`."
    )
    like: str | None = Field(
        default=None,
        max_length=MAX_ID_CHARACTERS,
        description="Id of a document: find others that resemble it.",
    )
    vector: list[float] | None = Field(
        default=None,
        max_length=MAX_VECTOR_COMPONENTS,
        description="A vector of the retriever's encoder: find the nearest passages.",
    )

    @model_validator(mode="after")
    def require_one_query(self) -> SearchRequest:
        """Check that there is exactly one query."""
        given = [value for value in (self.text, self.like, self.vector) if value is not None]
        if len(given) != 1:
            raise ValueError("give exactly one of text, like and vector")
        return self


class BatchRequest(BaseSearchRequest):
    """Several searches, answered from one generation, a snapshot of the index."""

    model_config = _with_example(texts=["sort an array", "split a string"], k=3)

    texts: list[str] = Field(min_length=1, description="The queries.")


class SearchQuery(SearchRequest):
    """One search in the address of a GET request.

    A filter is given as `filter=package=numpy` or `filters=package=numpy`.
    """

    filters: list[str] = Field(
        default=[], description="Only documents with these fields, as in package=numpy."
    )
    filter: list[str] = Field(default=[], description="The same as `filters`.")
    boost: list[str] = Field(
        default=[], description="Fields that raise scores, as in date:30d or downloads:0.2."
    )

    @property
    def request(self) -> SearchRequest:
        """The same search as the body of a POST request."""
        values = self.model_dump(exclude={"filter", "filters"})
        return SearchRequest(**values, filters=[*self.filters, *self.filter])


class BatchResponse(BaseModel):
    """Results in the order of the queries."""

    results: list[SearchResult]


class AddRequest(StrictModel):
    """Documents to add. A document with a known id is updated."""

    model_config = _with_example(documents=EXAMPLE_DOCUMENTS)

    documents: list[dict[str, Any]] = Field(
        min_length=1,
        description="Rows as in a JSONL file of the corpus: by default `_id`, `title` and `text`; "
        "all other keys become fields.",
        examples=[EXAMPLE_DOCUMENTS],
    )
    source: str = Field(
        default="service",
        max_length=MAX_SOURCE_CHARACTERS,
        description="Origin of the documents, for the ledger.",
    )
    only_known: bool = Field(
        default=False, description="Whether to update only, and to refuse unknown documents."
    )
    partial: bool = Field(
        default=False,
        description="Whether the rows hold only the values to change. Fields are replaced one by "
        "one; null removes a field. Unknown documents are refused.",
    )


def _require_id(value: Any) -> str:
    """Return the id that a value means.

    Pydantic's own type for texts refuses the whole request if one text is not valid UTF-8. This
    check lets such a text pass. The id is refused later, and the other ids of the request are not.
    """
    document_id = read_id_value(value)
    if document_id is None:
        raise ValueError("an id is a text or a whole number")
    return document_id


DocumentId = Annotated[
    Any, AfterValidator(_require_id), WithJsonSchema({"type": ["string", "integer"]})
]


class DeleteRequest(StrictModel):
    """Documents to delete, by ids or by a filter."""

    model_config = _with_example(ids=[EXAMPLE_ID])

    ids: list[DocumentId] = Field(default=[])
    filters: Filters = Field(
        default=[],
        description="Delete all documents that match, see `POST /search`. It excludes `ids`.",
    )
    dry_run: bool = Field(
        default=False, description="Whether to only return the ids that a filter matches."
    )
    if_version: str | None = Field(
        default=None, description="Delete the only document of `ids` if it has this version."
    )
    source: str = Field(
        default="service",
        max_length=MAX_SOURCE_CHARACTERS,
        description="Origin of the deletion, for the ledger.",
    )

    @model_validator(mode="after")
    def require_ids_or_filters(self) -> DeleteRequest:
        """Check that the request names documents in one way."""
        if bool(self.ids) == bool(self.filters):
            raise ValueError("give either ids or filters, and not an empty list of both")
        if self.dry_run and self.ids:
            raise ValueError("dry_run is for filters; the ids say what is deleted")
        if self.if_version is not None and len(self.ids) != 1:
            raise ValueError("if_version is for a request with one id")
        return self


class SyncRequest(StrictModel):
    """Options of a sync with a source."""

    model_config = _with_example(dry_run=True)

    source: str | None = Field(
        default=None,
        max_length=MAX_SOURCE_CHARACTERS,
        description="Name of a source that `freshet sync` has followed; null or default: the "
        "project's own source.",
    )

    force: bool = Field(
        default=False,
        description="Whether to delete documents even if much of the source is missing.",
    )
    dry_run: bool = Field(
        default=False, description="Whether to only return what would be changed."
    )


class FeedbackRequest(StrictModel):
    """A person's opinion of a hit."""

    model_config = _with_example(query="sort an array", document_id=EXAMPLE_ID, verdict="up")

    query: str = Field(
        min_length=1, max_length=MAX_QUERY_CHARACTERS, description="The query that was searched."
    )
    document_id: str = Field(max_length=MAX_ID_CHARACTERS, description="Id of the hit.")
    verdict: Opinion = Field(description="Thumb up, thumb down, or click: the hit was opened.")
    rank: int = Field(
        default=1,
        ge=1,
        le=MAX_FEEDBACK_RANK,
        description="Rank of the hit. Clicks on high ranks count less.",
    )
    who: str = Field(
        default="",
        max_length=MAX_USER_CHARACTERS,
        pattern=USER_PATTERN,
        description="Identity of the person. The latest verdict per person, query and document "
        "counts; a click does not replace a thumb.",
    )


class FeedbackResponse(BaseModel):
    """The person's verdict on the hit that counts now."""

    verdict: Opinion


class WithdrawalRequest(StrictModel):
    """The opinion to withdraw: of one person, about one hit of one query."""

    model_config = _with_example(query="sort an array", document_id=EXAMPLE_ID)

    query: str = Field(
        min_length=1, max_length=MAX_QUERY_CHARACTERS, description="The query that was searched."
    )
    document_id: str = Field(max_length=MAX_ID_CHARACTERS, description="Id of the hit.")
    who: str = Field(
        default="",
        max_length=MAX_USER_CHARACTERS,
        pattern=USER_PATTERN,
        description="Identity of the person, as it was given with the opinion.",
    )


class WithdrawalResponse(BaseModel):
    """Whether there was an opinion to withdraw."""

    withdrawn: bool


class RecentDocumentState(BaseModel):
    """A document that arrived lately and is searchable."""

    document_id: str
    title: str
    received: float = Field(description="Time of arrival, in seconds since 1970.")


class LoopStepState(BaseModel):
    """A step of the loop that keeps the index fresh, such as `added`, `drift` or `retrain`."""

    name: str
    state: str = Field(description="done, waits, running or none.")
    text: str = Field(description="The facts and the reason.")
    when: float | None = Field(description="Time of the step, in seconds since 1970.")


class OverviewResponse(BaseModel):
    """Everything that the search page shows before the first search."""

    examples: list[str] = Field(description="Questions that the collection answers.")
    recent: list[RecentDocumentState] = Field(description="Documents that arrived last.")
    judgements: dict[str, Any] | None = Field(
        description="Counts of judged questions, as under `judgements` in `freshet status --json`."
    )
    loop: list[LoopStepState] = Field(description="The freshness loop, step by step.")
    pages: dict[str, str] = Field(
        description="Addresses of the pages of Dagster and MLflow, while `freshet ui` runs."
    )


class RefusedResponse(BaseModel):
    """A change of which all rows were refused. `rejected` has the reasons."""

    error: str
    rejected: list[RejectedRow] = []


class LiveState(BaseModel):
    """State of a retriever that is open for searching."""

    retriever: str
    generation: int
    documents: int
    seconds: float | None = Field(description="Age of the generation in seconds.")
    explains: bool = Field(description="Whether searches may set `explain`.")


class FollowingState(BaseModel):
    """How far a copy of a published collection is behind its writer."""

    target: str = Field(description="Where the collection is published.")
    sequence: int = Field(description="Number of the publication that is searched.")
    behind: int = Field(description="Publications that are not searched yet.")
    lag_seconds: float = Field(description="Age of the oldest publication not searched yet.")
    unchecked_seconds: float = Field(description="Time since the writer's head was read.")
    failure: str | None = Field(description="Why the last update failed.")


class ShadowState(BaseModel):
    """Comparison of the challenger with the champion on live queries."""

    share: float = Field(description="Share of the queries that are compared.")
    finding: str | None = Field(
        description="What was found about the present challenger; null if there is none."
    )
    dropped: int = Field(description="Queries that were dropped since the start, while busy.")
    failure: str | None = Field(description="Why the challenger could not be opened or asked.")


class StatusResponse(BaseModel):
    """State of the service: its retrievers, the ledger, the queue, and what has failed."""

    ready: bool
    reason: str | None = Field(
        description="Why the service is not ready, serves an older generation, or cannot add "
        "documents."
    )
    pid: int
    started: str
    default_retriever: str | None
    live: list[str] = Field(
        description="Retrievers that searches may name. A retriever is opened by its first search."
    )
    open: list[LiveState]
    swaps: int
    waiting_documents: int
    running_searches: int
    search_processes: int = Field(
        description="Number of search processes that are ready; 0 if threads search."
    )
    behind: dict[str, str] = Field(
        description="Retrievers that could not be updated, each with the reason."
    )
    freshness: dict[str, Any] | None = Field(
        description="State of the ledger, as under `live` in `freshet status --json`."
    )
    sources: list[SourceState] = Field(
        description="The sources that feed the index, the project's own one first."
    )
    reading_notes: list[ReadingNote] = Field(
        description="The most serious notes about parts of files that were not read, or were read "
        "by a guess."
    )
    reading_notes_total: int = Field(description="Number of all such notes.")
    following: FollowingState | None = Field(
        description="State of a copy; null for a service that changes documents itself."
    )
    publish_failure: str | None = Field(
        description="Why the current generation could not be published."
    )
    shadow: ShadowState | None = Field(
        description="Comparison of the challenger on live queries; null if shadow mode is off."
    )


class HealthResponse(BaseModel):
    """Whether the process answers (`live`), and whether it can search (`ready`)."""

    live: bool
    ready: bool
    reason: str | None = None


class ErrorResponse(BaseModel):
    """A refused request: one line that says what is wrong and what to do."""

    error: str
