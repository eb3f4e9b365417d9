"""Where a training run stands: all that a checkpoint must hold beside the weights and the optimiser."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from model_code.errors import FreshetError

Row = dict[str, Any]


@dataclass
class TrainingState:
    """Progress, history and the best checkpoint so far. Everything but `best_weights` and `window` is JSON-able.

    history: rows by step; a row of training has `loss`, its parts and `learning_rate`, means over the steps since the
      row before; an evaluation adds the dev metric under its name.
    window: loss parts of the batches since the last row, left on their device: reading them would stop the step.
    """

    step: int = 0
    history: list[Row] = field(default_factory=list)
    best_step: int = 0
    best_metric: float | None = None
    evaluations_since_best: int = 0
    reclustered_at: list[int] = field(default_factory=list)
    best_weights: dict[str, Tensor] = field(default_factory=dict)
    window: list[dict[str, Tensor]] = field(default_factory=list)

    def log(self, learning_rate: float, over_processes: Callable[[Tensor], Tensor] = lambda mean: mean) -> None:
        """Average the window into a row of the history. Raises FreshetError if the loss is not finite.

        over_processes: the mean of each process's own means.
        """
        if not self.window:
            return
        names = list(self.window[0])
        table = torch.stack([torch.stack([parts[name] for name in names]) for parts in self.window]).double()
        means = dict(zip(names, over_processes(table.mean(dim=0)).tolist(), strict=True))
        if not math.isfinite(means["loss"]):
            raise FreshetError(
                f"the loss is {means['loss']} at step {self.step}; lower learning_rate, set gradient_clip, "
                "or, of a dense retriever, raise temperature"
            )
        self.window = []
        self.row().update(means | {"learning_rate": learning_rate})

    def row(self) -> Row:
        """The history's row of the current step, made if there is none."""
        if not self.history or self.history[-1]["step"] != self.step:
            self.history.append({"step": self.step})
        return self.history[-1]

    def evaluated(self, metric: str, value: float, weights: dict[str, Tensor]) -> bool:
        """Note a dev metric; if it is above all before (of equals the first counts), keep `weights` and return True."""
        self.row()[metric] = value
        if self.best_metric is not None and value <= self.best_metric:
            self.evaluations_since_best += 1
            return False
        self.best_step, self.best_metric, self.evaluations_since_best = self.step, value, 0
        self.best_weights = {name: weight.detach().to("cpu", copy=True) for name, weight in weights.items()}
        return True

    def to_json(self) -> dict[str, Any]:
        """All but the tensors."""
        return {key: value for key, value in asdict(self).items() if key not in ("best_weights", "window")}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> TrainingState:
        """Read what `to_json` gave."""
        known = {item.name for item in fields(cls)}
        return cls(**{key: value for key, value in values.items() if key in known})
