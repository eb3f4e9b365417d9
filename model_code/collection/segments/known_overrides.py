"""Known queries that changed after the segments of a generation were written.

A segment keeps the queries that its documents arrived with. Feedback comes later, and a query can
be forgotten. So a generation holds all known queries of the documents concerned, in a file that
later generations share until it changes.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from model_code.collection.ledger.events import Feedback, Opinion
from model_code.corpus.known_queries import (
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
"""All evidence about the queries of some documents, by document id."""


class EvidenceHolder(Protocol):
    """A segment, as far as its known queries matter here."""

    @property
    def known_queries(self) -> Mapping[str, Sequence[KnownQuery]]:
        """Evidence when the segment was written, by document id."""


@dataclass(frozen=True)
class LaterEvidence:
    """What became known about queries after documents were indexed.

    Attributes:
        feedback: Evidence of thumbs.
        forgotten: Hashes of queries that must not be known; see `query_hash`.
    """

    feedback: tuple[KnownQuery, ...] = ()
    forgotten: frozenset[str] = field(default_factory=frozenset)

    def __bool__(self) -> bool:
        """Whether anything became known."""
        return bool(self.feedback or self.forgotten)


def evidence_of_feedback(feedback: Iterable[Feedback]) -> tuple[KnownQuery, ...]:
    """Turn thumbs into evidence about queries.

    One person counts once for a document and a query, whatever its case and punctuation, with the
    latest thumb. A thumb up adds nothing if only known queries had raised the hit: otherwise a
    known query would earn itself more weight. A thumb down always counts. Clicks are no evidence,
    because at a noise of .1 only half of them are right (`experiments/clicks`).

    Args:
        feedback: All opinions that count.

    Returns:
        One piece of evidence per document and normalised text whose thumbs do not cancel out.
    """
    latest: dict[tuple[str, str, str], Feedback] = {}
    for opinion in sorted(feedback, key=lambda opinion: (opinion.received, opinion.key)):
        if opinion.verdict != Opinion.CLICK:
            person_and_query = (
                opinion.who,
                normalize_query(opinion.query),
                opinion.document_id,
            )
            latest[person_and_query] = opinion

    balances: dict[tuple[str, str], int] = {}
    texts: dict[tuple[str, str], str] = {}
    for (_, normalized, document_id), opinion in sorted(latest.items()):
        query = (document_id, normalized)
        texts.setdefault(query, opinion.query)
        balances.setdefault(query, 0)
        if opinion.verdict == Opinion.DOWN:
            balances[query] -= 1
        elif not opinion.raised:
            balances[query] += 1

    evidence: list[KnownQuery] = []
    for query, balance in sorted(balances.items()):
        if balance:
            text = texts[query]
            evidence.append(KnownQuery(query[0], text, QuerySource.FEEDBACK, balance))
    return tuple(evidence)


def compute_overrides(
    holders: Iterable[tuple[EvidenceHolder, Container[str]]],
    later: LaterEvidence,
    held_out: frozenset[str],
) -> dict[str, list[KnownQuery]]:
    """Compute all known queries of the documents whose queries changed since they were indexed.

    The result depends on the documents and on the evidence, not on the order in which they came.

    Args:
        holders: Each segment, with its documents that can be found.
        later: What became known later.
        held_out: Hashes of queries that judge, which are never known.

    Returns:
        Evidence by document id.
    """
    if not later:
        return {}
    feedback = by_document(drop_held_out(later.feedback, held_out | later.forgotten))
    overrides: dict[str, list[KnownQuery]] = {}
    for holder, documents in holders:
        own_queries = holder.known_queries
        changed = {document_id for document_id in feedback if document_id in documents}
        if later.forgotten:
            changed.update(_documents_with(own_queries, later.forgotten, documents))
        for document_id in changed:
            own = drop_held_out(own_queries.get(document_id, ()), held_out | later.forgotten)
            overrides[document_id] = [*own, *feedback.get(document_id, ())]
    return overrides


def _documents_with(
    queries: Mapping[str, Sequence[KnownQuery]],
    hashes: frozenset[str],
    documents: Container[str],
) -> set[str]:
    """Return the documents that have a query with one of these hashes."""
    found: set[str] = set()
    for document_id, evidence in queries.items():
        if document_id in documents and any(query_hash(one.text) in hashes for one in evidence):
            found.add(document_id)
    return found


def save_overrides(folder: Path, overrides: KnownOverrides) -> None:
    """Write the file of a generation; equal overrides give equal bytes.

    A document without queries keeps an entry, which replaces those of its segment.
    """
    rows: dict[str, list[list[Any]]] = {}
    for document_id in sorted(overrides):
        rows[document_id] = sorted(query_row(query) for query in overrides[document_id])
    write_json(folder / KNOWN_OVERRIDES, rows, lines=False)


def load_overrides(folder: Path) -> dict[str, list[KnownQuery]]:
    """Read what `save_overrides` wrote."""
    overrides: dict[str, list[KnownQuery]] = {}
    for document_id, rows in read_json(folder / KNOWN_OVERRIDES).items():
        overrides[document_id] = [query_from_row(row) for row in rows]
    return overrides
