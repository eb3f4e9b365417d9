"""What the user may choose about vectors of added documents; the symbols are those of the IncDSI paper."""

from __future__ import annotations

from typing import Literal

from model_code.settings import Constant, Field, Settings, require

Prior = Literal["zero", "encoder", "mixed"]


class IncDsiSettings(Settings):
    """How the vector of an added document is found. The defaults are the paper's objective, margins in deviations."""

    refine: bool = Field(True, description="find the vector by optimisation; false: take the prior as it is")
    lambda1: float = Field(
        0.5,
        gt=0,
        lt=1,
        description="weight of the new document's own query, and 1 less it of old documents': at 0 the new document is "
        "not found by its own query, at 1 old documents are not protected",
    )
    gamma1: float = Field(
        1.0, ge=0, description="by how much the new document should win its query, in deviations of the scores"
    )
    gamma2: float = Field(1.0, ge=0, description="by how much old documents should keep theirs, same unit; 0 to 4")
    lambda2: float = Field(
        1e-5,
        gt=0,
        description="weight of the squared distance to the prior; near 0 (1e-10 to 1e-3) it only picks the nearest of "
        "the vectors that satisfy everything, at 0.1 to 10 it keeps the vector close to its prior, at 0 the vector is "
        "not unique",
    )
    prior: Prior = Field(
        "zero",
        description="where lambda2 pulls: 0 (the paper), the document's encoding, or its mix with its mean query",
    )
    query_share: float = Constant(0.5, ge=0, le=1, description="with prior mixed: the mean query's share of the prior")
    prior_scale: float = Field(
        1.0,
        gt=0,
        description="factor on the prior; calibrate it where old vectors are longer or shorter than encodings",
    )
    on_conflict: Literal["drop_queries", "keep"] = Field(
        "drop_queries",
        description="where no vector can satisfy all constraints: leave out queries of the new document until one can, "
        "otherwise take its prior or encoding (the paper); or keep the best compromise",
    )

    def check(self) -> None:
        """Refuse the vector 0."""
        require(
            self.refine or self.prior != "zero",
            "refine is off and prior is zero, so that every added document would get the vector 0, which no query "
            "finds: choose the prior encoder or mixed",
        )
