"""Methods of adding documents that are compared, each with the settings that are tried for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from experiments.incdsi_frontier.tuning import (
    PUBLISHED,
    WIDE,
    Choice,
    Space,
    Trial,
    TrialBench,
    Way,
    open_study,
    suggest,
)

# Values that are tried: factors on the encoding, and shares of the mean query in a mix with it.
SCALES = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0, 1.1, 1.25, 1.5)
SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
ENCODED = Way(refine=False, prior="encoder")


@dataclass(frozen=True)
class Method:
    """A method with the settings that are tried for it.

    Attributes:
        fixed: Settings that are always tried.
        space: Settings whose values are searched.
        base: Values of all settings that are not searched.
        includes: Other methods whose trials count for this method as well.
    """

    fixed: Sequence[Way] = ()
    space: Space = field(default_factory=dict)
    base: Way = ENCODED
    includes: Sequence[Method] = ()


PLAIN = Method(fixed=(ENCODED,))
SCALED = Method(fixed=[ENCODED.replace(prior_scale=scale) for scale in SCALES])
MIXED = Method(
    fixed=[
        ENCODED.replace(prior="mixed", query_share=share, prior_scale=scale)
        for share, scale in product(SHARES, SCALES)
    ]
)
INCDSI = Method(space=PUBLISHED, base=Way())
REFINED = Method(space={**WIDE, "prior": Choice(("encoder", "mixed"))}, base=Way(prior="encoder"))
OURS = Method(includes=(MIXED, INCDSI, REFINED))

METHODS: Mapping[str, Method] = {
    "plain encoding": PLAIN,
    "scaled encoding": SCALED,
    "scaled mix with the mean query": MIXED,
    "IncDSI as published": INCDSI,
    "IncDSI centred on the encoding": REFINED,
    "ours: the best of all": OURS,
}


def tried(method: Method, bench: TrialBench, trials: int, seed: int) -> list[Trial]:
    """Try the settings of a method on a bench.

    All fixed settings are tried. From the space, up to `trials` settings are tried, which are
    searched for a high MRR@10 of both old and new documents. Equal calls give equal trials, and the
    bench keeps them. A method that is included in another one is therefore not measured twice.
    """
    results = [bench.trial("fixed", settings) for settings in method.fixed]
    for included in method.includes:
        results.extend(tried(included, bench, trials, seed))
    if method.space:
        results.extend(_search(bench, method, trials, seed))
    return results


def _search(bench: TrialBench, method: Method, trials: int, seed: int) -> list[Trial]:
    """Try settings that a study suggests from the results of earlier trials."""
    study = open_study(seed, objectives=2)
    results = []
    for number in range(trials):
        suggestion = study.ask()
        values = suggest(suggestion, method.space)
        settings = method.base.replace(refine=True, **values)
        result = bench.trial(f"trial {number + 1}", settings)
        study.tell(suggestion, [result.old, result.new])
        results.append(result)
    return results
