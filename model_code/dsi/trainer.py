"""Training of document vectors, alone or with the query encoder: the one training loop, with another loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from model_code.dsi.batches import DocumentCollator, QueryVectors
from model_code.dsi.objective import DocumentObjective
from model_code.dsi.settings import DocumentVectorSettings
from model_code.encoding.encoder import Encoder
from model_code.hierarchy.tree import Hierarchy
from model_code.progress import Progress, silent
from model_code.training.data import TrainingData
from model_code.training.dev_evaluation import DevEvaluator, TextEncoder
from model_code.training.optimisation import make_optimizer
from model_code.training.settings import TrainingSettings
from model_code.training.trainer import Trainer


class EncodedOnce:
    """An encoder that does not learn: the same texts are encoded only once."""

    def __init__(self, encoder: TextEncoder) -> None:
        self.encoder, self.known = encoder, dict[tuple[str, ...], np.ndarray]()

    def encode(self, texts: Sequence[str], progress: Progress = silent) -> np.ndarray:
        """Vectors (n, H) of n texts."""
        key = tuple(texts)
        if key not in self.known:
            self.known[key] = self.encoder.encode(texts, progress)
        return self.known[key]


class DocumentDev:
    """Stands for a `DevEvaluator` in a `Trainer`: every passage has its document's row of `vectors` (n, H)."""

    def __init__(self, evaluator: DevEvaluator, vectors: Tensor, frozen: TextEncoder | None = None) -> None:
        """frozen: the query encoder, if it does not learn; its dev queries are then encoded only once."""
        self.evaluator, self.vectors, self.metric = evaluator, vectors, evaluator.metric
        self.frozen = None if frozen is None else EncodedOnce(frozen)

    def encode_passages(self, encoder: TextEncoder) -> np.ndarray:
        """The vectors as they are now, of the ranked passages: (P, H)."""
        documents = self.evaluator.passages.documents[self.evaluator.rows]
        return self.vectors.detach().cpu().numpy()[documents]

    def score(self, encoder: TextEncoder, vectors: np.ndarray) -> float:
        """The mean metric, given the vectors of the ranked passages."""
        return self.evaluator.score(self.frozen or encoder, vectors)


VECTORS = "document_vectors"


class DocumentTrainer(Trainer):
    """Trains `vectors` (n, H) in place, and `encoder` too unless there are `query_vectors` of it: then it is frozen.

    data: what `pooled` returns; settings: what `loop_settings` returns; dev: of the whole corpus, or None. The rest is
    `Trainer`'s, and so is `fit`, which leaves vectors and encoder as the best evaluated step had them.
    """

    def __init__(
        self,
        encoder: Encoder,
        data: TrainingData,
        settings: TrainingSettings,
        own: DocumentVectorSettings,
        vectors: nn.Parameter,
        query_vectors: QueryVectors | None,
        seed: int,
        hierarchy: Hierarchy | None = None,
        dev: DevEvaluator | None = None,
        **rest: Any,
    ) -> None:
        self.own, self.vectors, self.query_vectors = own, vectors, query_vectors
        self.cut_by = ("query_max_tokens",) if query_vectors is None else ()
        frozen = None if query_vectors is None else encoder
        judge: Any = None if dev is None else DocumentDev(dev, vectors, frozen)
        super().__init__(encoder, data, settings, seed, hierarchy, judge, **rest)

    def _make_objective(self, hierarchy: Hierarchy | None) -> DocumentObjective:
        encoder: nn.Module = self.encoder
        if self.query_vectors is not None:
            encoder.requires_grad_(False)
            encoder = nn.Identity()  # the batches hold vectors
        return DocumentObjective(encoder, self.vectors, self.own.logit_scale, self.settings, hierarchy)

    def _make_optimizer(self, objective: DocumentObjective) -> torch.optim.AdamW:
        rate = self.own.rate
        group = {"params": [self.vectors], "weight_decay": 0.0, "lr": rate, "peak": rate}
        if self.query_vectors is not None:
            return torch.optim.AdamW([group], fused=True)
        optimizer = make_optimizer(objective, self.settings)
        optimizer.add_param_group(group)
        return optimizer

    def _make_collator(self, hierarchy: Hierarchy | None, batch_tokens: int) -> DocumentCollator:
        tokenize, more = self.encoder.tokenize, {"query_vectors": self.query_vectors, "prompts": self.encoder.prompts}
        return DocumentCollator(self.data, self.settings, tokenize, self.seed, hierarchy, batch_tokens, **more)

    def _trained_weights(self) -> dict[str, Tensor]:
        return {**super()._trained_weights(), VECTORS: self.vectors}


def loop_settings(own: DocumentVectorSettings, training: TrainingSettings, pairs: int) -> TrainingSettings:
    """`training` with what the training loop must read from `own` instead, for a pool of so many pairs.

    >>> loop = loop_settings(DocumentVectorSettings(), TrainingSettings(), pairs=1300)
    >>> loop.batch_size, loop.evaluate_every, loop.patience, loop.learning_rate
    (128, 10, 2, 0.0005)
    """
    per_epoch = pairs // min(own.batch_size, max(1, pairs)) / training.accumulation
    every = max(1, round(per_epoch))
    joint = training.replace(
        supervision="supervised",  # of one pool: a batch has no two kinds of pairs
        epochs=own.passes,
        batch_size=own.batch_size,
        batches="random",
        negatives="random",
        negatives_per_query=0,
        evaluate_every=every,
        patience=own.patience,
    )
    if own.train_encoder:
        return joint
    return joint.replace(learning_rate=own.rate, frozen_layers=None, checkpoint_every=every)


def pooled(data: TrainingData) -> TrainingData:
    """All pairs as one kind.

    >>> import numpy as np
    >>> from model_code.training.data import Pairs, Passages
    >>> one = Pairs(["a"], np.array([0]), [frozenset([0])])
    >>> pool = pooled(TrainingData(Passages(["A"], np.array([0])), one, one))
    >>> len(pool.supervised), len(pool.unsupervised), len(pool.pairs)
    (2, 0, 2)
    """
    nothing = replace(data.unsupervised, queries=[], passages=data.unsupervised.passages[:0], relevant=[])
    return TrainingData(data.passages, data.pairs, nothing)
