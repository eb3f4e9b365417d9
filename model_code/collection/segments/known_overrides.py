"""Known queries that changed after their documents were indexed.

A known query is a query that a document is known to answer. A segment, an immutable index of some
documents, stores the known queries from the time when it was written. Later, users give feedback,
or ask to forget a query. So a generation, a snapshot of the index, has a file with the current
known queries of each document whose queries changed.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from model_code.collection.ledger.events import Feedback, Opinion
from model_code.corpus.corpus_queries import (
    drop_held_out,
    query_from_row,
    query_hash,
    query_row,
)
from model_code.files import read_json, write_json
from model_code.text.known_queries import (
    KnownQuery,
    QuerySource,
    by_document,
    normalize_query,
)

KNOWN_OVERRIDES = "known_overrides.json"

KnownOverrides = Mapping[str, Sequence[KnownQuery]]
"""Evidence by document id. It replaces all evidence about these documents in the segments."""


class EvidenceHolder(Protocol):
    """An object with known queries of documents, such as a segment."""

    @property
    def known_queries(self) -> Mapping[str, Sequence[KnownQuery]]:
        """Evidence from the time when the segment was written, by document id."""


@dataclass(frozen=True)
class LaterEvidence:
    """Evidence about known queries that arrived after documents were indexed.

    Attributes:
        feedback: Queries that got thumbs up or down, with their documents.
        forgotten: Hashes of queries that a person asked to forget; see `query_hash`.
    """

    feedback: tuple[KnownQuery, ...] = ()
    forgotten: frozenset[str] = field(default_factory=frozenset)

    def __bool__(self) -> bool:
        """Return whether there is any evidence."""
        return bool(self.feedback or self.forgotten)


def evidence_of_feedback(feedback: Iterable[Feedback]) -> tuple[KnownQuery, ...]:
    """Turn thumbs into evidence about known queries.

    - The latest thumb of a person counts for a document and a query. Queries that differ only in
      case or punctuation are one query.
    - A thumb up does not count if the hit was shown only because of a known query. Otherwise a
      known query would increase its own weight. It does not replace an earlier thumb up either,
      which may have made the query known.
    - A thumb down always counts.
    - Clicks do not count. If one in ten clicks is random, only half of the clicked documents answer
      the query (`experiments/clicks`).

    Args:
        feedback: Opinions of all persons.

    Returns:
        One piece of evidence for each document and query. Its weight is the number of thumbs up
        minus the number of thumbs down. Weights of 0 are left out. Its date is the time of the
        first of these thumbs.
    """
    # The last thumb by person, normalised query and document id. Opinions are visited oldest first,
    # so that a later one replaces an earlier one.
    latest: dict[tuple[str, str, str], Feedback] = {}
    for opinion in sorted(feedback, key=lambda opinion: (opinion.received, opinion.key)):
        if opinion.verdict != Opinion.CLICK:
            key = (opinion.who, normalize_query(opinion.query), opinion.document_id)
            earlier = latest.get(key)
            is_repeated_up = (
                earlier is not None and earlier.verdict == opinion.verdict == Opinion.UP
            )
            if not (is_repeated_up and opinion.raised):
                latest[key] = opinion

    # Thumbs up minus thumbs down, one spelling of the query, and the time of the first thumb, by
    # document id and normalised query.
    balances: dict[tuple[str, str], int] = {}
    texts: dict[tuple[str, str], str] = {}
    first_times: dict[tuple[str, str], float] = {}
    for (_, normalized_query, document_id), opinion in sorted(latest.items()):
        pair = (document_id, normalized_query)
        texts.setdefault(pair, opinion.query)
        balances.setdefault(pair, 0)
        first_times[pair] = min(first_times.get(pair, opinion.received), opinion.received)
        if opinion.verdict == Opinion.DOWN:
            balances[pair] -= 1
        elif not opinion.raised:
            balances[pair] += 1

    evidence: list[KnownQuery] = []
    for pair, balance in sorted(balances.items()):
        if balance != 0:
            document_id, _ = pair
            date = datetime.fromtimestamp(first_times[pair], UTC).isoformat(timespec="seconds")
            query = KnownQuery(document_id, texts[pair], QuerySource.FEEDBACK, balance, date)
            evidence.append(query)
    return tuple(evidence)


def compute_overrides(
    holders: Iterable[tuple[EvidenceHolder, Container[str]]],
    later: LaterEvidence,
    held_out: frozenset[str],
) -> dict[str, list[KnownQuery]]:
    """Compute the known queries of all documents whose queries changed since they were indexed.

    Documents and evidence may have arrived in any order. The result is the same.

    Args:
        holders: Each segment, with its live documents.
        later: Evidence that arrived later.
        held_out: Hashes of the queries of the evaluation splits. They are never known queries.

    Returns:
        All evidence about these documents, by document id, in the order of `query_row`. So equal
        evidence gives an equal result, which also equals the result of `load_overrides`.
    """
    if not later:
        return {}
    excluded = held_out | later.forgotten
    feedback = by_document(drop_held_out(later.feedback, excluded))
    overrides: dict[str, list[KnownQuery]] = {}
    for holder, documents in holders:
        indexed_queries = holder.known_queries
        # A document changed if it got feedback, or if one of its indexed queries was forgotten.
        changed = {document_id for document_id in feedback if document_id in documents}
        if later.forgotten:
            changed.update(_documents_with(indexed_queries, later.forgotten, documents))
        for document_id in changed:
            evidence = drop_held_out(indexed_queries.get(document_id, ()), excluded)
            evidence.extend(feedback.get(document_id, ()))
            overrides[document_id] = sorted(evidence, key=query_row)
    return overrides


def _documents_with(
    queries: Mapping[str, Sequence[KnownQuery]],
    hashes: frozenset[str],
    documents: Container[str],
) -> set[str]:
    """Return the ids of the documents that have a known query with one of the given hashes.

    Args:
        queries: Known queries by document id.
        hashes: Hashes of queries; see `query_hash`.
        documents: Documents to consider.
    """
    found: set[str] = set()
    for document_id, evidence in queries.items():
        if document_id not in documents:
            continue
        if any(query_hash(query.text) in hashes for query in evidence):
            found.add(document_id)
    return found


def save_overrides(folder: Path, overrides: KnownOverrides) -> None:
    """Write overrides to the folder of a generation. Equal overrides give equal bytes.

    Overrides are known queries that changed after their documents were indexed. A document that
    lost all its queries is written with an empty list, which replaces the queries in its segment.
    """
    rows: dict[str, list[list[Any]]] = {}
    for document_id in sorted(overrides):
        rows[document_id] = sorted(query_row(query) for query in overrides[document_id])
    write_json(folder / KNOWN_OVERRIDES, rows, lines=False)


def load_overrides(folder: Path) -> dict[str, list[KnownQuery]]:
    """Read the changed known queries, by document id, that `save_overrides` wrote."""
    overrides: dict[str, list[KnownQuery]] = {}
    for document_id, rows in read_json(folder / KNOWN_OVERRIDES).items():
        overrides[document_id] = [query_from_row(row) for row in rows]
    return overrides
