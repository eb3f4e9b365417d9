"""Measure the resident memory of a process with one engine after searches.

The process is new, and opens an index that another process built. A peer's process gets the
vectors of the queries from a file. Freshet's process encodes the queries, so it holds the encoder.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import psutil

from benchmarks.peers.engines import ENGINES, Engine, K, PeerQuery

CLONE = Path(__file__).parents[2]
FRESHET = "Freshet"
BYTES_PER_MB = 10**6
# Shares of all documents that the filters match, in percent.
PERCENTAGES = (1, 10, 50)


def write_queries(path: Path, queries: Sequence[PeerQuery]) -> None:
    """Write queries for `measure`."""
    texts = np.array([query.text for query in queries])
    vectors = np.stack([query.vector for query in queries])
    np.savez(path, texts=texts, vectors=vectors)


def read_queries(path: Path) -> list[PeerQuery]:
    """Return the queries that `write_queries` wrote."""
    with np.load(path) as arrays:
        texts = arrays["texts"].tolist()
        vectors = arrays["vectors"]
    return [PeerQuery(text, vector) for text, vector in zip(texts, vectors, strict=True)]


def measure(name: str, folder: Path, queries: Path) -> float:
    """Return the resident megabytes of a new process that searches with one engine.

    Args:
        name: A name of `ENGINES`, or `FRESHET`.
        folder: Folder of the engine's index.
        queries: File of `write_queries`.

    Raises:
        subprocess.CalledProcessError: If the process fails.
    """
    command = [sys.executable, "-m", "benchmarks.peers.memory", name, str(folder), str(queries)]
    search_path = os.pathsep.join(filter(None, [str(CLONE), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": search_path}
    completed = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    # Libraries of peers may print as well, before.
    return float(completed.stdout.split()[-1])


def search_with_peer(engine: Engine, folder: Path, queries: Sequence[PeerQuery]) -> None:
    """Open a peer's index, and run each query with and without filters."""
    engine.open(folder)
    for percentage in (None, *PERCENTAGES):
        for query in queries:
            engine.search(query, percentage)


def search_with_freshet(folder: Path, queries: Sequence[PeerQuery]) -> None:
    """Open a live index, and run each query with and without filters."""
    from model_code.collection.generations.generation_store import default_retriever
    from model_code.collection.generations.searcher import Searcher
    from model_code.project import Project

    live = Project(folder).live
    searcher = Searcher.open(live, default_retriever(live)).ready()
    for percentage in (None, *PERCENTAGES):
        filters = () if percentage is None else {"percent": percentage}
        for query in queries:
            searcher.search(query.text, K, filters)


def main() -> None:
    """Search with the engine that the command line names, and print the megabytes."""
    name, folder, queries_path = sys.argv[1:]
    queries = read_queries(Path(queries_path))
    if name == FRESHET:
        search_with_freshet(Path(folder), queries)
    else:
        search_with_peer(ENGINES[name](), Path(folder), queries)
    print(psutil.Process().memory_info().rss / BYTES_PER_MB)


if __name__ == "__main__":
    main()
