"""Learn document vectors from encoded queries with DSI's own trainer, without texts.

V, the matrix of document vectors, is trained on the queries of the old documents. IncDSI then adds
documents to it. It is compared with V after training on all queries, and after fine-tuning V.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from model_code.dsi.settings import DocumentVectorSettings
from model_code.encoding.base_models import Prompts
from model_code.progress import Progress, no_progress
from model_code.training.data import Pairs, Passages, TrainingData
from model_code.training.settings import TrainingSettings
from model_code.training.tables import DevEvaluator

# Number of dev queries with which the best epoch is chosen.
DEV_QUERIES = 1000


@dataclass(frozen=True)
class AnsweredQueries:
    """Queries with their answers.

    Attributes:
        queries: Vectors of the queries (m, H).
        targets: Row of the document that answers each query (m).
    """

    queries: np.ndarray
    targets: np.ndarray

    def __len__(self) -> int:
        return len(self.targets)


class StoredQueryVectors(nn.Module):
    """A query encoder for DSI's trainer whose vectors (m, H) were computed before.

    The text of a query is the number of its row.
    """

    def __init__(self, vectors: np.ndarray) -> None:
        super().__init__()
        self.vectors = vectors
        self.dimension = vectors.shape[1]
        self.precision = "float32"
        self.device = torch.device("cpu")
        self.backbone = nn.Identity()

    def encode_queries(self, texts: Sequence[str], progress: Progress = no_progress) -> np.ndarray:
        """Return the vectors (n, H) of queries, whose texts are row numbers."""
        return self.vectors[[int(text) for text in texts]]

    # There is nothing to tokenize: the trainer looks vectors up.
    tokenize = encode_queries
    prompts = Prompts()


def learn(
    start: np.ndarray,
    train: AnsweredQueries,
    dev: AnsweredQueries | None,
    settings: DocumentVectorSettings | None = None,
    seed: int = 0,
) -> np.ndarray:
    """Train document vectors with DSI's trainer.

    Args:
        start: Vectors (n, H) before the training.
        train: Queries to train on.
        dev: Queries by whose nDCG@10 the best epoch is chosen; the start counts as an epoch. None:
            the last epoch is taken.
        settings: Settings of the document vectors.
        seed: Seed of the training.

    Returns:
        V (n, H) after the training.
    """
    from model_code.dsi.trainer import DocumentTrainer, QueryVectors, loop_settings

    if settings is None:
        settings = DocumentVectorSettings()
    general_settings = TrainingSettings(hierarchy_weight=0.0)

    # The trainer needs passages and queries, but reads no text: vectors are known.
    passages = Passages([""] * len(start), np.arange(len(start)))
    no_queries = AnsweredQueries(train.queries[:0], train.targets[:0])
    data = TrainingData(passages, _make_pairs(train), _make_pairs(no_queries))
    query_vectors = QueryVectors(np.asarray(train.queries, np.float32), np.arange(len(train)))

    if dev is None:
        encoder = StoredQueryVectors(train.queries)
        evaluator = None
    else:
        encoder = StoredQueryVectors(dev.queries)
        evaluator = _make_evaluator(passages, dev, seed)

    vectors = nn.Parameter(torch.from_numpy(np.array(start, np.float32)))
    trainer = DocumentTrainer(
        encoder,  # type: ignore[arg-type]
        data,
        loop_settings(settings, general_settings, len(train)),
        seed,
        dev=evaluator,
        vector_settings=settings,
        vectors=vectors,
        query_vectors=query_vectors,
    )
    trainer.fit()
    return vectors.detach().numpy()


def _make_evaluator(passages: Passages, dev: AnsweredQueries, seed: int) -> DevEvaluator:
    """Return an evaluator of nDCG@10 on dev queries, whose texts are row numbers."""
    judged = [(str(row), {int(target): 1}) for row, target in enumerate(dev.targets)]
    return DevEvaluator(passages, judged, "nDCG@10", seed, DEV_QUERIES)


def _make_pairs(queries: AnsweredQueries) -> Pairs:
    """Return pairs whose query texts are row numbers, as `StoredQueryVectors` expects."""
    targets = queries.targets.tolist()
    texts = [str(row) for row in range(len(targets))]
    relevant = [frozenset([target]) for target in targets]
    return Pairs(texts, queries.targets, relevant)
