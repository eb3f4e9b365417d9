"""Check the judgements of a corpus, and give each judged query its split.

Judgements of a document that was merged into another one count for the kept document.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from model_code.corpus.cleaning import read_id
from model_code.corpus.quarantine import Quarantine
from model_code.corpus.rows import FROM_FEEDBACK, ORIGIN, RefusedRow, Row, RowError
from model_code.corpus.settings import SPLITS, QuerySplitSettings
from model_code.corpus.splits import key_documents, split_queries

# Largest absolute value of a grade. Float64 represents all whole numbers up to this one exactly, so
# a grade is the same whether a file holds integers or floats.
MAX_RELEVANCE = 2**53


@dataclass(frozen=True, slots=True)
class Judgement:
    """A valid row of qrels: the grade of a document for a query.

    Attributes:
        row: The row.
        query_id: Id of the query.
        document_id: Id of the document, or of the document that it was merged into.
        relevance: Grade; 0 or less means that the document is not relevant.
        split: Split that the source gives, if any.
        from_feedback: Whether the judgement comes from feedback of users of the search.
    """

    row: Row
    query_id: str
    document_id: str
    relevance: int
    split: str | None
    from_feedback: bool = False

    @property
    def pair(self) -> tuple[str, str]:
        """Id of the query and id of the document."""
        return self.query_id, self.document_id


@dataclass(frozen=True)
class Qrels:
    """The judgements of a corpus.

    Attributes:
        pairs: Relevance of each relevant pair of query id and document id.
        splits: Split of each query that has a relevant document, by query id.
        not_relevant: Number of accepted rows with a relevance of 0 or less.
        judged_not_relevant: Ids of the documents that were judged not relevant, by query id.
        repeated: Number of accepted rows that repeat the pair of an earlier row.
        outside_limit: Number of accepted rows of documents that `corpus.limit` left out.
        from_feedback: The judged pairs, relevant or not, whose grade comes from feedback alone.
            They are trained on, and users of the search typed their queries.
    """

    pairs: dict[tuple[str, str], int]
    splits: dict[str, str]
    not_relevant: int
    repeated: int
    outside_limit: int
    judged_not_relevant: dict[str, list[str]]
    from_feedback: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True)
class QrelTargets:
    """The records that a judgement may refer to.

    Attributes:
        queries: Ids of the queries.
        documents: Ids of the documents that are kept.
        merged: Id of the kept document, by the id of each document that was merged into it.
        limited: Whether `corpus.limit` may have left documents out.
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
    """Check all rows of qrels, and give each query its split.

    A pair that is judged several times gets the highest relevance. A row is refused if its query or
    document does not exist, or if its query is already in another split.

    Args:
        rows: Rows of qrels, with our names for the columns.
        targets: The records that rows may refer to.
        settings: The shares of the splits, for queries to which the source gives no split.
        quarantine: Receives the refused rows.
    """
    judgements = list(quarantine.admit(rows, lambda row: _read_judgement(row, targets)))
    # With `corpus.limit`, a judgement may refer to a document that was not read.
    inside_limit = [
        judgement for judgement in judgements if judgement.document_id in targets.documents
    ]
    relevant = [judgement for judgement in inside_limit if judgement.relevance > 0]
    admitted = _keep_one_split_per_query(relevant, quarantine)

    pairs: dict[tuple[str, str], int] = {}
    source_splits: dict[str, str | None] = {}
    for judgement in admitted:
        pair = judgement.pair
        pairs[pair] = max(judgement.relevance, pairs.get(pair, 0))
        source_splits[judgement.query_id] = judgement.split

    return Qrels(
        pairs,
        split_queries(source_splits, settings, key_documents(pairs)),
        not_relevant=len(inside_limit) - len(relevant),
        repeated=len(admitted) - len(pairs),
        outside_limit=len(judgements) - len(inside_limit),
        judged_not_relevant=_judged_not_relevant(inside_limit, pairs),
        from_feedback=_pairs_from_feedback(inside_limit, pairs),
    )


