"""One encoder for queries and documents, or one for each: what dense and lexical encoders have in common here.

An encoder is the documents' side, and may hold the queries' side as a part of itself. So devices, optimisers and
checkpoints take both along, and whoever carries the folder of an encoder carries both.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from model_code.encoding.layout import Prompts
from model_code.errors import FingerprintMismatch, FreshetError
from model_code.files import hash_text

QUERY_ENCODER = "query_encoder"  # where the queries' side lies in the folder of the documents'
SIDES = "sides"  # of a manifest: what `TwoSided.fingerprints` gives, if there are two


class TwoSided(torch.nn.Module):
    """query_encoder: an encoder of the same kind that queries go to; None: they go to this one, like documents.

    prompts: what stands before queries and documents; lexical encoders, which read words, have none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.query_encoder: Self | None = None
        self.prompts = Prompts()

    @property
    def query_side(self) -> Self:
        """What encodes queries."""
        return self if self.query_encoder is None else self.query_encoder

    @property
    def sides(self) -> tuple[Self, ...]:
        """This encoder and, if there is one, that of queries."""
        return (self,) if self.query_encoder is None else (self, self.query_encoder)

    def separate(self) -> None:
        """Give queries a copy of the weights as they are now, which learns by itself from then on."""
        self.query_encoder = copy.deepcopy(self, {id(self.tokenizer): self.tokenizer})

    def own_weights(self) -> dict[str, torch.Tensor]:
        """The state of this side alone."""
        state: dict[str, torch.Tensor] = self.state_dict()
        return {name: weight for name, weight in state.items() if not name.startswith(f"{QUERY_ENCODER}.")}

    def own_fingerprint(self) -> str:
        """SHA-256 of what decides the vectors of this side."""
        raise NotImplementedError

    def fingerprints(self) -> dict[str, str]:
        """That of each side: "documents" and, if queries have an encoder of their own, "queries"."""
        return dict(zip(("documents", "queries"), (side.own_fingerprint() for side in self.sides), strict=False))

    def fingerprint(self) -> str:
        """SHA-256 of what decides the vectors of both sides."""
        return joined(self.fingerprints())

    def side_facts(self) -> dict[str, dict[str, str]]:
        """For a report or a manifest: `SIDES`, where there are two; else nothing."""
        return {} if self.query_encoder is None else {SIDES: self.fingerprints()}


def joined(fingerprints: Mapping[str, str]) -> str:
    """One fingerprint of one side or two.

    >>> joined({"documents": "d"}), joined({"documents": "d", "queries": "q"})[:12]
    ('d', '1ee499dabe56')
    """
    return fingerprints["documents"] if len(fingerprints) == 1 else hash_text(" ".join(fingerprints.values()))


def require_sides(fingerprints: Mapping[str, str], manifest: Mapping[str, object], folder: Path) -> None:
    """FingerprintMismatch, naming the side, if the index in `folder` was built with other `fingerprints`.

    Of a manifest without `SIDES` there is nothing to say here: its one fingerprint is compared in every search.
    """
    stated: Mapping[str, str] = manifest.get(SIDES, {})  # type: ignore[assignment]
    for side, fingerprint in stated.items():
        other = fingerprints.get(side, fingerprints["documents"])
        if other != fingerprint:
            raise FingerprintMismatch(
                f"{folder} was built with separate encoders, and that of {side} was {fingerprint[:12]}; this one is "
                f"{other[:12]}: keep both sides as they were trained, or build the index again"
            )


def require_one_side(folder: Path) -> None:
    """FreshetError if an encoder's folder has two sides: both sides of a retriever start from the same weights."""
    if (folder / QUERY_ENCODER).is_dir():
        raise FreshetError(
            f"{folder} has a query encoder of its own, but encoder.base must be one encoder for both sides; name "
            f"{folder / QUERY_ENCODER}, or a base that was trained with encoders: shared"
        )


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
