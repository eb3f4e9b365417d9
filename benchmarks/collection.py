"""Build a large live collection, search and change it, and measure time, memory and disk space.

The texts are synthetic, and the vectors are given: both are drawn around topics. Encoding grows
linearly with the number of passages, so it is left out. Only queries and added documents are
encoded, with a real encoder.

Each step runs in a new process. So its peak memory is that of the step alone, and opening the
collection is a restart. Seconds are processor seconds, which other work on the machine changes
little. They include the start of the product's libraries.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from benchmarks.measurement import row_stated
from benchmarks.memory import resident
from model_code.errors import FreshetError

if TYPE_CHECKING:
    from model_code.collection.generations.searcher import Searcher

CLONE = Path(__file__).parents[1]
BASE = "sentence-transformers/all-MiniLM-L6-v2"
RETRIEVER = "contrastive"
# Folders and files of the inputs, in the folder of the benchmark.
CORPUS = "corpus"
PASSAGES_TABLE = "passages.parquet"
DOCUMENTS_TABLE = "documents.parquet"
BASE_INDEX = "base_index"
VECTORS = "vectors.npy"
BUILD = "build"

SEED = 0
# Number of passages that are drawn at a time, which bounds the memory.
BLOCK_PASSAGES = 50_000
PASSAGES_PER_TOPIC = 100
# Each topic is near one of this number of subjects.
SUBJECTS = 200
# Words of a text, the number of different words, and the number of words that a topic prefers.
WORDS_PER_TEXT = 40
VOCABULARY = 200_000
WORDS_PER_TOPIC = 50
# Share of the words of a text that come from the words of its topic.
TOPIC_SHARE = 0.3
# Length of the random part of a topic and of a vector, relative to the part that they share.
TOPIC_SPREAD = 1.0
PASSAGE_SPREAD = 0.7
SYLLABLES = ("ba", "ce", "di", "fo", "gu", "ha", "ji", "ko", "lu", "me", "ni", "po", "ra", "se")

# Shares of all documents that the filters match, in percent.
PERCENTAGES = (1, 10, 50)
# Goal: the largest ratio of the time of a search with a filter to one without.
MAX_FILTER_RATIO = 1.5
K = 10
QUERIES = 50
WORDS_PER_QUERY = 6
# Number of queries that are each searched first after a switch of generations.
FIRST_QUERIES = 5
# Number of documents that are added one by one, and number that a batch adds or deletes.
SINGLE_DOCUMENTS = 5
BATCH_DOCUMENTS = 1000
# Steps that build the collection, in their order, and what each of them builds.
BUILD_STEPS = {
    "hierarchy": "hierarchy with topics and picture",
    "vectors": "vectors, inverted file and late interaction",
    "words": "postings of BM25",
    "fusion": "fusion of both",
    "collection": "live collection, with documents and fields",
}
# Largest resident memory in MB of a process that searches a million passages.
MAX_RESIDENT_MB = 2000
MEGABYTE = 1000**2
# `ru_maxrss` is in KiB.
KIB = 1024


def rows(passages: int = 100_000, base: str | Path = BASE) -> list[dict[str, Any]]:
    """Measure a collection from its build to its compaction.

    Args:
        passages: Number of documents of one passage each.
        base: Encoder of queries and added documents.
    """
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(Path(folder), passages, base)
    results = []
    for what, value in measured.items():
        goal = "-"
        is_searching_memory = what == "search: memory after searches with filters, MB"
        if is_searching_memory:
            goal = f"<= {MAX_RESIDENT_MB}"
        if what.endswith("times a search without filter"):
            goal = f"<= {MAX_FILTER_RATIO}"
        results.append(row_stated(f"{passages:,} passages, {what}", value, 0, goal))
    return results


def measure(folder: Path, passages: int, base: str | Path = BASE) -> dict[str, float]:
    """Run all steps in a folder.

    Args:
        folder: Empty folder with room for the collection and its build: about 14 GB at a million.
        passages: Number of documents of one passage each.
        base: Encoder of queries and added documents.

    Returns:
        Each measured value by its name.
    """
    measured: dict[str, float] = {}
    encoder = str(base)
    run_step("inputs", folder, passages, encoder)
    for step, label in BUILD_STEPS.items():
        costs = run_step(step, folder, passages, encoder)
        for name, value in costs.items():
            measured[f"build {label}: {name}"] = value
    # The live collection has copies of everything that it needs.
    for inputs in (BUILD, CORPUS, BASE_INDEX):
        shutil.rmtree(folder / inputs)

    for step in ("search", "changes", "restart"):
        costs = run_step(step, folder, passages, encoder)
        for name, value in costs.items():
            measured[f"{step}: {name}"] = value
        if step == "search":
            for name, size in disk_sizes(folder).items():
                measured[f"disk: {name}, MB"] = size
    return measured


def run_step(step: str, folder: Path, passages: int, base: str) -> dict[str, float]:
    """Run a step of the benchmark in a new process, and return what it measured.

    The new process prints the result as JSON.

    Raises:
        FreshetError: If the step fails.
    """
    command = [sys.executable, "-m", "benchmarks.collection"]
    command.extend([step, str(folder), str(passages), base])
    search_path = os.pathsep.join(filter(None, [str(CLONE), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": search_path}
    completed = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    if completed.returncode:
        raise FreshetError(f"the step {step} of the benchmark failed; its message is above")
    result: dict[str, float] = json.loads(completed.stdout)
    # Progress for people who wait for hours. The result goes to standard output.
    print(f"{step}: {completed.stdout.strip()}", file=sys.stderr, flush=True)
    return result


def write_inputs(folder: Path, passages: int, base: str) -> dict[str, float]:
    """Write the corpus and the vectors of its passages, and a project without a collection."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from model_code.encoding.encoder import Encoder
    from model_code.files import write_json, write_text

    write_text(
        folder / "params.yaml",
        f"retrievers: {{{RETRIEVER}: {{hierarchy_weight: 0}}}}\nlive: {{}}\n",
    )
    write_text(folder / "dvc.yaml", "stages: {}\n")
    encoder = Encoder.load(base)
    encoder.save(folder / BUILD / "encoder")

    (folder / CORPUS).mkdir()
    (folder / BASE_INDEX).mkdir()
    topics = Topics(passages, encoder.dimension)
    vectors = np.lib.format.open_memmap(
        folder / BASE_INDEX / VECTORS, "w+", np.float32, (passages, encoder.dimension)
    )
    columns: dict[str, list[Any]] = {"document_id": [], "title": [], "text": [], "fields": []}
    for start in range(0, passages, BLOCK_PASSAGES):
        block = topics.draw(min(BLOCK_PASSAGES, passages - start))
        vectors[start : start + len(block.vectors)] = block.vectors
        for number, text in enumerate(block.texts, start=start):
            columns["document_id"].append(f"base.{number:09d}")
            columns["title"].append(f"Report {number}")
            columns["text"].append(text)
            columns["fields"].append(json.dumps(fields_of(number)))
    vectors.flush()

    columns["date"] = [None] * passages
    table = pa.table(columns)
    pq.write_table(table, folder / CORPUS / DOCUMENTS_TABLE)
    pq.write_table(table.select(["document_id", "title", "text"]), folder / CORPUS / PASSAGES_TABLE)
    write_json(folder / "queries.json", topics.queries(QUERIES))
    return {}


