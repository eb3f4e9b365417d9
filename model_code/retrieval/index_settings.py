"""Settings of the dense index and of BM25: the groups `index` and `bm25` of `params.yaml`."""

from __future__ import annotations

import math
from typing import Literal

import Stemmer

from model_code.settings import Field, Settings, constant_field, require
from model_code.text.terms import AUTO

# Value of `flat_below` that makes every index exact: no index has so many vectors.
ALWAYS_EXACT = 2**62


class IndexSettings(Settings):
    """How a dense index is searched: exactly, or with an inverted file of FAISS.

    >>> IndexSettings().list_count(1000), IndexSettings().list_count(1_000_000)
    (0, 4096)
    """

    flat_below: int = Field(
        50_000,
        ge=1,
        description="Below this number of vectors, search is exact and needs no FAISS. From there "
        "on, an inverted file with about 4 sqrt(n) lists proposes the candidates.",
    )
    nprobe: int = constant_field(
        32, ge=1, description="Lists of the inverted file that a query visits."
    )
    late_interaction: bool = Field(
        True,
        description="Store one sign bit per dimension of each token vector (48 bytes per token for "
        "MiniLM), so that a fusion can use late interaction. Not available for several vectors per "
        "passage.",
    )

    def list_count(self, vectors: int) -> int:
        """Return the number of lists of an inverted file: the power of two nearest to 4 sqrt(n).

        Args:
            vectors: Number n of vectors.

        Returns:
            The number of lists, or 0 if the search is exact.
        """
        if vectors < self.flat_below:
            return 0
        return min(vectors, 2 ** round(math.log2(4 * math.sqrt(vectors))))


class Bm25Settings(Settings):
    """Parameters of BM25 and the language of its stemmer. The defaults are those of Lucene."""

    k1: float = Field(1.2, ge=0, description="Term saturation. Sensible values are 0.6 to 2.")
    b: float = Field(0.75, ge=0, le=1, description="Length normalisation. 0 ignores the length.")
    language: str | None = Field(
        AUTO,
        description="Language of the stemmer, a name of Snowball's such as german. auto: by the "
        "script of each word, English for Latin letters. null: words are not stemmed.",
    )

    def check(self) -> None:
        """Refuse a language for which there is no stemmer."""
        if self.language in (AUTO, None):
            return
        languages = [AUTO, *Stemmer.algorithms()]
        require(
            self.language in languages,
            f"bm25.language is {self.language!r}, but must be null or one of {languages}",
        )


class KnownQuerySettings(Settings):
    """How queries that a document is known to answer count as its words."""

    use: bool = Field(
        True,
        description="Fusions use bm25_known in place of bm25. bm25_known is built and evaluated in "
        "either case.",
    )
    weight: Literal[0.0, 0.25, 0.5, 1.0] | None = Field(
        None,
        description="Weight of a word of a known query; a word of the text has weight 1. null: "
        "chosen on the judged dev queries; 0.25 if fewer than 30 of them ask for documents with "
        "known queries. More than 0.25 also needs 30 that ask for documents without, if there are "
        "such documents.",
    )
    in_length: bool | None = Field(
        None,
        description="Whether the words count towards the length of a document. null: chosen with "
        "the weight, else true.",
    )
    max_queries: int = Field(
        16, ge=1, description="Largest number of known queries whose words count for one document."
    )
    max_words: int = Field(
        64,
        ge=1,
        description="Largest number of words that the known queries of one document add. A query "
        "that does not fit is passed over.",
    )
    show: bool = Field(
        False,
        description="Show the texts of queries from feedback with their documents. "
        "false: only their number. Queries from judgements and rows are always shown.",
    )
