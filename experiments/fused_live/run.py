"""Compare the latency of fused and dense search over HTTP, idle and while documents arrive.

`python -m experiments.fused_live.run` writes `result.json` and the table of `README.md`.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from itertools import cycle, product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.encoding import mixed_texts
from benchmarks.live_service import make_project, served
from experiments.tables import write_tables
from freshet.client import Client
from model_code.encoding.encoder import Encoder
from model_code.files import write_json
from model_code.project import Project

HERE = Path(__file__).parent
BASE = "sentence-transformers/all-MiniLM-L6-v2"
DOCUMENTS = 10_000
FEEDBACK = 0.3
ROUNDS = 8
# Seconds of each phase of a round.
WARM_UP_SECONDS = 2.0
IDLE_SECONDS = 5.0
ARRIVING_SECONDS = 15.0
# Number of documents in a request that adds some, and seconds between two requests.
DOCUMENTS_PER_REQUEST = 5
REQUEST_INTERVAL_SECONDS = 0.25
WORDS_PER_DOCUMENT = 40
QUERIES = 400
WORDS_PER_QUERY = 8
# Setting `feedback` of each kind of retriever. None: no fusion, but a dense retriever.
KINDS = {"dense": None, "fused": FEEDBACK}
COLUMNS = ("idle", "arriving", "added")
QUANTILES = {"p50": 0.5, "p99": 0.99}


def search_for(client: Client, texts: Sequence[str], seconds: float) -> list[float]:
    """Search one query after the other for some seconds; return the milliseconds of each search."""
    milliseconds = []
    deadline = time.monotonic() + seconds
    for text in cycle(texts):
        started = time.perf_counter()
        client.search(text, 10)
        milliseconds.append(1000 * (time.perf_counter() - started))
        if time.monotonic() > deadline:
            return milliseconds
    raise ValueError("there is nothing to search for")


class Arrivals(threading.Thread):
    """Thread that adds documents at a steady pace until `stop`.

    Attributes:
        stop: Event that ends the thread.
        milliseconds: Duration of each request. It ends when the documents are searchable.
    """

    def __init__(self, client: Client, texts: Sequence[str]) -> None:
        super().__init__()
        self.client = client
        self.texts = texts
        self.stop = threading.Event()
        self.milliseconds: list[float] = []
        self._next_number = 0

    def run(self) -> None:
        """Add documents until `stop` is set."""
        next_time = time.monotonic()
        while not self.stop.wait(max(0.0, next_time - time.monotonic())):
            documents = self._next_documents()
            started = time.perf_counter()
            self.client.add(documents)
            self.milliseconds.append(1000 * (time.perf_counter() - started))
            next_time += REQUEST_INTERVAL_SECONDS

    def _next_documents(self) -> list[dict[str, str]]:
        """Return the documents of the next request, which have new ids."""
        documents = []
        for _ in range(DOCUMENTS_PER_REQUEST):
            number = self._next_number
            words = self.texts[number % len(self.texts)].split()[:WORDS_PER_DOCUMENT]
            documents.append(
                {"_id": f"new.{number}", "title": f"new {number}", "text": " ".join(words)}
            )
            self._next_number += 1
        return documents


def run_round(client: Client, texts: Sequence[str]) -> dict[str, list[float]]:
    """Measure searches while nothing else happens, then searches while documents arrive.

    The first addition of a process loads libraries, and is not measured.
    """
    queries = [" ".join(text.split()[:WORDS_PER_QUERY]) for text in texts[:QUERIES]]
    search_for(client, queries, WARM_UP_SECONDS)
    idle = search_for(client, queries, IDLE_SECONDS)

    client.add([{"_id": "first", "title": "first", "text": texts[0]}])
    arrivals = Arrivals(client, texts)
    arrivals.start()
    try:
        arriving = search_for(client, queries, ARRIVING_SECONDS)
    finally:
        arrivals.stop.set()
        arrivals.join()
    return {"idle": idle, "arriving": arriving, "added": arrivals.milliseconds}


def measure() -> dict[str, Any]:
    """Measure both kinds of retrievers in turn.

    Each round starts a new service on a new copy of the project.

    Returns:
        The result of `_summarise` by kind of retriever and column.
    """
    texts = mixed_texts(DOCUMENTS)
    encoded = Encoder.load(BASE, for_search=True).encode_documents_with_signs(texts)
    rounds: dict[str, list[dict[str, list[float]]]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        projects = {}
        for kind, feedback in KINDS.items():
            root = Path(folder) / kind
            projects[kind] = make_project(root, BASE, DOCUMENTS, texts, encoded, feedback)
        for _ in range(ROUNDS):
            for kind, project in projects.items():
                with served(_copy_project(project, Path(folder) / "round")) as client:
                    rounds[kind].append(run_round(client, texts))

    result: dict[str, Any] = {}
    for kind, kind_rounds in rounds.items():
        result[kind] = {}
        for column in COLUMNS:
            result[kind][column] = _summarise([measured[column] for measured in kind_rounds])
    return result


def _copy_project(project: Project, folder: Path) -> Project:
    """Copy the project as it was built, so that every round starts with the same documents."""
    shutil.rmtree(folder, ignore_errors=True)
    return Project(shutil.copytree(project.root, folder))


def _summarise(rounds: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Return the quantiles of all rounds together, and of each round, in milliseconds."""
    together = np.concatenate(rounds)
    summary: dict[str, Any] = {"n": len(together)}
    for name, quantile in QUANTILES.items():
        summary[name] = _quantile(together, quantile)
    for name, quantile in QUANTILES.items():
        summary[f"{name} of each round"] = [
            _quantile(milliseconds, quantile) for milliseconds in rounds
        ]
    return summary


def _quantile(milliseconds: Sequence[float], quantile: float) -> float:
    return round(float(np.quantile(milliseconds, quantile)), 1)


def tables(result: Mapping[str, Any]) -> str:
    """Return the page's table: milliseconds of both kinds of retrievers, and their ratio.

    The smallest and the largest ratio of a single round are in brackets.
    """
    lines = ["| | | dense | fused | ratio (of rounds) |", "|---|---|---|---|---|"]
    for column, quantile in product(COLUMNS, QUANTILES):
        dense = result["dense"][column]
        fused = result["fused"][column]
        round_times = zip(
            fused[f"{quantile} of each round"], dense[f"{quantile} of each round"], strict=True
        )
        ratios = [fused_time / dense_time for fused_time, dense_time in round_times]
        ratio = fused[quantile] / dense[quantile]
        lines.append(
            f"| {column} | {quantile} | {dense[quantile]} ms | {fused[quantile]} ms | "
            f"{ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f}) |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, and write the result and the table."""
    result = measure()
    write_json(HERE / "result.json", result)
    text = tables(result)
    write_tables(HERE, text)
    print(text)


if __name__ == "__main__":
    main()
