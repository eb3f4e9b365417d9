"""Which pairs make which batch, and the tensors that its loss reads: functions of its number and
the seed alone.
"""

from __future__ import annotations

import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from model_code.encoding.base_models import Prompts
from model_code.encoding.encoder import Features, LengthBuckets, bucket_by_length
from model_code.hierarchy.tree import Hierarchy
from model_code.training.data import TrainingData
from model_code.training.negatives import NegativeSampler, make_negative_sampler
from model_code.training.settings import TrainingSettings

MIN_USEFUL_STEPS = 20  # steps that hardly move an encoder
Tokenize = Callable[[Sequence[str], int], Features]


class PairStream:
    """Batches of exactly `size` pairs, epoch after epoch, each epoch in another order.

    An epoch has as many whole batches as fit; the few pairs left over are others each time. A
    document is twice in a batch only where the epoch's remaining pairs do not hold enough different
    ones. With `leaves`, pairs whose passages lie in the same leaf of the hierarchy are laid in
    couples first, so that most of a batch is couples of siblings.

    >>> stream = PairStream(np.array([7, 7, 8, 8]), size=2, seed=0)
    >>> [sorted((stream.batch(number) // 2).tolist()) for number in range(4)]  # pairs 0, 1 are of document 7; 2, 3 of 8
    [[0, 1], [0, 1], [0, 1], [0, 1]]
    """

    def __init__(
        self,
        documents: np.ndarray,
        size: int,
        seed: int | Sequence[int],
        leaves: np.ndarray | None = None,
    ) -> None:
        """documents: (n,) the document of each pair; leaves: (n,) the leaf node of each pair's
        passage.
        """
        self.documents, self.size, self.seed, self.leaves = (
            documents,
            min(size, len(documents)),
            seed,
            leaves,
        )
        self.per_epoch = len(documents) // self.size if self.size else 0
        self._epoch, self._batches = -1, [np.empty(0, dtype=np.int64)]

    def batch(self, number: int) -> np.ndarray:
        """The pairs of batch `number` (0, 1, ...): (size,) int64, positions in `documents`."""
        if not self.per_epoch:
            return self._batches[0]
        epoch, index = divmod(number, self.per_epoch)
        if epoch != self._epoch:
            self._epoch, self._batches = epoch, self._make(epoch)
        return self._batches[index]

    def _make(self, epoch: int) -> list[np.ndarray]:
        order = np.random.default_rng([*np.atleast_1d(self.seed), epoch]).permutation(
            len(self.documents)
        )
        if self.leaves is not None:
            order = pair_by_leaf(order, self.leaves)
        return distinct_batches(order, self.documents, self.size)


def distinct_batches(order: np.ndarray, documents: np.ndarray, size: int) -> list[np.ndarray]:
    """Cut `order` into batches of `size`, where a pair waits for the next batch if its document is
    in this one already.

    >>> [batch.tolist() for batch in distinct_batches(np.array([0, 1, 2, 3]), np.array([5, 5, 6, 7]), 2)]
    [[0, 2], [1, 3]]
    """
    waiting, batches = deque(order.tolist()), []
    while len(waiting) >= size:
        batch: list[int] = []
        seen: set[int] = set()
        deferred: list[int] = []
        while waiting and len(batch) < size:
            pair = waiting.popleft()
            target = batch if documents[pair] not in seen else deferred
            target.append(pair)
            seen.add(documents[pair])
        unavoidable = size - len(batch)
        batches.append(np.array(batch + deferred[:unavoidable]))
        waiting.extendleft(reversed(deferred[unavoidable:]))
    return batches


def pair_by_leaf(order: np.ndarray, leaves: np.ndarray) -> np.ndarray:
    """Reorder so that pairs of equal leaf follow each other two by two; the couples keep the order
    of their first pair.

    >>> pair_by_leaf(np.array([0, 1, 2, 3, 4]), np.array([9, 8, 9, 9, 8])).tolist()
    [0, 2, 1, 4, 3]
    """
    single: dict[int, int] = {}
    slots: defaultdict[int, list[int]] = defaultdict(list)
    for position, pair in enumerate(order.tolist()):
        leaf = int(leaves[pair])
        if leaf in single:
            slots[single.pop(leaf)].append(pair)
        else:
            single[leaf] = position
            slots[position].append(pair)
    return np.array(
        [pair for position in sorted(slots) for pair in slots[position]], dtype=np.int64
    )


