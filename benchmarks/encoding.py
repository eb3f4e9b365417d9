"""Compare our encoder with `SentenceTransformer.encode` on texts of mixed length.

Both use the same weights and the same token limit.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.machine_limits import matrix_rate
from benchmarks.measurement import all_seconds, row, row_without_goal, skipped
from model_code.encoding.base_models import locate_model
from model_code.encoding.encoder import Encoder
from model_code.encoding.hardware import has_bfloat16

BASE = "sentence-transformers/all-MiniLM-L6-v2"
# Number of texts that are encoded before timing starts.
WARM_UP_TEXTS = 64
PEER_LABEL = "texts/s against sentence-transformers"


def rows(
    texts: int = 5000,
    base: str | Path = BASE,
    max_tokens: int = 128,
    rounds: int = 3,
    device: str = "auto",
) -> list[dict[str, Any]]:
    """Compare texts per second with the peer, and the cosine of the vectors.

    The peer is sentence-transformers, which must be installed. It runs with its defaults, which
    means float32, and in bfloat16 if the device supports it. Our encoder uses bfloat16 if the
    device supports it. Against the peer's defaults, the goal is a ratio of 2.5 on a device with
    bfloat16, and 1.3 on others. Against the peer in bfloat16, it is 1.5 on a GPU and 1.3 on a CPU.
    Values are medians of `rounds`.

    Args:
        texts: Number of texts.
        base: Encoder of both sides.
        max_tokens: Tokens after which a text is cut off.
        rounds: Runs of each side.
        device: Device of both sides.
    """
    sample = mixed_texts(texts)
    # The stages load their encoder in the same way.
    encoder = Encoder.load(base, max_tokens, device=device, for_search=True)
    on_gpu = encoder.device.type == "cuda"
    bfloat16 = has_bfloat16(encoder.device)

    folder = locate_model(base)
    encode_functions = [
        encoder.encode_documents_by_last_layer,
        peer_encode(folder, max_tokens, encoder.device, bfloat16=False),
    ]
    if bfloat16:
        encode_functions.append(peer_encode(folder, max_tokens, encoder.device, bfloat16=True))
    median_times, vectors = _time_in_turns(encode_functions, sample, rounds)
    texts_per_second = [texts / seconds for seconds in median_times]
    results = _speed_rows(texts_per_second, on_gpu)

    cosine = float((vectors[0] * vectors[1]).sum(axis=1).min())
    results.append(row("smallest cosine to the peer's vector", cosine, 1.0, goal=0.9999))

    dtype = torch.bfloat16 if bfloat16 else torch.float32
    encoder_rate = _count_operations(encoder, sample) / median_times[0] / 1e9
    largest_rate = matrix_rate(str(encoder.device), dtype) / 1e9
    results.append(
        row_without_goal(
            "GFLOP/s, padding not counted, against a large matrix product",
            encoder_rate,
            largest_rate,
        )
    )
    return results


def _speed_rows(texts_per_second: list[float], on_gpu: bool) -> list[dict[str, Any]]:
    """Compare texts per second with the peer as installed, and with the peer in bfloat16.

    Args:
        texts_per_second: Speed of our encoder, of the peer as installed, and of the peer in
            bfloat16. The last one is missing if the device has no bfloat16.
        on_gpu: Whether the device is a GPU, which has another goal.
    """
    ours, peer_as_installed, *peer_in_bfloat16 = texts_per_second
    label = f"{PEER_LABEL} in bfloat16"
    if not peer_in_bfloat16:
        reason = "this processor has no bfloat16 instructions, and emulates them more slowly"
        return [
            row(f"{PEER_LABEL} as installed", ours, peer_as_installed, goal=1.3),
            skipped(label, reason),
        ]
    goal_in_bfloat16 = 1.5 if on_gpu else 1.3
    return [
        row(f"{PEER_LABEL} as installed", ours, peer_as_installed, goal=2.5),
        row(label, ours, peer_in_bfloat16[0], goal=goal_in_bfloat16),
    ]


def _time_in_turns(
    encode_functions: list[Callable[[list[str]], np.ndarray]], sample: list[str], rounds: int
) -> tuple[list[float], list[np.ndarray]]:
    """Encode the same texts with each function in turn.

    Args:
        encode_functions: Functions that return the vectors of texts.
        sample: The texts.
        rounds: Runs of each function.

    Returns:
        The median seconds of each function, and the vectors of each function.
    """
    vectors = [encode(sample[:WARM_UP_TEXTS]) for encode in encode_functions]

    def encode_and_keep(number: int) -> None:
        vectors[number] = encode_functions[number](sample)

    tasks = [partial(encode_and_keep, number) for number in range(len(encode_functions))]
    times = all_seconds(tasks, rounds)
    return np.median(times, axis=0).tolist(), vectors


def _count_operations(encoder: Encoder, texts: list[str]) -> float:
    """Count floating-point operations of a BERT's matrix products on `texts`, without padding.

    For each token and layer these are 2 (4 H^2 + 2 H I) operations for the projections, and 4 T H
    for attention. H is the hidden size, I the inner size, and T the number of tokens of the text.
    """
    config = encoder.backbone.config
    hidden = config.hidden_size
    inner = config.intermediate_size
    lengths = encoder.tokenize(texts)["attention_mask"].sum(dim=1).double()
    projections = 2 * (4 * hidden**2 + 2 * hidden * inner) * lengths
    attention = 4 * hidden * lengths**2
    return config.num_hidden_layers * float((projections + attention).sum())


def mixed_texts(count: int) -> list[str]:
    """Return `count` runs of words from the standard library's documentation.

    Lengths are log-normal around 40 words, from 3 to 250.
    """
    docstrings = [
        inspect.getdoc(documented) or ""
        for documented in (inspect, random, Path, dict, str, np.ndarray)
    ]
    words = " ".join(docstrings).split()

    generator = random.Random(0)
    lengths = []
    for _ in range(count):
        length = generator.lognormvariate(3.6, 0.9)
        lengths.append(int(min(250, max(3, length))))
    # All lengths are drawn before the first start, so that the same seed gives the same texts.
    texts = []
    for length in lengths:
        start = generator.randrange(len(words) - length)
        texts.append(" ".join(words[start : start + length]))
    return texts


def peer_encode(
    folder: Path, max_tokens: int, device: torch.device, bfloat16: bool
) -> Callable[[list[str]], np.ndarray]:
    """Return `SentenceTransformer.encode` with its defaults, optionally under bfloat16 autocast.

    Args:
        folder: Folder of the model.
        max_tokens: Tokens after which a text is cut off.
        device: Device of the model.
        bfloat16: Whether to use autocast.
    """
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device=str(device))
    model.max_seq_length = max_tokens

    def encode(texts: list[str]) -> np.ndarray:
        """Return vectors (n, H) float32, computed in the same precision as ours."""
        with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
            return np.asarray(model.encode(texts, show_progress_bar=False), dtype=np.float32)

    return encode
