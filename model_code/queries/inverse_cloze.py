"""Inverse cloze task: a random span of a document serves as a query for it (Lee et al., 2019; HCE's q~, section 4.3).

The kinds differ in settings and in what training does with the document. `inverse_cloze` leaves it whole, as HCE does;
for `held_out_cloze` training takes the span out of it (`training/tables.py`), so that the words alone do not give it
away; `short_cloze` spans are about as long as a typed query.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

from model_code.progress import Progress, silent, tracked
from model_code.queries.pseudo_query import PseudoQuery, seed_of
from model_code.queries.settings import ClozeSettings

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
        words, chance = text.split(), random.Random(seed_of(seed, self.kind, document_id))
        longest = int(len(words) * self.settings.max_share)
        if longest < SHORTEST:
            return []
        return [self._span(words, longest, chance) for _ in range(self.settings.per_document)]

    def _span(self, words: list[str], longest: int, chance: random.Random) -> str:
        length = min(longest, chance.randint(self.settings.min_words, self.settings.max_words))
        start = chance.randint(0, len(words) - length)
        return " ".join(words[start : start + length])
