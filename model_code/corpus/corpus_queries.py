"""The known queries of a corpus, and the held-out queries that must not become known queries.

A known query is a query that a document is known to answer. It comes from the training qrels or
from the row of the document. An index uses known queries to find their documents. A query of dev,
gate or test is therefore held out, because its score would otherwise be trivially high. Held-out
queries are recognised by their normalised text, whatever their id is and wherever they come from.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from model_code.corpus.settings import GATE
from model_code.errors import FreshetError
from model_code.files import hash_text, read_json, write_json
from model_code.text.documents import Document
from model_code.text.known_queries import (
    KnownQuery,
    QuerySource,
    by_document,
    words_without_signs,
)

# Name of the file with the known queries of a build, among the tables of the corpus.
KNOWN_QUERIES = "known_queries.json"

# Splits whose queries measure retrieval, so that they are held out.
JUDGING_SPLITS = ("dev", GATE, "test")
TRAINING_SPLIT = "train"


@dataclass(frozen=True)
class CorpusQueries:
    """The known queries of a corpus, and hashes of its held-out queries.

    Attributes:
        queries: Evidence that a document answers a query, or does not answer it. Each judgement in
            the training qrels gives one entry, and so does each query in the row of a document.
            Several entries may be about the same query and document. `resolve_queries` adds up
            their weights later.
        held_out: Hashes of all queries of dev, gate and test; see `query_hash`.
        trained_feedback: Document id and hash of each query that a document was trained for
            because of feedback alone. Users of the search typed these queries. They are not known
            to the build: the live collection reads them from its feedback, as long as it is there.
    """

    queries: tuple[KnownQuery, ...] = ()
    held_out: frozenset[str] = field(default_factory=frozenset)
    trained_feedback: frozenset[tuple[str, str]] = field(default_factory=frozenset)

    def save(self, path: Path) -> None:
        """Write a JSON file. Equal known queries give equal bytes."""
        rows = [query_row(query) for query in sorted(self.queries, key=query_row)]
        content: dict[str, Any] = {"held_out": sorted(self.held_out), "queries": rows}
        if self.trained_feedback:
            content["trained_feedback"] = sorted(self.trained_feedback)
        write_json(path, content, lines=False)

    @classmethod
    def load(cls, path: Path) -> CorpusQueries:
        """Read what `save` wrote."""
        content = read_json(path)
        queries = tuple(query_from_row(row) for row in content["queries"])
        trained = content.get("trained_feedback", ())
        return cls(
            queries,
            frozenset(content["held_out"]),
            frozenset((document_id, text_hash) for document_id, text_hash in trained),
        )

    @classmethod
    def of_corpus(cls, folder: Path) -> CorpusQueries:
        """Read the known queries of the corpus in a folder.

        Raises:
            FreshetError: If the corpus stage has not written them.
        """
        path = folder / KNOWN_QUERIES
        if not path.is_file():
            raise FreshetError(
                f"{path} is missing: it lists the queries of the evaluation splits; "
                "run `freshet run corpus`"
            )
        return cls.load(path)

    def by_document(self) -> dict[str, list[KnownQuery]]:
        """Return the evidence of each document, by document id."""
        return by_document(self.queries)

    @cached_property
    def trained_hashes(self) -> frozenset[str]:
        """Hashes of the queries that retrievers of this corpus train on; see `query_hash`."""
        known = {query_hash(query.text) for query in self.queries}
        return frozenset(known.union(text_hash for _, text_hash in self.trained_feedback))


def query_hash(text: str) -> str:
    """Return the SHA-256 of the words of a query, without signs.

    Files store this hash to recognise a query that is held out or was forgotten, without its text.
    Queries that differ only in signs, such as C and C++, have the same hash. So such a query is
    left out as well, which is the safe side.
    """
    return hash_text(words_without_signs(text))


def drop_held_out(queries: Iterable[KnownQuery], held_out: frozenset[str]) -> list[KnownQuery]:
    """Return the queries whose normalised texts are not among the given hashes."""
    if not held_out:
        return list(queries)
    return [query for query in queries if query_hash(query.text) not in held_out]


def collect_known_queries(
    documents: Iterable[Document],
    texts: Mapping[str, str],
    splits: Mapping[str, str],
    grades: Mapping[tuple[str, str], int],
    from_feedback: Collection[tuple[str, str]] = frozenset(),
) -> CorpusQueries:
    """Collect the known queries of a corpus: queries that a document is known to answer.

    They help to find their documents. A query of dev, gate or test is held out: it never becomes a
    known query, because its score would otherwise be trivially high.

    Args:
        documents: The documents, with the queries of their rows.
        texts: Text of each query, by query id.
        splits: Split of each judged query, by query id.
        grades: Grade of each judged pair of query id and document id; 0 or less is evidence
            against the query.
        from_feedback: Judged pairs that come from feedback alone. They give no evidence.

    Returns:
        The evidence from training qrels and rows, without held-out queries.
    """
    held_out: set[str] = set()
    for query_id, split in splits.items():
        if split in JUDGING_SPLITS:
            held_out.add(query_hash(texts[query_id]))

    evidence: list[KnownQuery] = []
    trained_feedback: set[tuple[str, str]] = set()
    for (query_id, document_id), grade in grades.items():
        # A query without a split is not evaluated, so its judgements may become known as well.
        if splits.get(query_id, TRAINING_SPLIT) != TRAINING_SPLIT:
            continue
        if (query_id, document_id) in from_feedback:
            if grade > 0:
                trained_feedback.add((document_id, query_hash(texts[query_id])))
        else:
            # A negative weight is evidence against the query, however low the grade is.
            weight = grade if grade > 0 else -1
            evidence.append(KnownQuery(document_id, texts[query_id], QuerySource.QRELS, weight))
    for document in documents:
        evidence.extend(queries_of_row(document))
    hashes = frozenset(held_out)
    known = tuple(drop_held_out(evidence, hashes))
    return CorpusQueries(known, hashes, frozenset(trained_feedback))


def queries_of_row(document: Document) -> list[KnownQuery]:
    """Return the known queries that the row of a document contains."""
    queries: list[KnownQuery] = []
    for text in document.queries:
        queries.append(KnownQuery(document.document_id, text, QuerySource.ROW, date=document.date))
    return queries


def query_row(query: KnownQuery) -> list[Any]:
    """Return a known query as a list of JSON values, which also is its sort key."""
    return [query.document_id, query.text, str(query.source), query.weight, query.date or ""]


def query_from_row(row: list[Any]) -> KnownQuery:
    """Return the known query of a list that `query_row` returned."""
    document_id, text, source, weight, date = row
    return KnownQuery(document_id, text, QuerySource(source), weight, date or None)
