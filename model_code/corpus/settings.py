"""The groups `corpus`, `passages` and `acceptance` of `params.yaml`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from model_code.corpus.cleaning import parse_date
from model_code.settings import require

COLUMNS: dict[str, dict[str, str]] = {  # by table: our name of a column, and the setting that holds the source's
    "documents": {"id": "document_id", "title": "title", "text": "text", "date": "date"},
    "queries": {"id": "query_id", "text": "query_text", "answers": "answers"},
    "qrels": {"query_id": "qrel_query", "document_id": "qrel_document", "relevance": "relevance", "split": "split"},
}
NEEDED = ("id", "text", "query_id", "document_id")  # columns without which every row is refused


@dataclass(frozen=True)
class ColumnSettings:
    """Which column of the source holds what; the defaults are BEIR's. Other document columns become its `fields`.

    answers: of a query, a list of the strings that answer it (in CSV and TSV: JSON of one), SQuAD's {"text": list}, or
      a single one, which `metadata` may hold as well; other shapes, and null, read none. No passage that holds one is
      drawn as a negative of the query.
    """

    document_id: str = "_id"
    title: str = "title"
    text: str = "text"
    date: str = "date"
    query_id: str = "_id"
    query_text: str = "text"
    answers: str | None = "answers"
    qrel_query: str = "query-id"
    qrel_document: str = "corpus-id"
    relevance: str = "score"
    split: str = "split"

    def of(self, table: str) -> dict[str, str]:
        """The mapping from our names to the source's columns, for "documents", "queries" or "qrels".

        >>> ColumnSettings(text="body").of("documents")
        {'id': '_id', 'title': 'title', 'text': 'body', 'date': 'date'}
        """
        return {ours: name for ours, key in COLUMNS[table].items() if (name := getattr(self, key)) is not None}

    def expected(self, table: str) -> dict[str, str]:
        """{setting: the source's column} of those that a table must have: what its rows need, and what is no default.

        >>> ColumnSettings(date="opened").expected("documents")
        {'document_id': '_id', 'text': 'text', 'date': 'opened'}
        """
        default = ColumnSettings().of(table)
        return {
            COLUMNS[table][ours]: name
            for ours, name in self.of(table).items()
            if ours in NEEDED or name != default[ours]
        }


@dataclass(frozen=True)
class HubSettings:
    """A data set of the Hugging Face hub (or a local folder that `datasets` loads), in BEIR's three parts.

    BEIR: `name: BeIR/nq`, `qrels: BeIR/nq-qrels`. MTEB: `name: mteb/scifact`, `qrels: mteb/scifact`,
    `qrels_config: default`. A corpus without judgements: `queries: null`. revision: a branch, tag or commit of `name`,
    looked up by `freshet ingest`; null is the newest.
    """

    name: str | None = None
    revision: str | None = None
    documents: str | None = "corpus"
    queries: str | None = "queries"
    qrels: str | None = None
    qrels_config: str | None = None
    streaming: bool = False


@dataclass(frozen=True)
class FileSettings:
    """Where `files` finds queries and qrels; documents are at `corpus.path`.

    The suffix tells the format: .jsonl, .csv or .tsv (each also with .gz), or .parquet.
    """

    queries: str | None = None
    qrels: str | None = None

    def __post_init__(self) -> None:
        require((self.queries is None) == (self.qrels is None), "queries and qrels are given together or not at all")


@dataclass(frozen=True)
class QuerySplitSettings:
    """How queries are split where the source does not say: by the hash of (seed, query id), so for good."""

    test_share: float = 0.5
    dev_share: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("test_share", "dev_share"):
            require(0 <= getattr(self, name) < 1, f"{name} is {getattr(self, name)}, but must be in [0, 1)")
        require(self.test_share + self.dev_share < 1, "test_share + dev_share must leave queries to train on")


@dataclass(frozen=True)
class PartSettings:
    """Which documents are indexed at first (initial), stream in later (new), or tune how they are added (tuning).

    IncDSI's shares are .90 / .09 / .01. By date: documents from `new_from` on are new, those from `tuning_from` until
    then (if it is given) tuning, and all earlier ones initial; the earliest of a group of duplicates is kept.
    """

    by: Literal["none", "share", "date"] = "none"
    new_share: float = 0.09
    tuning_share: float = 0.01
    tuning_from: str | None = None
    new_from: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        shares = (self.new_share, self.tuning_share)
        require(min(shares) >= 0 and sum(shares) < 1, f"new_share and tuning_share are {shares}: too much")
        require(self.by != "date" or self.new_from is not None, "by is 'date', which needs new_from: '2025-01-01'")
        tuning, new = parse_date(self.tuning_from), parse_date(self.new_from)
        for name, instant in (("tuning_from", tuning), ("new_from", new)):
            value = getattr(self, name)
            sound = value is None or instant is not None
            require(sound, f"{name} is {value!r}, but must be an ISO date such as 2025-01-01")
        if tuning and new:
            require(tuning < new, "tuning_from must lie before new_from")


@dataclass(frozen=True)
class CorpusSettings:
    """Where documents, queries and qrels come from, and how they are cleaned, merged and split."""

    source: Literal["installed_packages", "beir", "hub", "files", "snapshot"] = "installed_packages"
    path: str | None = None
    packages: tuple[str, ...] = ("stdlib", "numpy", "pandas")
    qrels: str = "qrels"
    hub: HubSettings = field(default_factory=HubSettings)
    files: FileSettings = field(default_factory=FileSettings)
    columns: ColumnSettings = field(default_factory=ColumnSettings)
    limit: int | None = None
    max_characters: int = 200_000
    keep_title_only: bool = False
    merge_duplicates: Literal["text", "title", "either", "none"] = "text"
    quarantine_limit: float = 0.05
    splits: QuerySplitSettings = field(default_factory=QuerySplitSettings)
    parts: PartSettings = field(default_factory=PartSettings)

    def __post_init__(self) -> None:
        needs_path = self.source in ("beir", "files", "snapshot")
        require(not needs_path or bool(self.path), f"path is missing: the source {self.source!r} reads from it")
        require(self.source != "hub" or bool(self.hub.name), "hub.name is missing: a data set such as BeIR/scifact")
        require(self.source != "installed_packages" or bool(self.packages), "packages is empty: name at least one")
        require(self.limit is None or self.limit > 0, f"limit is {self.limit}, but must be positive, or null for all")
        require(self.max_characters > 0, f"max_characters is {self.max_characters}, but must be positive")
        require(0 <= self.quarantine_limit <= 1, f"quarantine_limit is {self.quarantine_limit}, but is a share: 0 to 1")


@dataclass(frozen=True)
class PassageSettings:
    """How documents become passages, each of which is encoded; a document is ranked by its best one.

    cut: "words": documents of more than `words` words become windows of that length, one every `stride` words; 0: never
    cut. "lines": each line after the first is a passage, with the first before it (for lists under a sentence).
    """

    words: int = 180
    stride: int = 150
    cut: Literal["words", "lines"] = "words"

    def __post_init__(self) -> None:
        require(self.words >= 0, f"words is {self.words}, but must be positive, or 0 for one passage per document")
        fits = self.words == 0 or 0 < self.stride <= self.words
        require(fits, f"stride is {self.stride}, but must be in 1..{self.words} (words), or text would be skipped")


@dataclass(frozen=True)
class AcceptanceSettings:
    """What a finished corpus must satisfy before anything is trained on it; lengths are in words."""

    min_documents: int = 10
    min_queries: int = 5
    min_mean_words: float = 3.0
    max_mean_words: float = 5_000.0
    max_empty_title_share: float = 1.0
    max_query_words: int = 500
    max_repeated_query_share: float = 0.2

    def __post_init__(self) -> None:
        for name in ("max_empty_title_share", "max_repeated_query_share"):
            require(0 <= getattr(self, name) <= 1, f"{name} is {getattr(self, name)}, but is a share: 0 to 1")
        require(self.min_mean_words <= self.max_mean_words, "min_mean_words must not exceed max_mean_words")
