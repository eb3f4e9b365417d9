"""Batches of the first stage: queries, and the token bags of their passages and of many others.

T(p) never changes and needs no encoder, so that passages cost next to nothing: thousands stand against every query.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from model_code.lexical.encoder import LexicalEncoder
from model_code.lexical.settings import LexicalSettings
from model_code.training.ancestors import Ancestors
from model_code.training.buckets import Buckets, bucketed
from model_code.training.collator import membership
from model_code.training.data import TrainingData
from model_code.training.settings import TrainingSettings


class BagBatch(NamedTuple):
    """B queries and the bags of P passages as tensors, the last of them as they are cut for one pair."""

    queries: Buckets
    positives: Tensor  # (B,) int64: which of the P passages is the pair's
    answers: Tensor  # (B, P) bool: passage p is of a document that answers query i, or cut for a pair: no negative
    unsupervised: Tensor  # (B,) bool
    bags: Tensor  # (2, n) int64: passage and token of each of their n tokens, ascending
    paths: Tensor | None  # (B, M) int64: ancestors of each pair's passage; None without a hierarchy loss
    excluded: list[Tensor | None] | None  # per level None or (B, K_t) bool: nodes above other relevant passages


class BagCollator:
    """Makes batch after batch; equal numbers give equal batches, whatever was made before."""

    def __init__(
        self,
        data: TrainingData,
        bags: Sequence[np.ndarray],
        training: TrainingSettings,
        settings: LexicalSettings,
        encoder: LexicalEncoder,
        seed: int,
        batch_tokens: int,
        ancestors: Ancestors | None = None,
    ) -> None:
        """bags: T(p) of all N passages; batch_tokens: as in `Collator`; ancestors: for a hierarchy loss."""
        self.data, self.bags, self.training, self.settings = data, bags, training, settings
        self.encoder, self.seed, self.batch_tokens, self.ancestors = encoder, seed, batch_tokens, ancestors

    def __call__(self, number: int, pairs: np.ndarray) -> BagBatch:
        """Batch `number` of the run, made of `pairs` (B,)."""
        every, passages = self.data.pairs, self.data.passages
        own, shown = every.passages[pairs], self._shown(number, every.passages[pairs])
        queries = self.encoder.tokenize([every.queries[pair] for pair in pairs], self.training.query_max_tokens)
        relevant = [every.relevant[pair] for pair in pairs]
        cut = {row: every.positives[pair] for row, pair in enumerate(pairs.tolist()) if pair in every.positives}
        bags = [self.bags[passage] for passage in shown] + self.encoder.bags(list(cut.values()))
        positives, answers = np.searchsorted(shown, own), np.ones((len(pairs), len(bags)), dtype=bool)
        positives[list(cut)] = np.arange(len(shown), len(bags))
        answers[:, : len(shown)] = membership(relevant, passages.documents[shown])
        lines = np.repeat(np.arange(len(bags)), [len(bag) for bag in bags])
        return BagBatch(
            queries=bucketed(queries, self.batch_tokens),
            positives=torch.from_numpy(positives),
            answers=torch.from_numpy(answers),
            unsupervised=torch.from_numpy(pairs >= len(self.data.supervised)),
            bags=torch.from_numpy(np.stack([lines, np.concatenate(bags)])),
            paths=None if self.ancestors is None else self.ancestors.of(own),
            excluded=None if self.ancestors is None else self.ancestors.excluded(list(map(passages.of_all, relevant))),
        )

    def _shown(self, number: int, own: np.ndarray) -> np.ndarray:
        """The passages of the batch, ascending: those of the pairs, and `first_stage_passages` drawn from all."""
        count = min(self.settings.first_stage_passages, len(self.bags))
        drawn = np.random.default_rng([self.seed, number]).choice(len(self.bags), count, replace=False)
        return np.unique(np.concatenate([own, drawn]))
