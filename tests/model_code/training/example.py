"""A corpus of 24 six-word documents in a tree of 2 x 6 nodes, with queries, for every test of
training.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from model_code.encoding.encoder import Encoder
from model_code.hierarchy.tree import Hierarchy
from model_code.training.data import Answers, Pairs, Passages, TrainingData, make_pairs
from model_code.training.settings import TrainingSettings
from model_code.training.tables import DevEvaluator
from model_code.training.trainer import Trainer
from tests.tiny_encoder import make_tiny_encoder

WORDS = [f"word{i}" for i in range(40)]
ASKS = [f"ask{i}" for i in range(40)]  # queries use other words than documents: ask7 for word7
LEAVES = np.repeat(np.arange(6), [6, 5, 4, 4, 3, 2]).astype(np.int32)
PARENTS = (np.zeros(2, np.int32), np.array([0, 0, 0, 0, 1, 1], np.int32))
NO_PAIRS = Pairs([], np.empty(0, np.int64), [])


def make_passages(seed: int = 0) -> Passages:
    """24 documents of one passage each."""
    random = np.random.default_rng(seed)
    return Passages([" ".join(random.choice(WORDS, 6)) for _ in LEAVES], np.arange(len(LEAVES)))


def ask(text: str) -> list[str]:
    """The words that ask for each word of a document."""
    return text.replace("word", "ask").split()


def make_data() -> TrainingData:
    """The first three words of each document ask for it, supervised; so do the last three,
    unsupervised.
    """
    passages = make_passages()
    words = [ask(text) for text in passages.texts]
    supervised = make_pairs(passages, [(" ".join(w[:3]), [i]) for i, w in enumerate(words)])
    unsupervised = make_pairs(passages, [(" ".join(w[3:]), [i]) for i, w in enumerate(words)])
    return TrainingData(passages, supervised, unsupervised)


def held(answers: Answers, queries: Sequence[str], passages: Sequence[int]) -> list[list[bool]]:
    """Which of the passages hold an answer of which of the queries."""
    rows = [answers.of(query) or (lambda passage: False) for query in queries]
    return [[holds(passage) for passage in passages] for holds in rows]


def make_dev(passages: Passages, **options: int | None) -> DevEvaluator:
    """Words 2, 3 and 4 of each document ask for it."""
    queries = [(" ".join(ask(text)[1:4]), {i: 1}) for i, text in enumerate(passages.texts)]
    return DevEvaluator(passages, queries, "MRR@10", seed=0, **({"max_queries": 100} | options))


def make_tree(vectors: np.ndarray) -> Hierarchy:
    """A tree of fixed shape whose centroids are the means of `vectors` (24, H)."""
    lower = np.stack([_unit(vectors[node == LEAVES].mean(axis=0)) for node in range(6)])
    upper = np.stack([_unit(lower[node == PARENTS[1]].mean(axis=0)) for node in range(2)])
    return Hierarchy((upper, lower), PARENTS, LEAVES)


def make_encoder(folder: Path) -> Encoder:
    """An encoder of two layers and 32 components."""
    if not folder.exists():
        make_tiny_encoder(folder, WORDS + ASKS)
    return Encoder.load(folder, max_tokens=16, precision="float32", device="cpu")


def make_settings(**changes: object) -> TrainingSettings:
    """Twelve quick steps of joint training with every part of the loss."""
    small = {
        "steps": 12,
        "batch_size": 6,
        "frozen_layers": 1,
        "learning_rate": 1e-3,
        "negatives_per_query": 2,
        "dev_metric": "MRR@10",
        "evaluate_every": 4,
        "checkpoint_every": 4,
        "log_every": 3,
        "document_max_tokens": 64,
    }
    return TrainingSettings(**(small | changes))  # type: ignore[arg-type]


def weights(trainer: Trainer) -> torch.Tensor:
    """All that the trainer's encoder has learned."""
    return torch.cat([parameter.detach().flatten() for parameter in trainer.encoder.parameters()])


def say_dev(trainer: Trainer, *values: float) -> None:
    """Let the trainer's evaluations give these values, one after the other."""
    said = iter(values)
    trainer.dev.score = lambda *_: next(said)  # type: ignore[method-assign, union-attr]


def _unit(vector: np.ndarray) -> np.ndarray:
    return (vector / np.linalg.norm(vector)).astype(np.float32)
