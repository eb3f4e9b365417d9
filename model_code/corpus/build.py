"""Build the tables of a corpus from its source.

Rows are cleaned, duplicates are merged, judgements are checked, queries are split, and documents
are cut into passages. Every row that is read is counted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import pandas as pd

from freshet.results import ReadingNote
from model_code.corpus.clean_rows import CleanRows, clean_rows
from model_code.corpus.cleaning import SourceQuery, clean_query, merge_duplicates
from model_code.corpus.corpus_queries import CorpusQueries, collect_known_queries
from model_code.corpus.judgement_file import JudgedSource
from model_code.corpus.leaks import count_leaks
from model_code.corpus.qrels import Qrels, QrelTargets, admit_qrels
from model_code.corpus.quarantine import Quarantine
from model_code.corpus.reading_notes import refusal_note
from model_code.corpus.rows import FROM_FEEDBACK, Row, RowError
from model_code.corpus.settings import CorpusSettings
from model_code.corpus.sources.base import Source
from model_code.corpus.sources.folder import FolderSource, list_unread_files
from model_code.corpus.tables import TABLES, Corpus, make_table
from model_code.errors import FreshetError
from model_code.progress import Progress, no_progress
from model_code.text.documents import Document, canonical_fields
from model_code.text.passages import passage_rows
from model_code.text.settings import PassageSettings
from model_code.text.words import word_spans


@dataclass(frozen=True)
class BuiltCorpus:
    """A corpus in memory.

    Attributes:
        tables: The tables by name, including the quarantine of refused rows.
        report: Counts of rows, splits and reasons.
        notes: Reading notes: parts of the source's files that were not read, or only by a guess.
        known_queries: Queries that documents are known to answer, from training qrels and rows.
    """

    tables: dict[str, pd.DataFrame]
    report: dict[str, Any]
    notes: list[ReadingNote]
    known_queries: CorpusQueries


def build_corpus(
    source: Source,
    settings: CorpusSettings,
    passages: PassageSettings,
    progress: Progress = no_progress,
) -> BuiltCorpus:
    """Read a source and return the tables of its corpus.

    Every row that is read is counted in exactly one of these groups:

    - a row of documents is a document, merged into another one, or quarantined;
    - a row of queries is a query, or quarantined;
    - a row of qrels is a judgement, repeats another row, has a grade of 0 or less, refers to a
      document that `corpus.limit` left out, or is quarantined.

    Args:
        source: The source.
        settings: How rows are cleaned, merged and split.
        passages: How documents are cut into passages.
        progress: Receives the progress of reading.

    Raises:
        FreshetError: If there is no document, or a larger share of rows is refused than
            `settings.quarantine_limit` allows.
    """
    quarantine = Quarantine()

    document_rows = islice(source.rows("documents", progress), settings.limit)
    cleaned = clean_rows(document_rows, settings, unique_ids=True)
    rows_read = len(cleaned.documents) + len(cleaned.refused)
    quarantine.extend("documents", rows_read, cleaned.refused)
    documents, merged_into = merge_duplicates(cleaned.documents, settings.merge_duplicates)

    check_query = _query_check(settings.max_characters)
    queries = list(quarantine.admit(source.rows("queries", progress), check_query))

    targets = QrelTargets(
        queries={query.query_id for query in queries},
        documents={document.document_id for document in documents},
        merged=merged_into,
        limited=settings.limit is not None,
    )
    qrels = admit_qrels(source.rows("qrels", progress), targets, settings.splits, quarantine)

    quarantine.enforce(settings.quarantine_limit)
    if not documents:
        raise FreshetError(
            "the source holds no document; look at the settings under `corpus` in params.yaml"
        )

    tables = _make_tables(documents, queries, qrels, passages)
    tables["quarantine"] = make_table("quarantine", [asdict(row) for row in quarantine.refused])
    notes = _collect_notes(source, cleaned)
    known_queries = _collect_known_queries(documents, queries, qrels)

    report = _make_report(tables, quarantine, qrels, len(merged_into))
    report["files_with_notes"] = dict(sorted(Counter(note.kind for note in notes).items()))
    corpus = Corpus(**{name: tables[name] for name in TABLES})
    report.update(count_leaks(corpus))
    unread_answers = sum(query.has_unread_answers for query in queries)
    if unread_answers:
        report["queries_with_unread_answers"] = unread_answers
    report["known_queries"] = len(known_queries.queries)
    return BuiltCorpus(tables, report, notes, known_queries)


def _collect_notes(source: Source, cleaned: CleanRows) -> list[ReadingNote]:
    """Return the notes about files of which something was not read.

    These are notes of the readers, files that the source ignored, and refused files. In a folder
    each row is a file, so a refused row is a note as well.
    """
    # A `JudgedSource` wraps the source whose files are listed here.
    file_source = source.source if isinstance(source, JudgedSource) else source
    notes = [*cleaned.notes, *list_unread_files(file_source)]
    if isinstance(file_source, FolderSource):
        for row in cleaned.refused:
            notes.append(refusal_note(str(row.record_id), row.message))
    return notes


def _collect_known_queries(
    documents: Sequence[Document], queries: Sequence[SourceQuery], qrels: Qrels
) -> CorpusQueries:
    """Return the queries that documents are known to answer, from training qrels and from rows.

    A pair that was judged not relevant gets the grade 0, which is evidence against the query. Pairs
    from feedback are trained on, but their queries are not known: users of the search typed them.
    """
    texts = {query.query_id: query.text for query in queries}
    grades = dict(qrels.pairs)
    for query_id, document_ids in qrels.judged_not_relevant.items():
        for document_id in document_ids:
            grades[query_id, document_id] = 0
    return collect_known_queries(documents, texts, qrels.splits, grades, qrels.from_feedback)


def _query_check(max_characters: int) -> Callable[[Row], SourceQuery]:
    """Return a function that cleans the row of a query, and refuses an id that occurred before.

    The function remembers the ids of all queries that it returned.

    Args:
        max_characters: Largest length of a query.
    """
    seen_ids: set[str] = set()

    def check(row: Row) -> SourceQuery:
        query = clean_query(row, max_characters)
        if query.query_id in seen_ids:
            raise RowError("duplicate id", f"an earlier row has the id {query.query_id!r}")
        seen_ids.add(query.query_id)
        return query

    return check


def _make_tables(
    documents: Sequence[Document],
    queries: Sequence[SourceQuery],
    qrels: Qrels,
    passages: PassageSettings,
) -> dict[str, pd.DataFrame]:
    """Return the tables `documents`, `passages`, `queries` and `qrels` of a corpus.

    A query without a relevant document has no split, so the table `queries` holds None for it.
    """
    document_rows = [_document_row(document) for document in documents]

    query_rows = []
    for query in queries:
        not_relevant_ids = qrels.judged_not_relevant.get(query.query_id, ())
        query_rows.append(
            {
                "query_id": query.query_id,
                "text": query.text,
                "split": qrels.splits.get(query.query_id),
                "answers": _json_or_none(query.answers),
                "not_relevant": _json_or_none(not_relevant_ids),
            }
        )

    qrel_rows = []
    for (query_id, document_id), relevance in qrels.pairs.items():
        origin = FROM_FEEDBACK if (query_id, document_id) in qrels.from_feedback else None
        qrel_rows.append(
            {
                "query_id": query_id,
                "document_id": document_id,
                "relevance": relevance,
                "split": qrels.splits[query_id],
                "origin": origin,
            }
        )

    return {
        "documents": make_table("documents", document_rows),
        "passages": make_table("passages", passage_rows(documents, passages)),
        "queries": make_table("queries", query_rows),
        "qrels": make_table("qrels", qrel_rows),
    }


def _document_row(document: Document) -> dict[str, Any]:
    """Return a document as a row of the table `documents`, by column name."""
    return {
        "document_id": document.document_id,
        "title": document.title,
        "text": document.text,
        "fields": canonical_fields(document.fields),
        "date": document.date,
        "content_hash": document.content_hash,
        "queries": _json_or_none(document.queries),
    }


def _json_or_none(texts: Sequence[str]) -> str | None:
    """Return texts as a JSON list, or None without texts.

    `make_table` leaves out an optional column that holds only None.
    """
    return json.dumps(list(texts), ensure_ascii=False) if texts else None


def _make_report(
    tables: Mapping[str, pd.DataFrame], quarantine: Quarantine, qrels: Qrels, merged: int
) -> dict[str, Any]:
    """Return the report of a build: counts of rows, splits, words and reasons of refusal.

    Args:
        tables: The tables of the corpus, with the quarantine.
        quarantine: The refused rows, and the numbers of rows that were read.
        qrels: The judgements.
        merged: Number of documents that were merged into others.
    """
    documents = tables["documents"]
    queries = tables["queries"]
    words_per_document = documents["text"].map(lambda text: len(word_spans(text)))

    report: dict[str, Any] = {name: len(table) for name, table in tables.items()}
    refused = Counter(row.table for row in quarantine.refused)
    for table in ("documents", "queries", "qrels"):
        report[f"{table}_read"] = quarantine.read[table]
        report[f"{table}_quarantined"] = refused[table]
    if "answers" in queries:
        report["queries_with_answers"] = int(queries["answers"].notna().sum())

    report["documents_merged"] = merged
    report["qrels_repeated"] = qrels.repeated
    report["qrels_not_relevant"] = qrels.not_relevant
    report["qrels_outside_limit"] = qrels.outside_limit
    report["queries_by_split"] = queries["split"].value_counts().sort_index().to_dict()
    report["quarantine_reasons"] = quarantine.reasons()
    report["empty_titles"] = int((documents["title"] == "").sum())
    report["document_words"] = {
        "median": float(words_per_document.median()),
        "mean": round(words_per_document.mean(), 2),
        "max": int(words_per_document.max()),
    }
    return report
