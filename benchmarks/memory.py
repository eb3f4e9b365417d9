"""Measure the memory of a process that searches, and processor time of its searches.

The collection is synthetic, and its vectors are random: nothing but queries is encoded. A new
process opens it, so that building it does not count.

Three numbers are measured after each step:

- resident: all pages in memory that the process maps (RSS). The goal is about this number.
- anonymous: the part that belongs to the process alone. The kernel cannot take it back.
- collection files: the part that is mapped from files of the collection. The kernel takes these
  pages back under pressure, and processes share them.

The rest of the resident memory is code of libraries.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measurement import row_stated
from model_code.errors import FreshetError

CLONE = Path(__file__).parents[1]
K = 10
QUERIES = 50
WORDS_PER_QUERY = 6
# Largest resident memory in MB after searches of 100,000 passages.
MAX_RESIDENT_MB = 350
# Linux reports memory in KiB. The results are in MB of 10^6 bytes.
KIB_PER_MB = 1000_000 / 1024
MEASURED = ("resident", "anonymous", "collection files")
# Shares of all documents that the filters match, in percent.
PERCENTAGES = (1, 10, 50)


def rows(passages: int = 100_000) -> list[dict[str, Any]]:
    """Measure resident memory after each step, and the processor time of a search.

    Args:
        passages: Number of documents of one passage each.
    """
    with tempfile.TemporaryDirectory() as folder:
        run_step("build", Path(folder), passages)
        measured = run_step("search", Path(folder), passages)
    results = []
    for step, memory in measured["memory"].items():
        for kind in MEASURED:
            goal = "-"
            if kind == "resident" and step == "filters":
                goal = f"<= {MAX_RESIDENT_MB}"
            what = f"{passages:,} passages, {kind} after {step}, MB"
            results.append(row_stated(what, memory[kind], MAX_RESIDENT_MB, goal))
    for name, milliseconds in measured["milliseconds"].items():
        results.append(row_stated(f"{passages:,} passages, {name}, ms", milliseconds, 0, "-"))
    return results


def run_step(step: str, folder: Path, passages: int) -> dict[str, Any]:
    """Run a step of the benchmark in a new process, and return its result.

    The new process prints the result as JSON.
    """
    command = [sys.executable, "-m", "benchmarks.memory", step, str(folder), str(passages)]
    search_path = os.pathsep.join(filter(None, [str(CLONE), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": search_path}
    completed = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    if completed.returncode:
        raise FreshetError(f"the step {step} of the benchmark failed; its message is above")
    result: dict[str, Any] = json.loads(completed.stdout)
    return result


def build(folder: Path, passages: int) -> dict[str, Any]:
    """Create the collection, and return queries for it."""
    from benchmarks.encoding import BASE
    from benchmarks.filters import open_collection

    _, texts = open_collection(folder, passages, BASE)
    step = max(1, passages // QUERIES)
    queries = [" ".join(text.split()[:WORDS_PER_QUERY]) for text in texts[::step]]
    return {"queries": queries[:QUERIES]}


def search(folder: Path, passages: int) -> dict[str, Any]:
    """Open the collection and search it, with and without filters.

    Returns:
        `memory`, the result of `resident` after each step, and `milliseconds`, the median
        processor time of a search and of reading the documents of its hits.
    """
    # The benchmark has imported NumPy, and nothing of the product yet.
    memory = {"libraries": resident(folder)}
    from benchmarks.live_service import RETRIEVER
    from model_code.collection.generations.searcher import Searcher
    from model_code.project import Project

    searcher = Searcher.open(Project(folder).live, RETRIEVER)
    memory["open"] = resident(folder)

    # `ready` loads everything that a search needs.
    searcher.ready()
    ids = searcher.ids_after("", passages)[:: max(1, passages // QUERIES)]
    texts = [document.text for document in searcher.documents(ids).values()]
    queries = [" ".join(text.split()[:WORDS_PER_QUERY]) for text in texts]
    memory["first search"] = resident(folder)

    search_milliseconds = []
    document_milliseconds = []
    for query in queries:
        start = time.process_time()
        hits = searcher.search(query, K)
        search_milliseconds.append(1000 * (time.process_time() - start))
        start = time.process_time()
        searcher.documents([hit.document_id for hit in hits])
        document_milliseconds.append(1000 * (time.process_time() - start))
    memory["searches"] = resident(folder)

    for percentage in PERCENTAGES:
        for query in queries:
            searcher.search(query, K, {"percent": percentage})
    memory["filters"] = resident(folder)

    medians = {
        "search": float(np.median(search_milliseconds)),
        "documents of the hits": float(np.median(document_milliseconds)),
    }
    return {"memory": memory, "milliseconds": medians}


def resident(folder: Path) -> dict[str, float]:
    """Return the resident memory of this process in MB, by the names in `MEASURED`.

    Linux lists the mappings of the process in `/proc/self/smaps`. A mapping has a first line with
    its address, and further lines such as "Rss: 8 kB".

    Args:
        folder: Folder of the collection.
    """
    sizes = dict.fromkeys(MEASURED, 0.0)
    is_of_collection = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *values = line.split()
        is_first_line = not name.endswith(":")
        if is_first_line:
            # It ends with the path of the mapped file, if there is one.
            is_of_collection = values[-1].startswith(str(folder))
        elif name == "Rss:":
            sizes["resident"] += float(values[0]) / KIB_PER_MB
            if is_of_collection:
                sizes["collection files"] += float(values[0]) / KIB_PER_MB
        elif name == "Anonymous:":
            sizes["anonymous"] += float(values[0]) / KIB_PER_MB
    return sizes


def main() -> None:
    """Run the step that the command line names, and print its result as JSON."""
    step, folder, passages = sys.argv[1:]
    run = build if step == "build" else search
    print(json.dumps(run(Path(folder), int(passages))))


if __name__ == "__main__":
    main()
