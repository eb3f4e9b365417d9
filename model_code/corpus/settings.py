"""Settings of the corpus: the groups `corpus` and `acceptance` of `params.yaml`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from model_code.settings import Field, Settings, constant_field, require

# For each table: our name of each column, and the key of `ColumnSettings` with the source's name.
COLUMNS: dict[str, dict[str, str]] = {
    "documents": {"id": "document_id", "title": "title", "text": "text", "date": "date"},
    "queries": {"id": "query_id", "text": "query_text", "answers": "answers"},
    "qrels": {
        "query_id": "qrel_query",
        "document_id": "qrel_document",
        "relevance": "relevance",
        "split": "split",
    },
}

# Columns that every row must have, by our names. A row without one is refused.
REQUIRED_COLUMNS = ("id", "text", "query_id", "document_id")


class ColumnSettings(Settings):
    """The names that the source gives to its columns. The defaults are BEIR's names.

    Other columns of the documents become their `fields`.
    """

    document_id: str = Field("_id", description="Column of the documents that holds their id.")
    title: str = Field("title", description="Column of the documents that holds their title.")
    text: str = Field("text", description="Column of the documents that holds their text.")
    date: str = Field("date", description="Column of the documents that holds their date.")
    query_id: str = Field("_id", description="Column of the queries that holds their id.")
    query_text: str = Field("text", description="Column of the queries that holds their text.")
    answers: str | None = Field(
        "answers",
        description=(
            "Column of the queries with the strings that answer a query. No negative may contain "
            "one of them. null: no such column."
        ),
    )
    qrel_query: str = Field(
        "query-id", description="Column of the qrels that holds the query's id."
    )
    qrel_document: str = Field(
        "corpus-id", description="Column of the qrels that holds the document's id."
    )
    relevance: str = Field("score", description="Column of the qrels that holds the grade.")
    split: str = Field("split", description="Column of the qrels that holds the split.")

    def of(self, table: str) -> dict[str, str]:
        """Return {our name of a column: the source's name} for a table.

        Args:
            table: "documents", "queries" or "qrels".

        >>> ColumnSettings(text="body").of("documents")
        {'id': '_id', 'title': 'title', 'text': 'body', 'date': 'date'}
        """
        columns: dict[str, str] = {}
        for column, setting in COLUMNS[table].items():
            source_column = getattr(self, setting)
            if source_column is not None:
                columns[column] = source_column
        return columns

    def expected(self, table: str) -> dict[str, str]:
        """Return {setting: the source's name} of the columns that a table must have.

        These are the required columns, and all columns whose name is not the default. A user who
        names a column expects that it exists.

        Args:
            table: "documents", "queries" or "qrels".

        >>> ColumnSettings(date="opened").expected("documents")
        {'document_id': '_id', 'text': 'text', 'date': 'opened'}
        """
        defaults = ColumnSettings().of(table)
        expected: dict[str, str] = {}
        for column, source_column in self.of(table).items():
            if column in REQUIRED_COLUMNS or source_column != defaults[column]:
                expected[COLUMNS[table][column]] = source_column
        return expected


class HubSettings(Settings):
    """Where documents, queries and judgements (qrels) are on the Hugging Face hub.

    A data set of the hub has named configurations, each of which is a table. The settings tell
    which ones to read. The defaults are the names in BEIR's data sets. In place of a name on the
    hub, a local folder may be given that the library `datasets` can load.

    Examples:
    - BEIR keeps the judgements in a second data set. Set `name: BeIR/nq` and
      `qrels: BeIR/nq-qrels`.
    - MTEB keeps them in the same data set, in the configuration "default". Set
      `name: mteb/scifact`, `qrels: mteb/scifact` and `qrels_config: default`.
    - For documents without judgements, set `queries: null`.
    """

    name: str | None = Field(
        None, description="Data set on the hub, such as BeIR/nq or mteb/scifact."
    )
    revision: str | None = Field(
        None,
        description=(
            "Branch, tag or commit of the data set, which `freshet ingest` resolves. null: the "
            "newest."
        ),
    )
    documents: str | None = Field("corpus", description="Configuration that holds the documents.")
    queries: str | None = Field(
        "queries", description="Configuration that holds the queries. null: no judgements."
    )
    qrels: str | None = Field(
        None, description="Data set that holds the judgements, such as BeIR/nq-qrels."
    )
    qrels_config: str | None = Field(None, description="Configuration of that data set.")
    streaming: bool = Field(False, description="Read the data set without storing it first.")


class FileSettings(Settings):
    """Where `files` and `trec` find queries and qrels (judgements); documents are at `corpus.path`.

    The suffix tells the format: .jsonl, .csv or .tsv (each also with .gz), or .parquet.
    """

    queries: str | None = Field(None, description="File of the queries. null: no judgements.")
    qrels: str | None = Field(None, description="File of the judgements.")

    def check(self) -> None:
        """Require that the settings name both files, `queries` and `qrels`, or none of them."""
        require(
            (self.queries is None) == (self.qrels is None),
            "queries and qrels are given together or not at all",
        )


# The split of the queries that decide about promotions.
GATE = "gate"

# All splits. If a source puts a query into several splits, the first of them in this order wins, so
# that no test query is trained on.
SPLITS = ("test", GATE, "dev", "train")


class QuerySplitSettings(Settings):
    """How queries are split if the source has no splits.

    A hash of the seed and an id decides: the id of the query, or that of its most relevant
    document. Other queries have no influence.
    """

    test_share: float = Field(
        0.3,
        ge=0,
        lt=1,
        description="Share of the queries that only reports use. No decision looks at them.",
    )
    dev_share: float = Field(
        0.1,
        ge=0,
        lt=1,
        description=(
            "Share of the queries that choose checkpoints and weights. Also taken out of train if "
            "the source has no dev split."
        ),
    )
    gate_share: float = Field(
        0.2,
        ge=0,
        lt=1,
        description=(
            "Share of the queries that decide about promotions, taken out of train like dev. 0: "
            "the test queries decide."
        ),
    )
    by_document: float = Field(
        0.5,
        ge=0,
        le=1,
        description=(
            "Share of the documents whose queries all go to the same split of dev, gate and train, "
            "so that training never asks for these documents. Other queries are split one by one."
        ),
    )
    seed: int = constant_field(0, description="of the split")

    def check(self) -> None:
        """Require that the shares of test, dev and gate leave queries to train on."""
        shares = self.test_share + self.dev_share + self.gate_share
        require(shares < 1, "test_share + dev_share + gate_share must leave queries to train on")


@dataclass(frozen=True)
class SourceKind:
    """A value of `corpus.source`: the class that reads it, and the keys that it reads.

    Attributes:
        reader: The class, as "module:class". The module is imported when the source is opened.
        needs_path: Whether `corpus.path` must be set.
        keys: Names of the keys of `corpus` that the source reads and that not every kind reads:
            some of `columns`, `files`, `hub` and `qrels`.
    """

    reader: str
    needs_path: bool = True
    keys: tuple[str, ...] = ()


# All kinds of sources. The settings, their reference and `open_source` follow this table.
SOURCES: dict[str, SourceKind] = {
    "installed_packages": SourceKind(
        "model_code.corpus.sources.installed_packages:InstalledPackagesSource", needs_path=False
    ),
    "beir": SourceKind("model_code.corpus.sources.files:BeirSource", keys=("columns", "qrels")),
    "hub": SourceKind(
        "model_code.corpus.sources.hub:HubSource", needs_path=False, keys=("columns", "hub")
    ),
    "files": SourceKind("model_code.corpus.sources.files:FilesSource", keys=("columns", "files")),
    "folder": SourceKind("model_code.corpus.sources.folder:FolderSource"),
    "trec": SourceKind("model_code.corpus.sources.trec:TrecSource", keys=("columns", "files")),
    "ir_datasets": SourceKind("model_code.corpus.sources.ir_datasets:IrDatasetsSource"),
    "snapshot": SourceKind("model_code.corpus.sources.files:SnapshotSource"),
}
# Value of `corpus.source` with which the kind of the source is found from `corpus.path`.
AUTO = "auto"
_SOURCE_NAMES = (AUTO, *SOURCES)


class CorpusSettings(Settings):
    """Where documents, queries and qrels come from, and how they are cleaned, merged and split."""

    source: Literal[_SOURCE_NAMES] = Field(  # type: ignore[valid-type]
        AUTO,
        description=(
            "Where documents come from. auto: the kind of `path`, or docstrings if there is no "
            "path."
        ),
    )
    path: str | None = Field(
        None,
        description=(
            "A folder of documents, a file of rows, a BEIR folder, documents of TREC, or the name "
            "of a data set on the hub or of ir_datasets."
        ),
    )
    packages: tuple[str, ...] = Field(
        ("stdlib", "numpy", "pandas"),
        description=(
            "Packages whose docstrings are the documents, for `source: installed_packages`."
        ),
    )
    qrels: str = Field("qrels", description="Folder of the judgements, for `source: beir`.")
    hub: HubSettings = Field(default_factory=HubSettings)
    files: FileSettings = Field(default_factory=FileSettings)
    columns: ColumnSettings = Field(default_factory=ColumnSettings)
    limit: int | None = Field(
        None, gt=0, description="Maximum number of documents that are read. null: all."
    )
    max_characters: int = Field(200_000, gt=0, description="Longer texts are quarantined.")
    merge_duplicates: Literal["text", "title", "none"] = Field(
        "none",
        description=(
            "New documents that agree in this with another one are left out, and reported. none: "
            "every document is kept."
        ),
    )
    quarantine_limit: float = Field(
        0.05, ge=0, le=1, description="The stage fails if a larger share of the rows is malformed."
    )
    splits: QuerySplitSettings = Field(default_factory=QuerySplitSettings)

    def check(self) -> None:
        """Require the settings that name the content: a path, a data set or packages."""
        needs_path = self.source != AUTO and SOURCES[self.source].needs_path
        if needs_path:
            require(bool(self.path), f"path is missing: {self.source!r} reads from it")
        if self.source == "hub":
            require(bool(self.hub.name), "hub.name is missing: a data set such as BeIR/scifact")

        # Without a path, "auto" stands for installed packages.
        is_default_source = self.source == AUTO and self.path is None
        if self.source == "installed_packages" or is_default_source:
            require(bool(self.packages), "packages is empty: name at least one")

    def require_used_keys(self) -> None:
        """Refuse keys that the source does not read.

        The kind of the source must be known: `source` is not "auto".

        Raises:
            SettingsError: If such a key has another value than its default.
        """
        # A retrain copies the project's settings and only changes the source to "snapshot". Keys of
        # the copy may therefore be unused.
        if self.source == "snapshot":
            return

        # The kinds of sources that read each key of the settings, by key.
        readers: dict[str, list[str]] = {}
        for name, kind in sorted(SOURCES.items()):
            for key in kind.keys:
                readers.setdefault(key, []).append(name)

        defaults = CorpusSettings.model_fields
        for key, sources in sorted(readers.items()):
            if self.source in sources:
                continue
            is_set = getattr(self, key) != defaults[key].get_default(call_default_factory=True)
            remedy = "remove the key"
            if key in ("files", "qrels"):
                remedy += "; `freshet judge FILE` adds judgements to a source of any kind"
            require(
                not is_set,
                f"corpus.{key} is set, but the source {self.source!r} does not read it "
                f"(only {' and '.join(sources)}): {remedy}",
            )


class AcceptanceSettings(Settings):
    """Conditions that a finished corpus must meet before anything is trained on it."""

    min_documents: int = Field(1, description="The build stops if the corpus has fewer documents.")
    max_repeated_query_share: float = Field(
        0.2,
        ge=0,
        le=1,
        description=(
            "The build stops if a larger share of the judged queries repeats another query."
        ),
    )
