"""The kinds of extra negatives, and the one place that chooses between them."""

from __future__ import annotations

from model_code.hierarchy.tree import Hierarchy
from model_code.training.data import TrainingData
from model_code.training.negatives.base import Negatives
from model_code.training.negatives.bm25 import Bm25Negatives
from model_code.training.negatives.nearest import NearestNegatives
from model_code.training.negatives.unranked import RandomNegatives, SiblingNegatives
from model_code.training.settings import TrainingSettings


def make_negatives(data: TrainingData, settings: TrainingSettings, hierarchy: Hierarchy | None = None) -> Negatives:
    """What `settings.negatives` names; "mined" and "nearest" must be refreshed before they are drawn from.

    hierarchy: needed where the settings draw siblings or leave out leaves.
    """
    if settings.negatives in ("mined", "nearest") and settings.negatives_per_query:
        every = settings.negatives_refresh if settings.negatives == "nearest" else None
        return NearestNegatives(data, settings, hierarchy, every)
    kinds = {"siblings": SiblingNegatives, "bm25": Bm25Negatives}
    return kinds.get(settings.negatives, RandomNegatives)(data, settings, hierarchy)
