"""Compare Freshet with other engines: building, searching, filtering, adding, and memory.

All engines hold the same synthetic documents with the same vectors. Times are processor seconds of
one thread, and the engines take turns, so that other work on the machine counts little. Encoding a
query is left out for all, because it is the same. Encoding an added document is left out, too.
Memory is that of a new process with one engine, which opens the built index and searches.

Freshet does more for a search than its peers here: it also compares the words' vectors (late
interaction), runs a second pass with feedback, and returns snippets.
"""

from __future__ import annotations

import importlib.util
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.encoding import BASE, mixed_texts
from benchmarks.filters import PERCENTAGES, document_fields
from benchmarks.live_service import RETRIEVER, make_project, random_tokens
from benchmarks.measurement import row_below, skipped
from benchmarks.peers import memory
from benchmarks.peers.engines import ENGINES, Engine, K, PeerDocument, PeerQuery
from benchmarks.search import clustered_vectors
from model_code.collection.generations.searcher import Searcher
from model_code.collection.index.live_index import LiveIndex
from model_code.encoding.encoder import Encoder
from model_code.project import Project
from model_code.retrieval.index_settings import IndexSettings

WORDS_PER_TEXT = 40
WORDS_PER_QUERY = 6
# Number of documents of a small build. Its time is subtracted from that of the measured build.
FEW_DOCUMENTS = 20
# Number of documents that are added one by one.
ADDED = 10
# Number of further searches after the first one that follows an addition.
REPEATED_SEARCHES = 3

ADDING = "add, ms"

# Values of each measurement, by what was measured.
Samples = dict[str, list[float]]


@dataclass
class Inputs:
    """Documents and queries of the comparison, which are the same for all engines.

    Attributes:
        documents: The documents of the built index.
        added: Documents that are added later.
        queries: The queries.
    """

    documents: Sequence[PeerDocument]
    added: Sequence[PeerDocument]
    queries: Sequence[PeerQuery]


@dataclass
class Measured:
    """Measurements of one engine, such as "build, ms", "search, ms" and "memory, MB".

    Attributes:
        samples: Values by what was measured.
    """

    samples: Samples = field(default_factory=dict)

    def add(self, what: str, value: float) -> None:
        """Add one measurement."""
        self.samples.setdefault(what, []).append(value)

    def median(self, what: str) -> float | None:
        """Return the median of what was measured; None if it was not."""
        values = self.samples.get(what)
        return float(np.median(values)) if values else None


def rows(
    passages: int = 10_000, queries: int = 30, base: str | Path = BASE, rounds: int = 3
) -> list[dict[str, Any]]:
    """Measure Freshet and every peer that is installed.

    Args:
        passages: Number of documents.
        queries: Number of queries.
        base: Encoder of Freshet, whose dimension all vectors have.
        rounds: Runs of every query.
    """
    encoder = Encoder.load(base, for_search=True)
    inputs = make_inputs(passages, queries, encoder)
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        queries_path = Path(folder) / "queries.npz"
        memory.write_queries(queries_path, inputs.queries)
        ours = OurIndex(Path(folder), inputs, base)
        our_memory = memory.measure(memory.FRESHET, ours.folder, queries_path)
        for name, engine_class in ENGINES.items():
            missing = missing_modules(engine_class)
            if missing:
                results.append(skipped(name, f"{', '.join(missing)} not installed"))
                continue
            peer_folder = Path(folder) / name
            peer_folder.mkdir()
            our_times, peer_times = compare(ours, engine_class(), peer_folder, inputs, rounds)
            our_times.add("memory, MB", our_memory)
            peer_times.add("memory, MB", memory.measure(name, peer_folder, queries_path))
            results.extend(_rows(name, passages, our_times, peer_times))
    return results


def missing_modules(engine_class: type[Engine]) -> list[str]:
    """Return the modules of an engine that are not installed."""
    return [name for name in engine_class.modules if importlib.util.find_spec(name) is None]


