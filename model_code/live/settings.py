"""The group `live` of `params.yaml`: how live collections are kept up while documents come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from model_code.settings import require_at_least


@dataclass(frozen=True)
class LiveSettings:
    """Which collections follow, and how many of their old generations stay.

    follow: "all" retrievers that are live get what arrives, the one that is searched by default first; or only that one
    does ("default"), and the others fall behind. keep_generations: the newest of a collection that stay when old ones
    are deleted, with all that these share, and with every build that was opened; null: none is deleted.
    collect_every: generations between two such deletions.
    retrain_from: the weights that every dense retriever of a retrain begins with, the "base" encoder's or the
      "champion"'s. From the base no training is inherited, good or bad; from the champion old documents begin with what
      they have, which the gate asks for.
    """

    follow: Literal["all", "default"] = "all"
    keep_generations: int | None = 20
    collect_every: int = 10
    retrain_from: Literal["base", "champion"] = "base"

    def __post_init__(self) -> None:
        """Check ranges."""
        require_at_least(1, self, "collect_every")
        if self.keep_generations is not None:
            require_at_least(2, self, "keep_generations")
