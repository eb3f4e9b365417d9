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
# Queries use other words than documents: ask7 asks for word7.
ASKS = [f"ask{i}" for i in range(40)]
LEAVES = np.repeat(np.arange(6), [6, 5, 4, 4, 3, 2]).astype(np.int32)
PARENTS = (np.zeros(2, np.int32), np.array([0, 0, 0, 0, 1, 1], np.int32))
NO_PAIRS = Pairs([], np.empty(0, np.int64), [])


def make_passages(seed: int = 0) -> Passages:
    """Make 24 documents of one passage each."""
    random = np.random.default_rng(seed)
    texts = [" ".join(random.choice(WORDS, 6)) for _ in LEAVES]
    return Passages(texts, np.arange(len(LEAVES)))


def ask(text: str) -> list[str]:
    """Return the query word that asks for each word of a document."""
    return text.replace("word", "ask").split()


def make_data() -> TrainingData:
    """Make two queries per document: a supervised one and a pseudo-query.

    The supervised query asks for the first three words of its document, the pseudo-query for the
    last three.
    """
    passages = make_passages()
    judged = []
    generated = []
    for document, text in enumerate(passages.texts):
        words = ask(text)
        judged.append((" ".join(words[:3]), [document]))
        generated.append((" ".join(words[3:]), [document]))
    return TrainingData(passages, make_pairs(passages, judged), make_pairs(passages, generated))


def answer_matrix(
    answers: Answers, queries: Sequence[str], passages: Sequence[int]
) -> list[list[bool]]:
    """Return, for each query, whether each passage holds one of its answers."""
    rows = []
    for query in queries:
        holds_answer = answers.of(query)
        if holds_answer is None:
            rows.append([False] * len(passages))
        else:
            rows.append([holds_answer(passage) for passage in passages])
    return rows


def make_dev(passages: Passages, **options: int | None) -> DevEvaluator:
    """Make an evaluator with one query per document, which asks for its words 2, 3 and 4."""
    queries = [(" ".join(ask(text)[1:4]), {i: 1}) for i, text in enumerate(passages.texts)]
    options.setdefault("max_queries", 100)
    return DevEvaluator(passages, queries, "MRR@10", seed=0, **options)


def make_tree(vectors: np.ndarray) -> Hierarchy:
    """Make a tree of fixed shape whose centroids are the means of `vectors` (24, H)."""
    lower = np.stack([_unit(vectors[node == LEAVES].mean(axis=0)) for node in range(6)])
    upper = np.stack([_unit(lower[node == PARENTS[1]].mean(axis=0)) for node in range(2)])
    return Hierarchy((upper, lower), PARENTS, LEAVES)


def make_encoder(folder: Path) -> Encoder:
    """Make, or load, an encoder of two layers and 32 components."""
    if not folder.exists():
        make_tiny_encoder(folder, WORDS + ASKS)
    return Encoder.load(folder, max_tokens=16, precision="float32", device="cpu")


def make_settings(**changes: object) -> TrainingSettings:
    """Make settings of twelve quick steps of joint training with every part of the loss."""
    settings: dict[str, object] = {
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
    settings.update(changes)
    return TrainingSettings(**settings)  # type: ignore[arg-type]


def encoder_weights(trainer: Trainer) -> torch.Tensor:
    """Return all weights of the trainer's encoder as one vector."""
    return torch.cat([parameter.detach().flatten() for parameter in trainer.encoder.parameters()])


def set_dev_scores(trainer: Trainer, *values: float) -> None:
    """Let the trainer's evaluations return these values, one after the other."""
    remaining = iter(values)

    def next_score(*_: object) -> float:
        return next(remaining)

    trainer.dev.score = next_score  # type: ignore[method-assign, union-attr]


def _unit(vector: np.ndarray) -> np.ndarray:
    return (vector / np.linalg.norm(vector)).astype(np.float32)
