"""Every asset family by the stage that makes it."""

from __future__ import annotations

from assets.corpus import ACCEPTANCE, CORPUS, PSEUDO_QUERIES, QUERY_GENERATOR
from assets.evaluation import BASELINES, COMPARISON, EVALUATE
from assets.family import AssetFamily
from assets.hierarchy import HIERARCHY
from assets.retrievers import BASE_INDEX, INDEX, TRAIN

FAMILIES: dict[str, AssetFamily] = {
    family.stage: family
    for family in (
        CORPUS, QUERY_GENERATOR, PSEUDO_QUERIES, ACCEPTANCE, BASE_INDEX, HIERARCHY, TRAIN, INDEX, BASELINES, EVALUATE,
        COMPARISON,
    )
}  # fmt: skip