class BatchSchedule:
    """The pairs of every batch of a training run, the supervised ones first in each.

    >>> from model_code.training.data import Passages, Pairs
    >>> corpus = Passages(["a", "b", "c", "d"], np.arange(4))
    >>> pairs = Pairs(["A", "B", "C", "D"], np.arange(4), [frozenset([i]) for i in range(4)])
    >>> settings = TrainingSettings(batch_size=2, epochs=3)
    >>> schedule = BatchSchedule(TrainingData(corpus, pairs, pairs), settings, seed=1)
    >>> len(schedule), schedule[0].shape, len(list(schedule))
    (12, (2,), 12)
    """

    def __init__(
        self,
        data: TrainingData,
        settings: TrainingSettings,
        seed: int,
        leaves: np.ndarray | None = None,
    ) -> None:
        """leaves: (N,) each passage's leaf node, for `batches: siblings`."""
        self._offset = len(data.supervised)
        self._streams = []
        sizes = _sizes(data, settings)
        for kind, pairs in enumerate((data.supervised, data.unsupervised)):
            documents = data.passages.documents[pairs.passages]
            nodes = (
                leaves[pairs.passages]
                if leaves is not None and settings.batches == "siblings"
                else None
            )
            self._streams.append(PairStream(documents, sizes[kind], [seed, kind], nodes))
        main = self._streams[0] if self._streams[0].per_epoch else self._streams[1]
        self.per_step = settings.accumulation  # by all processes together
        self.steps = settings.steps or max(
            1, round(settings.epochs * main.per_epoch / self.per_step)
        )
        if self._streams[0].per_epoch and not settings.steps:
            self._warn_if_short(len(data.supervised), len(data.unsupervised), settings)

    def _warn_if_short(
        self, supervised: int, unsupervised: int, settings: TrainingSettings
    ) -> None:
        """Warn of an epoch of a handful of supervised pairs, beside which pseudo-queries alone
        would train longer.
        """
        alone = round(settings.epochs * unsupervised / settings.batch_size / self.per_step)
        if self.steps < min(MIN_USEFUL_STEPS, alone):
            warnings.warn(
                f"training takes {self.steps} steps, as an epoch is one of the {supervised} supervised pairs; the "
                f"{unsupervised:,} pseudo-queries alone would make {alone}. Set training.steps, or supervision: "
                "unsupervised",
                stacklevel=3,
            )

    def __len__(self) -> int:
        """Number of batches of the whole run, over all processes."""
        return self.steps * self.per_step

    def __getitem__(self, number: int) -> np.ndarray:
        """The pairs of batch `number`, (B,) int64, as `TrainingData.pairs` numbers them."""
        if not 0 <= number < len(self):
            raise IndexError(number)
        supervised, unsupervised = (stream.batch(number) for stream in self._streams)
        return np.concatenate([supervised, unsupervised + self._offset])


def _sizes(data: TrainingData, settings: TrainingSettings) -> tuple[int, int]:
    if not len(data.unsupervised):
        return settings.batch_size, 0
    if not len(data.supervised):
        return 0, settings.batch_size
    return settings.batch_size - settings.unsupervised_in_batch, settings.unsupervised_in_batch


class TrainingBatch(NamedTuple):
    """B pairs and E extra negative documents as tensors."""

    queries: LengthBuckets  # of the B queries
    documents: LengthBuckets  # of the B positives, then the E extra negatives
    relevant: Tensor  # (B, B) bool: document j is relevant to query i
    allowed: Tensor  # (B, E) bool: extra document e was drawn for query i
    unsupervised: Tensor  # (B,) bool: the pair comes from a pseudo-query
    # (B, M) int64: ancestors of each pair's passage; None without a hierarchy loss
    paths: Tensor | None
    # per level None or (B, K_t) bool: nodes above other relevant passages
    excluded: list[Tensor | None] | None


