"""Compare losses, gradients and vectors on the GPU with those of the CPU in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.inputs import SquadInput
from benchmarks.gpu.squad import training_data
from model_code.encoding.encoder import Encoder
from model_code.hierarchy.build import build_hierarchy
from model_code.hierarchy.settings import HierarchySettings
from model_code.training.settings import TrainingSettings
from model_code.training.trainer import Trainer, to_device

# Numbers of texts and pairs that are compared.
TEXTS = 256
PAIRS = 32
SETTINGS = TrainingSettings(
    supervision="supervised",
    batch_size=PAIRS,
    negatives="siblings",
    negatives_per_query=2,
    hierarchy_weight=1.0,
    frozen_layers=None,
    steps=1,
)
# Bounds: smallest cosine of vectors and gradients, and largest relative difference of the loss.
BOUNDS = {
    "float32": {"vectors": 0.99999, "gradients": 0.9999, "loss": 1e-4},
    "bfloat16": {"vectors": 0.999, "gradients": 0.99, "loss": 2e-2},
}


def measure(folder: Path, data: SquadInput) -> dict[str, Any]:
    """Return the agreement of each precision with the CPU, and whether it is within the bounds."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    expected = _compute(folder, data, "float32", "cpu")
    results = {}
    for precision, bounds in BOUNDS.items():
        found = _compute(folder, data, precision, device)
        vector_cosines = (found["vectors"] * expected["vectors"]).sum(axis=1)
        smallest_cosine = float(vector_cosines.min())
        gradient_cosine = _cosine(found["gradient"], expected["gradient"])
        loss_difference = abs(found["loss"] - expected["loss"]) / expected["loss"]
        is_within_bounds = (
            smallest_cosine >= bounds["vectors"]
            and gradient_cosine >= bounds["gradients"]
            and loss_difference <= bounds["loss"]
        )
        results[precision] = {
            "smallest cosine of vectors": smallest_cosine,
            "cosine of gradients": gradient_cosine,
            "relative difference of the loss": loss_difference,
            "within bounds": is_within_bounds,
            "bounds": bounds,
        }
    return results


def _compute(folder: Path, data: SquadInput, precision: Any, device: str) -> dict[str, Any]:
    """Return vectors of texts, and the loss and the gradient of the first batch.

    Returns:
        `vectors` (n, H), `loss`, and `gradient`, which joins the gradients of all weights.
    """
    texts = data.texts[: max(TEXTS, PAIRS)]
    small = training_data(data, texts=len(texts))
    encoder = Encoder.load(folder, max_tokens=128, precision=precision, device=device)
    vectors = encoder.encode_documents(texts)

    # The hierarchy depends on the seed only, so that all precisions have the same one.
    random = np.random.default_rng(0).standard_normal(vectors.shape).astype(np.float32)
    hierarchy = build_hierarchy(random, HierarchySettings(branching=8, device="cpu"), seed=0)
    trainer = Trainer(encoder, small, SETTINGS, seed=0, hierarchy=hierarchy)
    batch = trainer.collate(0, trainer.schedule[0])
    parts = trainer.model(to_device(batch, encoder.device))
    trainer.accelerator.backward(parts["loss"])
    gradients = [
        weight.grad.flatten().double().cpu()
        for weight in encoder.parameters()
        if weight.grad is not None
    ]
    return {
        "vectors": vectors,
        "loss": float(parts["loss"].detach()),
        "gradient": torch.cat(gradients).numpy(),
    }


def _cosine(left: np.ndarray, right: np.ndarray) -> float:
    return float(left @ right / np.linalg.norm(left) / np.linalg.norm(right))
