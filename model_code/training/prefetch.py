"""Batches that other processes prepare ahead of the training.

A batch on a GPU takes a fraction of a second. To draw its negatives and to tokenise its texts takes
as long on one CPU core. With `training.workers`, other processes do this while the GPU computes.
A batch depends only on its number and the seed, so the training does not change.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

# Seconds after which a batch that no process delivers is an error, in place of endless waiting.
TIMEOUT_SECONDS = 300

Collate = Callable[[int, np.ndarray], Any]
"""A function from the number and the pairs of a batch to its tensors."""


class PrefetchedBatches:
    """A collator whose batches are made by other processes, in a fixed order.

    Args:
        collate: Makes the tensors of a batch.
        schedule: The pairs of each batch.
        numbers: Numbers of the batches, in the order in which they will be asked for.
        workers: Number of processes.
        pin_memory: Whether tensors are put into pinned memory, which a GPU copies faster.

    >>> batches = PrefetchedBatches(lambda number, pairs: pairs + number, [np.arange(2)] * 3,
    ...                             [0, 2], workers=1)
    >>> batches(0, np.arange(2)).tolist(), batches(2, np.arange(2)).tolist()
    ([0, 1], [2, 3])
    """

    def __init__(
        self,
        collate: Collate,
        schedule: Sequence[np.ndarray] | Any,
        numbers: Sequence[int],
        workers: int,
        pin_memory: bool = False,
    ) -> None:
        self._numbers = iter(numbers)
        # Forked processes share the texts and the hierarchy without a copy. Forking is safe,
        # because they do not use the GPU.
        self._loader = DataLoader(
            _Batches(collate, schedule, numbers),
            batch_size=None,
            num_workers=workers,
            multiprocessing_context="fork",
            collate_fn=_unchanged,
            worker_init_fn=_tokenize_in_one_thread,
            timeout=TIMEOUT_SECONDS,
            pin_memory=pin_memory,
        )
        self._batches: Iterator[Any] | None = None

    def __call__(self, number: int, pairs: np.ndarray) -> Any:
        """Return the next prepared batch, and wait for it if it is not ready.

        Args:
            number: Number of the batch.
            pairs: Pairs of the batch. They are ignored, because the schedule has the same pairs.

        Raises:
            ValueError: If the batch is not the next one.
        """
        if self._batches is None:
            self._batches = iter(self._loader)
        expected = next(self._numbers)
        if number != expected:
            raise ValueError(f"batch {expected} is prepared, and batch {number} was asked for")
        return next(self._batches)


class _Batches(Dataset[Any]):
    """A torch data set whose item i is the tensors of the batch `numbers[i]`."""

    def __init__(
        self, collate: Collate, schedule: Sequence[np.ndarray] | Any, numbers: Sequence[int]
    ) -> None:
        self.collate = collate
        self.schedule = schedule
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, position: int) -> Any:
        number = self.numbers[position]
        return self.collate(number, self.schedule[number])


def _tokenize_in_one_thread(_: int) -> None:
    """Switch off the threads of the tokenizer in a worker process.

    A fork does not copy threads, so a tokenizer that uses them would wait forever.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _unchanged(batch: Any) -> Any:
    return batch
