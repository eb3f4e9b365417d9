"""What the tests of this folder have Ray's workers do: in a module, so that other processes can
import it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from model_code.context import StageContext
from model_code.distributed import clustering
from model_code.training.optimisation import make_accelerator
from model_code.training.trainer import Trainer
from tests.model_code.training.example import (
    make_data,
    make_dev,
    make_encoder,
    make_settings,
    make_tree,
)


def die_once(marker: Path) -> None:
    """Kill this process the hard way, unless one did so before."""
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)


class Fragile(torch.nn.Module):
    """An encoder of lengths whose process dies the first time that it is given the text "fatal"."""

    dimension, precision = 1, "float32"

    def __init__(self, marker: Path) -> None:
        super().__init__()
        self.marker = marker

    def encode(self, texts: list[str]) -> np.ndarray:
        """(n, 1) float32: the numbers of characters."""
        if "fatal" in texts:
            die_once(self.marker)
        return np.array([[len(text)] for text in texts], dtype=np.float32)


def train_tiny(context: StageContext) -> dict[str, Any]:
    """Train the example's encoder; writes its weights, and reports the curve and how many processes
    there were.
    """
    encoder, data = make_encoder(context.inputs["encoder"]), make_data()
    settings = make_settings(
        accumulation=2, steps=6, checkpoint_every=2, evaluate_every=3, frozen_layers=1
    )
    tree = make_tree(encoder.encode(data.passages.texts))
    trainer = Trainer(
        encoder,
        data,
        settings,
        0,
        tree,
        make_dev(data.passages),
        checkpoints=context.checkpoints,
        progress=context.progress("train"),
    )
    result = trainer.fit()
    torch.save(dict(trainer.encoder.named_parameters()), context.output / "weights.pt")
    return {"history": result.history, "processes": trainer.accelerator.num_processes}


def train_and_die(context: StageContext) -> dict[str, Any]:
    """`train_tiny`, but a process dies after step 3: past the checkpoint of step 2."""
    marker = context.checkpoints.parent / "died"

    def progress(done: int, total: int, note: str = "") -> None:
        if done == 3 and make_accelerator(torch.device("cpu"), "float32", 2).is_main_process:
            die_once(marker)

    return train_tiny(StageContext(**{**vars(context), "progress": lambda label: progress}))


def compare_and_die(marker: Path) -> Callable[..., Any]:
    """`compare_slice`, but the first process that moves any point to another cluster dies with its
    work.
    """
    compare = clustering.compare_slice

    def fragile(
        held: Any, shared: Any, rows: Any, state: dict[str, np.ndarray], device: str
    ) -> Any:
        found = compare(held, shared, rows, state, device)
        if (state["labels"] >= 0).any() and (found["labels"] != state["labels"]).any():
            die_once(marker)
        return found

    return fragile
