"""The gate before the registry's alias `champion`: by which rules, and how an older champion is judged beside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from model_code.evaluation.promotion import Verdict, judge_promotion
from model_code.evaluation.scores import SystemScores
from model_code.evaluation.settings import PromotionSettings

if TYPE_CHECKING:
    from orchestration.registry.versions import Version

Judge = Callable[[SystemScores, SystemScores | None, PromotionSettings, int], Verdict]
"""(challenger's scores, champion's or None, settings, seed) -> may the challenger take the champion's place."""


@dataclass(frozen=True)
class Gate:
    """What decides on a challenger.

    rescore: evaluates a version on the challenger's corpus, for a champion that was built on another, and returns the
    folder of its scores. judge: the decision itself, on the test queries.
    """

    settings: PromotionSettings
    seed: int
    rescore: Callable[[Version], Path]
    judge: Judge = judge_promotion

    def verdict(self, challenger: SystemScores, champion: SystemScores | None) -> Verdict:
        """What it decides; champion: None if there is none."""
        return self.judge(challenger, champion, self.settings, self.seed)
