"""`freshet import`: read a folder that `freshet export --all` wrote into a project.

If the project has no live collection, the export becomes its corpus, from which the first build is
made. Otherwise the documents are added to the live collection. Judgements are left out then,
because they belong to a corpus. Feedback and forgotten queries are recorded in both cases.

Importing the same folder again changes nothing.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model_code.collection.backup.export import (
    DOCUMENTS_FILE,
    EXPORT_COLUMNS,
    EXPORT_FORMAT,
    FEEDBACK_FILE,
    FORGOTTEN_FILE,
    ORIGINS_FILE,
    QRELS_FILE,
    QUERIES_FILE,
)
from model_code.collection.generations.generation_store import retrievers
from model_code.collection.index.changes import ChangeReport, apply_changes
from model_code.collection.index.live_index import LiveIndex, forecast_changes
from model_code.collection.index.project_ledger import open_ledger
from model_code.collection.ledger.events import Feedback, Opinion, Receipt
from model_code.corpus.clean_rows import clean_rows, read_file
from model_code.corpus.cleaning import clean_query, is_possible_id
from model_code.corpus.qrels import QrelTargets, admit_qrels
from model_code.corpus.quarantine import Quarantine
from model_code.corpus.rows import RefusedRow, Row, Table, map_columns, printable
from model_code.corpus.settings import CorpusSettings
from model_code.corpus.sources.readers import read_rows
from model_code.errors import FreshetError
from model_code.files import MANIFEST, read_json, replace_folder
from model_code.project import Project
from model_code.text.documents import Document

QUERY_HASH = re.compile("[0-9a-f]{64}")
"""Form of a hash that `query_hash` returns."""

# Name of a folder in the project's root. If the project has no live collection, an import copies
# the export to this folder, and the copy becomes the corpus.
IMPORTED_FOLDER = "imported"

# Origin that the ledger records for an imported document if the export names none. Such a document
# was part of the exported build.
BUILT_ORIGIN = "sync"

# Settings that make the imported folder the corpus of the project.
CORPUS_SETTINGS = (
    "corpus.source=files",
    f"corpus.path={IMPORTED_FOLDER}/{DOCUMENTS_FILE}",
    f"corpus.files.queries={IMPORTED_FOLDER}/{QUERIES_FILE}",
    f"corpus.files.qrels={IMPORTED_FOLDER}/{QRELS_FILE}",
)


@dataclass
class ImportReport(ChangeReport):
    """The changes that an import made, for the user.

    Attributes:
        feedback: Number of accepted rows of feedback.
        forgotten: Number of forgotten queries.
        corpus_documents: Number of accepted documents of the new corpus. 0 if the project had a
            live collection.
        queries: Number of accepted queries of the new corpus.
        judgements: Number of accepted judgements of the new corpus.
    """

    feedback: int = 0
    forgotten: int = 0
    corpus_documents: int = 0
    queries: int = 0
    judgements: int = 0

    @property
    def failed(self) -> bool:
        """Whether all rows were refused, and there was at least one row."""
        has_accepted_rows = self.feedback > 0 or self.corpus_documents > 0
        return super().failed and not has_accepted_rows

    def __str__(self) -> str:
        """Return the report as text: the changes of documents, then all other counts."""
        lines = super().__str__().splitlines()
        if self.corpus_documents:
            lines[0] = (
                f"the corpus is the export: {self.corpus_documents:,} documents, "
                f"{self.queries:,} queries, {self.judgements:,} judgements"
            )
        lines.append(f"{self.feedback:,} rows of feedback")
        if self.forgotten:
            lines.append(f"{self.forgotten:,} forgotten queries, which are not known again")
        return "\n".join(lines)


def import_project(
    project: Project,
    folder: Path,
    index: LiveIndex | None = None,
    use_as_corpus: Callable[[Sequence[str]], None] = lambda settings: None,
) -> ImportReport:
    """Read an export into a project.

    Args:
        project: Project that receives the export, with or without a live collection.
        folder: Folder that `freshet export --all` wrote.
        index: Live index that receives the documents. None means the index of the default
            retriever, if there is one.
        use_as_corpus: Function that writes assignments such as "corpus.path=..." to the settings of
            the project. It is called if the project has no live collection.

    Returns:
        The changes, and the refused rows with their reasons.

    Raises:
        FreshetError: If the folder is not an export, or has another format. Nothing is changed
            then.
    """
    _check_manifest(folder)
    if index is None and retrievers(project.live):
        index = LiveIndex(project)

    settings = CorpusSettings(
        columns=EXPORT_COLUMNS,
        max_characters=project.settings("corpus", CorpusSettings).max_characters,
    )
    documents_path = folder / DOCUMENTS_FILE
    rows = clean_rows(read_file(documents_path, DOCUMENTS_FILE), settings, DOCUMENTS_FILE)
    report = ImportReport()
    for rejection in rows.rejected:
        report.add_rejection(DOCUMENTS_FILE, rejection)
    _record_forgotten(project, folder, report)
    _record_feedback(project, folder, report)

    if index is None:
        report.corpus_documents = len(set(rows.document_ids))
        _check_judgements(folder, settings, set(rows.document_ids), report)
        _copy_export(folder, project.root / IMPORTED_FOLDER)
        use_as_corpus(CORPUS_SETTINGS)
    else:
        kept = rows.without_queries(index.forgotten_queries())
        _add_documents(index, kept.documents, _read_origins(folder), report)
    return report


def _check_manifest(folder: Path) -> None:
    """Raise an error unless a folder is an export in the format that this version reads."""
    manifest = folder / MANIFEST
    if not manifest.is_file() or not (folder / DOCUMENTS_FILE).is_file():
        raise FreshetError(
            f"{folder} is no export: it lacks {MANIFEST} or {DOCUMENTS_FILE}. "
            "`freshet export --all FOLDER` writes one."
        )
    try:
        content = read_json(manifest)
    except ValueError:
        content = None
    if not isinstance(content, Mapping):
        raise FreshetError(f"{manifest} is torn; copy the folder again, or export it again")
    export_format = content.get("format")
    if export_format != EXPORT_FORMAT:
        raise FreshetError(
            f"{folder} has the export format {export_format!r}, and this version reads format "
            f"{EXPORT_FORMAT}. Import it with the version of Freshet that wrote it."
        )


def _check_judgements(
    folder: Path, settings: CorpusSettings, document_ids: set[str], report: ImportReport
) -> None:
    """Check the queries and judgements of an export as a build would.

    Nothing is recorded here. The next build reads the same rows from the copied export.

    Args:
        folder: Folder of the export.
        settings: Settings by which rows are checked.
        document_ids: Ids of the accepted documents of the export.
        report: Receives the numbers of accepted rows, and the refused rows with their reasons.
    """
    quarantine = Quarantine()

    def check_query(row: Row) -> str:
        return clean_query(row, settings.max_characters).query_id

    query_ids = set(quarantine.admit(_read_table(folder, QUERIES_FILE, "queries"), check_query))
    report.queries = len(query_ids)

    targets = QrelTargets(query_ids, document_ids, merged={})
    qrels = _read_table(folder, QRELS_FILE, "qrels")
    report.judgements = len(admit_qrels(qrels, targets, settings.splits, quarantine).pairs)

    for refused in quarantine.refused:
        file, _, number = refused.location.rpartition(":")
        reason = f"{refused.reason}: {refused.detail}"
        report.rejected.append(_refusal(file, int(number), refused.record_id, reason))


def _read_table(folder: Path, file: str, table: Table) -> Iterator[Row | RefusedRow]:
    """Yield the rows of a file of queries or judgements. Without the file, there are none."""
    if (folder / file).is_file():
        for row in read_rows(folder / file, table, file):
            yield map_columns(row, EXPORT_COLUMNS)


def _record_forgotten(project: Project, folder: Path, report: ImportReport) -> None:
    """Record the hashes of forgotten queries in the ledger, so that they stay forgotten."""
    # Time when each query was forgotten, by its hash.
    times: dict[str, float] = {}
    for number, values in _json_lines(folder / FORGOTTEN_FILE):
        query = None
        received = None
        if values is not None:
            query = values.get("hash")
            received = values.get("received")
        is_hash = isinstance(query, str) and QUERY_HASH.fullmatch(query) is not None
        if is_hash and isinstance(received, int | float) and math.isfinite(received):
            times[str(query)] = float(received)
        else:
            reason = "bad row: hash must be 64 hexadecimal digits, and received a time in seconds"
            report.rejected.append(_refusal(FORGOTTEN_FILE, number, None, reason))

    report.forgotten = len(times)
    if times:
        with open_ledger(project) as ledger:
            for query, time in times.items():
                ledger.record_forgotten(query, time)


def _record_feedback(project: Project, folder: Path, report: ImportReport) -> None:
    """Record the feedback of an export in the ledger, with its original times.

    Rows with a fault are reported and left out.
    """
    opinions: list[Feedback] = []
    for number, values in _json_lines(folder / FEEDBACK_FILE):
        if values is None:
            reason = "bad JSON: not an object"
            report.rejected.append(_refusal(FEEDBACK_FILE, number, None, reason))
            continue
        fault = _feedback_fault(values)
        if fault is None:
            opinions.append(Feedback(**values))
            continue
        document_id = values.get("document_id")
        shown_id = None if document_id is None else printable(document_id)
        report.rejected.append(_refusal(FEEDBACK_FILE, number, shown_id, fault))

    report.feedback = len(opinions)
    if opinions:
        with open_ledger(project) as ledger:
            for opinion in opinions:
                ledger.record_feedback(opinion, opinion.received)


def _feedback_fault(values: Mapping[str, Any]) -> str | None:
    """Return the fault of a row of feedback as text, or None if it has no fault."""
    unknown = sorted(values.keys() - Feedback.__dataclass_fields__.keys())
    if unknown:
        return f"unknown key: {printable(unknown[0])}"

    for name in ("query", "document_id", "verdict", "who"):
        # The name of the person may be missing or empty.
        is_optional = name == "who"
        default = "" if is_optional else None
        text = values.get(name, default)
        is_text = isinstance(text, str) and printable(text, len(text)) == text
        is_missing = not text and not is_optional
        if not is_text or is_missing:
            return f"wrong type: {name} is {printable(text)!r}, not text"
    if not is_possible_id(values["document_id"]):
        return "bad id: document_id is too long"
    if values["verdict"] not in list(Opinion):
        verdicts = ", ".join(Opinion)
        return f"bad verdict: {printable(values['verdict'])!r} is not one of {verdicts}"

    rank = values.get("rank", 1)
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        return f"bad rank: {printable(rank)} is not a whole number from 1"
    if not isinstance(values.get("raised", False), bool):
        return f"wrong type: raised is {printable(values['raised'])}, not true or false"
    received = values.get("received", 0.0)
    is_number = isinstance(received, int | float) and not isinstance(received, bool)
    if not is_number or not math.isfinite(received):
        return f"bad time: received is {printable(received)}, not seconds since 1970"
    return None


def _read_origins(folder: Path) -> dict[str, str]:
    """Return the source that each document came from, by document id.

    The export names no source for documents that were part of its build.
    """
    origins: dict[str, str] = {}
    for _, values in _json_lines(folder / ORIGINS_FILE):
        if values is None:
            continue
        document_id = values.get("document_id")
        source = values.get("source")
        if isinstance(document_id, str) and isinstance(source, str):
            origins[document_id] = source
    return origins


def _json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Yield the number of each line of a file, and the JSON object on it.

    The object is None if the line is not a JSON object. Empty lines are skipped.
    """
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="replace") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            try:
                values = json.loads(line)
            except (ValueError, RecursionError):
                values = None
            if not isinstance(values, dict):
                values = None
            yield number, values


