"""Encoding texts of mixed length: our encoder against `SentenceTransformer.encode`, same weights,
same limit.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measurement import all_seconds, matrix_rate, row, row_without_goal, skipped
from model_code.encoding.base_models import locate_model
from model_code.encoding.encoder import Encoder
from model_code.encoding.hardware import has_bfloat16

BASE = "sentence-transformers/all-MiniLM-L6-v2"
WARM = 64  # texts encoded before the clock runs
PEER = "texts/s against sentence-transformers"


def rows(
    texts: int = 5000,
    base: str | Path = BASE,
    max_tokens: int = 128,
    rounds: int = 3,
    device: str = "auto",
) -> list[dict[str, Any]]:
    """Texts per second against the peer as installed, against it in bfloat16 where the device has
    that, and the cosine.

    The goal against the peer as installed is 2.5 where bfloat16 helps us and 1.3 where it cannot;
    on a GPU, where the peer in bfloat16 is the one that counts, it is 1.5 times that. Medians of
    `rounds`. Needs sentence-transformers.
    """
    sample = mixed_texts(texts)
    encoder = Encoder.load(base, max_tokens, device=device, for_search=True)  # as the stages encode
    on_gpu, bfloat16 = encoder.device.type == "cuda", has_bfloat16(encoder.device)
    kinds = (False, True) if bfloat16 else (False,)
    peers = [peer_encode(locate_model(base), max_tokens, encoder.device, kind) for kind in kinds]
    spent, vectors = _race([encoder.encode_passages, *peers], sample, rounds)
    ours, *theirs = (texts / each for each in spent)
    found = [row(f"{PEER} as installed", ours, theirs[0], goal=2.5 if bfloat16 else 1.3)]
    name = f"{PEER} in bfloat16"
    if bfloat16:
        found.append(row(name, ours, theirs[1], goal=1.5 if on_gpu else 1.3))
    else:
        found.append(
            skipped(
                name, "this processor has no bfloat16 instructions, and emulates them more slowly"
            )
        )
    cosine = float((vectors[0] * vectors[1]).sum(axis=1).min())
    rate = _operations(encoder, sample) / spent[0] / 1e9
    peak = matrix_rate(str(encoder.device), torch.bfloat16 if bfloat16 else torch.float32) / 1e9
    return [
        *found,
        row("smallest cosine to the peer's vector", cosine, 1.0, goal=0.9999),
        row_without_goal(
            "GFLOP/s, padding not counted, against a large matrix product", rate, peak
        ),
    ]


def _race(
    encoders: list[Callable[[list[str]], np.ndarray]], sample: list[str], rounds: int
) -> tuple[list[float], list[np.ndarray]]:
    """Median seconds of each, and its vectors."""
    vectors: list[np.ndarray] = [encode(sample[:WARM]) for encode in encoders]

    def task(number: int) -> Callable[[], None]:
        def work() -> None:
            vectors[number] = encoders[number](sample)

        return work

    spent = all_seconds([task(number) for number in range(len(encoders))], rounds)
    return np.median(spent, axis=0).tolist(), vectors


def _operations(encoder: Encoder, texts: list[str]) -> float:
    """Floating-point operations of the matrix products of a BERT on `texts`, as if none were
    padded.

    Per token and layer 2 (4 H^2 + 2 H I) for the projections and 4 T H for attention over the T
    tokens of its text.
    """
    config = encoder.backbone.config
    hidden, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    lengths = encoder.tokenize(texts)["attention_mask"].sum(dim=1).double()
    projections = 2 * (4 * hidden**2 + 2 * hidden * inner) * lengths
    return layers * float((projections + 4 * hidden * lengths**2).sum())


def mixed_texts(count: int) -> list[str]:
    """Runs of words from the standard library's own documentation, 3 to 250 words, log-normal
    around 40.
    """
    words = " ".join(
        filter(None, map(inspect.getdoc, (inspect, random, Path, dict, str, np.ndarray)))
    ).split()
    chance = random.Random(0)
    lengths = [int(min(250, max(3, chance.lognormvariate(3.6, 0.9)))) for _ in range(count)]
    starts = [chance.randrange(len(words) - length) for length in lengths]
    return [
        " ".join(words[start : start + length])
        for start, length in zip(starts, lengths, strict=True)
    ]


def peer_encode(
    folder: Path, max_tokens: int, device: torch.device, bfloat16: bool
) -> Callable[[list[str]], np.ndarray]:
    """`SentenceTransformer.encode` with its own defaults, under bfloat16 autocast if so wished."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device=str(device))
    model.max_seq_length = max_tokens

    def encode(texts: list[str]) -> np.ndarray:
        """Vectors (n, H) float32, in the precision that ours has."""
        with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
            return np.asarray(model.encode(texts, show_progress_bar=False), dtype=np.float32)

    return encode
