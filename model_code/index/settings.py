"""Settings of the dense index and of BM25: the groups `index` and `bm25` of `params.yaml`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from model_code.settings import require, require_at_least


@dataclass(frozen=True)
class IndexSettings:
    """How the passages' vectors are searched: exactly, or by an approximate FAISS index, and how much of that.

    factory: "auto", "Flat" (exact, without FAISS), or a `faiss.index_factory` string such as "IVF1024,Flat", "HNSW32".
      Kinds that would lose entries when documents come and go (FastScan, NSG) are refused.
    flat_below: "auto" is exact search below this many passages, and IVF with about 4 sqrt(n) lists from there on.
    nprobe: lists of an IVF index that a query visits.  ef_search: nodes that a query visits in an HNSW graph.

    >>> IndexSettings().factory_for(1000), IndexSettings().factory_for(1_000_000)
    ('Flat', 'IVF4096,SQ8')
    """

    factory: str = "auto"
    flat_below: int = 50_000
    nprobe: int = 32
    ef_search: int = 128

    def __post_init__(self) -> None:
        """Refuse numbers that search nothing."""
        require_at_least(1, self, "flat_below", "nprobe", "ef_search")

    def factory_for(self, passages: int) -> str:
        """The factory string for an index of so many passages; IVF gets the power of two nearest to 4 sqrt(n) lists."""
        if self.factory != "auto":
            return self.factory
        if passages < self.flat_below:
            return "Flat"
        return f"IVF{2 ** round(math.log2(4 * math.sqrt(passages)))},SQ8"


@dataclass(frozen=True)
class Bm25Settings:
    """BM25's term saturation and length normalisation (defaults: Anserini's), and the words it drops.

    k1: 0.6 to 2.0.  b: 0 (length ignored) to 1.  stopwords: "english" or None.
    """

    k1: float = 0.9
    b: float = 0.4
    stopwords: str | None = "english"

    def __post_init__(self) -> None:
        """Refuse values outside the formula's domain."""
        require(self.k1 >= 0, f"k1 is {self.k1}, but must not be negative")
        require(0 <= self.b <= 1, f"b is {self.b}, but must be between 0 and 1")
        require(self.stopwords in ("english", None), f"stopwords is {self.stopwords!r}, but must be 'english' or null")
