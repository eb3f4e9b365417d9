"""Work for the workers of Ray, in a module so that other processes can import it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from model_code.context import StageContext
from model_code.distributed import clustering
from model_code.progress import Progress
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
    """Kill this process with SIGKILL, unless a process did so before."""
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)


class FragileEncoder(torch.nn.Module):
    """Encode texts by their lengths; the process dies at the first text "fatal"."""

    dimension = 1
    precision = "float32"

    def __init__(self, marker: Path) -> None:
        super().__init__()
        self.marker = marker

    def encode_queries(self, texts: list[str]) -> np.ndarray:
        """Return the numbers of characters, (n, 1) float32."""
        if "fatal" in texts:
            die_once(self.marker)
        return np.array([[len(text)] for text in texts], dtype=np.float32)


def train_tiny(context: StageContext) -> dict[str, Any]:
    """Train the example's encoder, write its weights, and report the curve and the processes."""
    encoder = make_encoder(context.inputs["encoder"])
    data = make_data()
    settings = make_settings(
        accumulation=2, steps=6, checkpoint_every=2, evaluate_every=3, frozen_layers=1
    )
    tree = make_tree(encoder.encode_documents(data.passages.texts))
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
    """Run `train_tiny`; a process dies after step 3, behind the checkpoint of step 2."""
    marker = context.checkpoints.parent / "died"

    def report_step(done: int, total: int, note: str = "") -> None:
        if done == 3 and make_accelerator(torch.device("cpu"), "float32", 2).is_main_process:
            die_once(marker)

    def make_progress(label: str) -> Progress:
        return report_step

    return train_tiny(replace(context, progress=make_progress))


def compare_and_die(marker: Path) -> Callable[..., Any]:
    """Return `compare_slice`; the first process that moves a point to another cluster dies."""
    compare = clustering.compare_slice

    def compare_fragile(
        held: Any, shared: Any, rows: Any, state: dict[str, np.ndarray], device: str
    ) -> Any:
        result = compare(held, shared, rows, state, device)
        has_labels = (state["labels"] >= 0).any()
        if has_labels and (result["labels"] != state["labels"]).any():
            die_once(marker)
        return result

    return compare_fragile
