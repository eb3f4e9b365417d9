"""Document vectors learned from encoded queries by DSI's own trainer, with no text to encode.

What IncDSI is compared with: V trained on the old documents' queries, retrained on those of all,
and fine-tuned.
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

DEV_QUERIES = 1000  # that choose the best epoch


@dataclass(frozen=True)
class Asking:
    """Queries (m, H) and the row of the document that each looks for (m)."""

    queries: np.ndarray
    targets: np.ndarray

    def __len__(self) -> int:
        return len(self.targets)


class KnownQueries(nn.Module):
    """Stands for a frozen query encoder whose vectors (m, H) are known: a query's text is its row."""

    def __init__(self, vectors: np.ndarray) -> None:
        super().__init__()
        self.vectors, self.dimension, self.precision = vectors, vectors.shape[1], "float32"
        self.device, self.backbone = torch.device("cpu"), nn.Identity()

    def encode(self, texts: Sequence[str], progress: Progress = no_progress) -> np.ndarray:
        """The vectors of the rows named by `texts`."""
        return self.vectors[[int(text) for text in texts]]

    tokenize = encode  # of nothing: the trainer looks vectors up
    prompts = Prompts()


def learn(
    start: np.ndarray,
    train: Asking,
    dev: Asking | None,
    settings: DocumentVectorSettings | None = None,
    seed: int = 0,
) -> np.ndarray:
    """V (n, H) after training from `start` (n, H).

    dev: the epoch with their best nDCG@10, the start included, is what is returned; None: the last
    one.
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