class Passages(NamedTuple):
    """Texts and unit vectors (n, H) of n passages."""

    texts: list[str]
    vectors: np.ndarray


class Topics:
    """Topics around which passages are drawn, block by block, always the same ones.

    Attributes:
        words: The different words, the most frequent first.
    """

    def __init__(self, passages: int, dimension: int) -> None:
        """Draw the topics of a collection.

        Args:
            passages: Number of passages of the collection.
            dimension: Number of components H of a vector.
        """
        self._random = np.random.default_rng(SEED)
        self.words = np.array([_word(number) for number in range(VOCABULARY)])
        self._count = max(1, passages // PASSAGES_PER_TOPIC)
        subjects = self._normal(SUBJECTS, dimension)
        subject_of_topic = self._random.integers(0, SUBJECTS, self._count)
        noise = TOPIC_SPREAD * self._normal(self._count, dimension)
        self._centers = subjects[subject_of_topic] + noise
        self._topic_words = self._frequent_words((self._count, WORDS_PER_TOPIC))

    def draw(self, count: int) -> Passages:
        """Draw texts and vectors of `count` passages."""
        topics = self._random.integers(0, self._count, count)
        vectors = self._centers[topics]
        vectors += PASSAGE_SPREAD * self._normal(*vectors.shape)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)

        shape = (count, WORDS_PER_TEXT)
        common_words = self._frequent_words(shape)
        choices = self._random.integers(0, WORDS_PER_TOPIC, shape)
        topic_words = self._topic_words[topics[:, None], choices]
        is_of_topic = self._random.random(shape) < TOPIC_SHARE
        words = self.words[np.where(is_of_topic, topic_words, common_words)]
        return Passages([" ".join(text) for text in words.tolist()], vectors)

    def queries(self, count: int) -> list[str]:
        """Draw queries, each with words of one topic."""
        queries = []
        for topic in self._random.integers(0, self._count, count).tolist():
            words = self.words[self._topic_words[topic, :WORDS_PER_QUERY]]
            queries.append(" ".join(words.tolist()))
        return queries

    def _normal(self, rows: int, columns: int) -> np.ndarray:
        """Draw normal vectors (rows, columns), float32, with a length of about 1."""
        return self._random.standard_normal((rows, columns), np.float32) / np.float32(columns**0.5)

    def _frequent_words(self, shape: tuple[int, int]) -> np.ndarray:
        """Draw numbers of words. The frequency of word i is proportional to 1 / (i + 1)."""
        draws = self._random.random(shape)
        return (VOCABULARY**draws).astype(np.int64) - 1


