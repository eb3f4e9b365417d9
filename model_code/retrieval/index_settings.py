"""Settings of the dense index and of BM25: the groups `index` and `bm25` of `params.yaml`."""

from __future__ import annotations

import math

import Stemmer

from model_code.settings import Field, Settings, require
from model_code.text.terms import AUTO

ALWAYS_EXACT = 2**62  # vectors: more than there can be


class IndexSettings(Settings):
    """How the passages' vectors are searched: exactly, or of many by an inverted file of FAISS, and
    how much of that.

    >>> IndexSettings().lists(1000), IndexSettings().lists(1_000_000)
    (0, 4096)
    """

    flat_below: int = Field(
        50_000,
        ge=1,
        description="search is exact below so many vectors, and needs no FAISS; from there an inverted file of about 4 "
        "sqrt(n) lists proposes what is scored",
    )
    nprobe: int = Field(32, ge=1, description="lists of an inverted file that a query visits")
    late_interaction: bool = Field(
        True,
        description="keep the signs of all words' vectors, by which a fusion scores what it finds, too: 48 bytes a "
        "word with a small encoder; not where a passage has several vectors",
    )

    def lists(self, vectors: int) -> int:
        """The lists of an inverted file of so many vectors, the power of two nearest to 4 sqrt(n);
        0: exact search.
        """
        if vectors < self.flat_below:
            return 0
        return min(vectors, 2 ** round(math.log2(4 * math.sqrt(vectors))))


class Bm25Settings(Settings):
    """BM25's term saturation and length normalisation (defaults: Lucene's), and the language of its
    stemmer.
    """

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
            languages = [AUTO, *Stemmer.algorithms()]
            rule = f"bm25.language is {self.language!r}, but must be null or one of {languages}"
            require(self.language in languages, rule)
