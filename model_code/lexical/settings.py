"""Settings of a lexical retriever: the group `lexical`."""

from __future__ import annotations

from typing import Literal

from model_code.settings import Field, Settings, constant_field

MainSearch = Literal["full", "alpha", "beta", "beta_own", "beta_rerank"]
EMBEDDED: tuple[MainSearch, ...] = ("full", "alpha")
"""Searches that read the embeddings of all passages."""


class LexicalSettings(Settings):
    """How a lexical retriever is searched, and how many weights of a text are kept.

    E(x) are the weights that the encoder gives a text. T(x) is 1 for each token of the text.
    """

    search: MainSearch = Field(
        "beta_own",
        description="Main search. full: E(q).E(p). alpha: T(q).E(p). beta: E(q).T(p), from the "
        "token index alone. beta_own: beta with the query's own tokens only. beta_rerank: the "
        "best passages of beta, embedded on demand and ranked by full.",
    )
    top_k: int = constant_field(
        256, ge=1, description="weights kept in training, of query and passage alike"
    )
    index_top_k: int = constant_field(256, ge=1, description="weights of an indexed passage")
    query_top_k: int = constant_field(
        64,
        ge=1,
        description="weights of a query in search; 16 to 128 are "
        "at least as good as the paper's 768",
    )
    rerank_depth: int = constant_field(100, ge=1, description="passages that beta_rerank ranks")
