"""The loop that every training runs, and checkpoints to resume from.

Subclasses of `TrainingLoop` define a step and an evaluation. Batches and the learning rate depend
only on the number of the step. So on the same CPU, a resumed training equals an uninterrupted one
bit for bit. A GPU adds gradients in a varying order, so that the last bits differ.

A checkpoint is a folder. It is written under another name and then renamed, so that an incomplete
checkpoint is never read. accelerate saves the objective's weights, the optimiser's state and the
random states (`save_state`, read with `weights_only=True`). The folder also holds the training
state, the best weights, and the hierarchy if co-training replaced it.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, fields
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
STATE_FILE = "state.json"
BEST_WEIGHTS_FILE = "best.safetensors"
HIERARCHY_FOLDER = "hierarchy"


def _unchanged(mean: Tensor) -> Tensor:
    return mean


@dataclass
class TrainingState:
    """Progress, history and the best evaluation so far.

    All attributes but `best_weights` and `window` can be written as JSON.

    Attributes:
        step: Number of optimiser steps that were taken so far.
        history: Rows by step. A row has `loss` and its parts, averaged over the steps after the
            previous row, and `learning_rate`. An evaluation adds the dev metric under its name.
        best_step: Step of the best evaluation. It is 0 if no evaluation was better than the one
            before training. It is the last step if nothing was evaluated.
        best_metric: Dev metric of the best evaluation.
        best_interval: Interval of `best_metric` over dev queries.
        best_groups: Dev metric of the best evaluation for two groups of queries; see
            `DevEvaluator.groups`.
        evaluations_since_best: Number of evaluations after the best one.
        reclustered_at: Steps at which co-training clustered the passages again.
        best_weights: Weights at the best step, on the CPU.
        window: Loss parts of the batches after the last row. They stay on their device, because
            copying them to the CPU would make each step wait.
    """

    step: int = 0
    history: list[Row] = field(default_factory=list)
    best_step: int = 0
    best_metric: float | None = None
    best_interval: list[float] | None = None
    best_groups: dict[str, dict[str, float]] | None = None
    evaluations_since_best: int = 0
    reclustered_at: list[int] = field(default_factory=list)
    best_weights: dict[str, Tensor] = field(default_factory=dict)
    window: list[dict[str, Tensor]] = field(default_factory=list)

    def log(
        self, learning_rate: float, over_processes: Callable[[Tensor], Tensor] = _unchanged
    ) -> None:
        """Add the mean losses since the last row to the history of the training.

        The window, which holds the losses of the batches since then, is emptied.

        Args:
            learning_rate: Learning rate of the last step.
            over_processes: Function that averages a tensor over all processes.

        Raises:
            FreshetError: If the loss is not finite.
        """
        if not self.window:
            return

        # All means are computed in one tensor, (batches, parts), so that they are copied to the CPU
        # at once.
        names = list(self.window[0])
        rows = [torch.stack([parts[name] for name in names]) for parts in self.window]
        mean = over_processes(torch.stack(rows).double().mean(dim=0))
        means = dict(zip(names, mean.tolist(), strict=True))
        if not math.isfinite(means["loss"]):
            raise FreshetError(
                f"the loss is {means['loss']} at step {self.step}; lower learning_rate or, "
                "for a dense retriever, raise temperature"
            )
        self.window = []
        row = self.row()
        row.update(means)
        row["learning_rate"] = learning_rate

    def row(self) -> Row:
        """Return the row of the current step, which is added to the history if it is missing."""
        if not self.history or self.history[-1]["step"] != self.step:
            self.history.append({"step": self.step})
        return self.history[-1]

    def record_evaluation(
        self,
        metric: str,
        value: float,
        weights: dict[str, Tensor],
        interval: list[float] | None = None,
        groups: dict[str, dict[str, float]] | None = None,
    ) -> bool:
        """Record a dev metric, and keep a copy of the weights if it is the best so far.

        A value that only equals the best one does not replace it.

        Args:
            metric: Name of the metric.
            value: Value of the metric.
            weights: The trained weights.
            interval: Interval of the value over dev queries.
            groups: The metric of each group of dev queries.

        Returns:
            Whether the value is the best so far.
        """
        self.row()[metric] = value
        if self.best_metric is not None and value <= self.best_metric:
            self.evaluations_since_best += 1
            return False

        self.best_step = self.step
        self.best_metric = value
        self.best_interval = interval
        self.best_groups = groups
        self.evaluations_since_best = 0
        self.best_weights = {
            name: weight.detach().to("cpu", copy=True) for name, weight in weights.items()
        }
        return True

    def to_json(self) -> dict[str, Any]:
        """Return the attributes that JSON can hold: all but weights and the window of losses."""
        values = {}
        for attribute in fields(self):
            if attribute.name not in ("best_weights", "window"):
                values[attribute.name] = getattr(self, attribute.name)
        return values


def save_checkpoint(
    folder: Path, accelerator: Any, state: TrainingState, hierarchy: Hierarchy | None = None
) -> None:
    """Write the checkpoint `folder/step-N`, then remove older checkpoints.

    The folder is written under another name and renamed at the end, so that no incomplete
    checkpoint is ever read. Every process must call this function, because each one saves its
    random state.

    Args:
        folder: Folder of the checkpoints.
        accelerator: Saves the objective, the optimiser and the random states.
        state: The training state. Its window, the losses since the last row of the history, must be
            empty, because it is not saved.
        hierarchy: The hierarchy, if co-training replaced it.
    """
    staging = folder / f".step-{state.step}"
    target = folder / f"step-{state.step}"
    if accelerator.is_main_process:
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
    accelerator.wait_for_everyone()
    accelerator.save_state(str(staging))
    accelerator.wait_for_everyone()
    if not accelerator.is_main_process:
        return

    save_file(state.best_weights, staging / BEST_WEIGHTS_FILE)
    write_json(staging / STATE_FILE, state.to_json())
    if hierarchy is not None:
        hierarchy.save(staging / HIERARCHY_FOLDER)
    fsync_tree(staging)
    staging.rename(target)
    fsync(folder)

    for older in folder.glob("*step-*"):
        if older != target:
            shutil.rmtree(older, ignore_errors=True)


def latest_checkpoint(folder: Path | None) -> Path | None:
    """Return the newest complete checkpoint in `folder`, or None."""
    if folder is None:
        return None

    def step_of(checkpoint: Path) -> int:
        return int(checkpoint.name.removeprefix("step-"))

    return max(folder.glob("step-[0-9]*"), key=step_of, default=None)


def load_training_state(checkpoint: Path) -> tuple[TrainingState, Hierarchy | None]:
    """Read the training state of a checkpoint, and the hierarchy if co-training replaced it."""
    state = TrainingState(**read_json(checkpoint / STATE_FILE))
    state.best_weights = load_file(checkpoint / BEST_WEIGHTS_FILE)
    folder = checkpoint / HIERARCHY_FOLDER
    hierarchy = Hierarchy.load(folder) if folder.is_dir() else None
    return state, hierarchy


class TrainingLoop:
    """Trains a model in place.

    Subclasses define `take_step` and `_evaluate`, which update `state`.

    Attributes:
        trained: The model that is trained.
        settings: `TrainingSettings`, or other settings with the fields that this class reads.
        accelerator: accelerate's Accelerator.
        state: Progress and history of the training, from which it can resume.
        checkpoints: Folder of the checkpoints. None: no checkpoints.
        progress: Called after each step.
        steps: Number of steps of the whole training, unless it stops early.
        pairs_per_step: Number of training pairs of a step.
        metric: Name of the dev metric in the history. None if nothing is evaluated.
    """

    trained: nn.Module
    settings: Any
    accelerator: Any
    state: TrainingState
    checkpoints: Path | None
    progress: Progress
    steps: int
    pairs_per_step: int
    metric: str | None
    take_step: Callable[[], None]
    _evaluate: Callable[[], None]

    def fit(self) -> TrainingState:
        """Train from `state` to the end, and leave the model with the weights of the best step."""
        if self.state.step == 0:
            self._evaluate()
        while self.state.step < self.steps and not self._is_out_of_patience():
            self.take_step()
            self._after_step()
        self._log()
        is_evaluated = self.metric in self.state.row()
        if not is_evaluated:
            self._evaluate()

        weights = self._trained_weights()
        for name, value in self.state.best_weights.items():
            weights[name].data.copy_(value)
        # Without any evaluation, the last step counts as the best one.
        if self.state.best_metric is None:
            self.state.best_step = self.state.step
        return self.state

    @property
    def trained_parameters(self) -> int:
        """Number of weights that are trained, without frozen ones."""
        return sum(weight.numel() for weight in self._trained_weights().values())

    def _is_out_of_patience(self) -> bool:
        """Whether as many evaluations as `patience` allows were not the best so far."""
        patience = self.settings.patience
        if patience is None:
            return False
        return bool(self.state.evaluations_since_best >= patience)

    def _after_step(self) -> None:
        """Log, evaluate and save a checkpoint, if the settings ask for it after this step.

        A checkpoint does not hold the window, the losses since the last row of the history. So a
        row is logged before each checkpoint.
        """
        step = self.state.step
        settings = self.settings
        if step % settings.log_every == 0:
            self._log()
        if settings.evaluate_every and step % settings.evaluate_every == 0:
            self._evaluate()
        if self.checkpoints is not None and step % settings.checkpoint_every == 0:
            self._log()
            self._save(self.checkpoints)
        self.progress(step, self.steps, "steps")

    def _save(self, folder: Path) -> None:
        """Write a checkpoint, from which an interrupted training resumes."""
        save_checkpoint(folder, self.accelerator, self.state)

    def _trained_weights(self) -> dict[str, Tensor]:
        """Return the weights of the model that are not frozen, by name."""
        return {
            name: weight for name, weight in self.trained.named_parameters() if weight.requires_grad
        }

    def _rate_factor(self, step: int) -> float:
        """Return the share of the peak learning rate at a step, which is counted from 0."""
        return learning_rate_factor(step, self.steps, self.settings.warmup_share)

    def _log(self) -> None:
        """Add a row to the history: the mean losses since the last row, and the learning rate."""
        last_step = self.state.step - 1
        rate = self.settings.learning_rate * self._rate_factor(last_step)
        mean_over_processes = partial(self.accelerator.reduce, reduction="mean")
        self.state.log(rate, mean_over_processes)
