"""Pseudo-queries: what makes them, and the spans that the inverse cloze task cuts out of documents.

A random span of a document serves as a query for it (Lee et al., 2019; HCE's q~, section 4.3). Queries that a model
wrote also expand documents for BM25, as docT5query does.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from model_code.files import hash_text
from model_code.progress import Progress, silent, tracked
from model_code.queries.settings import ClozeSettings
from model_code.words import slices, spans

if TYPE_CHECKING:
    import pandas as pd


class PseudoQuery(NamedTuple):
    """A query, the document that it was made from, and the generator that made it."""

    document_id: str
    text: str
    kind: str


class QueryGenerator(Protocol):
    """Makes queries from documents."""

    def generate(
        self, documents: Mapping[str, str], seed: int, checkpoints: Path, progress: Progress
    ) -> list[PseudoQuery]:
        """Queries for `documents` (id -> text): documents in ascending order of ids, each one's queries together.

        What a document gets depends on its id, its text and `seed` only, never on the documents around it. Long work is
        kept in the folder `checkpoints`, from which a killed call goes on to the same result.
        """


def seed_of(seed: int, *parts: str | int) -> int:
    """A 63-bit seed that depends on the project's seed and on what it is for, and on nothing else.

    >>> seed_of(1, "inverse_cloze", "d7") == seed_of(1, "inverse_cloze", "d7") != seed_of(2, "inverse_cloze", "d7")
    True
    """
    return int(hash_text("\0".join(map(str, (seed, *parts))))[:16], 16) >> 1


SHORTEST = 3  # words: shorter spans are rarely about anything


class InverseCloze:
    """Cuts spans out of documents at random places."""

    def __init__(self, kind: str, settings: ClozeSettings) -> None:
        self.kind, self.settings = kind, settings

    def generate(
        self, documents: Mapping[str, str], seed: int, checkpoints: Path | None = None, progress: Progress = silent
    ) -> list[PseudoQuery]:
        """See `QueryGenerator.generate`. A document too short for a span of three words gets no query."""
        ids = tracked(sorted(documents), len(documents), progress, "documents")
        return [PseudoQuery(i, span, self.kind) for i in ids for span in self.spans(i, documents[i], seed)]

    def spans(self, document_id: str, text: str, seed: int) -> list[str]:
        """The document's spans: words joined by single spaces.

        >>> cloze = InverseCloze("short_cloze", ClozeSettings(per_document=2, min_words=3, max_words=3))
        >>> cloze.spans("d1", "a b c d e f g h", seed=7)
        ['c d e', 'f g h']
        """
        places, chance = spans(text), random.Random(seed_of(seed, self.kind, document_id))
        longest = int(len(places) * self.settings.max_share)
        if longest < SHORTEST:
            return []
        return [self._span(text, places, longest, chance) for _ in range(self.settings.per_document)]

    def _span(self, text: str, places: list[tuple[int, int]], longest: int, chance: random.Random) -> str:
        length = min(longest, chance.randint(self.settings.min_words, self.settings.max_words))
        start = chance.randint(0, len(places) - length)
        return slices(text, places, start, start + length)


def generated_queries(pseudo_queries: pd.DataFrame) -> dict[str, list[str]]:
    """Document id -> the queries that a model wrote for it.

    Spans cut out of a document are left out: they would only count some of its words twice.
    """
    chosen = pseudo_queries["kind"] == "sequence_to_sequence"
    queries: dict[str, list[str]] = {}
    for document, text in pseudo_queries.loc[chosen, ["document_id", "text"]].itertuples(index=False):
        queries.setdefault(document, []).append(text)
    return queries


def expanded_texts(
    texts: Sequence[str], document_ids: Sequence[str], queries: Mapping[str, Sequence[str]]
) -> list[str]:
    """Each passage's text with all queries of its document behind it.

    >>> expanded_texts(["sort a list", "open a file"], ["a", "b"], {"a": ["ordering", "rank items"]})
    ['sort a list ordering rank items', 'open a file']
    """
    return [" ".join([text, *queries.get(i, ())]) for text, i in zip(texts, document_ids, strict=True)]
