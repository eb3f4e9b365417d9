"""Sixteen documents of six words, each asked for by its first three, and tiny models that can learn that."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from model_code.queries.generator_pairs import GeneratorPair, PairTokens
from model_code.queries.generator_training import GeneratorTrainer
from model_code.queries.sequence_models import Loaded, load_sequence_model
from model_code.queries.training_settings import GeneratorTrainingSettings
from model_code.queries.warm_start import warm_start
from tests.model_code.queries.tiny_t5 import make_tiny_t5
from tests.tiny_encoder import make_tiny_encoder

WORDS = [f"w{i}" for i in range(40)]
_random = np.random.default_rng(0)
DOCUMENTS = {f"d{i:02}": " ".join(_random.choice(WORDS, 6, replace=False)) for i in range(16)}
PAIRS = [GeneratorPair(i, text, " ".join(text.split()[:3])) for i, text in DOCUMENTS.items()]
SECTION_TOKENS, QUERY_TOKENS = 16, 8


def load(kind: str, folder: Path) -> Loaded:
    """A fresh "warm_start" or "t5"."""
    path = folder / kind
    if kind == "warm_start":
        return warm_start(path if path.exists() else make_tiny_encoder(path, WORDS), seed=0)
    return load_sequence_model(path if path.exists() else make_tiny_t5(path, WORDS))


def tokens(loaded: Loaded) -> PairTokens:
    """Batches as `loaded` reads them."""
    return PairTokens(loaded[1], SECTION_TOKENS, QUERY_TOKENS, loaded[0].generation_config.decoder_start_token_id)


def make_trainer(loaded: Loaded, checkpoints: Path | None = None, held_out: list | None = None, **changes):  # noqa: ANN201
    """Twelve quick steps, chosen by the training pairs themselves."""
    quick = {
        "base": "any", "steps": 12, "batch_size": 8, "learning_rate": 1e-2, "evaluate_every": 4, "log_every": 3,
        "checkpoint_every": 4,
    }  # fmt: skip
    settings = GeneratorTrainingSettings(**(quick | changes))  # type: ignore[arg-type]
    chosen_by = PAIRS if held_out is None else held_out
    return GeneratorTrainer(loaded, tokens(loaded), PAIRS, chosen_by, settings, 0, checkpoints, precision="float32")
