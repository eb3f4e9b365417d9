"""The loop of every training run: steps, evaluations, checkpoints, and the best weights at the end.

Whoever is trained says what a step and an evaluation are. The learning rate is a function of the step's number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from model_code.progress import Progress
from model_code.training.checkpoints import Row, TrainingState, save_checkpoint
from model_code.training.optimisation import learning_rate_factor


@dataclass(frozen=True)
class TrainingResult:
    """What a finished training run is reported with; the model itself was trained in place."""

    best_step: int  # 0: no evaluation was better than that of the start; the last step where nothing was evaluated
    best_metric: float | None  # of the evaluations; None without any
    steps: int  # taken
    pairs: int  # seen, with repetition
    trained_parameters: int
    reclustered_at: tuple[int, ...]  # steps
    history: tuple[Row, ...]


class TrainingLoop:
    """Trains `trained` in place, by the `take_step` and `_evaluate` of a subclass, which note in `state` what they do.

    metric: what an evaluation measures, as the history calls it; None where nothing is evaluated.
    """

    trained: nn.Module
    settings: Any  # with the fields of `TrainingSettings` that are read here
    accelerator: Any
    state: TrainingState
    checkpoints: Path | None
    progress: Progress
    steps: int  # of the whole run, unless it stops early
    pairs_per_step: int
    metric: str | None
    take_step: Callable[[], None]
    _evaluate: Callable[[], None]

    def fit(self) -> TrainingResult:
        """Train to the end, or on to it from `state`, and leave the model with the weights of the best step."""
        if self.state.step == 0:
            self._evaluate()
        while self.state.step < self.steps and not self._stalled():
            self.take_step()
            self._after_step()
        self._log()
        if self.metric not in self.state.row():
            self._evaluate()
        weights = self._trained_weights()
        for name, value in self.state.best_weights.items():
            weights[name].data.copy_(value)
        return self._result()

    def _after_step(self) -> None:
        step, settings = self.state.step, self.settings
        if step % settings.log_every == 0:
            self._log()
        if settings.evaluate_every and step % settings.evaluate_every == 0:
            self._evaluate()
        if self.checkpoints is not None and step % settings.checkpoint_every == 0:
            self._log()
            self._save(self.checkpoints)
        self.progress(step, self.steps, "steps")

    def _save(self, folder: Path) -> None:
        save_checkpoint(folder, self.accelerator, self.state)

    def _trained_weights(self) -> dict[str, Tensor]:
        return {name: weight for name, weight in self.trained.named_parameters() if weight.requires_grad}

    def _rate_factor(self, step: int) -> float:
        return learning_rate_factor(step, self.steps, self.settings.warmup_share)

    def _log(self) -> None:
        rate = self.settings.learning_rate * self._rate_factor(self.state.step - 1)
        self.state.log(rate, partial(self.accelerator.reduce, reduction="mean"))

    def _stalled(self) -> bool:
        patience = self.settings.patience
        return patience is not None and self.state.evaluations_since_best >= patience

    def _result(self) -> TrainingResult:
        state = self.state
        return TrainingResult(
            best_step=state.step if state.best_metric is None else state.best_step,
            best_metric=state.best_metric,
            steps=state.step,
            pairs=state.step * self.pairs_per_step,
            trained_parameters=sum(weight.numel() for weight in self._trained_weights().values()),
            reclustered_at=tuple(state.reclustered_at),
            history=tuple(state.history),
        )
