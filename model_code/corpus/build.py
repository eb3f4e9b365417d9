"""From a source to the corpus tables: admit rows, merge duplicates, split, cut into passages, count everything."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import pandas as pd

from model_code.corpus.cleaning import SourceQuery, document_of, merge_duplicates, query_of
from model_code.corpus.judgements import Known, Qrels, take_qrels
from model_code.corpus.passages import passage_rows
from model_code.corpus.rows import Quarantine, Row, Unfit
from model_code.corpus.settings import CorpusSettings, PassageSettings
from model_code.corpus.sources.base import Source
from model_code.corpus.tables import COLUMNS, frame
from model_code.documents import Document, canonical_fields
from model_code.errors import FreshetError
from model_code.progress import Progress, silent
from model_code.words import spans

T = TypeVar("T")


@dataclass(frozen=True)
class BuiltCorpus:
    """The tables by name (documents, passages, queries, qrels, quarantine), and the report of counts."""

    tables: dict[str, pd.DataFrame]
    report: dict[str, Any]


def build_corpus(
    source: Source, settings: CorpusSettings, passages: PassageSettings, progress: Progress = silent
) -> BuiltCorpus:
    """Read `source` and return its tables; raises `FreshetError` if more rows are malformed than the settings allow.

    Nothing is lost on the way: for documents, rows read = documents + merged + quarantined; for queries, rows read =
    queries + quarantined; for qrels, rows read = qrels + repeated + not relevant + outside the limit + quarantined.
    """
    quarantine = Quarantine()
    documents, merged = _documents(source, settings, quarantine, progress)
    queries = _queries(source, settings, quarantine, progress)
    known = Known(queries.keys(), {document.document_id for document in documents}, merged, settings.limit is not None)
    qrels = take_qrels(source.rows("qrels", progress), known, settings.splits, quarantine)
    quarantine.enforce(settings.quarantine_limit)
    if not documents:
        raise FreshetError("the source holds no document; look at the settings under `corpus` in params.yaml")
    tables = _tables(documents, queries, qrels, passages)
    tables["quarantine"] = quarantine.frame()
    report = _report(tables, quarantine, qrels, len(merged))
    if unread := sum(query.unread for query in queries.values()):
        report["queries_with_unread_answers"] = unread
    return BuiltCorpus(tables, report)


def _documents(
    source: Source, settings: CorpusSettings, quarantine: Quarantine, progress: Progress
) -> tuple[list[Document], dict[str, str]]:
    check = _unique(lambda row: document_of(row, settings.max_characters), lambda document: document.document_id)
    sound = quarantine.admit(islice(source.rows("documents", progress), settings.limit), check)
    return merge_duplicates(sound, settings.merge_duplicates)


def _queries(
    source: Source, settings: CorpusSettings, quarantine: Quarantine, progress: Progress
) -> dict[str, SourceQuery]:
    check = _unique(lambda row: query_of(row, settings.max_characters), lambda query: query.query_id)
    return {query.query_id: query for query in quarantine.admit(source.rows("queries", progress), check)}


def _unique(check: Callable[[Row], T], identity: Callable[[T], str]) -> Callable[[Row], T]:
    """The same check, which also refuses a second sound row of the same identity."""
    seen: set[str] = set()

    def checked(row: Row) -> T:
        item = check(row)
        if identity(item) in seen:
            raise Unfit("duplicate id", f"an earlier row has the id {identity(item)!r}")
        seen.add(identity(item))
        return item

    return checked


def _tables(
    documents: list[Document],
    queries: dict[str, SourceQuery],
    qrels: Qrels,
    passages: PassageSettings,
) -> dict[str, pd.DataFrame]:
    rows: dict[str, list[dict[str, Any]]] = {
        "documents": list(map(_document_row, documents)),
        "passages": passage_rows(documents, passages),
        "queries": [_query_row(query, qrels.splits.get(name)) for name, query in queries.items()],
        "qrels": [
            {"query_id": query, "document_id": document, "relevance": relevance, "split": qrels.splits[query]}
            for (query, document), relevance in qrels.pairs.items()
        ],
    }
    return {name: frame(name, table) for name, table in rows.items()}


def _document_row(document: Document) -> dict[str, Any]:
    row = {name: getattr(document, name) for name in COLUMNS["documents"]}
    return row | {"fields": canonical_fields(document.fields)}


def _query_row(query: SourceQuery, split: str | None) -> dict[str, Any]:
    return {
        "query_id": query.query_id,
        "text": query.text,
        "split": split,
        "answers": json.dumps(query.answers, ensure_ascii=False) if query.answers else None,
    }


def _report(tables: dict[str, pd.DataFrame], quarantine: Quarantine, qrels: Qrels, merged: int) -> dict[str, Any]:
    """Pure counts: the terms of the law that nothing is lost, parts, splits, lengths and reasons of refusal."""
    documents, queries = tables["documents"], tables["queries"]
    words = documents["text"].map(lambda text: len(spans(text)))
    counts: dict[str, Any] = {name: len(table) for name, table in tables.items()}
    for table in ("documents", "queries", "qrels"):
        counts[f"{table}_read"] = quarantine.read[table]
        counts[f"{table}_quarantined"] = quarantine.count(table)
    if "answers" in queries:
        counts["queries_with_answers"] = int(queries["answers"].notna().sum())
    return counts | {
        "documents_merged": merged,
        "qrels_repeated": qrels.repeated,
        "qrels_not_relevant": qrels.not_relevant,
        "qrels_outside_limit": qrels.outside_limit,
        "queries_by_split": _counted(queries["split"]),
        "quarantine_reasons": quarantine.reasons(),
        "empty_titles": int((documents["title"] == "").sum()),
        "document_words": {"median": float(words.median()), "mean": round(words.mean(), 2), "max": int(words.max())},
    }


def _counted(column: pd.Series) -> dict[str, int]:
    return {str(value): int(count) for value, count in column.value_counts().sort_index().items()}
