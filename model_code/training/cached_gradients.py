"""Cached gradients: batches whose activations do not fit in memory.

A contrastive loss needs the vectors of the whole batch at once. GradCache (Gao et al., "Scaling
Deep Contrastive Learning Batch Size under Memory Limited Setup", 2021) first encodes a batch in
parts without activations, and computes the gradient of the loss in each vector. Then it encodes
each part again, and continues from that gradient. torch's checkpointing of each part is the same
computation. It also repeats random states and autocast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch.utils.checkpoint import checkpoint

Input = TypeVar("Input")
Output = TypeVar("Output")


def without_activations(encode: Callable[[Input], Output]) -> Callable[[Input], Output]:
    """Return `encode` without stored activations: the backward pass encodes each input again.

    Values and gradients are those of `encode`. Memory for activations is that of the largest single
    input, and not of all inputs together.

    Args:
        encode: Encodes a part of a batch, such as a bucket of texts of like length.
    """

    def encode_and_recompute(features: Input) -> Output:
        encoded: Output = checkpoint(encode, features, use_reentrant=False)
        return encoded

    return encode_and_recompute
