"""Training that ends in the middle, as if it were killed: what it left behind is all that the next
run has.
"""

from __future__ import annotations

import pytest

from model_code.context import StageContext
from model_code.stages import train
from model_code.training.loop import TrainingLoop
from model_code.training.trainer import Trainer


def kill_at(trainer: TrainingLoop, step: int) -> None:
    """Train until step number `step` is done."""

    def progress(done: int, total: int, note: str) -> None:
        if done == step:
            raise KeyboardInterrupt

    trainer.progress = progress
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()


def kill_stage_after(steps: int, context: StageContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the stage `train` until it has taken `steps` steps, counted over its trainers."""
    take_step, taken = Trainer.take_step, []

    def dying(self: Trainer) -> None:
        if len(taken) == steps:
            raise KeyboardInterrupt
        taken.append(self)
        take_step(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "take_step", dying)
        with pytest.raises(KeyboardInterrupt):
            train.run(context)