def _word(number: int) -> str:
    """Return a word that can be pronounced, a different one for each number."""
    syllables = []
    remaining = number + len(SYLLABLES)
    while remaining:
        remaining, digit = divmod(remaining, len(SYLLABLES))
        syllables.append(SYLLABLES[digit])
    return "".join(syllables)


def fields_of(number: int) -> dict[str, Any]:
    """Return the fields of a document.

    The field `percent` lists which filters match the document: a filter of 10 % asks for 10. The
    field `year` has few values, and `number` has a different one for each document.
    """
    # 37 and 100 have no common factor, so that each remainder occurs once in 100 documents.
    place = number * 37 % 100
    percent = [percentage for percentage in PERCENTAGES if place < percentage]
    return {"percent": percent, "year": 1990 + number % 35, "number": number}


def build_hierarchy(folder: Path, passages: int, base: str) -> dict[str, float]:
    """Run the stage `hierarchy`."""
    from model_code.context import StageContext
    from model_code.hierarchy.settings import HierarchySettings
    from model_code.stages import hierarchy

    output = folder / BUILD / "hierarchy"
    output.mkdir(parents=True)
    context = StageContext(
        root=folder,
        inputs={"corpus": folder / CORPUS, "base_index": folder / BASE_INDEX},
        output=output,
        settings={"hierarchy": HierarchySettings(device="cpu"), "seed": SEED},
        checkpoints=folder / "checkpoints",
    )
    report = hierarchy.run(context)
    return {
        "clusters": report[f"level_{report['depth']}_nodes"],
        "mean cosine to the centroid": report[f"level_{report['depth']}_cosine_mean"],
    }


def build_vectors(folder: Path, passages: int, base: str) -> dict[str, float]:
    """Build the index of vectors, with an inverted file and signs of random tokens."""
    from benchmarks.live_service import random_tokens
    from model_code.encoding.encoder import Encoder
    from model_code.retrieval.dense_index import DenseIndex
    from model_code.retrieval.index_settings import IndexSettings

    ids, texts = read_passages(folder)
    vectors = np.load(folder / BASE_INDEX / VECTORS, mmap_mode="r")
    tokens = random_tokens(texts, vectors.shape[1])
    fingerprint = Encoder.load(folder / BUILD / "encoder").fingerprint()
    index = DenseIndex.build(vectors, ids, fingerprint, IndexSettings(), token_signs=tokens)
    index.save(folder / BUILD / "index")
    return {}


def build_words(folder: Path, passages: int, base: str) -> dict[str, float]:
    """Build the postings of BM25."""
    from model_code.retrieval import bm25
    from model_code.retrieval.index_settings import Bm25Settings
    from model_code.retrieval.indexed import NewPassages

    ids, texts = read_passages(folder)
    folders = (folder / BUILD / "bm25_encoder", folder / BUILD / "bm25_index")
    bm25.build_folders(NewPassages(texts, ids), Bm25Settings(), *folders)
    return {}


