"""Measure how costs grow with the corpus: the exponent e in cost ~ size^e.

The exponent of each part is compared with the one that its algorithm promises. Each size is
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
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.clustering import synthetic_vectors
from benchmarks.encoding import BASE
from benchmarks.measurement import row_below
from model_code.errors import FreshetError
from model_code.files import atomic_write
from model_code.progress import Progress, no_progress

if TYPE_CHECKING:
    from model_code.retrieval.dense_index import DenseIndex

SIZES = (1_000, 10_000, 100_000)
# Size that `large` adds.
LARGE_SIZE = 1_000_000
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
# An exponent may exceed the promised one by this much. From 1,000 to 100,000 documents, it amounts
# to a factor of 1.6 in time.
SLACK = 0.1

FINGERPRINT = "growth"
# Hits per query.
K = 10
QUERIES = 50
# Of this many passages, one is encoded. The cost of encoding is multiplied by this number.
PASSAGES_PER_ENCODED_TEXT = 100
WORDS_PER_TEXT = 16
# Limit on the iterations of k-means.
MAX_ITERATIONS = 25
# Work is repeated until all runs together took so many processor seconds.
MIN_MEASURED_SECONDS = 0.2
# Smallest cost that the exponent is fitted to, because the logarithm of 0 is not finite.
SMALLEST_COST = 1e-9

# Cost of each part by its name: seconds, or MiB if the name starts with "memory".
Cost = dict[str, float]


def measure(passages: int, dimension: int = 384, base: str | Path = BASE) -> Cost:
    """Return the costs of one size: seconds of each part, and the MiB that two of them need.

    Args:
        passages: Number of passages.
        dimension: Numbers per vector.
        base: Encoder.
    """
    cost = _run_in_new_process(_search_costs, passages, dimension)
    cost.update(_run_in_new_process(_clustering_costs, passages, dimension))
    cost.update(_run_in_new_process(_encoding_costs, passages, base))
    return cost


def _run_in_new_process(work: Callable[..., Cost], *arguments: Any) -> Cost:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def _encoding_costs(passages: int, base: str | Path) -> Cost:
    """Return the seconds to encode all passages, estimated from a sample of them."""
    from benchmarks.encoding import mixed_texts
    from model_code.encoding.encoder import Encoder

    encoder = Encoder.load(base, 32, device="cpu")
    count = max(1, passages // PASSAGES_PER_ENCODED_TEXT)
    texts = [" ".join(text.split()[:WORDS_PER_TEXT]) for text in mixed_texts(count)]
    # The first call loads libraries, which the cost must not include.
    encoder.encode_documents_by_last_layer(texts[:8])
    seconds = processor_seconds(lambda: encoder.encode_documents_by_last_layer(texts))
    return {"encode": seconds * passages / len(texts)}


def _clustering_costs(passages: int, dimension: int) -> Cost:
    """Return the seconds and the MiB of clustering synthetic vectors (passages, dimension)."""
    from model_code.hierarchy.build import build_hierarchy
    from model_code.hierarchy.settings import HierarchySettings

    vectors = synthetic_vectors(passages, dimension, seed=0)
    # The first call loads libraries, which the costs must not include.
    build_hierarchy(vectors[:64], HierarchySettings(device="cpu"), seed=0)

    settings = HierarchySettings(max_iterations=MAX_ITERATIONS, device="cpu")
    memory_before = memory_in_use()
    seconds = processor_seconds(lambda: build_hierarchy(vectors, settings, seed=0))
    return {"cluster": seconds, "memory of clustering": peak_memory() - memory_before}


def _search_costs(passages: int, dimension: int) -> Cost:
    """Return the seconds of a search of both kinds of index, and what an approximate one costs."""
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
        small_index = DenseIndex.build(vectors[:100], ids[:100], FINGERPRINT, settings)
        small_index.search(vectors[:1], 1, FINGERPRINT)

    cost: Cost = {}
    for name, settings in kinds.items():
        memory_before = memory_in_use()
        started = time.process_time()
        index = DenseIndex.build(vectors, ids, FINGERPRINT, settings)
        build_seconds = time.process_time() - started
        if name == "approximate":
            cost["build an approximate index"] = build_seconds
            cost["memory of an approximate index"] = peak_memory() - memory_before
        cost[f"search, {name}"] = _seconds_per_query(index, vectors)
        # The memory of the next index must not include this one.
        del index
    return cost


def _seconds_per_query(index: DenseIndex, vectors: np.ndarray) -> float:
    """Return the mean processor seconds of one query. The queries are rows of the index."""
    query_rows = np.linspace(0, len(vectors) - 1, QUERIES).astype(int)
    queries = np.ascontiguousarray(vectors[query_rows])
    index.search(queries[:1], K, FINGERPRINT)

    def search() -> None:
        """Search for all queries one by one, like users."""
        for query in queries:
            index.search(query[None], K, FINGERPRINT)

    return processor_seconds(search) / QUERIES


def processor_seconds(work: Callable[[], Any]) -> float:
    """Return the processor seconds of one call of `work`.

    Short work is called repeatedly until `MIN_MEASURED_SECONDS` have passed. The result is then
    the mean of all calls.
    """
    started = time.process_time()
    calls = 0
    while True:
        work()
        calls += 1
        total_seconds = time.process_time() - started
        if total_seconds >= MIN_MEASURED_SECONDS:
            return total_seconds / calls


def memory_in_use() -> float:
    """Return the MiB in use now, and reset the peak for `peak_memory` (Linux only)."""
    Path("/proc/self/clear_refs").write_text("5")
    return _read_memory("VmRSS")


def peak_memory() -> float:
    """Return the peak of MiB in use since `memory_in_use`."""
    return _read_memory("VmHWM")


def _read_memory(name: str) -> float:
    """Return an entry of this process's status in MiB. The kernel reports KiB."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return float(line.split()[1]) / 2**10
    raise FreshetError(f"/proc/self/status has no entry {name}; this benchmark needs Linux")


