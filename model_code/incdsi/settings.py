"""What the user may choose about vectors of added documents; the symbols are those of the IncDSI paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from model_code.settings import require, require_at_least

Prior = Literal["zero", "encoder", "mixed"]


@dataclass(frozen=True)
class IncDsiSettings:
    """How the vector of an added document is found. The defaults are the paper's objective, margins in deviations.

    refine: find the vector by optimisation; False: take the prior as it is (the baselines).
    lambda1: weight, inside (0, 1), of the new document's own query; old documents' queries weigh 1 - lambda1.
    gamma1: by how much the new document should win its own query, in standard deviations of the collection's scores.
    gamma2: by how much old documents should keep theirs, same unit; 0 to 4 make sense.
    lambda2: weight of the squared distance to the prior, above 0. Near 0 (1e-10 .. 1e-3) it only picks the nearest of
      the vectors that satisfy everything; at 0.1 .. 10 it keeps the vector close to its prior.
    prior: where lambda2 pulls: "zero" (the paper), "encoder" (the document's encoding) or "mixed" with its mean query.
    query_share: with prior "mixed", the mean query's share, 0 to 1; the rest is the document's encoding.
    prior_scale: factor on the prior, above 0; calibrate it where old vectors are longer or shorter than encodings.
    protect: constrain by "all" documents' queries (the paper) or only by those "won" by their document so far.
    on_conflict: where no vector can satisfy all constraints: "drop_queries" (the paper) leaves out queries of the new
      document until one can, and otherwise takes its prior or encoding; "keep" keeps the best compromise.
    """

    refine: bool = True
    lambda1: float = 0.5
    gamma1: float = 1.0
    gamma2: float = 1.0
    lambda2: float = 1e-5
    prior: Prior = "zero"
    query_share: float = 0.5
    prior_scale: float = 1.0
    protect: Literal["all", "won"] = "all"
    on_conflict: Literal["drop_queries", "keep"] = "drop_queries"

    def __post_init__(self) -> None:
        """Check ranges."""
        require(
            0 < self.lambda1 < 1,
            f"lambda1 is {self.lambda1}, but must lie inside (0, 1): at 0 the new document is not found by its own "
            "query, at 1 old documents are not protected, and outside the objective has no minimum",
        )
        require(
            self.lambda2 > 0,
            f"lambda2 is {self.lambda2}, but must be above 0, such as 1e-5: at 0 the vector is not unique",
        )
        require(
            self.prior_scale > 0, f"prior_scale is {self.prior_scale}, but multiplies the prior: above 0, such as 1"
        )
        require(
            0 <= self.query_share <= 1,
            f"query_share is {self.query_share}, but is the mean query's share of the prior: 0 to 1",
        )
        require(
            self.refine or self.prior != "zero",
            "refine is off and prior is zero, so that every added document would get the vector 0, which no query "
            "finds: choose the prior encoder or mixed",
        )
        require_at_least(0, self, "gamma1", "gamma2")

    @property
    def tracks_wins(self) -> bool:
        """Whether the adder must know which documents win their own query.

        >>> IncDsiSettings(protect="won").tracks_wins, IncDsiSettings(refine=False, prior="encoder").tracks_wins
        (True, False)
        """
        return self.refine and self.protect == "won"
