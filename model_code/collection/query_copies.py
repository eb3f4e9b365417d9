"""Find the files outside of the live collection that contain a query to forget.

`freshet forget` does not change these files, because the user wrote them, or because a build needs
them. So the user is told what to do about each of them.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from model_code.collection.backup.export import DOCUMENTS_FILE
from model_code.collection.backup.import_ import IMPORTED_FOLDER
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.index.retrain_plan import FOLDER, WORKSPACE
from model_code.collection.segments.documents import CORPUS_DOCUMENTS
from model_code.collection.sync.inbox import DONE, FAILED, INBOX
from model_code.corpus.clean_rows import clean_rows, read_file
from model_code.corpus.corpus_queries import KNOWN_QUERIES, CorpusQueries, query_hash
from model_code.corpus.settings import CorpusSettings
from model_code.corpus.sources.document_files import is_document_file
from model_code.errors import FreshetError
from model_code.project import Project
from model_code.text.known_queries import normalize_query

# Name of the folder of the corpus's tables, below the folder of artifacts.
CORPUS_FOLDER = "corpus"

# Keys of a row whose values are queries: in rows of documents, and in other rows.
DOCUMENT_KEYS = frozenset({"queries"})
QUERY_KEYS = frozenset({"query", "question", "text", "known_queries"})

# Columns of the table of refused rows that quote the rows.
QUOTING_COLUMNS = ("detail", "excerpt")


@dataclass(frozen=True)
class QueryMatcher:
    """Recognises a query in other texts, whatever its case and punctuation.

    Attributes:
        text: Text of the query.
    """

    text: str

    @cached_property
    def _hash(self) -> str:
        return query_hash(self.text)

    @cached_property
    def _words(self) -> str:
        return f" {normalize_query(self.text)} "

    def equals(self, text: str) -> bool:
        """Return whether a text is the query."""
        return query_hash(text) == self._hash

    def occurs_in(self, text: str) -> bool:
        """Return whether the words of the query follow one another in a text."""
        return self._words in f" {normalize_query(text)} "

    def is_within(self, value: Any, keys: Set[str]) -> bool:
        """Return whether a value of JSON is the query, or contains it.

        Args:
            value: A text, a list, or a mapping.
            keys: Keys of mappings whose values are queries. Ids and texts of documents, which may
                be equal to a query, have other keys.
        """
        if isinstance(value, str):
            return self.equals(value)
        if isinstance(value, dict):
            return any(self.is_within(value[key], keys) for key in keys & value.keys())
        if isinstance(value, list):
            return any(self.is_within(item, keys) for item in value)
        return False


def find_query_copies(index: LiveIndex, text: str) -> Iterator[str]:
    """Yield a message for each file or folder outside of the live collection that has a query.

    Copies of earlier builds are not searched: DVC's cache, registered models, and backups.

    Args:
        index: Live index of any retriever.
        text: Text of the query.
    """
    project = index.project
    matcher = QueryMatcher(text)
    for path in _received_files(project):
        if _received_file_has_query(path, matcher, index.settings):
            yield f"{path}, which has it: delete the file"
    for path in sorted((project.root / IMPORTED_FOLDER).glob("*.jsonl")):
        keys = DOCUMENT_KEYS if path.name == DOCUMENTS_FILE else QUERY_KEYS
        if _lines_have_query(path, matcher, keys):
            yield f"{path}, which has it: take it out"
    if _lines_have_query(project.judgements, matcher, QUERY_KEYS):
        yield f"{project.judgements}, which judges documents for it: take its lines out"

    corpus = project.artifacts / CORPUS_FOLDER
    if _corpus_has_query(corpus, matcher):
        yield f"{corpus}: take the query out of the corpus's source, and build again"
    for retrain in sorted((project.state / FOLDER).glob("*")):
        workspace = Project(retrain / WORKSPACE, home=project.root)
        corpora = (workspace.root / "snapshot", workspace.artifacts / CORPUS_FOLDER)
        if any(_corpus_has_query(folder, matcher) for folder in corpora):
            yield f"{retrain}, the work of a retrain: delete it once that has ended"


def _received_files(project: Project) -> Iterator[Path]:
    """Yield the files that the inbox has received and keeps."""
    inbox = project.root / INBOX
    received = [*(inbox / DONE).glob("*"), *(inbox / FAILED).glob("*")]
    yield from sorted(path for path in received if path.is_file())


def _received_file_has_query(path: Path, matcher: QueryMatcher, settings: CorpusSettings) -> bool:
    """Return whether a row of a received file has the query.

    A row that cannot be read may have it if the words of the query are in the file.
    """
    if not path.suffix or is_document_file(path):
        return False
    if path.suffix == ".reason":
        return matcher.occurs_in(_read_text(path))
    try:
        rows = clean_rows(read_file(path, path.name, settings.columns), settings)
    except (FreshetError, ValueError):
        return matcher.occurs_in(_read_text(path))
    for document in rows.documents:
        if any(matcher.equals(query) for query in document.queries):
            return True
    return bool(rows.refused) and matcher.occurs_in(_read_text(path))


def _read_text(path: Path) -> str:
    """Return the content of a file as text. Bytes that are no UTF-8 are replaced."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError):
            return ""
    return content.decode("utf-8", errors="replace")


def _lines_have_query(path: Path, matcher: QueryMatcher, keys: Set[str]) -> bool:
    """Return whether a value of a file of JSON lines is the query.

    A line that cannot be read has it if the words of the query are in the line.

    Args:
        path: The file, which may be missing.
        matcher: Recognises the query.
        keys: Keys whose values are queries.
    """
    if not path.is_file():
        return False
    # `splitlines` would also split at U+2028, which JSON allows within a text.
    for line in _read_text(path).split("\n"):
        try:
            has_query = matcher.is_within(json.loads(line), keys)
        except ValueError:
            has_query = matcher.occurs_in(line)
        if has_query:
            return True
    return False


def _corpus_has_query(folder: Path, matcher: QueryMatcher) -> bool:
    """Return whether a folder with tables of a corpus, or of a snapshot, has the query."""
    if not folder.is_dir():
        return False
    known = folder / KNOWN_QUERIES
    if known.is_file() and any(map(matcher.equals, _known_texts(known))):
        return True
    for queries in read_column(folder / CORPUS_DOCUMENTS, "queries"):
        if any(map(matcher.equals, json.loads(queries))):
            return True
    if any(map(matcher.equals, read_column(folder / "queries.parquet", "text"))):
        return True
    for column in QUOTING_COLUMNS:
        if any(map(matcher.occurs_in, read_column(folder / "quarantine.parquet", column))):
            return True
    return False


def _known_texts(path: Path) -> Iterator[str]:
    """Yield the texts of the known queries in a file that `CorpusQueries.save` wrote."""
    for query in CorpusQueries.load(path).queries:
        yield query.text


def read_column(path: Path, column: str) -> Iterable[str]:
    """Return the values of a column of a table. It is empty if there is no such file or column."""
    if not path.is_file():
        return ()
    # The import is inside because it takes long, and most projects have no such table.
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        if column not in file.schema_arrow.names:
            return ()
        values = file.read(columns=[column])[column].to_pylist()
    return [value for value in values if value is not None]
