"""Settings of the dense index and of BM25: the groups `index` and `bm25` of `params.yaml`."""

from __future__ import annotations

import math

from model_code.index.terms import AUTO
from model_code.settings import Field, Settings, require


class IndexSettings(Settings):
    """How the passages' vectors are searched: exactly, or by an approximate FAISS index, and how much of that.

    >>> IndexSettings().factory_for(1000), IndexSettings().factory_for(1_000_000)
    ('Flat', 'IVF4096,SQ8')
    """

    factory: str = Field(
        "auto",
        description="auto, Flat (exact, without FAISS), or a faiss.index_factory string such as IVF1024,Flat",
    )
    flat_below: int = Field(
        50_000, ge=1, description="auto is exact below so many passages, and IVF with about 4 sqrt(n) lists from there"
    )
    nprobe: int = Field(32, ge=1, description="lists of an IVF index that a query visits")
    ef_search: int = Field(128, ge=1, description="nodes that a query visits in an HNSW graph")

    def factory_for(self, passages: int) -> str:
        """The factory string for an index of so many passages; IVF gets the power of two nearest to 4 sqrt(n) lists."""
        if self.factory != "auto":
            return self.factory
        if passages < self.flat_below:
            return "Flat"
        return f"IVF{2 ** round(math.log2(4 * math.sqrt(passages)))},SQ8"


class Bm25Settings(Settings):
    """BM25's term saturation and length normalisation (defaults: Lucene's), and the language of its stemmer."""

    k1: float = Field(1.2, ge=0, description="term saturation; 0.6 to 2 make sense")
    b: float = Field(0.75, ge=0, le=1, description="length normalisation; 0 ignores length")
    language: str | None = Field(
        AUTO,
        description="whose endings are cut, a name of Snowball's such as german; auto: by each word's script, English "
        "for Latin letters; null: words stay whole",
    )

    def check(self) -> None:
        """Refuse a language that no stemmer knows."""
        if self.language not in (AUTO, None):
            import Stemmer

            known = [AUTO, *Stemmer.algorithms()]
            require(self.language in known, f"bm25.language is {self.language!r}, but must be null or one of {known}")
