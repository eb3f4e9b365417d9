"""Choose how documents are added, on a tuning split, by what it does to old and to new documents alike."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from model_code.incdsi.priors import baselines
from model_code.incdsi.sampling import WIDE, Space, open_study, suggest
from model_code.incdsi.settings import IncDsiSettings
from model_code.incdsi.state import IncDsiState
from model_code.incdsi.trials import Split, Trial, TrialBench, refined_settings
from model_code.settings import require

DEFAULTS = IncDsiSettings()


@dataclass(frozen=True)
class TuningReport:
    """All trials, baselines first, and MRR@10 of the old documents before anything was added."""

    trials: tuple[Trial, ...]
    old_before: float
    beta: float

    @property
    def best(self) -> Trial:
        """The trial with the highest score; of equals the first, so that a refinement must beat the plain vectors."""
        return max(self.trials, key=lambda trial: trial.score)

    def rows(self) -> list[dict[str, Any]]:
        """The trials as plain rows, for a table or a file."""
        return [asdict(trial) for trial in self.trials]


def tune(
    state: IncDsiState,
    split: Split,
    settings: IncDsiSettings = DEFAULTS,
    trials: int = 50,
    seed: int = 0,
    space: Space = WIDE,
    beta: float = 5.0,
) -> TuningReport:
    """Try the baselines and `trials` settings from `space`, by Bayesian optimisation of the F-beta of both MRR@10.

    `state` is left as it is, `settings` give what `space` does not vary. A trial adds the split's documents to a copy.
    Baselines and priors that need encodings are left out where a document of the split has none.
    """
    require(trials >= 0, f"trials is {trials}, but must be at least 0")
    bench = TrialBench(state, split, beta)
    plain = baselines(settings, split.has_encodings)
    found = [bench.trial(name, one) for name, one in plain.items()]
    study = open_study(seed)
    for number in range(trials):
        asked = study.ask()
        values = suggest(asked, possible(space, split))
        found.append(bench.trial(f"trial {number + 1}", refined_settings(settings, values)))
        study.tell(asked, found[-1].score)
    return TuningReport(tuple(found), bench.before.mrr_at_10, beta)


def possible(space: Space, split: Split) -> Space:
    """What of `space` can be tried on `split`: without encodings the prior stays zero."""
    if split.has_encodings:
        return space
    return {name: dimension for name, dimension in space.items() if name not in {"prior", "prior_scale", "query_share"}}
