"""From the numbers of a batch's pairs to the tensors that the loss reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from model_code.encoding.batching import Buckets, Features, bucketed
from model_code.encoding.layout import Prompts
from model_code.hierarchy.tree import Hierarchy
from model_code.training.data import TrainingData
from model_code.training.negatives import Negatives, make_negatives
from model_code.training.settings import TrainingSettings

Tokenize = Callable[[Sequence[str], int], Features]


class TrainingBatch(NamedTuple):
    """B pairs and E extra negative documents as tensors."""

    queries: Buckets  # of the B queries
    documents: Buckets  # of the B positives, then the E extra negatives
    relevant: Tensor  # (B, B) bool: document j is relevant to query i
    allowed: Tensor  # (B, E) bool: extra document e was drawn for query i
    unsupervised: Tensor  # (B,) bool: the pair comes from a pseudo-query
    paths: Tensor | None  # (B, M) int64: ancestors of each pair's passage; None without a hierarchy loss
    excluded: list[Tensor | None] | None  # per level None or (B, K_t) bool: nodes above other relevant passages


class Collator:
    """Makes batch after batch; equal numbers give equal batches, whatever was made before."""

    def __init__(
        self,
        data: TrainingData,
        settings: TrainingSettings,
        tokenize: Tokenize,
        seed: int,
        hierarchy: Hierarchy | None = None,
        batch_tokens: int = 1024,
        negatives: Negatives | None = None,
        prompts: Prompts = Prompts(),  # noqa: B008, which is frozen
    ) -> None:
        """tokenize: (texts, most tokens) -> padded features, as `Encoder.tokenize`; batch_tokens: see `bucketed`.

        negatives: where the extra documents come from; None: from what the settings name, made here. prompts: what the
        encoder wants before texts.
        """
        self.data, self.settings, self.tokenize, self.seed = data, settings, tokenize, seed
        self.batch_tokens, self.prompts = batch_tokens, prompts
        self.negatives = negatives or make_negatives(data, settings, hierarchy)
        self.ancestors: Ancestors | None = None
        if hierarchy is not None and settings.hierarchy_weight > 0:
            self.ancestors = Ancestors(hierarchy, settings.hierarchy_levels)

    def __call__(self, number: int, pairs: np.ndarray) -> TrainingBatch:
        """Batch `number` of the run, made of `pairs` (B,)."""
        every, passages = self.data.pairs, self.data.passages
        positives = every.passages[pairs]
        relevant = [every.relevant[pair] for pair in pairs]
        known = [passages.of_all(documents) for documents in relevant]
        drawn = self.negatives.draw(pairs, known, np.random.default_rng([self.seed, number]))
        extra = sorted({passage for row in drawn for passage in row})
        queries = [every.queries[pair] for pair in pairs]
        documents = [passages.texts[passage] for passage in positives.tolist()]
        documents += [passages.texts[passage] for passage in extra]
        return TrainingBatch(
            queries=self.query_features(queries),
            documents=bucketed(
                self.tokenize(self.prompts.to_documents(documents), self.settings.document_max_tokens),
                self.batch_tokens,
            ),
            relevant=torch.from_numpy(membership(relevant, passages.documents[positives])),
            allowed=torch.from_numpy(membership(drawn, np.array(extra, dtype=np.int64))),
            unsupervised=torch.from_numpy(pairs >= len(self.data.supervised)),
            **self.above(positives, known),
        )

    def above(self, positives: np.ndarray, known: Sequence[np.ndarray]) -> dict[str, Any]:
        """`paths` and `excluded` of a batch: its pairs' passages (B,), and for each those that answer its query."""
        if self.ancestors is None:
            return {"paths": None, "excluded": None}
        return {"paths": self.ancestors.of(positives), "excluded": self.ancestors.excluded(known)}

    def query_features(self, queries: Sequence[str]) -> Buckets:
        """Queries as the encoder is given them."""
        prompted = self.prompts.to_queries(queries)
        return bucketed(self.tokenize(prompted, self.settings.query_max_tokens), self.batch_tokens)


def membership(sets: Sequence[Sequence[int] | frozenset[int]], items: np.ndarray) -> np.ndarray:
    """Which set holds which item: (len(sets), len(items)) bool.

    >>> membership([[3], [1, 2]], np.array([1, 3])).tolist()
    [[False, True], [True, False]]
    """
    columns: dict[int, list[int]] = {}
    for column, item in enumerate(items.tolist()):
        columns.setdefault(item, []).append(column)
    held = np.zeros((len(sets), len(items)), dtype=bool)
    for row, members in enumerate(sets):
        for member in members:
            held[row, columns.get(member, [])] = True
    return held


class Ancestors:
    """The nodes at levels 1 to M above the passages of a hierarchy.

    paths: (N, M) int64, of every passage. nodes: how many each level has.
    """

    def __init__(self, hierarchy: Hierarchy, levels: int | None) -> None:
        """levels: M; None: all."""
        self.paths = hierarchy.paths()[:, :levels].astype(np.int64)
        self.nodes = [len(parents) for parents in hierarchy.parents[:levels]]

    def of(self, passages: np.ndarray) -> Tensor:
        """The nodes above passages (B,): (B, M) int64."""
        return torch.from_numpy(self.paths[passages])

    def excluded(self, known: Sequence[np.ndarray]) -> list[Tensor | None]:
        """The nodes above any passage that answers a query: per level (B, K_t) bool, or None if no query has several.

        known: the passages that answer each of B queries. The pair's own node stays the positive all the same.
        """
        rows = np.repeat(np.arange(len(known)), [len(passages) for passages in known])
        masks: list[Tensor | None] = [None] * len(self.nodes)
        if len(rows) == len(known):
            return masks
        above = self.paths[np.concatenate(known)]
        for level, nodes in enumerate(self.nodes):
            mask = np.zeros((len(known), nodes), dtype=bool)
            mask[rows, above[:, level]] = True
            masks[level] = torch.from_numpy(mask)
        return masks
