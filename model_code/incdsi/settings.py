"""The settings group `additions`: how the vectors of added documents are computed.

IncDSI (Kishore et al., 2023) computes them by constrained optimisation. `docs/incdsi.md` states the
objective, whose symbols (`lambda1`, `gamma1`, ...) are the names of the settings.
"""

from __future__ import annotations

from model_code.settings import Field, Settings


class IncDsiSettings(Settings):
    """Settings of the optimisation problem that gives an added document its vector.

    The defaults give the paper's objective. The unit of margins is the standard deviation of the
    scores of queries with documents.
    """

    lambda1: float = Field(
        0.5,
        gt=0,
        lt=1,
        description="Weight of the new document's own query. The queries of all older documents "
        "together have the weight 1 - lambda1.",
    )
    gamma1: float = Field(
        1.0,
        ge=0,
        description="Margin by which the new document should win its query, in standard "
        "deviations of the scores.",
    )
    gamma2: float = Field(
        1.0,
        ge=0,
        description="Margin by which old documents should keep their queries, in the same unit. "
        "Sensible values are 0 to 4.",
    )
    lambda2: float = Field(
        1e-5,
        gt=0,
        description="Weight of the squared distance to the document's encoding. 1e-10 to 1e-3 "
        "give the vector nearest to the encoding among those that meet all constraints; "
        "0.1 to 10 keep the vector close.",
    )


class LearnedAdditionSettings(IncDsiSettings):
    """Settings of additions to a DSI retriever, which solve the problem of the IncDSI paper."""

    spans: int = Field(
        4,
        ge=0,
        description="Number of parts of the text that represent the queries of a document without "
        "known queries, besides its title and first sentence. A later document may not outrank "
        "it for them.",
    )


class AdditionSettings(IncDsiSettings):
    """How the vectors of added documents are solved for the score of a fusion.

    The unit of margins is the fused score: the weighted sum of the normalised scores of BM25 and
    the encoder.
    """

    refine: bool = Field(
        True,
        description="Solve the vectors of documents that bring queries or earn them by thumbs up "
        "(IncDSI). false: use their encodings.",
    )
    gamma1: float = Field(
        2.0,
        ge=0,
        description="Margin by which the new document should win each of its queries.",
    )
    gamma2: float = Field(
        0.0,
        ge=0,
        description="Margin by which old documents should keep their known queries.",
    )
    lambda2: float = Field(
        100.0,
        gt=0,
        description="Weight of the squared distance to the document's encoding. Smaller values "
        "let new documents win more of their queries, and cost old documents more.",
    )
    learned: LearnedAdditionSettings = Field(
        default_factory=LearnedAdditionSettings,
        description="Settings for retrievers whose document vectors were learned (DSI).",
    )
