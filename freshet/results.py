"""Result types of searches and changes, shared by the library, the HTTP service and the commands.

All types are frozen dataclasses. The module imports nothing slow, because every cold start of a
client passes through it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


def described(text: str, **default: Any) -> Any:
    """Return a dataclass field with a description, which the OpenAPI page shows.

    Args:
        text: The description.
        default: `default` or `default_factory`, as `field` takes them; nothing if the value is
            required.
    """
    return field(metadata={"description": text}, **default)


@dataclass(frozen=True)
class TokenMatch:
    """The contribution of one token, or of one component of a fusion, to a document's score.

    Attributes:
        token: The token, or the name of the component.
        weight: The contribution to the score.
        expanded: Whether the query does not contain the token. An encoder added it, or it corrects
            or completes a word of the query.
        known: Whether the document has the token only in queries that it is known to answer. For a
            component: whether this holds for one of its tokens.
        known_words: For a component, the words of the query that the document has only in such
            queries. Empty for a token.
    """

    token: str
    weight: float
    expanded: bool = False
    known: bool = False
    known_words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Hit:
    """One document of a search result, with its best passage.

    Attributes:
        rank: Position in the result, from 1.
        score: Score of the retriever; higher is better.
        document_id: Id of the document.
        title: Title of the document.
        text: The best passage, which is `start` to `end` of the document's text, in characters.
        start: Begin of the passage in the document's text.
        end: End of the passage in the document's text.
        section: Heading above the passage, or None.
        snippet: Part of the passage around the words of the query, on one line and without the
            markup of Markdown, reStructuredText and HTML. `text` has the markup.
        marks: Begin and end, in characters of `snippet`, of each matched word.
        fields: Fields of the document.
        date: Date of the document in ISO format, or None.
        path: Nodes above the passage in the tree that clusters passages by topic, root first.
        topics: Names of the nodes in `path`.
        generation: Generation of the index that the hit comes from.
        below_floor: Whether the hit is probably no answer. It then fits the query no better than
            usual hits fit questions that the collection does not answer.
        tokens: Contributions to the score: tokens, or the components of a fusion. None if no
            explanation was requested.
    """

    rank: int
    score: float
    document_id: str
    title: str
    text: str
    start: int
    end: int
    section: str | None
    snippet: str
    marks: tuple[tuple[int, int], ...]
    fields: Mapping[str, Any]
    date: str | None
    path: tuple[int, ...]
    generation: int
    tokens: tuple[TokenMatch, ...] | None = None
    topics: tuple[str, ...] = ()
    below_floor: bool = False


@dataclass(frozen=True)
class SearchResult:
    """A page of hits of one search, best first.

    All of them come from one generation, an immutable snapshot of the index.
    """

    retriever: str
    generation: int
    hits: list[Hit]
    total: int = described(
        "Number of hits over all pages: the documents that match the filters, or the documents of "
        "the window if it is sorted, grouped or boosted."
    )
    facets: Mapping[str, Mapping[str, int]] = described(
        "The most frequent values of the requested fields, with their numbers of documents in the "
        "window."
    )
    rerank_ms: float | None = field(
        default=None,
        metadata={
            "description": "Time that the reranker took for this query, in milliseconds; null "
            "without a reranker."
        },
    )


@dataclass(frozen=True)
class StoredDocument:
    """A whole document of the collection, with its text and fields."""

    document_id: str
    title: str
    text: str
    fields: Mapping[str, Any]
    date: str | None = described("Date in ISO format, with time zone.")
    version: str = described(
        "Hash of the content, which the key `if_version` of a changed row can name."
    )
    has_file: bool = field(
        default=False,
        metadata={"description": "Whether the file of the document is at /files/ID."},
    )
    known_queries: list[str] = described(
        "Queries that the document is known to answer, from judgements and from the row that added "
        "the document.",
        default_factory=list,
    )
    hidden_queries: int = described(
        "Number of known queries from feedback, whose texts are not shown.", default=0
    )


@dataclass(frozen=True)
class DocumentPage:
    """A page of documents in the order of their ids."""

    generation: int
    total: int = described("Number of documents in the collection.")
    documents: list[StoredDocument]
    next: str | None = described("Value of `after` for the next page; null on the last page.")


@dataclass(frozen=True)
class FieldValues:
    """Fields of the documents. Each field has its most frequent values with their counts."""

    generation: int
    fields: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class RejectedRow:
    """A row that was refused, with the reason."""

    row: int = described("Number of the row in the request, from 1.")
    document_id: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class ReadingNote:
    """A statement that a part of a file was not read, or was read by a guess.

    The document of the file is still searchable.
    """

    file: str = described("Name of the file, which is the id of its document if it has one.")
    kind: str = described(
        "lost text, pages without text, refused file, unread file, unread part, unreadable value, "
        "encoding, or left out."
    )
    detail: str
    share: float | None = described("Share of the file's words, from 0 to 1; null if unknown.")


@dataclass(frozen=True)
class SourceState:
    """A source that feeds the index, and the time of its last sync."""

    name: str = described('Name of the source; "default" for the project\'s own one.')
    location: str = described("Folder, file or data set of the source.")
    documents: int | None = described(
        "Number of searchable documents of the source. For the project's own source it includes "
        "all documents of no named source. Null if the index is damaged."
    )
    synced: float | None = described(
        "Time of the last sync, in seconds since 1970; null if the source was never synced."
    )


@dataclass(frozen=True)
class ChangeResult:
    """Outcome of a change.

    If `searchable` is false, the change is recorded and will be searchable soon.
    """

    searchable: bool
    generation: int | None = described(
        "A generation that contains the change; null until the change is searchable."
    )
    received: int = described("Received rows: new events, unchanged rows and rejected rows.")
    unchanged: int = described("Rows that change nothing.")
    rejected: list[RejectedRow]
    events: list[int] = described("Event numbers of the changes in the ledger.")
    matched: list[str] = described("Ids of the documents that the filter of a deletion matches.")


@dataclass(frozen=True)
class UploadResult(ChangeResult):
    """Outcome of an upload of files."""

    notes: list[ReadingNote] = described(
        "Parts of the files that were not read, or were read by a guess."
    )


@dataclass(frozen=True)
class SyncResult:
    """Outcome of a sync, or the expected outcome of a dry run. Documents are given by their ids."""

    added: list[str]
    updated: list[str]
    deleted: list[str]
    waiting: list[str] = described("Recorded changes that are not searchable yet.")
    unchanged: int
    beside: int = described("Documents from other sources, which stay.")
    kept: int = described(
        "Documents that are missing in the source and stay, because an unreadable row may be "
        "theirs."
    )
    rejected: list[RejectedRow] = described(
        "Unreadable files and rows; their documents stay as they were."
    )
    generation: int | None = described(
        "The generation that holds the content of the source; null for a dry run."
    )
    notes: list[ReadingNote] = field(
        default_factory=list,
        metadata={
            "description": "Parts of the source's files that were not read, or were read by a "
            "guess."
        },
    )
    merged: dict[str, str] = described(
        "New documents that were left out, each with the document that says the same.",
        default_factory=dict,
    )
    expired: int = described(
        "Documents of the source that have expired. They are not in the index.", default=0
    )
    doubt: str = described(
        "In a dry run, why the sync will refuse its deletions unless it is forced; empty if it "
        "will not.",
        default="",
    )
