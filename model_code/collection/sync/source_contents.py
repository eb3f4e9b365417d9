"""Read the documents of a source, and remember them, so that only changed files are read again.

A source is divided into units. Each file of a folder is a unit. Any other source is one unit. For
each unit, the memory has the hash of its content and a summary of its documents. If the hash of a
unit has not changed, the unit is not read again. If the settings or the code that reads rows have
changed, the whole memory is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from freshet.results import ReadingNote
from model_code import corpus
from model_code.collection.segments.documents import has_expired
from model_code.corpus.clean_rows import CleanRows, clean_rows
from model_code.corpus.cleaning import merge_duplicates, text_key
from model_code.corpus.reading_notes import notes_from_json, notes_to_json
from model_code.corpus.rows import RefusedRow, Row, row_number
from model_code.corpus.settings import CorpusSettings
from model_code.corpus.source_ids import name_documents
from model_code.corpus.sources.base import Source
from model_code.corpus.sources.folder import FolderSource, fingerprint
from model_code.files import canonical_json, hash_path, hash_text, read_json, write_json
from model_code.text.documents import EXPIRES, Document

# Name of the only unit of a source that is not a folder.
WHOLE_SOURCE = "documents"

# Number of hexadecimal digits of the hashes that identify duplicates.
DUPLICATE_KEY_CHARACTERS = 32


@dataclass(frozen=True)
class SourceUnit:
    """A piece of a source that is read as a whole.

    Attributes:
        name: Name of the unit: the id of a file in a folder, or `WHOLE_SOURCE`.
        content_hash: Hash of its content.
        read_rows: Function that reads its rows.
    """

    name: str
    content_hash: str
    read_rows: Callable[[], Iterator[Row | RefusedRow]]


@dataclass(frozen=True)
class SourceContents:
    """The documents of a source after cleaning and merging, as a build would read them.

    Attributes:
        hashes: Content hash of each document, by document id.
        unit_names: Name of the unit that contains each document, by document id.
        refused: Refused rows with the keys file, row, document_id and reason. `document_id` is None
            if the row has no readable id.
        notes: Statements about parts of files that were not read, or read by a guess.
        merged: New documents that were left out, because another document has the same text or
            title. Id of the other document by the id of the document that was left out.
        earlier_hashes: Content hash of each document at the last sync, by document id.
        expired: Ids of the documents that have expired. They are not in `hashes`.
    """

    hashes: Mapping[str, str]
    unit_names: Mapping[str, str]
    refused: list[dict[str, Any]]
    notes: list[ReadingNote]
    merged: Mapping[str, str]
    earlier_hashes: Mapping[str, str]
    expired: frozenset[str] = frozenset()


class SourceMemory:
    """A JSON file that has a summary of each unit of a source, and is kept between syncs.

    Attributes:
        forgotten: Hashes of the queries that a person asked to forget. They are removed from the
            documents.
    """

    def __init__(
        self,
        path: Path,
        label: str,
        source_name: str | None = None,
        forgotten: Set[str] = frozenset(),
    ) -> None:
        """Read the file, if it exists.

        Args:
            path: Path of the file.
            label: Origin of the source's documents. It is written to the file, so that the erasure
                of a document can report which source contains it.
            source_name: Name of the source. None for the project's own source.
            forgotten: Hashes of the queries that a person asked to forget.
        """
        self._path = path
        self._label = label
        self._source_name = source_name
        self.forgotten = forgotten
        # Content of the file: the hash of the rules by which the units were read, and the summary
        # of each unit, by its name.
        self._stored: dict[str, Any] = {"rules": None, "units": {}}
        if path.is_file():
            self._stored = read_json(path)
        # Content that `save` writes.
        self._updated = self._stored

    def update(
        self,
        units: Collection[SourceUnit],
        settings: CorpusSettings,
        known_ids: Set[str] = frozenset(),
    ) -> SourceContents:
        """Read the units that have changed, and return the documents of the whole source.

        The file is not written before `save` is called.

        Args:
            units: All units of the source.
            settings: Settings by which rows are read and cleaned.
            known_ids: Ids of the documents in the index. They are never left out as duplicates.
        """
        # Under other rules, a unit may give other documents, so that all units are read again.
        rules = _reading_rules(settings, self.forgotten)
        stored_summaries: dict[str, Any] = {}
        if self._stored["rules"] == rules:
            stored_summaries = self._stored["units"]

        summaries: dict[str, Any] = {}
        for unit in units:
            summary = stored_summaries.get(unit.name)
            if summary is None or summary["hash"] != unit.content_hash:
                summary = _summarize(unit, settings, self._source_name, self.forgotten)
            summaries[unit.name] = summary

        self._updated = {"source": self._label, "rules": rules, "units": summaries}
        earlier_hashes = _document_hashes(self._stored["units"])
        return _merge_summaries(summaries, settings, earlier_hashes, known_ids)

    def save(self) -> None:
        """Write the summaries of the last `update` to the file, if they differ from the file."""
        if self._updated != self._stored:
            write_json(self._path, self._updated)


def list_units(source: Source, settings: CorpusSettings) -> list[SourceUnit]:
    """Return the units of a source. Their contents are hashed, but their rows are not read.

    A unit is a piece of the source that is read as a whole, such as a file.
    """
    if not isinstance(source, FolderSource):
        read_rows = partial(_read_whole_source, source, settings.limit)
        return [SourceUnit(WHOLE_SOURCE, source.describe()["content_hash"], read_rows)]

    units: list[SourceUnit] = []
    for name, path in islice(source.files.items(), settings.limit):
        units.append(SourceUnit(name, fingerprint(path), partial(_read_one_file, source, name)))
    return units


def read_documents(
    units: Collection[SourceUnit],
    settings: CorpusSettings,
    contents: SourceContents,
    document_ids: Collection[str],
    source_name: str | None = None,
    forgotten: Set[str] = frozenset(),
) -> list[Document]:
    """Read some documents of a source. Units without any of them are not read.

    A unit is a piece of the source that is read as a whole, such as a file.

    Args:
        units: All units of the source.
        settings: Settings by which rows are read and cleaned.
        contents: Contents of the source, which tell the unit of each document.
        document_ids: Ids of the documents.
        source_name: Name of the source. None for the project's own source.
        forgotten: Hashes of the queries that are removed from the documents.
    """
    wanted = set(document_ids)
    unit_names = {contents.unit_names[document_id] for document_id in wanted}
    documents: list[Document] = []
    for unit in sorted(units, key=lambda unit: unit.name):
        if unit.name not in unit_names:
            continue
        for document in _read_unit(unit, settings, source_name, forgotten).documents:
            if document.document_id in wanted:
                documents.append(document)
    return documents


def _read_unit(
    unit: SourceUnit, settings: CorpusSettings, source_name: str | None, forgotten: Set[str]
) -> CleanRows:
    """Read and clean the rows of a unit, a piece of a source such as a file.

    Documents of a named source get the ids that they have in the index, which begin with its name.
    Forgotten queries are removed from them, so that no sync brings their texts back.
    """
    cleaned = clean_rows(unit.read_rows(), settings, unique_ids=True)
    cleaned = cleaned.without_queries(forgotten)
    if source_name is None:
        return cleaned
    return name_documents(cleaned, source_name)


def _read_whole_source(source: Source, limit: int | None) -> Iterator[Row | RefusedRow]:
    """Return the rows of a source, at most `limit`. None returns all."""
    return islice(source.rows("documents"), limit)


def _read_one_file(source: FolderSource, name: str) -> Iterator[Row | RefusedRow]:
    """Yield the row of a file that is one document."""
    yield source.read(name)


def _reading_rules(settings: CorpusSettings, forgotten: Set[str]) -> str:
    """Return a hash of the settings, the forgotten queries and the code that read rows.

    If it changes, a file can give other documents although its content has not changed.
    """
    code_folder = Path(corpus.__file__).parent
    rules = {
        "corpus": settings.model_dump(mode="json"),
        "code": [hash_path(code_folder), hash_path(Path(__file__))],
        "forgotten": sorted(forgotten),
    }
    return hash_text(canonical_json(rules))


def _summarize(
    unit: SourceUnit, settings: CorpusSettings, source_name: str | None, forgotten: Set[str]
) -> dict[str, Any]:
    """Read a unit, a piece of a source such as a file, and return its summary.

    The entry of a document is [id, content hash, key of the title, key of the text, date of expiry
    or null]; see `_duplicate_key`.
    """
    cleaned = _read_unit(unit, settings, source_name, forgotten)
    documents: list[list[Any]] = []
    for document in cleaned.documents:
        title_key = _duplicate_key(document.title)
        body_key = _duplicate_key(document.text)
        expires = document.fields.get(EXPIRES)
        documents.append(
            [document.document_id, document.content_hash, title_key, body_key, expires]
        )
    refused = [_describe_refusal(row) for row in cleaned.refused]
    return {
        "hash": unit.content_hash,
        "documents": documents,
        "refused": refused,
        "notes": notes_to_json(cleaned.notes),
    }


def _duplicate_key(text: str) -> str:
    """Return a short hash, which is equal for texts that count as duplicates.

    The key of an empty text is empty.
    """
    if not text:
        return ""
    return hash_text(text_key(text))[:DUPLICATE_KEY_CHARACTERS]


def _describe_refusal(row: RefusedRow) -> dict[str, Any]:
    """Return a refused row with the keys file, row, document_id and reason, for a report.

    `row` is None if the whole file is one document.
    """
    # A location is "FILE:ROW", or only the name of the file.
    number = row_number(row.location)
    file = row.location
    if number is not None:
        file = row.location.rpartition(":")[0]
    # The id of a file that is one document is its name.
    if file == row.record_id:
        number = None
    document_id = row.record_id if row.has_valid_id else None
    return {"file": file, "row": number, "document_id": document_id, "reason": row.message}


def _merge_summaries(
    summaries: Mapping[str, Any],
    settings: CorpusSettings,
    earlier_hashes: Mapping[str, str],
    known_ids: Set[str],
) -> SourceContents:
    """Join the summaries of all units, and leave out expired documents and new duplicates.

    A unit is a piece of a source, such as a file. Its summary lists its documents, with hashes of
    titles and texts.

    Args:
        summaries: Summary of each unit, by its name.
        settings: Settings that decide which documents are duplicates.
        earlier_hashes: Content hashes at the last sync, by document id.
        known_ids: Ids of the documents in the index. They are never left out.
    """
    hashes: dict[str, str] = {}
    unit_names: dict[str, str] = {}
    refused: list[dict[str, Any]] = []
    notes: list[ReadingNote] = []
    # Documents whose titles and texts are replaced by hashes. The hashes are enough to find
    # duplicates, so that the texts need not be read again.
    keyed_documents: list[Document] = []
    expired: set[str] = set()
    now = datetime.now(UTC)
    for unit_name, summary in summaries.items():
        refused.extend(summary["refused"])
        notes.extend(notes_from_json(summary["notes"]))
        for document_id, content_hash, title_key, body_key, expires in summary["documents"]:
            if expires is not None and has_expired(expires, now):
                expired.add(document_id)
                continue
            hashes[document_id] = content_hash
            unit_names[document_id] = unit_name
            keyed_documents.append(Document(document_id, title_key, body_key))

    kept, merged = merge_duplicates(keyed_documents, settings.merge_duplicates, known_ids)
    kept_hashes = {document.document_id: hashes[document.document_id] for document in kept}
    return SourceContents(
        kept_hashes, unit_names, refused, notes, merged, earlier_hashes, frozenset(expired)
    )


def _document_hashes(summaries: Mapping[str, Any]) -> dict[str, str]:
    """Return the content hash of each document in the summaries of files, by document id."""
    hashes: dict[str, str] = {}
    for summary in summaries.values():
        for document_id, content_hash, *_ in summary["documents"]:
            hashes[document_id] = content_hash
    return hashes
