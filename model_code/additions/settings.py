"""The group `additions` of the settings: what the user may choose about documents added to a live collection."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from model_code.incdsi.settings import IncDsiSettings, Prior
from model_code.settings import require_at_least


@dataclass(frozen=True)
class AdditionSettings(IncDsiSettings):
    """Keys of `IncDsiSettings`, off by default, and pulled to the document's encoding where they are on.

    spans: parts of a document's text, besides title and first sentence, that it should be found by; 0: none.
    use: "these" settings, or those that `freshet tools tune` found best ("tuned") for a retriever with these spans;
      a retriever that was not tuned with them gets "these", and the status says so.
    """

    refine: bool = False
    prior: Prior = "encoder"
    spans: int = 4
    use: Literal["these", "tuned"] = "these"

    def __post_init__(self) -> None:
        """Check ranges."""
        super().__post_init__()
        require_at_least(0, self, "spans")

    @property
    def incdsi(self) -> IncDsiSettings:
        """The part that the solver reads."""
        return IncDsiSettings(**{each.name: getattr(self, each.name) for each in fields(IncDsiSettings)})

    @property
    def uses_queries(self) -> bool:
        """Whether the vector of an added document depends on the queries that it should be found by.

        >>> AdditionSettings().uses_queries, AdditionSettings(prior="mixed").uses_queries
        (False, True)
        """
        return self.refine or (self.prior == "mixed" and self.query_share > 0)

    @property
    def changes_vectors(self) -> bool:
        """Whether an added document gets another vector than the encoder's.

        >>> AdditionSettings().changes_vectors, AdditionSettings(prior_scale=.9).changes_vectors
        (False, True)
        """
        return self.refine or self.prior != "encoder" or self.prior_scale != 1.0
