"""Compare our encoder with `SentenceTransformer.encode` on texts of mixed length.

Both use the same weights and the same token limit.
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
# Texts encoded before timing starts.
WARM = 64
PEER = "texts/s against sentence-transformers"


def rows(
    texts: int = 5000,
    base: str | Path = BASE,
    max_tokens: int = 128,
    rounds: int = 3,
    device: str = "auto",
) -> list[dict[str, Any]]:
    """Compare texts per second with the peer, and the cosine of the vectors.

    The peer runs as installed, and in bfloat16 if the device supports it. The goal against the peer
    as installed is 2.5 where bfloat16 helps us and 1.3 where it cannot. The goal against the peer
    in bfloat16 is 1.5 on a GPU, where this comparison counts, and 1.3 on a CPU. Values are medians
    of `rounds`. Requires sentence-transformers.
    """
    sample = mixed_texts(texts)
    # The stages load their encoder in the same way.
    encoder = Encoder.load(base, max_tokens, device=device, for_search=True)
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
    """Return the median seconds and the vectors of each encoder."""
    vectors: list[np.ndarray] = [encode(sample[:WARM]) for encode in encoders]

    def task(number: int) -> Callable[[], None]:
        def work() -> None:
            vectors[number] = encoders[number](sample)

        return work

    spent = all_seconds([task(number) for number in range(len(encoders))], rounds)
    return np.median(spent, axis=0).tolist(), vectors


def _operations(encoder: Encoder, texts: list[str]) -> float:
    """Count floating-point operations of a BERT's matrix products on `texts`, without padding.

    Per token and layer: 2 (4 H^2 + 2 H I) for the projections and 4 T H for attention over the T
    tokens of its text.
    """
    config = encoder.backbone.config
    hidden, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    lengths = encoder.tokenize(texts)["attention_mask"].sum(dim=1).double()
    projections = 2 * (4 * hidden**2 + 2 * hidden * inner) * lengths
    return layers * float((projections + 4 * hidden * lengths**2).sum())


def mixed_texts(count: int) -> list[str]:
    """Return runs of words from the standard library's documentation.

    Lengths are log-normal around 40 words, from 3 to 250.
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
    """Return `SentenceTransformer.encode` with its defaults, optionally under bfloat16 autocast."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device=str(device))
    model.max_seq_length = max_tokens

    def encode(texts: list[str]) -> np.ndarray:
        """Return vectors (n, H) float32, computed in the same precision as ours."""
        with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
            return np.asarray(model.encode(texts, show_progress_bar=False), dtype=np.float32)

    return encode