def make_inputs(passages: int, queries: int, encoder: Encoder) -> Inputs:
    """Return synthetic documents around centres, and queries for some of them.

    Args:
        passages: Number of documents of the built index.
        queries: Number of queries.
        encoder: Encoder of the queries, whose dimension all vectors have.
    """
    count = passages + ADDED
    texts = [" ".join(text.split()[:WORDS_PER_TEXT]) for text in mixed_texts(count)]
    vectors, _ = clustered_vectors(count, encoder.dimension, 1)
    vectors = np.asarray(vectors, np.float32)
    documents = []
    for number, fields in enumerate(document_fields(count)):
        document = PeerDocument(
            f"base.{number:07d}", texts[number], vectors[number], fields["percent"]
        )
        documents.append(document)

    query_texts = [" ".join(text.split()[:WORDS_PER_QUERY]) for text in texts[:queries]]
    query_vectors = encoder.encode_queries(query_texts)
    peer_queries = [
        PeerQuery(text, np.asarray(vector, np.float32))
        for text, vector in zip(query_texts, query_vectors, strict=True)
    ]
    return Inputs(documents[:passages], documents[passages:], peer_queries)


class OurIndex:
    """Freshet's live index of the documents.

    Attributes:
        folder: Folder of the project.
        build_milliseconds: Processor time of the build, without encoding.
    """

    def __init__(self, folder: Path, inputs: Inputs, base: str | Path) -> None:
        # Each build has a fixed cost, above all for loading the encoder. The time of a small build
        # estimates it, and is subtracted. The very first build only imports the libraries.
        few = inputs.documents[:FEW_DOCUMENTS]
        _build(folder / "first", few, base)
        fixed = _milliseconds(lambda: _build(folder / "few", few, base))
        self.folder = folder / "freshet"
        building = _milliseconds(lambda: _build(self.folder, inputs.documents, base))
        self.build_milliseconds = building - fixed

        project = Project(self.folder)
        self._searcher = Searcher.open(project.live, RETRIEVER).ready()
        self._index = LiveIndex(project, RETRIEVER)
        self._encoder = Encoder.load(base, for_search=True)

    def search(self, query: PeerQuery, percentage: int | None) -> float:
        """Return the milliseconds of a search, without those of encoding its query."""
        filters = () if percentage is None else {"percent": percentage}
        searching = _milliseconds(lambda: self._searcher.search(query.text, K, filters))
        return searching - self._encode_query(query.text)

    def add(self, document: PeerDocument, query: PeerQuery, peer: str) -> float:
        """Return the milliseconds of adding a document, and of what the next search waits for.

        Encoding is left out, and so is the search itself. The id contains the name of the peer, so
        that the document is new in the comparison with each peer.
        """
        row = {
            "id": f"{peer}, {document.document_id}",
            "text": document.text,
            "fields": {"percent": list(document.percent)},
        }

        def receive_and_open() -> None:
            self._index.receive([row], "bench")
            self._index.apply()
            self._searcher = self._searcher.renewed()

        adding = _milliseconds(receive_and_open) - self._encode_document(document.text)
        return adding + _waiting(lambda: self._searcher.search(query.text, K))

    def _encode_query(self, text: str) -> float:
        """Return the milliseconds of encoding a query as a search does it."""
        dense = self._searcher.retriever.dense
        assert dense is not None
        return _milliseconds(lambda: dense.encode_queries_with_signs([text]))

    def _encode_document(self, text: str) -> float:
        return _milliseconds(lambda: self._encoder.encode_queries_with_signs([text]))


def _build(folder: Path, documents: Sequence[PeerDocument], base: str | Path) -> None:
    """Build a project with a live index of documents."""
    texts = [document.text for document in documents]
    vectors = np.stack([document.vector for document in documents])
    make_project(
        folder,
        base,
        len(documents),
        texts,
        (vectors, random_tokens(texts, vectors.shape[1])),
        feedback=0.3,
        fields=[{"percent": list(document.percent)} for document in documents],
        settings=IndexSettings(),
    )


