"""From a source to the corpus tables: admit rows, merge duplicates, split, cut into passages, count
everything.

Judgements are checked and redirected to the documents that are kept.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import pandas as pd

from model_code.corpus.cleaning import (
    SourceQuery,
    clean_document,
    clean_query,
    merge_duplicates,
    read_id,
)
from model_code.corpus.leaks import count_leaks
from model_code.corpus.rows import Quarantine, RefusedRow, Row, RowError
from model_code.corpus.settings import GATE, SPLITS, CorpusSettings, QuerySplitSettings
from model_code.corpus.sources.base import Source
from model_code.corpus.tables import COLUMNS, TABLES, Corpus, make_table
from model_code.errors import FreshetError
from model_code.progress import Progress, no_progress
from model_code.text.documents import Document, canonical_fields
from model_code.text.passages import passage_rows
from model_code.text.settings import PassageSettings
from model_code.text.words import word_spans

T = TypeVar("T")


@dataclass(frozen=True)
class BuiltCorpus:
    """The tables by name (documents, passages, queries, qrels, quarantine), and the report of
    counts.
    """

    tables: dict[str, pd.DataFrame]
    report: dict[str, Any]


def build_corpus(
    source: Source,
    settings: CorpusSettings,
    passages: PassageSettings,
    progress: Progress = no_progress,
) -> BuiltCorpus:
    """Read `source` and return its tables; raises `FreshetError` if more rows are malformed than
    the settings allow.

    Nothing is lost on the way: for documents, rows read = documents + merged + quarantined; for
    queries, rows read = queries + quarantined; for qrels, rows read = qrels + repeated + not
    relevant + outside the limit + quarantined.
    """
    quarantine = Quarantine()
    most = settings.max_characters
    check = _unique(
        partial(clean_document, max_characters=most), lambda document: document.document_id
    )
    sound = quarantine.admit(islice(source.rows("documents", progress), settings.limit), check)
    documents, merged = merge_duplicates(sound, settings.merge_duplicates)
    asked = _unique(partial(clean_query, max_characters=most), lambda query: query.query_id)
    queries = {
        query.query_id: query for query in quarantine.admit(source.rows("queries", progress), asked)
    }
    document_ids = {document.document_id for document in documents}
    targets = QrelTargets(queries.keys(), document_ids, merged, settings.limit is not None)
    qrels = admit_qrels(source.rows("qrels", progress), targets, settings.splits, quarantine)
    quarantine.enforce(settings.quarantine_limit)
    if not documents:
        raise FreshetError(
            "the source holds no document; look at the settings under `corpus` in params.yaml"
        )
    tables = _tables(documents, queries, qrels, passages)
    tables["quarantine"] = make_table("quarantine", [asdict(row) for row in quarantine.refused])
    report = _report(tables, quarantine, qrels, len(merged))
    report.update(count_leaks(Corpus(**{name: tables[name] for name in TABLES})))
    if unread := sum(query.unread for query in queries.values()):
        report["queries_with_unread_answers"] = unread
    return BuiltCorpus(tables, report)


def _unique(check: Callable[[Row], T], identity: Callable[[T], str]) -> Callable[[Row], T]:
    """The same check, which also refuses a second sound row of the same identity."""
    seen: set[str] = set()

    def checked(row: Row) -> T:
        item = check(row)
        if identity(item) in seen:
            raise RowError("duplicate id", f"an earlier row has the id {identity(item)!r}")
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
        "documents": [
            {name: getattr(document, name) for name in COLUMNS["documents"]}
            | {"fields": canonical_fields(document.fields)}
            for document in documents
        ],
        "passages": passage_rows(documents, passages),
        "queries": [
            {
                "query_id": query.query_id,
                "text": query.text,
                "split": qrels.splits.get(query.query_id),
                "answers": json.dumps(query.answers, ensure_ascii=False) if query.answers else None,
            }
            for query in queries.values()
        ],
        "qrels": [
            {
                "query_id": query,
                "document_id": document,
                "relevance": relevance,
                "split": qrels.splits[query],
            }
            for (query, document), relevance in qrels.pairs.items()
        ],
    }
    return {name: make_table(name, table) for name, table in rows.items()}


def _report(
    tables: dict[str, pd.DataFrame], quarantine: Quarantine, qrels: Qrels, merged: int
) -> dict[str, Any]:
    """Pure counts: the terms of the law that nothing is lost, parts, splits, lengths and reasons of
    refusal.
    """
    documents, queries = tables["documents"], tables["queries"]
    words = documents["text"].map(lambda text: len(word_spans(text)))
    counts: dict[str, Any] = {name: len(table) for name, table in tables.items()}
    refused = Counter(row.table for row in quarantine.refused)
    for table in ("documents", "queries", "qrels"):
        counts[f"{table}_read"] = quarantine.read[table]
        counts[f"{table}_quarantined"] = refused[table]
    if "answers" in queries:
        counts["queries_with_answers"] = int(queries["answers"].notna().sum())
    return counts | {
        "documents_merged": merged,
        "qrels_repeated": qrels.repeated,
        "qrels_not_relevant": qrels.not_relevant,
        "qrels_outside_limit": qrels.outside_limit,
        "queries_by_split": queries["split"].value_counts().sort_index().to_dict(),
        "quarantine_reasons": quarantine.reasons(),
        "empty_titles": int((documents["title"] == "").sum()),
        "document_words": {
            "median": float(words.median()),
            "mean": round(words.mean(), 2),
            "max": int(words.max()),
        },
    }


# Qrels and splits: one split for each query. Splits depend on an id and a seed only, so that
# documents that come or go never move another one's split.


def position(identifier: str, seed: int, purpose: str) -> float:
    """A number in [0, 1), uniform over ids, fixed by its arguments; different purposes are
    independent.

    >>> round(position("numpy.sort", seed=0, purpose="queries"), 4)
    0.293
    """
    digest = hashlib.sha256(f"{purpose}\0{seed}\0{identifier}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def split_queries(
    stated: Mapping[str, str | None],
    settings: QuerySplitSettings,
    documents: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the split of every query: the stated one, else one drawn by hash.

    Test queries are drawn one by one. For dev and gate, a share `settings.by_document` of the
    documents keeps all its queries in one split. Without that, most dev and gate queries of a
    corpus with many queries per document ask for documents that training asks for, too, and a
    retriever that only remembers them scores well.

    Dev and gate are carved out of a stated train where the source states none. A draw depends on
    the seed and on the id of the query or document alone, so documents and queries that come or go
    move no other query.

    Args:
        stated: Split by query id, None where the source states none.
        settings: Shares of the splits.
        documents: Document id by query id, see `key_documents`. Queries without one are drawn
            one by one.

    Returns:
        Split by query id.

    >>> split_queries({"q1": "test", "q2": "dev", "q3": "train"}, QuerySplitSettings())
    {'q1': 'test', 'q2': 'dev', 'q3': 'train'}
    """
    documents = documents or {}
    splits: dict[str, str] = {}
    for query, split in stated.items():
        splits[query] = split or _draw_split(query, documents.get(query), settings)

    trained = {query for query, split in stated.items() if split == "train"}
    for name, share in (("dev", settings.dev_share), (GATE, settings.gate_share)):
        if name in stated.values():
            continue
        for query in sorted(trained):
            if _is_carved(query, documents.get(query), name, share, settings):
                splits[query] = name
                trained.remove(query)
    return splits


