"""A stream: dated documents that arrive, change and are removed, and queries with their answers.

A stream begins with the documents of a first day. Batches of changes follow, in the order of their
dates. Some batches form a step. Every policy is measured at the end of each step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

# Roles of a query. Policies get to know known queries and their answers. Tested queries are only
# used to measure the policies.
KNOWN = "known"
TESTED = "tested"

MONTHS_PER_YEAR = 12


@dataclass(frozen=True)
class Text:
    """A version of a document, without lines of its text that are used as queries."""

    title: str
    text: str


@dataclass(frozen=True)
class StreamQuery:
    """A query with the documents that answer it.

    Attributes:
        query_id: Id of the query.
        text: Text of the query.
        answers: Ids of the documents that answer the query.
        step: Number of the step in which the query is first asked; 0 is the first day.
        role: `KNOWN` or `TESTED`.
        kind: Where the query comes from, such as "summary" or "changelog".
    """

    query_id: str
    text: str
    answers: frozenset[str]
    step: int
    role: str
    kind: str


@dataclass(frozen=True)
class Batch:
    """The changes of one release.

    Attributes:
        name: Name of the release, such as "numpy 1.20.0".
        date: ISO date.
        puts: New and changed documents by id.
        removals: Ids of documents that are gone.
    """

    name: str
    date: str
    puts: Mapping[str, Text]
    removals: Sequence[str]


@dataclass(frozen=True)
class Step:
    """The batches between two measurements.

    Attributes:
        name: Name of the step, such as "2020 H1".
        date: ISO date of the end of the step.
        batches: The batches, in the order of their dates.
    """

    name: str
    date: str
    batches: Sequence[Batch]


@dataclass(frozen=True)
class Stream:
    """A stream of dated documents, with queries and their answers.

    Attributes:
        name: Name of the stream.
        start_date: ISO date of the first day.
        start: Documents of the first day by id.
        steps: The steps after the first day. Step number i is `steps[i - 1]`.
        queries: All queries.
    """

    name: str
    start_date: str
    start: Mapping[str, Text]
    steps: Sequence[Step]
    queries: Sequence[StreamQuery] = field(default_factory=list)

    def states(self) -> Iterator[dict[str, Text]]:
        """Yield the documents that exist on the first day, and after each step."""
        documents = dict(self.start)
        yield dict(documents)
        for step in self.steps:
            for batch in step.batches:
                apply_batch(documents, batch)
            yield dict(documents)

    def known(self, step: int) -> list[StreamQuery]:
        """Return the known queries that were asked up to a step."""
        return [query for query in self.queries if query.role == KNOWN and query.step <= step]

    def tested(self, step: int, documents: Mapping[str, Text]) -> list[StreamQuery]:
        """Return the queries that are tested at the end of a step.

        They were asked by then, and a document that exists answers them.

        Args:
            step: Number of the step.
            documents: The documents that exist at the end of the step.
        """
        return [
            query
            for query in self.queries
            if query.role == TESTED and query.step <= step and query.answers & documents.keys()
        ]


def apply_batch(documents: dict[str, Text], batch: Batch) -> None:
    """Apply the changes of a batch, in place, to a mapping of documents by id."""
    for document_id in batch.removals:
        del documents[document_id]
    documents.update(batch.puts)


def make_batch(
    name: str, date: str, before: Mapping[str, Text], after: Mapping[str, Text]
) -> Batch:
    """Return the changes between two releases of the same package.

    Args:
        name: Name of the release.
        date: ISO date of the release.
        before: Documents of the release before.
        after: Documents of this release.
    """
    puts: dict[str, Text] = {}
    for document_id, text in sorted(after.items()):
        if before.get(document_id) != text:
            puts[document_id] = text
    removals = sorted(before.keys() - after.keys())
    return Batch(name, date, puts, removals)


def period_of(date: str, months: int) -> str:
    """Return the name of the period that an ISO date belongs to, such as a half year.

    Args:
        date: The date.
        months: Length of a period: 12, 6 or 3.

    >>> period_of("2020-07-01", 6)
    '2020 H2'
    >>> period_of("2020-07-01", 12)
    '2020'
    """
    if months == MONTHS_PER_YEAR:
        return date[:4]
    number = (int(date[5:7]) - 1) // months + 1
    letter = "H" if months == MONTHS_PER_YEAR // 2 else "Q"
    return f"{date[:4]} {letter}{number}"


def group_by_period(batches: Sequence[Batch], months: int) -> list[Step]:
    """Group batches into steps of 12, 6 or 3 months. The batches are sorted by date."""
    grouped: dict[str, list[Batch]] = {}
    for batch in batches:
        grouped.setdefault(period_of(batch.date, months), []).append(batch)
    return [Step(name, members[-1].date, members) for name, members in grouped.items()]
