"""Interrupt training in the middle, as if its process were killed.

Only the checkpoints remain for the next run.
"""

from __future__ import annotations

import pytest

from model_code.context import StageContext
from model_code.stages import train
from model_code.training.loop import TrainingLoop
from model_code.training.trainer import Trainer


def kill_at(trainer: TrainingLoop, step: int) -> None:
    """Train until step number `step` is done, then interrupt."""

    def interrupt_at_step(done: int, total: int, note: str) -> None:
        if done == step:
            raise KeyboardInterrupt

    trainer.progress = interrupt_at_step
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()


def kill_stage_after(steps: int, context: StageContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the stage `train` until it has taken `steps` steps, counted over its trainers."""
    take_step = Trainer.take_step
    steps_taken = 0

    def take_step_or_interrupt(self: Trainer) -> None:
        nonlocal steps_taken
        if steps_taken == steps:
            raise KeyboardInterrupt
        steps_taken += 1
        take_step(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "take_step", take_step_or_interrupt)
        with pytest.raises(KeyboardInterrupt):
            train.run(context)