def key_documents(pairs: Mapping[tuple[str, str], int]) -> dict[str, str]:
    """Return the document by which each query is split: its most relevant one, of equals the first.

    Args:
        pairs: Relevance by (query id, document id).

    >>> key_documents({("q", "b"): 1, ("q", "a"): 1, ("p", "a"): 1, ("p", "c"): 2})
    {'q': 'a', 'p': 'c'}
    """
    best: dict[str, tuple[int, str]] = {}
    for (query, document), relevance in pairs.items():
        rank = (-relevance, document)
        best[query] = min(rank, best.get(query, rank))
    return {query: document for query, (_, document) in best.items()}


def _draw_split(query: str, document: str | None, settings: QuerySplitSettings) -> str:
    place = position(query, settings.seed, "queries")
    if place < settings.test_share:
        return "test"

    if document is not None and _is_split_whole(document, settings):
        # Scaled to the part of [0, 1) that test leaves, so that the shares are those of the settings.
        place = settings.test_share + (1 - settings.test_share) * position(
            document, settings.seed, "documents"
        )
    if place < settings.test_share + settings.dev_share:
        return "dev"
    if place < settings.test_share + settings.dev_share + settings.gate_share:
        return GATE
    return "train"


def _is_carved(
    query: str, document: str | None, name: str, share: float, settings: QuerySplitSettings
) -> bool:
    if document is not None and _is_split_whole(document, settings):
        return position(document, settings.seed, f"{name} documents") < share
    return position(query, settings.seed, name) < share


