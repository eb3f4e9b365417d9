"""Read what a source holds, and remember it, so that only changed files are read again.

A source is read in units: each file of a folder is one, and any other source is one as a whole. The
memory keeps, for each unit, the hash of its content and a summary of the documents in it. A unit
with the same hash is not read again. The memory is dropped as a whole if the settings or the code
that reads rows have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from freshet.results import ReadingNote
from model_code import corpus
from model_code.corpus.clean_rows import CleanRows, clean_rows
from model_code.corpus.cleaning import merge_duplicates, text_key
from model_code.corpus.reading_notes import notes_from_json, notes_to_json
from model_code.corpus.rows import RefusedRow, Row, row_number
from model_code.corpus.settings import CorpusSettings
from model_code.corpus.source_ids import name_documents
from model_code.corpus.sources.base import Source
from model_code.corpus.sources.folder import FolderSource, fingerprint
from model_code.files import canonical_json, hash_path, hash_text, read_json, write_json
from model_code.text.documents import Document

# The name of the only unit of a source that is no folder.
WHOLE_SOURCE = "documents"

# Characters of the hashes by which duplicates are found.
DUPLICATE_KEY_CHARACTERS = 32


@dataclass(frozen=True)
class SourceUnit:
    """A piece of a source that is read as a whole.

    Attributes:
        name: Name of the unit: the id of a file in a folder, or `WHOLE_SOURCE`.
        content_hash: Hash of its content.
        read_rows: Reads its rows.
    """

    name: str
    content_hash: str
    read_rows: Callable[[], Iterator[Row | RefusedRow]]


@dataclass(frozen=True)
class SourceContents:
    """The documents of a source after cleaning and merging, as a build would have them.

    Attributes:
        hashes: Content hash by document id.
        unit_names: Name of the unit that holds a document, by document id.
        refused: The refused rows as reports name them. `document_id` is None if the row has no
            readable id.
        notes: What was not read of its files, or was guessed.
        merged: Id of each new document that is left out, with that of the document that says the
            same.
        earlier_hashes: Content hash by document id when the source was last remembered.
    """

    hashes: Mapping[str, str]
    unit_names: Mapping[str, str]
    refused: list[dict[str, Any]]
    notes: list[ReadingNote]
    merged: Mapping[str, str]
    earlier_hashes: Mapping[str, str]


class SourceMemory:
    """The summary of each unit of a source, kept in a JSON file between syncs.

    Args:
        path: The file. It need not exist.
        label: Origin of the source's documents, kept in the file so that an erasure can name it.
        source_name: Name of the source; None for the project's own one.
    """

    def __init__(self, path: Path, label: str, source_name: str | None = None) -> None:
        self._path = path
        self._label = label
        self._source_name = source_name
        self._stored: dict[str, Any] = {"rules": None, "units": {}}
        if path.is_file():
            self._stored = read_json(path)
        self._updated = self._stored

    def update(
        self,
        units: Collection[SourceUnit],
        settings: CorpusSettings,
        known_ids: Set[str] = frozenset(),
    ) -> SourceContents:
        """Read the units that have changed, and return the contents of the source.

        Nothing is written until `save`.

        Args:
            units: All units of the source.
            settings: How they are read.
            known_ids: Documents of the index, which are never merged into others.
        """
        rules = _reading_rules(settings)
        known = self._stored["units"] if self._stored["rules"] == rules else {}

        summaries: dict[str, Any] = {}
        for unit in units:
            summary = known.get(unit.name)
            if summary is None or summary["hash"] != unit.content_hash:
                summary = _summarize(unit, settings, self._source_name)
            summaries[unit.name] = summary

        self._updated = {"source": self._label, "rules": rules, "units": summaries}
        earlier_hashes = _document_hashes(self._stored["units"])
        return _merge_summaries(summaries, settings, earlier_hashes, known_ids)

    def save(self) -> None:
        """Write what `update` has read, if that is new."""
        if self._updated != self._stored:
            write_json(self._path, self._updated)


def list_units(source: Source, settings: CorpusSettings) -> list[SourceUnit]:
    """Return the units of a source, without reading their rows."""
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
) -> list[Document]:
    """Read some documents of a source. Only the units that hold one of them are read."""
    wanted = set(document_ids)
    unit_names = {contents.unit_names[document_id] for document_id in wanted}
    documents: list[Document] = []
    for unit in sorted(units, key=lambda unit: unit.name):
        if unit.name not in unit_names:
            continue
        for document in _read_unit(unit, settings, source_name).documents:
            if document.document_id in wanted:
                documents.append(document)
    return documents


def _read_unit(unit: SourceUnit, settings: CorpusSettings, source_name: str | None) -> CleanRows:
    """Read a unit. The documents have the ids that they have in the index."""
    cleaned = clean_rows(unit.read_rows(), settings, unique_ids=True)
    if source_name is None:
        return cleaned
    return name_documents(cleaned, source_name)


def _read_whole_source(source: Source, limit: int | None) -> Iterator[Row | RefusedRow]:
    return islice(source.rows("documents"), limit)


def _read_one_file(source: FolderSource, name: str) -> Iterator[Row | RefusedRow]:
    yield source.read(name)


def _reading_rules(settings: CorpusSettings) -> str:
    """Return a hash of everything that decides what a unit of unchanged content comes to."""
    code = [hash_path(Path(corpus.__file__).parent), hash_path(Path(__file__))]
    return hash_text(canonical_json({"corpus": settings.model_dump(mode="json"), "code": code}))


def _summarize(
    unit: SourceUnit, settings: CorpusSettings, source_name: str | None
) -> dict[str, Any]:
    """Read a unit. Each document becomes [id, content hash, key of the title, key of the text]."""
    cleaned = _read_unit(unit, settings, source_name)
    documents: list[list[str]] = []
    for document in cleaned.documents:
        title_key = _duplicate_key(document.title)
        body_key = _duplicate_key(document.text)
        documents.append([document.document_id, document.content_hash, title_key, body_key])
    refused = [_describe_refusal(row) for row in cleaned.refused]
    return {
        "hash": unit.content_hash,
        "documents": documents,
        "refused": refused,
        "notes": notes_to_json(cleaned.notes),
    }


def _duplicate_key(text: str) -> str:
    """Return a short hash that is equal for texts that count as duplicates; empty for no text."""
    return hash_text(text_key(text))[:DUPLICATE_KEY_CHARACTERS] if text else ""


def _describe_refusal(row: RefusedRow) -> dict[str, Any]:
    """Return a refused row as a report names it. A file that is one document has no row number."""
    number = row_number(row.location)
    file = row.location if number is None else row.location.rpartition(":")[0]
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
    """Merge new duplicates across the units."""
    hashes: dict[str, str] = {}
    unit_names: dict[str, str] = {}
    refused: list[dict[str, Any]] = []
    notes: list[ReadingNote] = []
    # These documents have the keys of their titles and texts in place of these, which are enough
    # to find duplicates.
    keyed_documents: list[Document] = []
    for unit_name, summary in summaries.items():
        refused.extend(summary["refused"])
        notes.extend(notes_from_json(summary["notes"]))
        for document_id, content_hash, title_key, body_key in summary["documents"]:
            hashes[document_id] = content_hash
            unit_names[document_id] = unit_name
            keyed_documents.append(Document(document_id, title_key, body_key))

    kept, merged = merge_duplicates(keyed_documents, settings.merge_duplicates, known_ids)
    kept_hashes = {document.document_id: hashes[document.document_id] for document in kept}
    return SourceContents(kept_hashes, unit_names, refused, notes, merged, earlier_hashes)


def _document_hashes(summaries: Mapping[str, Any]) -> dict[str, str]:
    hashes: dict[str, str] = {}
    for summary in summaries.values():
        for document_id, content_hash, *_ in summary["documents"]:
            hashes[document_id] = content_hash
    return hashes
