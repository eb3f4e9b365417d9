"""The loop of every training run (steps, evaluations, the best weights at the end), and checkpoints
to resume from.

Whoever is trained says what a step and an evaluation are. Batches and the learning rate are
functions of the step's number: a run that resumes takes the same steps as one that was never
stopped, bit for bit on the same machine.

Checkpoints are folders written aside and then renamed, so that each is whole or not there. Weights
of the objective, state of the optimiser and random states are accelerate's (`save_state`, read back
with `weights_only=True`); beside them lie the training state, the best weights so far, and a
hierarchy of co-training's.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from model_code.errors import FreshetError
from model_code.files import fsync, fsync_tree, read_json, write_json
from model_code.hierarchy.tree import Hierarchy
from model_code.progress import Progress
from model_code.training.optimisation import learning_rate_factor

Row = dict[str, Any]
STATE, BEST, HIERARCHY = "state.json", "best.safetensors", "hierarchy"


@dataclass
class TrainingState:
    """Progress, history and the best checkpoint so far. Everything but `best_weights` and `window`
    is JSON-able.

    history: rows by step; a row of training has `loss`, its parts and `learning_rate`, means over
    the steps since the
      row before; an evaluation adds the dev metric under its name.
    best_step: 0 if no evaluation was better than that of the start; the last one where none was
    made. window: loss parts of the batches since the last row, left on their device: reading them
    would stop the step.
    """

    step: int = 0
    history: list[Row] = field(default_factory=list)
    best_step: int = 0
    best_metric: float | None = None
    best_interval: list[float] | None = None
    evaluations_since_best: int = 0
    reclustered_at: list[int] = field(default_factory=list)
    best_weights: dict[str, Tensor] = field(default_factory=dict)
    window: list[dict[str, Tensor]] = field(default_factory=list)

    def log(
        self, learning_rate: float, over_processes: Callable[[Tensor], Tensor] = lambda mean: mean
    ) -> None:
        """Average the window into a row of the history. Raises FreshetError if the loss is not
        finite.

        over_processes: the mean of each process's own means.
        """
        if not self.window:
            return
        names = list(self.window[0])
        table = torch.stack(
            [torch.stack([parts[name] for name in names]) for parts in self.window]
        ).double()
        means = dict(zip(names, over_processes(table.mean(dim=0)).tolist(), strict=True))
        if not math.isfinite(means["loss"]):
            raise FreshetError(
                f"the loss is {means['loss']} at step {self.step}; lower learning_rate or, "
                "of a dense retriever, raise temperature"
            )
        self.window = []
        self.row().update(means | {"learning_rate": learning_rate})

    def row(self) -> Row:
        """The history's row of the current step, made if there is none."""
        if not self.history or self.history[-1]["step"] != self.step:
            self.history.append({"step": self.step})
        return self.history[-1]

    def evaluated(
        self,
        metric: str,
        value: float,
        weights: dict[str, Tensor],
        interval: list[float] | None = None,
    ) -> bool:
        """Note a dev metric; if it is above all before (of equals the first counts), keep `weights`
        and return True.
        """
        self.row()[metric] = value
        if self.best_metric is not None and value <= self.best_metric:
            self.evaluations_since_best += 1
            return False
        self.best_step, self.best_metric, self.evaluations_since_best = self.step, value, 0
        self.best_interval = interval
        self.best_weights = {
            name: weight.detach().to("cpu", copy=True) for name, weight in weights.items()
        }
        return True

    def to_json(self) -> dict[str, Any]:
        """All but the tensors."""
        return {
            key: value
            for key, value in asdict(self).items()
            if key not in ("best_weights", "window")
        }


def save_checkpoint(
    folder: Path, accelerator: Any, state: TrainingState, hierarchy: Hierarchy | None = None
) -> None:
    """Write `folder/step-N`, then remove older ones. Every process calls it; `state.window` must be
    empty.
    """
    aside, target = folder / f".step-{state.step}", folder / f"step-{state.step}"
    if accelerator.is_main_process:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
    accelerator.wait_for_everyone()
    accelerator.save_state(str(aside))
    accelerator.wait_for_everyone()
    if not accelerator.is_main_process:
        return
    save_file(state.best_weights, aside / BEST)
    write_json(aside / STATE, state.to_json())
    if hierarchy is not None:
        hierarchy.save(aside / HIERARCHY)
    fsync_tree(aside)
    aside.rename(target)
    fsync(folder)
    for older in folder.glob("*step-*"):
        if older != target:
            shutil.rmtree(older, ignore_errors=True)


def latest_checkpoint(folder: Path | None) -> Path | None:
    """The newest whole checkpoint in `folder`, or None."""
    checkpoints = () if folder is None else folder.glob("step-[0-9]*")
    return max(checkpoints, key=lambda path: int(path.name.removeprefix("step-")), default=None)


def load_training_state(checkpoint: Path) -> tuple[TrainingState, Hierarchy | None]:
    """The training state of a checkpoint, and its hierarchy if training had re-clustered."""
    state = TrainingState(**read_json(checkpoint / STATE))
    state.best_weights = load_file(checkpoint / BEST)
    folder = checkpoint / HIERARCHY
    return state, Hierarchy.load(folder) if folder.is_dir() else None


class TrainingLoop:
    """Training of `trained` in place, by `take_step` and `_evaluate` of a subclass, which note in
    `state` what they do.

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

    def fit(self) -> TrainingState:
        """Train to the end, or on to it from `state`, and leave the model with the weights of the
        best step.
        """
        if self.state.step == 0:
            self._evaluate()
        patience = self.settings.patience or math.inf  # evaluations in a row without a new best
        while self.state.step < self.steps and self.state.evaluations_since_best < patience:
            self.take_step()
            self._after_step()
        self._log()
        if self.metric not in self.state.row():
            self._evaluate()
        weights = self._trained_weights()
        for name, value in self.state.best_weights.items():
            weights[name].data.copy_(value)
        if self.state.best_metric is None:
            self.state.best_step = self.state.step
        return self.state

    @property
    def trained_parameters(self) -> int:
        """How many numbers learn."""
        return sum(weight.numel() for weight in self._trained_weights().values())

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
        return {
            name: weight for name, weight in self.trained.named_parameters() if weight.requires_grad
        }

    def _rate_factor(self, step: int) -> float:
        return learning_rate_factor(step, self.steps, self.settings.warmup_share)

    def _log(self) -> None:
        rate = self.settings.learning_rate * self._rate_factor(self.state.step - 1)
        self.state.log(rate, partial(self.accelerator.reduce, reduction="mean"))