def _judged_not_relevant(
    judgements: Sequence[Judgement], relevant_pairs: Mapping[tuple[str, str], int]
) -> dict[str, list[str]]:
    """Return the ids of the documents that are judged only as not relevant, by query id.

    Queries without a relevant document are left out, because they are not evaluated.
    """
    judged_queries = {query_id for query_id, _ in relevant_pairs}
    documents: dict[str, set[str]] = {}
    for judgement in judgements:
        if judgement.query_id in judged_queries and judgement.pair not in relevant_pairs:
            documents.setdefault(judgement.query_id, set()).add(judgement.document_id)
    return {query_id: sorted(ids) for query_id, ids in sorted(documents.items())}


def _pairs_from_feedback(
    judgements: Sequence[Judgement], relevant_pairs: Mapping[tuple[str, str], int]
) -> frozenset[tuple[str, str]]:
    """Return the pairs whose grade, relevant or not relevant, comes from feedback alone."""
    from_feedback: set[tuple[str, str]] = set()
    from_others: set[tuple[str, str]] = set()
    for judgement in judgements:
        # A pair that one row calls relevant is relevant. Rows that deny it do not count then.
        if (judgement.relevance > 0) != (judgement.pair in relevant_pairs):
            continue
        if judgement.from_feedback:
            from_feedback.add(judgement.pair)
        else:
            from_others.add(judgement.pair)
    return frozenset(from_feedback - from_others)


def _read_judgement(row: Row, targets: QrelTargets) -> Judgement:
    """Return the judgement of a row of qrels. A missing grade counts as 1.

    Raises:
        RowError: If the query or document does not exist, or a value is not valid. If
            `corpus.limit` left documents out, an unknown document is accepted.
    """
    query_id = read_id(row.values, "query_id")
    document_id = read_id(row.values, "document_id")
    document_id = targets.merged.get(document_id, document_id)

    if query_id not in targets.queries:
        raise RowError("dangling qrel", f"there is no query {query_id!r}")
    if document_id not in targets.documents and not targets.limited:
        raise RowError("dangling qrel", f"there is no document {document_id!r}")

    relevance = read_relevance(row.values.get("relevance", 1))
    split = row.values.get("split")
    if split is not None and split not in SPLITS:
        raise RowError("bad split", f"split is {split!r}, not one of {', '.join(SPLITS)}")
    from_feedback = row.values.get(ORIGIN) == FROM_FEEDBACK
    return Judgement(row, query_id, document_id, relevance, split, from_feedback)


def read_relevance(value: Any) -> int:
    """Return a grade as an integer.

    Raises:
        RowError: If the value is not a whole number, or its absolute value is above
            `MAX_RELEVANCE`.
    """
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not number.is_integer() or abs(number) > MAX_RELEVANCE:
        raise RowError(
            "bad relevance",
            f"relevance is {value!r}, not a whole number of at most {MAX_RELEVANCE:,}",
        )
    return int(number)


def _keep_one_split_per_query(
    judgements: Sequence[Judgement], quarantine: Quarantine
) -> list[Judgement]:
    """Keep only the judgements of one split for each query, and refuse the others.

    If the judgements of a query name several splits, the first of them in the order of `SPLITS`
    wins. This order puts test first, so that no test query is trained on.
    """
    # A judgement that names no split ranks last, so any named split wins over it.
    ranks: dict[str | None, int] = {None: len(SPLITS)}
    for rank, split in enumerate(SPLITS):
        ranks[split] = rank

    query_splits: dict[str, str | None] = {}
    for judgement in judgements:
        best_split = query_splits.setdefault(judgement.query_id, judgement.split)
        if ranks[judgement.split] < ranks[best_split]:
            query_splits[judgement.query_id] = judgement.split

    admitted: list[Judgement] = []
    for judgement in judgements:
        query_split = query_splits[judgement.query_id]
        if judgement.split == query_split:
            admitted.append(judgement)
        else:
            detail = f"its query is in {query_split}, so it may not be in {judgement.split} as well"
            quarantine.refuse(judgement.row, RowError("conflicting split", detail))
    return admitted
