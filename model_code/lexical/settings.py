"""Settings of a lexical retriever: the group `lexical`."""

from __future__ import annotations

from typing import Literal

from model_code.settings import Field, Settings, constant_field

MainSearch = Literal["full", "alpha", "beta", "beta_own", "beta_rerank"]
EMBEDDED: tuple[MainSearch, ...] = ("full", "alpha")
"""Names of the searches that read the learned weights of all passages."""
# Key in the manifest of an index for a `KnownWords`: how queries that a document is known to answer
# count as its words. The key is missing if they do not count.
KNOWN_WORDS = "known_words"


class LexicalSettings(Settings):
    """How a lexical retriever is searched, and how many weights of a text are kept.

    E(x) are the weights that the encoder gives a text x. T(x) is 1 for each token of x.
    """

    search: MainSearch = Field(
        "beta_own",
        description="Main search. full: E(q).E(p). alpha: T(q).E(p). beta: E(q).T(p), from the "
        "token index alone. beta_own: beta with the query's own tokens only. beta_rerank: the "
        "best passages of beta, embedded on demand and ranked by full.",
    )
    top_k: int = Field(
        256,
        ge=1,
        description="Weights of a text that are kept in training, for queries and passages alike "
        "(768 in SVDR).",
    )
    index_top_k: int = Field(
        256, ge=1, description="Weights of an indexed passage that are kept (768 in SVDR)."
    )
    query_top_k: int = Field(
        64,
        ge=1,
        description="Weights of a query that are kept in search (768 in SVDR). 16 to 128 were at "
        "least as good as 768.",
    )
    rerank_depth: int = constant_field(100, ge=1, description="passages that beta_rerank ranks")
