"""Cached gradients: training with batches whose activations do not fit into memory.

A contrastive loss needs the vectors of the whole batch at once. GradCache (Gao et al., "Scaling
Deep Contrastive Learning Batch Size under Memory Limited Setup", 2021) first encodes a batch in
parts without storing activations, and computes the gradient of the loss for each vector. Then it
encodes each part again with activations, and propagates that gradient. PyTorch's checkpointing of
each part does the same computation. It also restores random states and autocast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch.utils.checkpoint import checkpoint

Input = TypeVar("Input")
Output = TypeVar("Output")


def without_activations(encode: Callable[[Input], Output]) -> Callable[[Input], Output]:
    """Return a function like `encode` that stores no activations.

    The backward pass encodes each input again. Values and gradients equal those of `encode`. The
    activations of only one input are in memory at a time.

    Args:
        encode: Encodes a part of a batch, such as a bucket of texts of similar length.
    """

    def encode_and_recompute(features: Input) -> Output:
        encoded: Output = checkpoint(encode, features, use_reentrant=False)
        return encoded

    return encode_and_recompute
