"""Compare texts and training pairs per second with sentence-transformers on the GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import encoding, training
from benchmarks.measurement import median_seconds
from model_code.encoding.encoder import Encoder
from model_code.training.settings import TrainingSettings
from model_code.training.trainer import Trainer

TEXTS = 20_000
BATCH_SIZE = 512
STEPS = 5
ROUNDS = 3
# Texts of equal length that an eager and a compiled model encode.
COMPILED_TEXTS = 4096
TOKENS = 128
# Number of processes that prepare batches, compared with none; and number of training pairs.
WORKERS = 10
PAIRS = 4096
NEGATIVES = 4


def device_name() -> str:
    """Return "cuda" if there is a GPU, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def compare_encoding(folder: Path, texts: int = TEXTS) -> list[dict[str, Any]]:
    """Return the rows of `freshet bench encode`."""
    return encoding.rows(texts=texts, base=folder, rounds=ROUNDS, device=device_name())


def compare_training(folder: Path, batch_size: int = BATCH_SIZE) -> list[dict[str, Any]]:
    """Return the rows of `freshet bench train` for large batches."""
    return training.rows(
        base=str(folder), pairs=PAIRS, batch_size=batch_size, steps=STEPS, device=device_name()
    )


def compare_workers(folder: Path, batch_size: int = BATCH_SIZE) -> dict[str, Any]:
    """Return pairs per second with and without processes that prepare batches."""
    data = training.make_training_data(Encoder.load(folder, TOKENS, device="cpu"), PAIRS)
    steps: list[Callable[[], object]] = []
    for workers in (0, WORKERS):
        settings = TrainingSettings(
            supervision="supervised",
            batch_size=batch_size,
            document_max_tokens=TOKENS,
            steps=10 * STEPS,
            negatives_per_query=NEGATIVES,
            hierarchy_weight=0.0,
            frozen_layers=None,
            workers=workers,
        )
        encoder = Encoder.load(folder, TOKENS, device=device_name())
        hierarchy = training.make_hierarchy(data, encoder.dimension)
        trainer = Trainer(encoder, data, settings, seed=0, hierarchy=hierarchy)
        steps.append(trainer.take_step)
    alone, prepared = median_seconds(steps, STEPS)
    return {
        "pairs/s": batch_size / alone,
        f"pairs/s with {WORKERS} workers": batch_size / prepared,
        "ratio": alone / prepared,
    }


def compare_compiled(folder: Path, texts: int = COMPILED_TEXTS) -> dict[str, Any]:
    """Return texts per second of the transformer, eager and compiled, for equal lengths."""
    device = device_name()
    encoder = Encoder.load(folder, TOKENS, device=device)
    random = np.random.default_rng(0)
    ids = torch.from_numpy(random.integers(1000, 20_000, size=(texts, TOKENS))).to(device)
    features = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    compiled = torch.compile(encoder)

    def encode_with(model: Any) -> Callable[[], object]:
        """Return a function that encodes the equal texts with an eager or a compiled model."""

        def encode() -> object:
            enabled = device == "cuda"
            with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=enabled):
                return model(features)

        return encode

    eager_seconds, compiled_seconds = median_seconds(
        [encode_with(encoder), encode_with(compiled)], STEPS
    )
    return {
        "texts/s, eager": texts / eager_seconds,
        "texts/s, compiled": texts / compiled_seconds,
        "ratio": eager_seconds / compiled_seconds,
        "tokens": TOKENS,
    }
