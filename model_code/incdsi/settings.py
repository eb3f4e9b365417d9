"""The group `additions` of the settings: documents added to a live collection, and IncDSI in its
paper's symbols.
"""

from __future__ import annotations

from model_code.settings import Field, Settings


class IncDsiSettings(Settings):
    """How the vector of an added document is found. The defaults are the paper's objective, margins
    in deviations.
    """

    lambda1: float = Field(
        0.5,
        gt=0,
        lt=1,
        description="weight of the new document's own query; the queries of all older ones weigh 1 minus it",
    )
    gamma1: float = Field(
        1.0,
        ge=0,
        description="by how much the new document should win its query, in deviations of the scores",
    )
    gamma2: float = Field(
        1.0, ge=0, description="by how much old documents should keep theirs, same unit; 0 to 4"
    )
    lambda2: float = Field(
        1e-5,
        gt=0,
        description="weight of the squared distance to the document's encoding; 1e-10 to 1e-3 only pick the nearest of "
        "the vectors that satisfy everything, 0.1 to 10 keep the vector close",
    )


class AdditionSettings(IncDsiSettings):
    """Keys of `IncDsiSettings`, off by default."""

    refine: bool = Field(
        False,
        description="find the vector by optimisation (IncDSI); false: take the encoding as it is",
    )
    spans: int = Field(
        4,
        ge=0,
        description="parts of a document's text, besides title and first sentence, that it should be found by",
    )
