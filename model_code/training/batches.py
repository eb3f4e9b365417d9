"""Batches of training pairs, and the tensors that the losses read.

The content of a batch depends only on its number and the seed. So a training that is resumed uses
the same batches.
"""

from __future__ import annotations

import heapq
import itertools
import warnings
from collections import defaultdict
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

# A warning is given if training takes fewer steps than this, because they hardly change an encoder.
MIN_USEFUL_STEPS = 20
# Stands for the next pair of a document if there is none.
END = -1

Tokenize = Callable[[Sequence[str], int], Features]
"""A function like `Encoder.tokenize`.

It takes texts and the maximum number of tokens of a text, and returns their padded features.
"""


class PairStream:
    """Batches of exactly `size` training pairs, epoch after epoch, each epoch in another order.

    A pair consists of a query and a relevant passage. An epoch consists of whole batches only. The
    few pairs that do not fill a batch are left out, and differ between epochs. A batch has several
    pairs of the same document only if the remaining pairs of the epoch belong to fewer than `size`
    documents.

    With `leaves`, two pairs whose passages are in the same leaf node of the hierarchy follow each
    other. Most pairs then have a pair of the same leaf in their batch.

    Args:
        documents: Document number of each pair, (n,).
        size: Number of pairs in a batch.
        seed: Seed of the order.
        leaves: Leaf node of each pair's passage, (n,). None: random order only.

    Pairs 0 and 1 belong to document 7, pairs 2 and 3 to document 8. Each batch has both documents:

    >>> documents = np.array([7, 7, 8, 8])
    >>> stream = PairStream(documents, size=2, seed=0)
    >>> [sorted(documents[stream.batch(number)].tolist()) for number in range(4)]
    [[7, 8], [7, 8], [7, 8], [7, 8]]
    """

    def __init__(
        self,
        documents: np.ndarray,
        size: int,
        seed: int | Sequence[int],
        leaves: np.ndarray | None = None,
    ) -> None:
        self.documents = documents
        self.size = min(size, len(documents))
        self.seed = seed
        self.leaves = leaves
        self.per_epoch = 0
        if self.size:
            self.per_epoch = len(documents) // self.size
        self._epoch = -1
        self._batches: list[np.ndarray] = []

    def batch(self, number: int) -> np.ndarray:
        """Return the pairs of a batch, as positions in `documents`, (size,) int64.

        Args:
            number: Number of the batch, from 0, counted through all epochs.
        """
        # Without pairs, for example because the corpus has no judgements, a batch is empty.
        if not self.per_epoch:
            return np.empty(0, dtype=np.int64)

        epoch, index = divmod(number, self.per_epoch)
        # Batches are usually requested in order, so the batches of the present epoch are kept.
        if epoch != self._epoch:
            self._epoch = epoch
            self._batches = self._make_epoch(epoch)
        return self._batches[index]

    def _make_epoch(self, epoch: int) -> list[np.ndarray]:
        """Return the batches of an epoch, whose order depends on its number and the seed."""
        rng = np.random.default_rng([*np.atleast_1d(self.seed), epoch])
        order = rng.permutation(len(self.documents))
        if self.leaves is not None:
            order = pair_by_leaf(order, self.leaves)
        return distinct_batches(order, self.documents, self.size)