def _refusal(file: str, row: int, document_id: str | None, reason: str) -> dict[str, Any]:
    """Return a refused row as an entry of `ChangeReport.rejected`."""
    return {"file": file, "row": row, "document_id": document_id, "reason": reason}


def _copy_export(folder: Path, target: Path) -> None:
    """Copy an export to the folder in the project from which the corpus is built.

    An earlier import is replaced. A project may import this folder itself again.
    """
    if folder.resolve() == target.resolve():
        return
    staging = target.with_name(f".{target.name}.making")
    shutil.rmtree(staging, ignore_errors=True)
    shutil.copytree(folder, staging)
    replace_folder(staging, target)


def _add_documents(
    index: LiveIndex,
    documents: Sequence[Document],
    origins: Mapping[str, str],
    report: ImportReport,
) -> None:
    """Add the documents of an export to the live index, and make them searchable.

    Documents that have the same content in the index are skipped.

    Args:
        index: Live index to change.
        documents: Documents of the export.
        origins: Source that each document came from, by document id. It is kept in the ledger.
        report: Receives the changes.
    """
    current_hashes = index.content_hashes()
    changed: list[Document] = []
    for document in documents:
        if current_hashes.get(document.document_id) != document.content_hash:
            changed.append(document)
    expected = forecast_changes(index.generation, changed)
    report.added = expected["added"]
    report.updated = expected["updated"]
    document_ids = {document.document_id for document in documents}
    report.unchanged = len(document_ids) - len(report.changed)

    by_origin: dict[str, list[Document]] = {}
    for document in changed:
        origin = origins.get(document.document_id, BUILT_ORIGIN)
        by_origin.setdefault(origin, []).append(document)
    receipts: list[Receipt] = []
    for origin, same_origin in sorted(by_origin.items()):
        receipts.append(index.record(same_origin, origin))
    apply_changes(index, report, receipts)
