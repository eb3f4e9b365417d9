"""How costs grow with the corpus: exponents of cost against size, drawn, and held to what each
algorithm promises.

Each size is measured in a process of its own, whose memory nothing else has used before. Seconds
are of the processor (all threads), which other work on the machine hardly changes; memory is the
most that the process had in use beyond what it had before the work.
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
# one passage in so many is encoded, as a text of 16 words: its cost per passage is what counts
ENCODED_SHARE = 100
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
    for settings in kinds.values():  # what is loaded for the first time is none of the costs
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
        """All queries one by one, as users ask."""
        for query in asked:
            index.search(query[None], K, FINGERPRINT)

    return processor_seconds(search) / QUERIES


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
    """MiB that this process has in use now, from here on also the most that `peak_memory` knows of
    (Linux only).
    """
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak_memory() -> float:
    """The most MiB in use since `memory_in_use`."""
    return _status("VmHWM")


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 2**10


def draw(path: Path, sizes: Sequence[int], measured: Mapping[str, Sequence[float]]) -> None:
    """Write a PNG: seconds on the left, MiB on the right, and a grey line of exponent 1 for
    comparison.
    """
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
PROMISED = {  # exponents: why, and what of it need not be, is in benchmarks/README.md
    "encode": 1.0,
    "cluster": 5 / 3,
    "memory of clustering": 1.0,
    "build an approximate index": 1.5,
    "memory of an approximate index": 1.0,
    "search, exact": 1.0,
    "search, approximate": 0.5,
}
SLACK = 0.1  # of an exponent over two decades: a factor of 1.6 in time


def rows(
    sizes: Sequence[int] = SIZES,
    dimension: int = 384,
    base: str | Path = BASE,
    output: Path | None = None,
    large: bool = False,
    progress: Progress = no_progress,
) -> list[dict[str, Any]]:
    """A row per part: ours is its exponent, the peer the promised one, the goal at most `SLACK`
    more.

    output: a folder to leave growth.png in; None: that of `FRESHET_BENCH_OUTPUT`, if it is set.
    large: up to a million.
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
    """Met where the promised exponent is exceeded by at most `SLACK`."""
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
    """The e of cost ~ size^e, by least squares of the logarithms.

    >>> round(exponent([10, 100, 1000], [3, 30, 300]), 6)
    1.0
    """
    return float(np.polyfit(np.log(sizes), np.log(np.maximum(values, 1e-9)), 1)[0])
