"""BM25 over a generation's own documents, of all parts, fused with its retriever's ranking by reciprocal ranks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from model_code.fusion import reciprocal_rank_fusion
from model_code.index.bm25 import Bm25, Bm25Segment
from model_code.index.settings import Bm25Settings
from model_code.retriever import Ranking


@dataclass(frozen=True)
class HybridSettings:
    """As in the evaluation of `rrf`: BM25's settings, how many documents of each ranking count, RRF's constant."""

    bm25: Bm25Settings = field(default_factory=Bm25Settings)
    depth: int = 100
    constant: int = 60


class Hybrid:
    """BM25 over the passages that the retriever sees, in memory, as it is evaluated.

    The first hybrid search after a change indexes what was added; all else is shared with the generation before.
    """

    def __init__(self, segments: Sequence[tuple[Bm25Segment, frozenset[str]]], settings: HybridSettings) -> None:
        """segments: of each part of a generation, with the documents that it has lost."""
        self.settings, self.bm25 = settings, Bm25(segments, settings.bm25)

    def depth(self, k: int) -> int:
        """How many documents of each ranking count for the best k."""
        return max(k, self.settings.depth)

    def fuse(
        self, rankings: Sequence[Ranking], texts: Sequence[str], k: int, allowed: Collection[str] | None = None
    ) -> list[Ranking]:
        """The k best documents by both rankings together: a retriever's of `depth(k)` for each text, and BM25's.

        Of `allowed` documents only, unless None.
        """
        pairs = zip(rankings, self.bm25.search(texts, self.depth(k), allowed), strict=True)
        return [reciprocal_rank_fusion(pair, k, self.settings.constant) for pair in pairs]
