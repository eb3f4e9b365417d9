"""Methods of adding documents that are compared, each with the settings that are tried for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from experiments.incdsi_frontier.tuning import (
    PUBLISHED,
    WIDE,
    AdditionEvaluator,
    AdditionSettings,
    Choice,
    SearchSpace,
    Trial,
    open_study,
    suggest,
)

# Values that are tried: factors on the encoding, and shares of the mean query in a mix with it.
SCALES = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0, 1.1, 1.25, 1.5)
SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
ENCODED = AdditionSettings(refine=False, prior="encoder")


@dataclass(frozen=True)
class Method:
    """A method with the settings that are tried for it.

    Attributes:
        fixed: Settings that are always tried.
        space: Settings whose values are searched.
        base: Values of all settings that are not searched.
        includes: Other methods whose trials count for this method as well.
    """

    fixed: Sequence[AdditionSettings] = ()
    space: SearchSpace = field(default_factory=dict)
    base: AdditionSettings = ENCODED
    includes: Sequence[Method] = ()


PLAIN = Method(fixed=(ENCODED,))
SCALED = Method(fixed=[ENCODED.replace(prior_scale=scale) for scale in SCALES])
MIXED = Method(
    fixed=[
        ENCODED.replace(prior="mixed", query_share=share, prior_scale=scale)
        for share, scale in product(SHARES, SCALES)
    ]
)
INCDSI = Method(space=PUBLISHED, base=AdditionSettings())
REFINED = Method(
    space={**WIDE, "prior": Choice(("encoder", "mixed"))}, base=AdditionSettings(prior="encoder")
)
OURS = Method(includes=(MIXED, INCDSI, REFINED))

METHODS: Mapping[str, Method] = {
    "plain encoding": PLAIN,
    "scaled encoding": SCALED,
    "scaled mix with the mean query": MIXED,
    "IncDSI as published": INCDSI,
    "IncDSI centred on the encoding": REFINED,
    "ours: the best of all": OURS,
}


def try_settings(method: Method, tuning: AdditionEvaluator, trials: int, seed: int) -> list[Trial]:
    """Try the settings of a method on the tuning split.

    All fixed settings are tried. From the space, up to `trials` settings are tried, which are
    searched for a high MRR@10 of both old and new documents. Equal calls give equal trials, and
    `tuning` keeps them. A method that is included in another one is therefore not measured twice.

    Args:
        method: The method.
        tuning: Adds the documents of the tuning split, and evaluates its queries.
        trials: Number of settings that are tried from the method's space.
        seed: Seed of the search.
    """
    results = [tuning.trial("fixed", settings) for settings in method.fixed]
    for included in method.includes:
        results.extend(try_settings(included, tuning, trials, seed))
    if method.space:
        results.extend(_search_space(tuning, method, trials, seed))
    return results


def _search_space(tuning: AdditionEvaluator, method: Method, trials: int, seed: int) -> list[Trial]:
    """Try settings that an optuna study suggests from the results of earlier trials."""
    study = open_study(seed, objectives=2)
    results = []
    for number in range(trials):
        suggestion = study.ask()
        values = suggest(suggestion, method.space)
        settings = method.base.replace(refine=True, **values)
        result = tuning.trial(f"trial {number + 1}", settings)
        study.tell(suggestion, [result.old, result.new])
        results.append(result)
    return results
