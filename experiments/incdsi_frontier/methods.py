"""Ways of adding documents that IncDSI's protocol compares, each with its possible settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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

SCALES = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0, 1.1, 1.25, 1.5)
SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
ENCODED = Way(refine=False, prior="encoder")


@dataclass(frozen=True)
class Method:
    """Some `fixed` settings, and a `space` that is searched with `base`; either may be empty.

    includes: Other methods whose trials count for this one as well.
    """

    fixed: Sequence[Way] = ()
    space: Space = field(default_factory=dict)
    base: Way = ENCODED
    includes: Sequence[Method] = ()


PLAIN = Method(fixed=(ENCODED,))
SCALED = Method(fixed=tuple(ENCODED.replace(prior_scale=scale) for scale in SCALES))
MIXED = Method(
    fixed=tuple(
        ENCODED.replace(prior="mixed", query_share=share, prior_scale=scale)
        for share in SHARES
        for scale in SCALES
    )
)
INCDSI = Method(space=PUBLISHED, base=Way())
REFINED = Method(space=WIDE | {"prior": Choice(("encoder", "mixed"))}, base=Way(prior="encoder"))
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
    """Return every fixed setting, and `trials` from the space, searched for both MRR@10 at once.

    Equal calls give equal trials, so a method that another one includes costs nothing more.
    """
    found = [bench.trial("fixed", settings) for settings in method.fixed]
    for other in method.includes:
        found += tried(other, bench, trials, seed)
    if method.space:
        found += _search(bench, method, trials, seed)
    return found


def _search(bench: TrialBench, method: Method, trials: int, seed: int) -> list[Trial]:
    study, found = open_study(seed, objectives=2), []
    for number in range(trials):
        asked = study.ask()
        found.append(
            bench.trial(
                f"trial {number + 1}",
                method.base.replace(refine=True, **suggest(asked, method.space)),
            )
        )
        study.tell(asked, [found[-1].old, found[-1].new])
    return found
