"""What a search over settings may vary, and Optuna, which decides what to try next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from model_code.settings import require

if TYPE_CHECKING:
    import optuna


@dataclass(frozen=True)
class Range:
    """Numbers between `low` and `high`; with `log`, uniform in their logarithm."""

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        """Check the bounds."""
        require(
            self.low < self.high and (self.low > 0 or not self.log),
            f"a range from {self.low} to {self.high} is empty, or touches 0 on a logarithmic scale",
        )


@dataclass(frozen=True)
class Choice:
    """One of `options`."""

    options: tuple[Any, ...]


Space = dict[str, Range | Choice]
"""What may vary, by the name of the setting."""

PUBLISHED: Space = {
    "lambda1": Range(0.05, 0.95),
    "gamma1": Range(0.0, 4.0),
    "gamma2": Range(0.0, 4.0),
    "lambda2": Range(1e-10, 1e-3, log=True),
}
"""The paper's four knobs, margins in standard deviations of the scores instead of BERT's logits."""

WIDE: Space = PUBLISHED | {
    "lambda1": Range(0.05, 0.99),
    "lambda2": Range(1e-8, 10.0, log=True),
    "prior": Choice(("encoder", "mixed", "zero")),
    "prior_scale": Range(0.5, 1.5),
    "query_share": Range(0.0, 1.0),
    "protect": Choice(("won", "all")),
}
"""Besides, where the vector is pulled to and which old queries are protected."""


def open_study(seed: int, objectives: int = 1) -> optuna.Study:
    """A study in memory that maximises `objectives` numbers by TPE; equal seeds and scores give equal trials."""
    import optuna

    loudness = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # it would announce each study
    try:
        sampler = optuna.samplers.TPESampler(seed=seed)
        return optuna.create_study(directions=["maximize"] * objectives, sampler=sampler)
    finally:
        optuna.logging.set_verbosity(loudness)


def suggest(trial: optuna.Trial, space: Space) -> dict[str, Any]:
    """Values of `space` by name, which `trial` is to try."""
    return {name: _suggest_one(trial, name, dimension) for name, dimension in space.items()}


def _suggest_one(trial: optuna.Trial, name: str, dimension: Range | Choice) -> Any:
    if isinstance(dimension, Choice):
        return trial.suggest_categorical(name, dimension.options)
    return trial.suggest_float(name, dimension.low, dimension.high, log=dimension.log)