def _is_split_whole(document: str, settings: QuerySplitSettings) -> bool:
    return position(document, settings.seed, "split by document") < settings.by_document


# what a file's floating-point numbers hold exactly, and a 64-bit integer, too
MOST_RELEVANCE = 2**53


@dataclass(frozen=True, slots=True)
class Judgement:
    """A sound row of qrels: `relevance` may be 0 or less (not relevant); `split` is None where the
    source has none.
    """

    row: Row
    query_id: str
    document_id: str
    relevance: int
    split: str | None


@dataclass(frozen=True)
class Qrels:
    """The relevant pairs, each query's split, and how many sound rows are no pair of their own."""

    pairs: dict[tuple[str, str], int]
    splits: dict[str, str]
    not_relevant: int
    repeated: int
    outside_limit: int


@dataclass(frozen=True)
class QrelTargets:
    """What a judgement may point at: queries, documents, {merged id: kept id}. `limited`: documents
    were cut off.
    """

    queries: Set[str]
    documents: Set[str]
    merged: Mapping[str, str]
    limited: bool = False


def admit_qrels(
    rows: Iterable[Row | RefusedRow],
    targets: QrelTargets,
    settings: QuerySplitSettings,
    quarantine: Quarantine,
) -> Qrels:
    """Check every row of qrels against `targets`; refuse rows that dangle, or that put a query into
    a second split.
    """
    sound = list(quarantine.admit(rows, lambda row: _judgement(row, targets)))
    inside = [judgement for judgement in sound if judgement.document_id in targets.documents]
    relevant = [judgement for judgement in inside if judgement.relevance > 0]
    agreed = _one_split_each(relevant, quarantine)
    pairs: dict[tuple[str, str], int] = {}
    for judgement in agreed:
        pair = (judgement.query_id, judgement.document_id)
        pairs[pair] = max(judgement.relevance, pairs.get(pair, 0))
    stated = {judgement.query_id: judgement.split for judgement in agreed}
    splits = split_queries(stated, settings, key_documents(pairs))
    return Qrels(
        pairs,
        splits,
        len(inside) - len(relevant),
        len(agreed) - len(pairs),
        len(sound) - len(inside),
    )


def _judgement(row: Row, targets: QrelTargets) -> Judgement:
    query_id, document_id = (read_id(row.values, name) for name in ("query_id", "document_id"))
    document_id = targets.merged.get(document_id, document_id)
    if query_id not in targets.queries:
        raise RowError("dangling qrel", f"there is no query {query_id!r}")
    if document_id not in targets.documents and not targets.limited:
        raise RowError("dangling qrel", f"there is no document {document_id!r}")
    relevance, split = _relevance(row.values.get("relevance", 1)), row.values.get("split")
    if split is not None and split not in SPLITS:
        raise RowError("bad split", f"split is {split!r}, not one of {', '.join(SPLITS)}")
    return Judgement(row, query_id, document_id, relevance, split)


def _relevance(value: Any) -> int:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not number.is_integer() or abs(number) > MOST_RELEVANCE:
        raise RowError(
            "bad relevance",
            f"relevance is {value!r}, not a whole number of at most {MOST_RELEVANCE:,}",
        )
    return int(number)


def _one_split_each(judgements: list[Judgement], quarantine: Quarantine) -> list[Judgement]:
    rank = {split: place for place, split in enumerate((*SPLITS, None))}
    best: dict[str, str | None] = {}
    for judgement in judgements:
        first = best.setdefault(judgement.query_id, judgement.split)
        best[judgement.query_id] = min(first, judgement.split, key=rank.__getitem__)
    for judgement in judgements:
        if judgement.split != best[judgement.query_id]:
            detail = f"its query is in {best[judgement.query_id]}, so it may not be in {judgement.split} as well"
            quarantine.refuse(judgement.row, RowError("conflicting split", detail))
    return [judgement for judgement in judgements if judgement.split == best[judgement.query_id]]
