"""Learn document vectors from encoded queries with DSI's own trainer, without texts.

IncDSI is compared with V trained on the old documents' queries, V retrained on all queries, and V
fine-tuned.
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

# Number of dev queries that choose the best epoch.
DEV_QUERIES = 1000


@dataclass(frozen=True)
class Asking:
    """Queries (m, H) and the row of the document that each searches for (m)."""

    queries: np.ndarray
    targets: np.ndarray

    def __len__(self) -> int:
        return len(self.targets)


class KnownQueries(nn.Module):
    """Replacement of a frozen query encoder with known vectors (m, H).

    The text of a query is its row.
    """

    def __init__(self, vectors: np.ndarray) -> None:
        super().__init__()
        self.vectors, self.dimension, self.precision = vectors, vectors.shape[1], "float32"
        self.device, self.backbone = torch.device("cpu"), nn.Identity()

    def encode(self, texts: Sequence[str], progress: Progress = no_progress) -> np.ndarray:
        """Return the vectors of the rows that `texts` name."""
        return self.vectors[[int(text) for text in texts]]

    # There is nothing to tokenize: the trainer looks vectors up.
    tokenize = encode
    prompts = Prompts()


def learn(
    start: np.ndarray,
    train: Asking,
    dev: Asking | None,
    settings: DocumentVectorSettings | None = None,
    seed: int = 0,
) -> np.ndarray:
    """Return V (n, H) after training from `start` (n, H).

    dev: Queries whose best nDCG@10 chooses the epoch, including the start. None chooses the last
    epoch.
    """
    from model_code.dsi.trainer import DocumentTrainer, QueryVectors, loop_settings

    own, general = settings or DocumentVectorSettings(), TrainingSettings(hierarchy_weight=0.0)
    passages = Passages([""] * len(start), np.arange(len(start)))
    data = TrainingData(
        passages, _pairs(train), _pairs(Asking(train.queries[:0], train.targets[:0]))
    )
    vectors = nn.Parameter(torch.from_numpy(np.array(start, np.float32)))
    trainer = DocumentTrainer(
        KnownQueries(train.queries if dev is None else dev.queries),  # type: ignore[arg-type]
        data,
        loop_settings(own, general, len(train)),
        seed,
        dev=None if dev is None else _evaluator(passages, dev, seed),
        vector_settings=own,
        vectors=vectors,
        query_vectors=QueryVectors(np.asarray(train.queries, np.float32), np.arange(len(train))),
    )
    trainer.fit()
    return vectors.detach().numpy()


def _evaluator(passages: Passages, dev: Asking, seed: int) -> DevEvaluator:
    judged = [(str(row), {int(target): 1}) for row, target in enumerate(dev.targets)]
    return DevEvaluator(passages, judged, "nDCG@10", seed, DEV_QUERIES)


def _pairs(asking: Asking) -> Pairs:
    targets = asking.targets.tolist()
    return Pairs(
        [str(row) for row in range(len(targets))],
        asking.targets,
        [frozenset([one]) for one in targets],
    )