def distinct_batches(order: np.ndarray, documents: np.ndarray, size: int) -> list[np.ndarray]:
    """Divide pairs into batches of `size` pairs of different documents, in the given order.

    A pair waits for the next batch if its document is already in the batch. If the waiting pairs
    have too few different documents to fill a batch, each document may enter the batch a second
    time, and so on. If fewer than `size` pairs remain at the end, they are left out.

    Args:
        order: The pairs in the given order, (n,).
        documents: Document number of each pair.
        size: Number of pairs in a batch.

    Returns:
        The batches, (size,) each.

    >>> batches = distinct_batches(np.array([0, 1, 2, 3]), np.array([5, 5, 6, 7]), size=2)
    >>> [batch.tolist() for batch in batches]
    [[0, 2], [1, 3]]
    """
    # A place is a position in `order`. Of each document, only the first waiting pair may enter the
    # batch. `candidates` is a heap of the places of these pairs. A sorted list is a heap.
    first_places, next_places = _link_by_document(documents[order])
    candidates = first_places.tolist()
    next_of = next_places.tolist()

    batches = []
    for _ in range(len(order) // size):
        batch: list[int] = []
        entered: list[int] = []
        while len(batch) < size:
            if not candidates:
                # All documents are in the batch. Their next pairs may enter it as well.
                candidates = sorted(next_of[place] for place in entered if next_of[place] != END)
                entered = []
            place = heapq.heappop(candidates)
            batch.append(place)
            entered.append(place)
        # For the next batch, the documents of the batch take part with their next pairs.
        for place in entered:
            if next_of[place] != END:
                heapq.heappush(candidates, next_of[place])
        batches.append(order[batch])
    return batches


def _link_by_document(documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Link each place to the next place with the same document.

    Args:
        documents: Document at each place, (n,).

    Returns:
        The first place of each document, ascending, (d,). And for each place the next place with
        the same document, (n,), or `END` if there is none.
    """
    # All places, grouped by document and ascending for each document.
    places = np.argsort(documents, kind="stable")
    is_first = np.ones(len(places), dtype=bool)
    is_first[1:] = documents[places[1:]] != documents[places[:-1]]

    next_places = np.full(len(places), END)
    has_next = ~is_first[1:]
    next_places[places[:-1][has_next]] = places[1:][has_next]
    return np.sort(places[is_first]), next_places


def pair_by_leaf(order: np.ndarray, leaves: np.ndarray) -> np.ndarray:
    """Reorder pairs so that two pairs of the same leaf node follow each other, where possible.

    Two such pairs form a couple. Couples, and pairs that have no partner, are ordered by the
    position of their first pair in `order`.

    Args:
        order: The pairs in their order, (n,).
        leaves: Leaf node of each pair.

    Returns:
        The same pairs in the new order, (n,).

    >>> pair_by_leaf(np.array([0, 1, 2, 3, 4]), np.array([9, 8, 9, 9, 8])).tolist()
    [0, 2, 1, 4, 3]
    """
    # The pairs of each couple, by the position of the first one in `order`. A couple without a
    # partner has one pair.
    couples: defaultdict[int, list[int]] = defaultdict(list)
    # For each leaf with a pair that has no partner yet: the position of this pair.
    position_of_single: dict[int, int] = {}
    for position, pair in enumerate(order.tolist()):
        leaf = int(leaves[pair])
        if leaf in position_of_single:
            first_position = position_of_single.pop(leaf)
            couples[first_position].append(pair)
        else:
            position_of_single[leaf] = position
            couples[position].append(pair)

    reordered: list[int] = []
    for position in sorted(couples):
        reordered.extend(couples[position])
    return np.array(reordered, dtype=np.int64)


class BatchSchedule:
    """The pairs of every batch of a training.

    A supervised pair has a judged query, and an unsupervised pair has a pseudo-query, which was
    generated. In each batch, the supervised pairs come first.

    Args:
        data: The training data.
        settings: Batch size, steps or epochs, and the mix of supervised and unsupervised pairs.
        seed: Seed of the order.
        leaves: Leaf node of each passage, (N,). With `batches: siblings`, two pairs of one leaf are
            in the same batch.

    Each batch of this joint training holds one supervised and one unsupervised pair. An epoch is
    one pass over the four supervised pairs, so it takes four batches:

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
        self._supervised_pairs = len(data.supervised)
        self._streams = []
        sizes = _sizes(data, settings)
        for kind, pairs in enumerate((data.supervised, data.unsupervised)):
            documents = data.passages.documents[pairs.passages]
            pair_leaves = None
            if leaves is not None and settings.batches == "siblings":
                pair_leaves = leaves[pairs.passages]
            self._streams.append(PairStream(documents, sizes[kind], [seed, kind], pair_leaves))

        # An epoch is one pass over the supervised pairs. Without supervised pairs, it is one pass
        # over the unsupervised pairs.
        supervised, unsupervised = self._streams
        main_stream = supervised if supervised.per_epoch else unsupervised
        # Number of batches of one optimiser step, in all processes together.
        self.per_step = settings.accumulation
        if settings.steps is not None:
            self.steps = settings.steps
        else:
            batches = settings.epochs * main_stream.per_epoch
            self.steps = max(1, round(batches / self.per_step))
        if supervised.per_epoch and settings.steps is None:
            self._warn_if_short(len(data.supervised), len(data.unsupervised), settings)

    def _warn_if_short(
        self, supervised: int, unsupervised: int, settings: TrainingSettings
    ) -> None:
        """Warn if training is very short because there are few supervised pairs.

        No warning is given if training on the unsupervised pairs alone would be as short.

        Args:
            supervised: Number of supervised pairs.
            unsupervised: Number of unsupervised pairs.
            settings: Batch size and epochs.
        """
        steps_alone = round(settings.epochs * unsupervised / settings.batch_size / self.per_step)
        if self.steps < min(MIN_USEFUL_STEPS, steps_alone):
            warnings.warn(
                f"training takes only {self.steps} steps, because an epoch is one pass over the "
                f"{supervised} supervised pairs. The {unsupervised:,} pseudo-queries alone would "
                f"take {steps_alone} steps. Set training.steps, or supervision: unsupervised",
                stacklevel=3,
            )

    def __len__(self) -> int:
        """Return the number of batches of the whole training, in all processes together."""
        return self.steps * self.per_step

    def __getitem__(self, number: int) -> np.ndarray:
        """Return the pairs of batch `number`, (B,) int64, numbered as in `TrainingData.pairs`."""
        if not 0 <= number < len(self):
            raise IndexError(number)
        supervised, unsupervised = (stream.batch(number) for stream in self._streams)
        return np.concatenate([supervised, unsupervised + self._supervised_pairs])


def _sizes(data: TrainingData, settings: TrainingSettings) -> tuple[int, int]:
    """Return how many supervised and how many unsupervised pairs a batch has.

    If the data has only one kind of pair, it fills the whole batch.
    """
    if not len(data.unsupervised):
        return settings.batch_size, 0
    if not len(data.supervised):
        return 0, settings.batch_size
    return settings.batch_size - settings.unsupervised_in_batch, settings.unsupervised_in_batch


class TrainingBatch(NamedTuple):
    """B pairs and E extra negative passages as tensors.

    Attributes:
        queries: The B queries, tokenised.
        documents: The relevant passage of each pair, then the E extra negatives, tokenised.
        relevant: Whether the document of pair j is relevant to query i, (B, B) bool.
        allowed: Whether extra passage e is a negative of query i, (B, E) bool.
        unsupervised: Whether the query of the pair is a pseudo-query, (B,) bool.
        paths: The node of the hierarchy above each pair's passage, at each of M levels, (B, M)
            int64. None without a hierarchy loss.
        excluded: For each level t with K_t nodes, whether a node is above a passage that answers
            query i, (B, K_t) bool. Such a node is no negative of the query. All entries are None if
            each query has one relevant passage. The whole list is None without a hierarchy loss.
    """

    queries: LengthBuckets
    documents: LengthBuckets
    relevant: Tensor
    allowed: Tensor
    unsupervised: Tensor
    paths: Tensor | None
    excluded: list[Tensor | None] | None


class Collator:
    """Makes the tensors of batches. A batch depends on its number, and not on earlier calls.

    Args:
        data: The training data.
        settings: Lengths, negatives and hierarchy levels.
        tokenize: Function from texts and the maximum number of tokens to padded features.
        seed: Seed of the negatives.
        hierarchy: Required if `hierarchy_weight` is above 0, or if negatives are siblings.
        batch_tokens: Largest number of tokens per bucket; see `bucket_by_length`.
        negatives: Sampler of the extra passages. None: the sampler that the settings name.
        prompts: Texts to put before queries and documents.
    """

    def __init__(
        self,
        data: TrainingData,
        settings: TrainingSettings,
        tokenize: Tokenize,
        seed: int,
        hierarchy: Hierarchy | None = None,
        batch_tokens: int = 1024,
        negatives: NegativeSampler | None = None,
        prompts: Prompts | None = None,
    ) -> None:
        self.data = data
        self.settings = settings
        self.tokenize = tokenize
        self.seed = seed
        self.batch_tokens = batch_tokens
        self.prompts = Prompts() if prompts is None else prompts
        self.negatives = negatives or make_negative_sampler(data, settings, hierarchy)
        self.tree = hierarchy if settings.hierarchy_weight > 0 else None
        if self.tree is not None:
            # The node above each passage at each level, (N, M).
            self.paths = self.tree.paths()[:, : settings.hierarchy_levels].astype(np.int64)

    def __call__(self, number: int, pairs: np.ndarray) -> TrainingBatch:
        """Make the tensors of one batch.

        Args:
            number: Number of the batch in the training, which seeds the draw of negatives.
            pairs: Pairs of the batch, numbered as in `TrainingData.pairs`, (B,).
        """
        all_pairs = self.data.pairs
        passages = self.data.passages

        # Each pair's passage, the documents that answer its query, and the passages of these
        # documents.
        positives = all_pairs.passages[pairs]
        relevant = [all_pairs.relevant[pair] for pair in pairs]
        relevant_passages = [passages.of_all(documents) for documents in relevant]

        # Draw extra negatives for each pair. `extra` has the E different passages that were drawn
        # for any pair of the batch.
        rng = np.random.default_rng([self.seed, number])
        drawn = self.negatives.draw(pairs, relevant_passages, rng)
        extra = sorted(set(itertools.chain.from_iterable(drawn)))

        queries = [all_pairs.queries[pair] for pair in pairs]
        texts = [passages.texts[passage] for passage in (*positives.tolist(), *extra)]
        documents = self.tokenize(
            self.prompts.to_documents(texts), self.settings.document_max_tokens
        )
        is_relevant = membership_mask(relevant, passages.documents[positives])
        is_allowed = self._negatives_of(pairs, drawn, extra, relevant_passages)
        return TrainingBatch(
            queries=self.query_features(queries),
            documents=bucket_by_length(documents, self.batch_tokens),
            relevant=torch.from_numpy(is_relevant),
            allowed=torch.from_numpy(is_allowed),
            unsupervised=torch.from_numpy(pairs >= len(self.data.supervised)),
            **self.hierarchy_targets(positives, relevant_passages),
        )

    def _negatives_of(
        self,
        pairs: np.ndarray,
        drawn: Sequence[list[int]],
        extra: Sequence[int],
        relevant: Sequence[np.ndarray],
    ) -> np.ndarray:
        """Return whether each extra passage is a negative of each query, (B, E) bool.

        With `shared_negatives`, a passage is a negative of every query that it does not answer.
        Otherwise it is a negative only of the queries that it was drawn for.

        Args:
            pairs: Pairs of the batch, (B,).
            drawn: For each pair, the extra passages that were drawn for it.
            extra: The E different extra passages.
            relevant: For each pair, the passages that answer its query.
        """
        passages = np.array(extra, dtype=np.int64)
        if not self.settings.shared_negatives:
            return membership_mask(drawn, passages)

        is_negative = np.empty((len(pairs), len(passages)), dtype=bool)
        for row, pair in enumerate(pairs.tolist()):
            is_negative[row] = self.negatives.are_negatives(pair, passages, relevant[row])
        return is_negative

    def hierarchy_targets(
        self, positives: np.ndarray, relevant: Sequence[np.ndarray]
    ) -> dict[str, Any]:
        """Return the attributes `paths` and `excluded` of a `TrainingBatch`.

        Args:
            positives: Number of each pair's passage, (B,).
            relevant: For each pair, the passages that answer its query.
        """
        if self.tree is None:
            return {"paths": None, "excluded": None}
        levels = self.paths.shape[1]
        node_counts = [len(parents) for parents in self.tree.parents[:levels]]
        return {
            "paths": torch.from_numpy(self.paths[positives]),
            "excluded": nodes_above(self.paths, node_counts, relevant),
        }

    def query_features(self, queries: Sequence[str]) -> LengthBuckets:
        """Put the prompt before queries, tokenise them, and group them by length."""
        prompted = self.prompts.to_queries(queries)
        features = self.tokenize(prompted, self.settings.query_max_tokens)
        return bucket_by_length(features, self.batch_tokens)


def membership_mask(
    sets: Sequence[Sequence[int] | frozenset[int]], items: np.ndarray
) -> np.ndarray:
    """Return whether each set contains each item, (len(sets), len(items)) bool.

    >>> membership_mask([[3], [1, 2]], np.array([1, 3])).tolist()
    [[False, True], [True, False]]
    """
    different_items, positions = np.unique(items, return_inverse=True)
    sizes = [len(members) for members in sets]
    rows = np.repeat(np.arange(len(sets)), sizes)
    members = np.fromiter(itertools.chain.from_iterable(sets), dtype=np.int64, count=sum(sizes))

    is_item = np.isin(members, different_items)
    columns = np.searchsorted(different_items, members[is_item])
    mask = np.zeros((len(sets), len(different_items)), dtype=bool)
    mask[rows[is_item], columns] = True
    return mask[:, positions]


def nodes_above(
    paths: np.ndarray, nodes: Sequence[int], relevant: Sequence[np.ndarray]
) -> list[Tensor | None]:
    """Mark, for each query, the nodes of the hierarchy above any passage that answers it.

    The node above the passage of the query's own pair is marked as well. The hierarchy loss still
    uses it as the positive node.

    Args:
        paths: The node above every passage at each of M levels, (N, M).
        nodes: Number K_t of nodes of each level t.
        relevant: For each of B queries, the passages that answer it.

    Returns:
        A mask (B, K_t) bool for each level. Only None for each level if each query has one relevant
        passage.
    """
    # List the relevant passages of all queries one after the other, and the query of each of them.
    counts = [len(passages) for passages in relevant]
    rows = np.repeat(np.arange(len(relevant)), counts)
    has_one_passage_per_query = len(rows) == len(relevant)
    if has_one_passage_per_query:
        return [None] * len(nodes)

    ancestors = paths[np.concatenate(relevant)]
    masks: list[Tensor | None] = []
    for level, count in enumerate(nodes):
        mask = np.zeros((len(relevant), count), dtype=bool)
        mask[rows, ancestors[:, level]] = True
        masks.append(torch.from_numpy(mask))
    return masks