def build_fusion(folder: Path, passages: int, base: str) -> dict[str, float]:
    """Build the fusion of vectors, late interaction and BM25."""
    from model_code.retrieval.fused import Fusion, ScoreNormalizer, build_folders

    build = folder / BUILD
    vectors = np.load(build / "index" / VECTORS, mmap_mode="r")
    fusion = Fusion(
        {"dense": 1.0, "bm25": 5.0, "dense.late": 1.0},
        {"dense": ScoreNormalizer.fit(vectors)},
        feedback=0.3,
    )
    components = {
        "dense": (build / "encoder", build / "index"),
        "bm25": (build / "bm25_encoder", build / "bm25_index"),
    }
    build_folders(components, fusion, build / "fused_encoder", build / "fused_index")
    # The fusion has copies of its components.
    shutil.rmtree(build / "index")
    shutil.rmtree(build / "bm25_index")
    return {}


def build_collection(folder: Path, passages: int, base: str) -> dict[str, float]:
    """Make the build a live collection."""
    from benchmarks.opened_build import open_generation_zero
    from model_code.text.passages import TextRules

    build = folder / BUILD
    open_generation_zero(
        folder,
        RETRIEVER,
        encoder=build / "fused_encoder",
        index=build / "fused_index",
        documents=folder / CORPUS / DOCUMENTS_TABLE,
        hierarchy=build / "hierarchy",
        provenance={"made by": "bench"},
        # Each document is one passage.
        text=TextRules(include_title=True, words=0, stride=1),
    )
    return {}


def read_passages(folder: Path) -> tuple[list[str], list[str]]:
    """Return the ids and the texts of all passages."""
    import pyarrow.parquet as pq

    table = pq.read_table(folder / CORPUS / PASSAGES_TABLE, columns=["document_id", "text"])
    return table["document_id"].to_pylist(), table["text"].to_pylist()


def disk_sizes(folder: Path) -> dict[str, float]:
    """Return the size in MB of each part of the live collection, the largest first."""
    generation = folder / "live" / RETRIEVER / "generations" / "000000"
    sizes: dict[str, float] = {}
    for path in generation.rglob("*"):
        if path.is_file():
            name = path.relative_to(generation).as_posix()
            sizes[name] = path.stat().st_size / MEGABYTE
    largest_first = sorted(sizes.items(), key=lambda item: -item[1])
    return {"all files": sum(sizes.values()), **dict(largest_first[:9])}


def search(folder: Path, passages: int, base: str) -> dict[str, float]:
    """Open the collection and search it, with and without filters, as after a restart."""
    from model_code.collection.generations.searcher import Searcher
    from model_code.files import read_json
    from model_code.project import Project

    measured: dict[str, float] = {}
    queries = read_json(folder / "queries.json")
    with processor_time(measured, "opening, s"):
        searcher = Searcher.open(Project(folder).live, RETRIEVER)
    with processor_time(measured, "getting ready, s"):
        searcher.ready()
    with processor_time(measured, "first search, s"):
        searcher.search(queries[0], K)
    measured["memory after the first search, MB"] = resident(folder)["resident"]

    samples: dict[int | None, list[float]] = {None: []}
    for percentage in PERCENTAGES:
        name = f"first search with a filter of {percentage} %, ms"
        measured[name] = time_search(searcher, queries[0], percentage)
        samples[percentage] = []
    # The first search for a query computes weights of words, which the others reuse. So each kind
    # of search comes first equally often.
    kinds = list(samples)
    for number, query in enumerate(queries):
        for offset in range(len(kinds)):
            percentage = kinds[(number + offset) % len(kinds)]
            samples[percentage].append(time_search(searcher, query, percentage))
    measured["search p95, ms"] = float(np.percentile(samples[None], 95))
    add_medians(measured, "search", samples)
    memory = resident(folder)
    measured["memory after searches with filters, MB"] = memory["resident"]
    measured["of it anonymous, MB"] = memory["anonymous"]

    samples = {percentage: [] for percentage in samples}
    for query in queries[:FIRST_QUERIES]:
        for percentage, times in samples.items():
            new_searcher = Searcher(searcher.live, searcher.generation, searcher.parts)
            times.append(time_search(new_searcher, query, percentage))
    add_medians(measured, "first search after a switch", samples)
    return measured


