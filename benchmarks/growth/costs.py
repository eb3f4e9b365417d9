"""What each part costs at one size of corpus, in a process of its own, whose memory nothing else has used before.

Seconds are of the processor (all threads), which other work on the machine hardly changes; memory is the most that the
process had in use beyond what it had before the work.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cluster import synthetic_vectors
from benchmarks.encode import BASE

FINGERPRINT, K, QUERIES, ADDED = "growth", 10, 50, 100
ENCODED_SHARE = 100  # one passage in so many is encoded, as a text of 16 words: its cost per passage is what counts
ITERATIONS = 25
AT_LEAST = 0.2  # seconds that short work is repeated for
Cost = dict[str, float]


def measure(passages: int, dimension: int = 384, base: str | Path = BASE) -> Cost:
    """Costs by part: seconds of each, and MiB of two."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        cost = pool.submit(_searching, passages, dimension).result()
    for work in (_clustering, _encoding):
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            cost |= pool.submit(work, passages, base if work is _encoding else dimension).result()
    return cost


def _encoding(passages: int, base: str | Path) -> Cost:
    from benchmarks.encode import mixed_texts
    from model_code.encoding.encoder import Encoder

    encoder = Encoder.load(base, 32, device="cpu")
    texts = [" ".join(text.split()[:16]) for text in mixed_texts(max(1, passages // ENCODED_SHARE))]
    encoder.encode(texts[:8])
    return {"encode": processor_seconds(lambda: encoder.encode(texts)) * passages / len(texts)}


def _clustering(passages: int, dimension: int) -> Cost:
    from model_code.hierarchy.build import build_hierarchy
    from model_code.hierarchy.settings import HierarchySettings

    vectors, cost = synthetic_vectors(passages, dimension, seed=0), {}
    build_hierarchy(vectors[:64], HierarchySettings(device="cpu"), seed=0)
    for method in ("top_down", "bottom_up"):
        settings = HierarchySettings(method, max_iterations=ITERATIONS, device="cpu")
        before = memory_in_use()
        name = f"cluster {method.replace('_', '-')}"
        cost[name] = processor_seconds(lambda settings=settings: build_hierarchy(vectors, settings, seed=0))
        if method == "top_down":
            cost["memory of clustering"] = peak_memory() - before
    return cost


def _searching(passages: int, dimension: int) -> Cost:
    from model_code.index.dense_index import DenseIndex
    from model_code.index.settings import IndexSettings

    vectors = synthetic_vectors(passages + ADDED, dimension, seed=0)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    ids = [f"{i:09d}" for i in range(passages + ADDED)]
    kinds = {"exact": IndexSettings(factory="Flat"), "approximate": IndexSettings(flat_below=1)}
    for settings in kinds.values():  # what is loaded for the first time is none of the costs
        DenseIndex.build(vectors[:100], ids[:100], FINGERPRINT, settings).search(vectors[:1], 1, FINGERPRINT)
    cost: Cost = {}
    for name, settings in kinds.items():
        built: dict[str, Any] = {}

        def build(settings: IndexSettings = settings, built: dict[str, Any] = built) -> None:
            built["index"] = DenseIndex.build(vectors[:passages], ids[:passages], FINGERPRINT, settings)

        before = memory_in_use()
        seconds = processor_seconds(build, once=True)
        if name == "approximate":
            cost["build an approximate index"] = seconds
            cost["memory of an approximate index"] = peak_memory() - before
        cost |= _use(built["index"], name, vectors, ids, passages)
    return cost


def _use(index: Any, name: str, vectors: np.ndarray, ids: list[str], passages: int) -> Cost:
    """Seconds of a query, and of adding `ADDED` documents at once."""
    asked = np.ascontiguousarray(vectors[np.linspace(0, passages - 1, QUERIES).astype(int)])
    index.search(asked[:1], K, FINGERPRINT)

    def search() -> None:
        for query in asked:
            index.search(query[None], K, FINGERPRINT)

    searching = processor_seconds(search) / QUERIES
    adding = processor_seconds(lambda: index.add(vectors[passages:], ids[passages:], FINGERPRINT), once=True)
    return {f"search, {name}": searching, f"add {ADDED} to an index, {name}": adding}


def processor_seconds(work: Callable[[], Any], once: bool = False) -> float:
    """Processor time of one call, the mean of as many as take `AT_LEAST` seconds."""
    started, calls = time.process_time(), 0
    while True:
        work()
        calls += 1
        spent = time.process_time() - started
        if once or spent >= AT_LEAST:
            return spent / calls


def memory_in_use() -> float:
    """MiB that this process has in use now, from here on also the most that `peak_memory` knows of (Linux only)."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak_memory() -> float:
    """The most MiB in use since `memory_in_use`."""
    return _status("VmHWM")


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 2**10
