"""The identity of a loaded encoder: two encoders with one fingerprint give one text the same vector.

Hashed is what runs, not a name or label: the same width with other weights must not pass for the same encoder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def fingerprint(weights: Mapping[str, torch.Tensor], tokenizer: Any, pooling: str, max_tokens: int) -> str:
    """SHA-256 over the weights (names sorted, float32), the tokenizer's rules, the pooling and the length limit."""
    digest = hashlib.sha256(f"{pooling} {max_tokens}\n{tokenizer_rules(tokenizer)}\n".encode())
    for name in sorted(weights):
        values = weights[name].detach().to("cpu", torch.float32).contiguous().numpy()
        digest.update(f"{name} {values.shape}\n".encode())
        digest.update(np.ascontiguousarray(values, dtype="<f4").data)
    return digest.hexdigest()


def tokenizer_rules(tokenizer: Any) -> str:
    """The tokenizer as JSON without its padding and truncation, which are state of the last call."""
    rules = json.loads(tokenizer.backend_tokenizer.to_str())
    return json.dumps(rules | {"padding": None, "truncation": None}, sort_keys=True)
