"""Pseudo-queries: what makes them, the spans that the inverse cloze task cuts out of documents, and
which are kept.

A random span of a document serves as a query for it (Lee et al., 2019; HCE's q~, section 4.3).
Queries that a model wrote also expand documents for BM25, as docT5query does. One that fits other
documents, or not its own, would call right answers wrong.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from model_code.files import hash_text
from model_code.progress import Progress, no_progress, report_each
from model_code.queries.settings import ClozeSettings
from model_code.text.words import join_words, split_words, word_spans

if TYPE_CHECKING:
    import pandas as pd


class PseudoQuery(NamedTuple):
    """A query, the document that it was made from, and the generator that made it."""

    document_id: str
    text: str
    kind: str


def derive_seed(seed: int, *parts: str | int) -> int:
    """A 63-bit seed that depends on the project's seed and on what it is for, and on nothing else.

    >>> derive_seed(1, "inverse_cloze", "d7") == derive_seed(1, "inverse_cloze", "d7") != derive_seed(2, "inverse_cloze", "d7")
    True
    """
    return int(hash_text("\0".join(map(str, (seed, *parts))))[:16], 16) >> 1


SHORTEST = 3  # words: shorter spans are rarely about anything


class InverseCloze:
    """Cuts spans out of documents at random places."""

    def __init__(self, kind: str, settings: ClozeSettings) -> None:
        self.kind, self.settings = kind, settings

    def generate(
        self,
        documents: Mapping[str, str],
        seed: int,
        checkpoints: Path | None = None,
        progress: Progress = no_progress,
    ) -> list[PseudoQuery]:
        """Queries for `documents` (id -> text): in ascending order of ids, each one's together.

        What a document gets depends on its id, its text and `seed` only, never on the documents
        around it. One that is too short for a span of three words gets none.
        """
        ids = report_each(sorted(documents), len(documents), progress, "documents")
        return [
            PseudoQuery(i, span, self.kind)
            for i in ids
            for span in self.spans(i, documents[i], seed)
        ]

    def spans(self, document_id: str, text: str, seed: int) -> list[str]:
        """The document's spans: words joined by single spaces.

        >>> cloze = InverseCloze("short_cloze", ClozeSettings(per_document=2, min_words=3, max_words=3))
        >>> cloze.spans("d1", "a b c d e f g h", seed=7)
        ['c d e', 'f g h']
        """
        places, chance = word_spans(text), random.Random(derive_seed(seed, self.kind, document_id))
        longest, cuts = int(len(places) * self.settings.max_share), []
        for _ in range(self.settings.per_document if longest >= SHORTEST else 0):
            length = min(longest, chance.randint(self.settings.min_words, self.settings.max_words))
            start = chance.randint(0, len(places) - length)
            cuts.append(join_words(text, places, start, start + length))
        return cuts


def queries_by_document(pseudo_queries: pd.DataFrame) -> dict[str, list[str]]:
    """Document id -> the queries that a model wrote for it.

    Spans cut out of a document are left out: they would only count some of its words twice.
    """
    chosen = pseudo_queries[pseudo_queries["kind"] == "sequence_to_sequence"]
    return chosen.groupby("document_id", sort=False)["text"].agg(list).to_dict()


def expand_texts(
    texts: Sequence[str], document_ids: Sequence[str], queries: Mapping[str, Sequence[str]]
) -> list[str]:
    """Each passage's text with all queries of its document behind it.

    >>> expand_texts(["sort a list", "open a file"], ["a", "b"], {"a": ["ordering", "rank items"]})
    ['sort a list ordering rank items', 'open a file']
    """
    return [
        " ".join([text, *queries.get(i, ())]) for text, i in zip(texts, document_ids, strict=True)
    ]


EMPTY = "empty"  # no letter or digit
REPEATED = "repeated"  # the same document has the same query already
AMBIGUOUS = "several_documents"  # another document contains it word for word, or has the same query
DROP_REASONS = (EMPTY, REPEATED, AMBIGUOUS)


def normalize_query(text: str) -> str:
    """Letters and digits in lower case, joined by single spaces: texts that differ in nothing else
    are the same query.

    >>> normalize_query("  Sort an *Array*, in-place!")
    'sort an array in place'
    """
    return " ".join(split_words(text.casefold()))


def reasons_to_drop(
    queries: Sequence[PseudoQuery], documents: Mapping[str, str]
) -> list[str | None]:
    """For each query one of `DROP_REASONS` to drop it, or None to keep it.

    `documents` maps ids to the texts that are searched.

    >>> queries = [PseudoQuery("d1", "Returns self.", "cloze"), PseudoQuery("d2", "fits a tree", "cloze")]
    >>> reasons_to_drop(queries, {"d1": "Learns. Returns self.", "d2": "Fits a tree and returns self."})
    ['several_documents', None]
    """
    texts = {i: f" {normalize_query(text)} " for i, text in documents.items()}
    frequency = Counter(term for text in texts.values() for term in set(text.split()))
    normal = [(query.document_id, normalize_query(query.text)) for query in queries]
    fitting = _found_word_for_word({text for _, text in normal}, texts, frequency)
    for document_id, text in normal:
        fitting[text].add(document_id)

    first = {query: place for place, query in reversed(list(enumerate(normal)))}
    repeated = (first[query] < place for place, query in enumerate(normal))
    return [
        EMPTY if not text else AMBIGUOUS if len(fitting[text]) > 1 else REPEATED if again else None
        for (_, text), again in zip(normal, repeated, strict=True)
    ]


def _found_word_for_word(
    queries: Iterable[str], texts: Mapping[str, str], frequency: Mapping[str, int]
) -> dict[str, set[str]]:
    """For each normalised query the documents whose text contains it; only those with its rarest
    term are searched.
    """
    by_term: dict[str, list[str]] = {}
    containing: dict[str, set[str]] = {query: set() for query in queries}
    for query in containing:
        if query:
            rarest = min(query.split(), key=lambda term: (frequency.get(term, 0), term))
            by_term.setdefault(rarest, []).append(query)
    for document_id, text in texts.items():
        for term in by_term.keys() & set(text.split()):
            for query in by_term[term]:
                if f" {query} " in text:
                    containing[query].add(document_id)
    return containing
