"""The groups `corpus`, `passages` and `acceptance` of `params.yaml`."""

from __future__ import annotations

from typing import Literal

from model_code.settings import Field, Settings, constant_field, require

# by table: our name of a column, and the setting that holds the source's
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
NEEDED = ("id", "text", "query_id", "document_id")  # columns without which every row is refused


class ColumnSettings(Settings):
    """Which column of the source holds what; the defaults are BEIR's. Other document columns become
    its `fields`.
    """

    document_id: str = Field("_id", description="column of documents")
    title: str = Field("title", description="column of documents")
    text: str = Field("text", description="column of documents")
    date: str = Field("date", description="column of documents")
    query_id: str = Field("_id", description="column of queries")
    query_text: str = Field("text", description="column of queries")
    answers: str | None = Field(
        "answers",
        description="column of queries: the strings that answer one, of which no negative holds any; null reads none",
    )
    qrel_query: str = Field("query-id", description="column of qrels")
    qrel_document: str = Field("corpus-id", description="column of qrels")
    relevance: str = Field("score", description="column of qrels")
    split: str = Field("split", description="column of qrels")

    def of(self, table: str) -> dict[str, str]:
        """The mapping from our names to the source's columns, for "documents", "queries" or
        "qrels".

        >>> ColumnSettings(text="body").of("documents")
        {'id': '_id', 'title': 'title', 'text': 'body', 'date': 'date'}
        """
        return {
            ours: name
            for ours, key in COLUMNS[table].items()
            if (name := getattr(self, key)) is not None
        }

    def expected(self, table: str) -> dict[str, str]:
        """{setting: the source's column} of those that a table must have: what its rows need, and
        what is no default.

        >>> ColumnSettings(date="opened").expected("documents")
        {'document_id': '_id', 'text': 'text', 'date': 'opened'}
        """
        default = ColumnSettings().of(table)
        return {
            COLUMNS[table][ours]: name
            for ours, name in self.of(table).items()
            if ours in NEEDED or name != default[ours]
        }


class HubSettings(Settings):
    """A data set of the Hugging Face hub (or a local folder that `datasets` loads), in BEIR's three
    parts.

    BEIR: `name: BeIR/nq`, `qrels: BeIR/nq-qrels`. MTEB: `name: mteb/scifact`, `qrels:
    mteb/scifact`, `qrels_config: default`. A corpus without judgements: `queries: null`.
    """

    name: str | None = Field(None, description="the data set, such as BeIR/nq or mteb/scifact")
    revision: str | None = Field(
        None,
        description="a branch, tag or commit of it, looked up by `freshet ingest`; null: the newest",
    )
    documents: str | None = Field("corpus", description="configuration with the documents")
    queries: str | None = Field(
        "queries", description="configuration with the queries; null: no judgements"
    )
    qrels: str | None = Field(
        None, description="data set with the judgements, such as BeIR/nq-qrels"
    )
    qrels_config: str | None = Field(None, description="its configuration")
    streaming: bool = Field(False, description="read it without storing it first")


class FileSettings(Settings):
    """Where `files` finds queries and qrels; documents are at `corpus.path`.

    The suffix tells the format: .jsonl, .csv or .tsv (each also with .gz), or .parquet.
    """

    queries: str | None = Field(None, description="the queries file; null: no judgements")
    qrels: str | None = Field(None, description="the judgements file")

    def check(self) -> None:
        """Refuse one without the other."""
        require(
            (self.queries is None) == (self.qrels is None),
            "queries and qrels are given together or not at all",
        )


GATE = "gate"  # the split that promotions are judged by
# the earlier one wins: what is tested must not be trained on
SPLITS = ("test", GATE, "dev", "train")


class QuerySplitSettings(Settings):
    """How queries are split where the source does not say: by the hash of (seed, query id), so for
    good.
    """

    test_share: float = Field(
        0.3, ge=0, lt=1, description="of the queries: for reports, no decision looks at them"
    )
    dev_share: float = Field(
        0.1, ge=0, lt=1, description="also carved out of train where a source has no dev split"
    )
    gate_share: float = Field(
        0.2,
        ge=0,
        lt=1,
        description="what promotions are judged by; carved out of train like dev; 0: the test queries",
    )
    by_document: float = Field(
        0.5,
        ge=0,
        le=1,
        description="share of the documents whose queries go to dev, gate or train together, so that training asks "
        "for none of the documents that these dev and gate queries ask for; the other queries are split singly",
    )
    seed: int = constant_field(0, description="of the split")

    def check(self) -> None:
        """Refuse shares that leave nothing."""
        shares = self.test_share + self.dev_share + self.gate_share
        require(shares < 1, "test_share + dev_share + gate_share must leave queries to train on")


Kind = Literal["auto", "installed_packages", "beir", "hub", "files", "folder", "snapshot"]
SOURCES = {  # by `corpus.source`; each is imported when it is opened
    "beir": "model_code.corpus.sources.files:BeirSource",
    "files": "model_code.corpus.sources.files:FilesSource",
    "folder": "model_code.corpus.sources.folder:FolderSource",
    "hub": "model_code.corpus.sources.hub:HubSource",
    "installed_packages": "model_code.corpus.sources.installed_packages:InstalledPackagesSource",
    "snapshot": "model_code.corpus.sources.files:SnapshotSource",
}
WITHOUT_PATH = ("auto", "hub", "installed_packages")


class CorpusSettings(Settings):
    """Where documents, queries and qrels come from, and how they are cleaned, merged and split."""

    source: Kind = Field(
        "auto",
        description="where documents come from; auto: told by `path`, docstrings without one",
    )
    path: str | None = Field(
        None,
        description="a folder of documents, a file of rows, a BEIR folder, or a data set's name on the hub",
    )
    packages: tuple[str, ...] = Field(
        ("stdlib", "numpy", "pandas"), description="installed_packages: whose docstrings"
    )
    qrels: str = Field("qrels", description="beir: the folder of the judgements")
    hub: HubSettings = Field(default_factory=HubSettings)
    files: FileSettings = Field(default_factory=FileSettings)
    columns: ColumnSettings = Field(default_factory=ColumnSettings)
    limit: int | None = Field(None, gt=0, description="documents that are read; null: all")
    max_characters: int = Field(200_000, gt=0, description="a longer text is quarantined")
    merge_duplicates: Literal["text", "title", "none"] = Field(
        "text", description="what makes two documents one"
    )
    quarantine_limit: float = Field(
        0.05, ge=0, le=1, description="share of malformed rows past which the stage fails"
    )
    splits: QuerySplitSettings = Field(default_factory=QuerySplitSettings)

    def check(self) -> None:
        """Refuse a source without what it reads."""
        require(
            self.source in WITHOUT_PATH or bool(self.path),
            f"path is missing: {self.source!r} reads from it",
        )
        require(
            self.source != "hub" or bool(self.hub.name),
            "hub.name is missing: a data set such as BeIR/scifact",
        )
        of_packages = self.source == "installed_packages" or (
            self.source == "auto" and self.path is None
        )
        require(not of_packages or bool(self.packages), "packages is empty: name at least one")


class AcceptanceSettings(Settings):
    """What a finished corpus must satisfy before anything is trained on it."""

    min_documents: int = Field(1, description="fewer stop the build")
    max_repeated_query_share: float = Field(0.2, ge=0, le=1, description="of the queries")