def add_medians(
    measured: dict[str, float], label: str, samples: dict[int | None, list[float]]
) -> None:
    """Add the median milliseconds of searches, and the ratio of those with filters to the others.

    Args:
        measured: Receives the values.
        label: Name of the searches.
        samples: Milliseconds by the percentage of the filter. None: without a filter.
    """
    without_filter = float(np.median(samples[None]))
    measured[f"{label}, ms"] = without_filter
    for percentage in PERCENTAGES:
        median = float(np.median(samples[percentage]))
        measured[f"{label}, filter of {percentage} %, ms"] = median
        ratio = median / without_filter
        measured[f"{label}, filter of {percentage} %, times a search without filter"] = ratio


def time_search(searcher: Searcher, text: str, percentage: int | None) -> float:
    """Return the processor milliseconds of a search with or without a filter.

    Raises:
        AssertionError: If a search with a filter finds nothing.
    """
    filters = () if percentage is None else {"percent": percentage}
    start = time.process_time()
    hits = searcher.search(text, K, filters)
    milliseconds = 1000 * (time.process_time() - start)
    if not hits:
        raise AssertionError(f"no hit for {text!r} with a filter of {percentage} %")
    return milliseconds


def change(folder: Path, passages: int, base: str) -> dict[str, float]:
    """Add, change and delete documents, and merge the segments.

    The first addition also opens the collection and makes the ledger.
    """
    from model_code.collection.index.live_index import LiveIndex
    from model_code.project import Project

    topics = Topics(passages, dimension=2)
    texts = topics.draw(SINGLE_DOCUMENTS + BATCH_DOCUMENTS + 1).texts
    measured: dict[str, float] = {}
    index = LiveIndex(Project(folder), RETRIEVER)

    with processor_time(measured, "first added document, with opening, s"):
        add(index, ["first"], texts[-1:])
    measured["memory after the first added document, MB"] = resident(folder)["resident"]

    seconds = []
    for number in range(SINGLE_DOCUMENTS):
        start = time.process_time()
        add(index, [f"single.{number}"], texts[number : number + 1])
        seconds.append(time.process_time() - start)
    measured["one added document, s"] = float(np.median(seconds))

    batch_ids = [f"batch.{number}" for number in range(BATCH_DOCUMENTS)]
    with processor_time(measured, f"{BATCH_DOCUMENTS:,} added documents, s"):
        add(index, batch_ids, texts[SINGLE_DOCUMENTS:-1])
    with processor_time(measured, "one changed document of the build, s"):
        add(index, ["base.000000000"], texts[:1])

    deleted_ids = [f"base.{number:09d}" for number in range(1, BATCH_DOCUMENTS + 1)]
    with processor_time(measured, f"{BATCH_DOCUMENTS:,} deleted documents, s"):
        index.remove(deleted_ids, "bench")
        index.apply()
    with processor_time(measured, "one added document after that, s"):
        add(index, ["last"], texts[1:2])
    with processor_time(measured, "merging all added segments, s"):
        index.compact()
    with processor_time(measured, "deleting old generations, s"):
        index.collect_garbage(keep=1)
    memory = resident(folder)
    measured["memory at the end, MB"] = memory["resident"]
    measured["of it anonymous, MB"] = memory["anonymous"]
    return measured


def add(index: Any, ids: Sequence[str], texts: Sequence[str]) -> None:
    """Add or change documents, and make them searchable."""
    documents = []
    for document_id, text in zip(ids, texts, strict=True):
        documents.append({"id": document_id, "title": "", "text": text, "fields": {"year": 2025}})
    index.receive(documents, "bench")
    index.apply()


@contextmanager
def processor_time(measured: dict[str, float], name: str) -> Iterator[None]:
    """Add the processor seconds of a block to `measured`."""
    start = time.process_time()
    yield
    measured[name] = time.process_time() - start


STEPS = {
    "inputs": write_inputs,
    "hierarchy": build_hierarchy,
    "vectors": build_vectors,
    "words": build_words,
    "fusion": build_fusion,
    "collection": build_collection,
    "search": search,
    "changes": change,
    # The same as `search`, after the changes.
    "restart": search,
}


def main() -> None:
    """Run the step that the command line names, and print what it measured as JSON."""
    step, folder, passages, base = sys.argv[1:]
    start = time.process_time()
    measured = STEPS[step](Path(folder), int(passages), base)
    measured["s in all"] = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB / MEGABYTE
    measured["peak memory, MB"] = peak
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
