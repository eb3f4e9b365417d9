"""`freshet export`: write documents and all other data of a project as plain JSON lines.

`freshet export --all FOLDER` writes a folder that `freshet import` reads. It works between two
versions of Freshet whose internal formats differ:

    FOLDER/manifest.json     the format of the export and the number of rows of each file
    FOLDER/documents.jsonl   the live documents, with fields, dates and queries
    FOLDER/forgotten.jsonl   hashes of forgotten queries, so that they stay forgotten
    FOLDER/known.jsonl       the known queries of the live documents, for the record
    FOLDER/queries.jsonl     the queries of the built corpus
    FOLDER/qrels.jsonl       the judgements of the built corpus, each with its split
    FOLDER/origins.jsonl     the source that each added document came from
    FOLDER/feedback.jsonl    thumbs and clicks
    FOLDER/promotions.jsonl  the history of promotions, for the record
    FOLDER/events.jsonl      the ledger's events without their texts, for the record

Files "for the record" are not imported. No file has the text of a forgotten query.

Columns have the default names of `corpus.columns`. So the files of documents, queries and
judgements are a corpus that `corpus.source: files` can read.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from model_code.collection.generations.generation import Generation, live_rows
from model_code.collection.generations.generation_store import GenerationStore, default_retriever
from model_code.collection.generations.live_queries import ShownQueries, live_known_queries
from model_code.collection.index.project_ledger import open_ledger_if_exists
from model_code.collection.ledger.states import LedgerView
from model_code.collection.segments.documents import COLUMNS, document_from_row
from model_code.corpus.clean_rows import document_to_row
from model_code.corpus.corpus_queries import query_hash
from model_code.corpus.rows import ORIGIN
from model_code.corpus.settings import ColumnSettings, CorpusSettings
from model_code.errors import FreshetError
from model_code.files import MANIFEST, atomic_write, replace_folder, write_json
from model_code.project import Project
from model_code.retrieval.index_settings import KnownQuerySettings
from model_code.text.documents import Document

# Number of the export's format. An import of another format is refused.
EXPORT_FORMAT = 1

DOCUMENTS_FILE = "documents.jsonl"
QUERIES_FILE = "queries.jsonl"
QRELS_FILE = "qrels.jsonl"
ORIGINS_FILE = "origins.jsonl"
FEEDBACK_FILE = "feedback.jsonl"
PROMOTIONS_FILE = "promotions.jsonl"
EVENTS_FILE = "events.jsonl"
FORGOTTEN_FILE = "forgotten.jsonl"
KNOWN_FILE = "known.jsonl"

# Number of events that are read from the ledger at a time. It bounds the memory.
EVENTS_PER_QUERY = 10_000

# Names of the columns in an export. They do not depend on the settings of the project.
EXPORT_COLUMNS = ColumnSettings()


def live_documents(generation: Generation) -> Iterator[Document]:
    """Yield all live documents of a generation, segment by segment.

    A generation is a snapshot of the index. A segment is a folder with some of its documents.

    Raises:
        Damaged: If a documents file does not have its checksum.
    """
    generation.verify_documents()
    for values in live_rows(generation, *COLUMNS):
        yield document_from_row(dict(zip(COLUMNS, values, strict=True)))


def export_documents(project: Project, retriever: str) -> Iterator[dict[str, Any]]:
    """Yield each live document of a retriever as a row that `freshet add` can read.

    The rows have the column names of the project's settings.

    Raises:
        Damaged: If a documents file does not have its checksum.
    """
    columns = project.settings("corpus", CorpusSettings).columns
    generation = GenerationStore(project.live, retriever).current()
    for document in live_documents(generation):
        yield document_to_row(document, columns)


def export_project(project: Project, folder: Path) -> dict[str, int]:
    """Write the documents and all other data of a project to a new folder; see the module.

    Documents are read from the default retriever. The folder is written under a temporary name, and
    renamed when it is complete.

    Args:
        project: Project with a live collection.
        folder: Folder to write, which must not exist.

    Returns:
        The number of rows of each file.

    Raises:
        FreshetError: If the folder exists, nothing is live, or a file is damaged.
    """
    if folder.exists():
        raise FreshetError(f"{folder} exists. Name a new folder, such as {folder}-2.")
    generation = GenerationStore(project.live, default_retriever(project.live)).current()

    staging = folder.with_name(f".{folder.name}.making")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)

    counts: dict[str, int] = {}
    document_ids = _export_documents(project, generation, staging / DOCUMENTS_FILE)
    counts[DOCUMENTS_FILE] = len(document_ids)

    # No file has the text of a forgotten query, nor a judgement about it.
    forgotten = _forgotten_queries(project)
    queries = list(_query_rows(project, forgotten))
    counts[QUERIES_FILE] = write_json_lines(staging / QUERIES_FILE, queries)
    query_ids = {query["_id"] for query in queries}
    judgements = _judgement_rows(project, document_ids, query_ids)
    counts[QRELS_FILE] = write_json_lines(staging / QRELS_FILE, judgements)
    forgotten_rows = [{"hash": key, "received": time} for key, time in forgotten.items()]
    counts[FORGOTTEN_FILE] = write_json_lines(staging / FORGOTTEN_FILE, forgotten_rows)

    counts.update(_export_ledger(project, generation, staging))
    known = known_query_rows(project, generation)
    counts[KNOWN_FILE] = write_json_lines(staging / KNOWN_FILE, known)
    counts[PROMOTIONS_FILE] = write_json_lines(staging / PROMOTIONS_FILE, _promotions(project))

    write_json(staging / MANIFEST, {"format": EXPORT_FORMAT, "rows": counts})
    replace_folder(staging, folder)
    return counts


def _export_documents(project: Project, generation: Generation, path: Path) -> set[str]:
    """Write the documents of a project to a file, and return their ids.

    The documents are written one by one, so that a large collection does not fill the memory.
    """
    document_ids: set[str] = set()

    def rows() -> Iterator[dict[str, Any]]:
        for document in _current_documents(project, generation):
            document_ids.add(document.document_id)
            yield document_to_row(document, EXPORT_COLUMNS)

    write_json_lines(path, rows())
    return document_ids


def _current_documents(project: Project, generation: Generation) -> Iterator[Document]:
    """Yield the documents that exist after all pending events.

    Pending events are recorded in the ledger but not searchable yet.
    """
    # The document after its last pending event, or None if it is removed.
    pending: dict[str, Document | None] = {}
    ledger = open_ledger_if_exists(project, generation.retriever)
    if ledger is not None:
        with ledger:
            view = ledger.view_at(generation.cursor)
            for event in view.pending().changes:
                pending[event.document_id] = event.document

    for document in live_documents(generation):
        if document.document_id not in pending:
            yield document
    for document_id in sorted(pending):
        pending_document = pending[document_id]
        if pending_document is not None:
            yield pending_document


def write_json_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write rows to a file as one JSON object per line, and return the number of rows."""
    number = 0
    with atomic_write(path) as staged, staged.open("w", encoding="utf-8") as stream:
        for row in rows:
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")
            number += 1
    return number


