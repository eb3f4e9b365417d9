"""Measure the growth of costs with the corpus: the exponents of cost against size.

The exponents are drawn and compared with the ones that each algorithm promises. Each size is
measured in a separate, fresh process. Seconds are processor seconds (all threads), which other work
on the machine hardly changes. Memory is the peak of the process above its memory before the work.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.clustering import synthetic_vectors
from benchmarks.encoding import BASE
from benchmarks.measurement import row_below
from model_code.files import atomic_write
from model_code.progress import Progress, no_progress

FINGERPRINT, K, QUERIES = "growth", 10, 50
# One passage in so many is encoded, as a text of 16 words. The cost per passage is scaled up.
ENCODED_SHARE = 100
ITERATIONS = 25
# Short work is repeated for so many seconds.
AT_LEAST = 0.2
Cost = dict[str, float]


def measure(passages: int, dimension: int = 384, base: str | Path = BASE) -> Cost:
    """Return the costs by part: seconds of each, and MiB of two of them."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        cost = pool.submit(_searching, passages, dimension).result()
    for work in (_clustering, _encoding):
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            cost |= pool.submit(work, passages, base if work is _encoding else dimension).result()
    return cost


def _encoding(passages: int, base: str | Path) -> Cost:
    from benchmarks.encoding import mixed_texts
    from model_code.encoding.encoder import Encoder

    encoder = Encoder.load(base, 32, device="cpu")
    texts = [" ".join(text.split()[:16]) for text in mixed_texts(max(1, passages // ENCODED_SHARE))]
    encoder.encode_passages(texts[:8])
    return {
        "encode": processor_seconds(lambda: encoder.encode_passages(texts)) * passages / len(texts)
    }


def _clustering(passages: int, dimension: int) -> Cost:
    from model_code.hierarchy.build import build_hierarchy
    from model_code.hierarchy.settings import HierarchySettings

    vectors, cost = synthetic_vectors(passages, dimension, seed=0), {}
    build_hierarchy(vectors[:64], HierarchySettings(device="cpu"), seed=0)
    settings, before = HierarchySettings(max_iterations=ITERATIONS, device="cpu"), memory_in_use()
    cost["cluster"] = processor_seconds(lambda: build_hierarchy(vectors, settings, seed=0))
    cost["memory of clustering"] = peak_memory() - before
    return cost


def _searching(passages: int, dimension: int) -> Cost:
    from model_code.retrieval.dense_index import DenseIndex
    from model_code.retrieval.index_settings import ALWAYS_EXACT, IndexSettings

    vectors = synthetic_vectors(passages, dimension, seed=0)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    ids = [f"{i:09d}" for i in range(passages)]
    kinds = {
        "exact": IndexSettings(flat_below=ALWAYS_EXACT),
        "approximate": IndexSettings(flat_below=1),
    }
    # The first search loads libraries, which the costs must not include.
    for settings in kinds.values():
        DenseIndex.build(vectors[:100], ids[:100], FINGERPRINT, settings).search(
            vectors[:1], 1, FINGERPRINT
        )
    cost: Cost = {}
    for name, settings in kinds.items():
        built: dict[str, Any] = {}

        def build(settings: IndexSettings = settings, built: dict[str, Any] = built) -> None:
            built["index"] = DenseIndex.build(vectors, ids, FINGERPRINT, settings)

        before = memory_in_use()
        seconds = processor_seconds(build, once=True)
        if name == "approximate":
            cost["build an approximate index"] = seconds
            cost["memory of an approximate index"] = peak_memory() - before
        cost[f"search, {name}"] = _seconds_of_a_query(built["index"], vectors)
    return cost


def _seconds_of_a_query(index: Any, vectors: np.ndarray) -> float:
    asked = np.ascontiguousarray(vectors[np.linspace(0, len(vectors) - 1, QUERIES).astype(int)])
    index.search(asked[:1], K, FINGERPRINT)

    def search() -> None:
        """Search for all queries one by one, like users."""
        for query in asked:
            index.search(query[None], K, FINGERPRINT)

    return processor_seconds(search) / QUERIES


def processor_seconds(work: Callable[[], Any], once: bool = False) -> float:
    """Return the processor time of one call.

    It is the mean of as many calls as take `AT_LEAST` seconds.
    """
    started, calls = time.process_time(), 0
    while True:
        work()
        calls += 1
        spent = time.process_time() - started
        if once or spent >= AT_LEAST:
            return spent / calls


def memory_in_use() -> float:
    """Return the MiB in use now, and reset the peak for `peak_memory` (Linux only)."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak_memory() -> float:
    """Return the peak of MiB in use since `memory_in_use`."""
    return _status("VmHWM")


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 2**10


def draw(path: Path, sizes: Sequence[int], measured: Mapping[str, Sequence[float]]) -> None:
    """Write a PNG: seconds on the left, MiB on the right, and a grey line of exponent 1."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    for name, values in measured.items():
        axes = right if name.startswith("memory") else left
        axes.plot(sizes, values, marker="o", label=name)
    for axes, unit in ((left, "seconds of processor time"), (right, "MiB")):
        least = min(min(line.get_ydata()) for line in axes.get_lines())
        linear = [least * size / sizes[0] for size in sizes]
        axes.plot(sizes, linear, color="0.7", linestyle="--", label="linear", zorder=0)
        axes.set(xscale="log", yscale="log", xlabel="passages", ylabel=unit)
        axes.grid(alpha=0.3)
        axes.legend(
            fontsize="small",
            loc="lower center",
            bbox_to_anchor=(0.5, 1.0),
            ncols=3 if axes is left else 1,
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as aside:
        figure.savefig(aside, format="png", dpi=110)


SIZES, LARGE = (1_000, 10_000, 100_000), 1_000_000
# Promised exponents. benchmarks/README.md explains them.
PROMISED = {
    "encode": 1.0,
    "cluster": 5 / 3,
    "memory of clustering": 1.0,
    "build an approximate index": 1.5,
    "memory of an approximate index": 1.0,
    "search, exact": 1.0,
    "search, approximate": 0.5,
}
# Accepted excess of an exponent. Over two decades it is a factor of 1.6 in time.
SLACK = 0.1


def rows(
    sizes: Sequence[int] = SIZES,
    dimension: int = 384,
    base: str | Path = BASE,
    output: Path | None = None,
    large: bool = False,
    progress: Progress = no_progress,
) -> list[dict[str, Any]]:
    """Return a row per part: its exponent, the promised one, and whether it is exceeded by `SLACK`.

    Args:
        sizes: Numbers of passages.
        dimension: Numbers per vector.
        base: Encoder.
        progress: Receives the number of finished sizes.
        output: Folder for growth.png. None takes the folder in `FRESHET_BENCH_OUTPUT`, if it is
            set.
        large: Measure up to a million.
    """
    sizes = [*sizes, LARGE] if large else list(sizes)
    found = []
    for done, size in enumerate(sizes, start=1):
        found.append(measure(size, dimension, base))
        progress(done, len(sizes), "sizes")
    measured = {name: [cost[name] for cost in found] for name in PROMISED}
    folder = output or (
        Path(os.environ["FRESHET_BENCH_OUTPUT"]) if os.environ.get("FRESHET_BENCH_OUTPUT") else None
    )
    if folder:
        draw(folder / "growth.png", sizes, measured)
    return exponent_rows(sizes, measured)


def exponent_rows(
    sizes: Sequence[int], measured: Mapping[str, Sequence[float]]
) -> list[dict[str, Any]]:
    """Return rows that are met if the promised exponent is exceeded by at most `SLACK`."""
    table = []
    for name, values in measured.items():
        unit = "MiB" if name.startswith("memory") else "s"
        steps = ", ".join(f"{value:.3g}" for value in values)
        what = f"{name}, {unit} at {', '.join(f'{size:,}' for size in sizes)}: {steps}: exponent"
        ours, promised = exponent(sizes, values), PROMISED[name]
        table.append(row_below(what, ours, promised) | {"goal": f"<= {promised + SLACK:.2f}"})
        table[-1]["met"] = bool(ours <= promised + SLACK)
    return table


def exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
    """Return the exponent e of cost ~ size^e, by least squares of the logarithms.

    >>> round(exponent([10, 100, 1000], [3, 30, 300]), 6)
    1.0
    """
    return float(np.polyfit(np.log(sizes), np.log(np.maximum(values, 1e-9)), 1)[0])