class Collator:
    """A maker of batches; equal numbers give equal batches, whatever was made before."""

    def __init__(
        self,
        data: TrainingData,
        settings: TrainingSettings,
        tokenize: Tokenize,
        seed: int,
        hierarchy: Hierarchy | None = None,
        batch_tokens: int = 1024,
        negatives: NegativeSampler | None = None,
        prompts: Prompts = Prompts(),  # noqa: B008, which is frozen
    ) -> None:
        """tokenize: (texts, most tokens) -> padded features, as `Encoder.tokenize`; batch_tokens:
        see `bucket_by_length`.

        negatives: where the extra documents come from; None: from what the settings name, made
        here. prompts: what the encoder wants before texts.
        """
        self.data, self.settings, self.tokenize, self.seed = data, settings, tokenize, seed
        self.batch_tokens, self.prompts = batch_tokens, prompts
        self.negatives = negatives or make_negative_sampler(data, settings, hierarchy)
        self.tree = hierarchy if settings.hierarchy_weight > 0 else None
        if self.tree is not None:
            # (N, M)
            self.paths = self.tree.paths()[:, : settings.hierarchy_levels].astype(np.int64)

    def __call__(self, number: int, pairs: np.ndarray) -> TrainingBatch:
        """Batch `number` of the run, made of `pairs` (B,)."""
        every, passages = self.data.pairs, self.data.passages
        positives = every.passages[pairs]
        relevant = [every.relevant[pair] for pair in pairs]
        relevant_passages = [passages.of_all(documents) for documents in relevant]
        drawn = self.negatives.draw(
            pairs, relevant_passages, np.random.default_rng([self.seed, number])
        )
        extra = sorted({passage for row in drawn for passage in row})
        documents = [passages.texts[passage] for passage in (*positives.tolist(), *extra)]
        return TrainingBatch(
            queries=self.query_features([every.queries[pair] for pair in pairs]),
            documents=bucket_by_length(
                self.tokenize(
                    self.prompts.to_documents(documents), self.settings.document_max_tokens
                ),
                self.batch_tokens,
            ),
            relevant=torch.from_numpy(membership_mask(relevant, passages.documents[positives])),
            allowed=torch.from_numpy(membership_mask(drawn, np.array(extra, dtype=np.int64))),
            unsupervised=torch.from_numpy(pairs >= len(self.data.supervised)),
            **self.hierarchy_targets(positives, relevant_passages),
        )

    def hierarchy_targets(
        self, positives: np.ndarray, relevant: Sequence[np.ndarray]
    ) -> dict[str, Any]:
        """`paths` and `excluded` of a batch: its pairs' passages (B,), and for each those that
        answer its query.
        """
        if self.tree is None:
            return {"paths": None, "excluded": None}
        nodes = [len(parents) for parents in self.tree.parents[: self.paths.shape[1]]]
        return {
            "paths": torch.from_numpy(self.paths[positives]),
            "excluded": nodes_above(self.paths, nodes, relevant),
        }

    def query_features(self, queries: Sequence[str]) -> LengthBuckets:
        """Queries as the encoder is given them."""
        prompted = self.prompts.to_queries(queries)
        return bucket_by_length(
            self.tokenize(prompted, self.settings.query_max_tokens), self.batch_tokens
        )


def membership_mask(
    sets: Sequence[Sequence[int] | frozenset[int]], items: np.ndarray
) -> np.ndarray:
    """Which set holds which item: (len(sets), len(items)) bool.

    >>> membership_mask([[3], [1, 2]], np.array([1, 3])).tolist()
    [[False, True], [True, False]]
    """
    return np.array([np.isin(items, list(members)) for members in sets], dtype=bool).reshape(
        len(sets), len(items)
    )


def nodes_above(
    paths: np.ndarray, nodes: Sequence[int], relevant: Sequence[np.ndarray]
) -> list[Tensor | None]:
    """The nodes above any passage that answers a query: per level (B, K_t) bool, or None if no
    query has several.

    paths: (N, M), of every passage. nodes: how many each level has. relevant: the passages that
    answer each of B queries; the pair's own node stays the positive all the same.
    """
    rows = np.repeat(np.arange(len(relevant)), [len(passages) for passages in relevant])
    masks: list[Tensor | None] = [None] * len(nodes)
    if len(rows) == len(relevant):
        return masks
    above = paths[np.concatenate(relevant)]
    for level, count in enumerate(nodes):
        mask = np.zeros((len(relevant), count), dtype=bool)
        mask[rows, above[:, level]] = True
        masks[level] = torch.from_numpy(mask)
    return masks