def known_query_rows(project: Project, generation: Generation) -> Iterator[dict[str, Any]]:
    """Yield a row for each live document with known queries, by ascending document id.

    A known query is one that a document is known to answer.

    Query texts from rows and judgements are shown. Query texts from feedback are only counted,
    because they can be personal data, unless the setting `known_queries.show` is true.

    Args:
        project: The project.
        generation: Generation whose documents are listed.
    """
    settings = project.settings("known_queries", KnownQuerySettings)
    for document_id, queries in live_known_queries(generation).items():
        known = ShownQueries.select(queries, settings.show)
        shown = []
        for query in known.queries:
            shown.append({"text": query.text, "source": query.source, "weight": query.weight})
        yield {"id": document_id, "known_queries": shown, "hidden_queries": known.hidden}


def _forgotten_queries(project: Project) -> dict[str, float]:
    """Return the time when each query was forgotten, in seconds since 1970, by its hash."""
    ledger = open_ledger_if_exists(project)
    if ledger is None:
        return {}
    with ledger:
        return ledger.forgotten_times()


def _query_rows(project: Project, forgotten: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yield the queries of the built corpus, except for forgotten ones.

    Nothing is yielded if no corpus is built.
    """
    for query in _corpus_rows(project, "queries"):
        if query_hash(query["text"]) in forgotten:
            continue
        row = {"_id": query["query_id"], "text": query["text"]}
        if query.get("answers") is not None:
            row["answers"] = json.loads(query["answers"])
        yield row


def _judgement_rows(
    project: Project, document_ids: Collection[str], query_ids: Collection[str]
) -> Iterator[dict[str, Any]]:
    """Yield the judgements of the built corpus whose document and query are exported.

    A build could not use a judgement of a deleted document or a forgotten query.
    """
    for judgement in _corpus_rows(project, "qrels"):
        is_exported = judgement["query_id"] in query_ids
        if is_exported and judgement["document_id"] in document_ids:
            row = {
                "query-id": judgement["query_id"],
                "corpus-id": judgement["document_id"],
                "score": judgement["relevance"],
                "split": judgement["split"],
            }
            # A project that imports the judgement must not show its query either.
            if judgement.get(ORIGIN) is not None:
                row[ORIGIN] = judgement[ORIGIN]
            yield row


def _corpus_rows(project: Project, table: str) -> Iterator[dict[str, Any]]:
    """Yield rows of the built corpus, if there is one: of the table "queries" or "qrels"."""
    # The import is inside because it takes long and other commands of this package do not need it.
    import pyarrow.parquet as pq

    path = project.artifacts / "corpus" / f"{table}.parquet"
    if path.is_file():
        yield from pq.read_table(path).to_pylist()


def _export_ledger(project: Project, generation: Generation, folder: Path) -> dict[str, int]:
    """Write the data of the ledger: origins of documents, feedback and events.

    The files are empty if there is no ledger.

    Returns:
        The number of rows of each file.
    """
    counts: dict[str, int] = {}
    ledger = open_ledger_if_exists(project, generation.retriever)
    if ledger is None:
        for name in (ORIGINS_FILE, FEEDBACK_FILE, EVENTS_FILE):
            counts[name] = write_json_lines(folder / name, ())
        return counts

    with ledger:
        origins: list[dict[str, str]] = []
        for document_id, source in sorted(ledger.document_sources().items()):
            origins.append({"document_id": document_id, "source": source})
        counts[ORIGINS_FILE] = write_json_lines(folder / ORIGINS_FILE, origins)

        feedback = [vars(opinion) for opinion in ledger.feedback()]
        counts[FEEDBACK_FILE] = write_json_lines(folder / FEEDBACK_FILE, feedback)

        view = ledger.view_at(generation.cursor)
        events = _event_rows(view, ledger.position().event)
        counts[EVENTS_FILE] = write_json_lines(folder / EVENTS_FILE, events)
    return counts


def _event_rows(view: LedgerView, last_event: int) -> Iterator[dict[str, Any]]:
    """Yield the puts and removals up to an event as rows, with their states in the generation.

    An event is an entry of the ledger, the log of changes. Events are read in pieces, which bounds
    the memory.
    """
    for first in range(1, last_event + 1, EVENTS_PER_QUERY):
        for event in view.events(first, first + EVENTS_PER_QUERY - 1):
            yield {
                "id": event.id,
                "kind": event.kind,
                "document_id": event.document_id,
                "content_hash": event.content_hash,
                "source": event.source,
                "received": datetime.fromtimestamp(event.received, UTC).isoformat(),
                "state": event.state,
            }


def _promotions(project: Project) -> Iterator[dict[str, Any]]:
    """Yield the entries of the history of promotions.

    A crash may have cut off a line. Such a line is left out.
    """
    if not project.promotions.is_file():
        return
    # `splitlines` would also split at U+2028, which JSON allows within a text.
    for line in project.promotions.read_text(encoding="utf-8").split("\n"):
        try:
            yield json.loads(line)
        except ValueError:
            continue