def compare(
    ours: OurIndex, engine: Engine, folder: Path, inputs: Inputs, rounds: int
) -> tuple[Measured, Measured]:
    """Measure Freshet and one peer in turns.

    Args:
        ours: Freshet's index of the documents.
        engine: The peer, without documents yet.
        folder: Empty folder for the peer's files.
        inputs: Documents and queries.
        rounds: Runs of every query.

    Returns:
        The measurements of Freshet, and those of the peer.

    Raises:
        AssertionError: If a hit of the peer does not match the filter.
    """
    our_times = Measured()
    peer_times = Measured()
    our_times.add("build, ms", ours.build_milliseconds)
    peer_times.add("build, ms", _milliseconds(lambda: engine.build(folder, inputs.documents)))

    percentages_of = {document.document_id: document.percent for document in inputs.documents}
    for percentage in (None, *PERCENTAGES):
        what = "search, ms"
        if percentage is not None:
            what = f"filter of {percentage} %, ms"
        # The first search of each kind loads caches, and is not timed.
        ours.search(inputs.queries[0], percentage)
        engine.search(inputs.queries[0], percentage)

        for query in list(inputs.queries) * rounds:
            our_times.add(what, ours.search(query, percentage))
            start = time.process_time()
            hits = engine.search(query, percentage)
            peer_times.add(what, 1000 * (time.process_time() - start))
            if percentage is not None:
                _require_match(engine, hits, percentage, percentages_of)

    if engine.adds:
        for document in inputs.added:
            our_times.add(ADDING, ours.add(document, inputs.queries[0], engine.name))
            peer_times.add(ADDING, _add_and_search(engine, document, inputs.queries[0]))
    engine.close()
    return our_times, peer_times


def _require_match(
    engine: Engine,
    hits: Sequence[str],
    percentage: int,
    percentages_of: Mapping[str, Sequence[int]],
) -> None:
    """Raise AssertionError if a hit of the peer does not match the filter.

    Args:
        engine: The peer.
        hits: Ids of the documents that it found.
        percentage: Percentage of the documents that the filter matches.
        percentages_of: Percentages of the filters that match a document, by document id.
    """
    for document_id in hits:
        if percentage not in percentages_of[document_id]:
            raise AssertionError(f"{engine.name} returned a document beyond the filter")


def _add_and_search(engine: Engine, document: PeerDocument, query: PeerQuery) -> float:
    """Return the milliseconds of adding a document, and of what the next search waits for."""
    adding = _milliseconds(lambda: engine.add(document))
    return adding + _waiting(lambda: engine.search(query, None))


def _waiting(search: Callable[[], object]) -> float:
    """Return by how many milliseconds the first search is slower than the fastest later one.

    An engine may postpone the work of an addition until the next search.
    """
    first = _milliseconds(search)
    fastest = min(_milliseconds(search) for _ in range(REPEATED_SEARCHES))
    return max(0.0, first - fastest)


def _rows(name: str, passages: int, ours: Measured, peer: Measured) -> list[dict[str, Any]]:
    """Return a row for each measurement of one peer. Rows that it does not support are skipped."""
    results = []
    measurements = list(ours.samples)
    # A peer that cannot add documents has no such samples, and gets a skipped row.
    if ADDING not in measurements:
        measurements.append(ADDING)
    for what in measurements:
        our_value = ours.median(what)
        peer_value = peer.median(what)
        label = f"{name}, {passages:,} documents: {what}"
        if our_value is None or peer_value is None:
            results.append(skipped(label, "the peer cannot add to a built index"))
        else:
            results.append(row_below(label, our_value, peer_value))
    return results


def _milliseconds(task: Callable[[], object]) -> float:
    start = time.process_time()
    task()
    return 1000 * (time.process_time() - start)
