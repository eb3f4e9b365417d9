"""Guards the comparison with other engines at a tiny size."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.peers import bench, memory
from benchmarks.peers.engines import ENGINES, Engine, PeerDocument, PeerQuery

WIDTH = 8


def make_documents(count: int) -> list[PeerDocument]:
    """Return documents with a word of their own; every second one belongs to the share 50."""
    vectors = np.random.default_rng(0).standard_normal((count, WIDTH)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    documents = []
    for number, vector in enumerate(vectors):
        percent = [50] if number % 2 == 0 else []
        documents.append(PeerDocument(f"d{number}", f"quay word{number}", vector, percent))
    return documents


DOCUMENTS = make_documents(41)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    """Each installed engine with all documents but the last."""
    engine_class = ENGINES[request.param]
    missing = bench.missing_modules(engine_class)
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed")
    engine = engine_class()
    engine.build(tmp_path, DOCUMENTS[:-1])
    return engine


def test_engine_finds_a_document_by_words_and_vector(engine: Engine) -> None:
    query = PeerQuery("word6", DOCUMENTS[6].vector)

    assert engine.search(query, None)[0] == "d6"


def test_engine_filters(engine: Engine) -> None:
    hits = engine.search(PeerQuery("quay", DOCUMENTS[6].vector), 50)

    assert len(hits) == 10
    assert all(int(hit[1:]) % 2 == 0 for hit in hits)


def test_engine_finds_an_added_document(engine: Engine) -> None:
    if not engine.adds:
        pytest.skip("it cannot add to a built index")

    engine.add(DOCUMENTS[-1])

    assert engine.search(PeerQuery("word40", DOCUMENTS[-1].vector), 50)[0] == "d40"


def test_opened_index_gives_the_same_hits(engine: Engine, tmp_path: Path) -> None:
    query = PeerQuery("word6", DOCUMENTS[6].vector)
    hits = engine.search(query, 50)
    engine.close()

    opened = type(engine)()
    opened.open(tmp_path)

    assert opened.search(query, 50) == hits


def test_queries_are_read_as_they_were_written(tmp_path: Path) -> None:
    memory.write_queries(tmp_path / "queries.npz", [PeerQuery("quay", DOCUMENTS[6].vector)])

    (query,) = memory.read_queries(tmp_path / "queries.npz")

    assert query.text == "quay"
    np.testing.assert_array_equal(query.vector, DOCUMENTS[6].vector)


def test_missing_engine_keeps_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    class Missing(Engine):
        name = "nothing"
        modules = ("a_module_that_does_not_exist",)

    monkeypatch.setattr(bench, "ENGINES", {"nothing": Missing})
    monkeypatch.setattr(bench, "OurIndex", lambda *_: SimpleNamespace(folder=Path("freshet")))
    monkeypatch.setattr(bench, "make_inputs", lambda *_: bench.Inputs([], [], []))
    monkeypatch.setattr(bench.memory, "write_queries", lambda *_: None)
    monkeypatch.setattr(bench.memory, "measure", lambda *_: 1.0)
    monkeypatch.setattr(bench.Encoder, "load", lambda *_, **__: None)

    (row,) = bench.rows(passages=10)

    assert row["goal"] == "skipped: a_module_that_does_not_exist not installed"
