"""Guards the comparison with other engines at a tiny size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers import bench
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


def test_missing_engine_keeps_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    class Missing(Engine):
        name = "nothing"
        modules = ("a_module_that_does_not_exist",)

    monkeypatch.setattr(bench, "ENGINES", {"nothing": Missing})
    monkeypatch.setattr(bench, "OurIndex", lambda *_: None)
    monkeypatch.setattr(bench, "make_inputs", lambda *_: None)
    monkeypatch.setattr(bench.Encoder, "load", lambda *_, **__: None)

    (row,) = bench.rows(passages=10)

    assert row["goal"] == "skipped: a_module_that_does_not_exist not installed"