def draw(path: Path, sizes: Sequence[int], measured: Mapping[str, Sequence[float]]) -> None:
    """Write a PNG: seconds on the left, MiB on the right, and a grey line of exponent 1.

    Args:
        path: Path of the PNG.
        sizes: Numbers of passages.
        measured: Cost at each size, by part.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    for name, values in measured.items():
        axes = right if name.startswith("memory") else left
        axes.plot(sizes, values, marker="o", label=name)

    panels = ((left, "seconds of processor time", 3), (right, "MiB", 1))
    for axes, unit, legend_columns in panels:
        smallest = min(min(line.get_ydata()) for line in axes.get_lines())
        linear = [smallest * size / sizes[0] for size in sizes]
        axes.plot(sizes, linear, color="0.7", linestyle="--", label="linear", zorder=0)
        axes.set(xscale="log", yscale="log", xlabel="passages", ylabel=unit)
        axes.grid(alpha=0.3)
        axes.legend(
            fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=legend_columns
        )

    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary_path:
        figure.savefig(temporary_path, format="png", dpi=110)


def rows(
    sizes: Sequence[int] = SIZES,
    dimension: int = 384,
    base: str | Path = BASE,
    output: Path | None = None,
    large: bool = False,
    progress: Progress = no_progress,
) -> list[dict[str, Any]]:
    """Return a row per part: its exponent, and whether it is close to the promised one.

    Args:
        sizes: Numbers of passages.
        dimension: Numbers per vector.
        base: Encoder.
        output: Folder for growth.png. None takes the folder in `FRESHET_BENCH_OUTPUT`, if it is
            set.
        large: Measure up to a million.
        progress: Receives the number of finished sizes.
    """
    sizes = list(sizes)
    if large:
        sizes.append(LARGE_SIZE)

    costs = []
    for finished, size in enumerate(sizes, start=1):
        costs.append(measure(size, dimension, base))
        progress(finished, len(sizes), "sizes")
    measured = {name: [cost[name] for cost in costs] for name in PROMISED}

    default_output = os.environ.get("FRESHET_BENCH_OUTPUT")
    if output is None and default_output:
        output = Path(default_output)
    if output is not None:
        draw(output / "growth.png", sizes, measured)
    return exponent_rows(sizes, measured)


def exponent_rows(
    sizes: Sequence[int], measured: Mapping[str, Sequence[float]]
) -> list[dict[str, Any]]:
    """Return a row per part, whose goal is the promised exponent plus `SLACK`."""
    size_list = ", ".join(f"{size:,}" for size in sizes)
    table = []
    for name, values in measured.items():
        unit = "MiB" if name.startswith("memory") else "s"
        value_list = ", ".join(f"{value:.3g}" for value in values)
        label = f"{name}, {unit} at {size_list}: {value_list}: exponent"

        measured_exponent = exponent(sizes, values)
        limit = PROMISED[name] + SLACK
        result = row_below(label, measured_exponent, PROMISED[name])
        result["goal"] = f"<= {limit:.2f}"
        result["met"] = bool(measured_exponent <= limit)
        table.append(result)
    return table


def exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
    """Return the exponent e of cost ~ size^e, by least squares of the logarithms.

    >>> round(exponent([10, 100, 1000], [3, 30, 300]), 6)
    1.0
    """
    logarithms = np.log(np.maximum(values, SMALLEST_COST))
    slope, _ = np.polyfit(np.log(sizes), logarithms, 1)
    return float(slope)
