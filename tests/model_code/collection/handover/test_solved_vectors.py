"""A vector that IncDSI solves again reaches another engine, although its document is unchanged.

Run: python -m pytest tests/model_code/collection/handover/test_solved_vectors.py
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from model_code.collection.forget import forget_query
from model_code.collection.generations.refinements import solved_documents
from model_code.collection.handover import handover
from model_code.collection.handover.handover import HandoverTarget, hand_over, sync_handover
from model_code.collection.handover.passages import EncodedDocument
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.ledger.events import Feedback, Opinion
from model_code.project import Project
from tests.model_code.collection.laws import OLD, make_encoder, open_build

TARGET = HandoverTarget("opensearch", "elsewhere", "notes")
SETTINGS = """\
retrievers: {r: {}}
additions: {gamma1: 1.0, lambda1: 0.9, lambda2: 0.5}
"""
RATED = "d03"
QUERY = "word22 word23"


class VectorEngine:
    """An engine in memory that keeps the vectors of each document."""

    def __init__(self) -> None:
        self.vectors: dict[str, np.ndarray] | None = None
        self.written: list[str] = []

    def exists(self) -> bool:
        return self.vectors is not None

    def create(self, dimension: int) -> None:
        self.vectors = {}

    def write(self, documents: Iterable[EncodedDocument]) -> None:
        for encoded in documents:
            self.written.append(encoded.document.document_id)
            self.vectors[encoded.document.document_id] = np.array(encoded.vectors)

    def delete(self, document_ids: Iterable[str]) -> None:
        for document_id in document_ids:
            self.vectors.pop(document_id, None)

    def finish(self) -> None:
        pass


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> VectorEngine:
    engine = VectorEngine()
    monkeypatch.setattr(handover, "open_engine", lambda *_, **__: engine)
    return engine


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LiveIndex:
    """A fusion of an encoder and BM25, whose documents have one passage each."""
    monkeypatch.delenv("FRESHET_LEDGER", raising=False)
    monkeypatch.delenv("FRESHET_STATE", raising=False)
    short = {name: (title, " ".join(text.split()[:4])) for name, (title, text) in OLD.items()}
    make_encoder("dense", tmp_path / "encoder")
    open_build("bm25_fusion", tmp_path, tmp_path / "encoder", short)
    (tmp_path / "params.yaml").write_text(SETTINGS)
    (tmp_path / "dvc.yaml").touch()
    return LiveIndex(Project(tmp_path))


def solve_by_thumb(index: LiveIndex) -> None:
    """Rate a document, and add another one. The next generation solves the rated vector."""
    index.ledger.record_feedback(Feedback(QUERY, RATED, Opinion.UP))
    index.receive([{"id": "new", "title": "word1", "text": "word2 word3"}], "api")
    index.apply()
    solved_ids = [document.document_id for document in solved_documents(index.generation)]
    assert solved_ids == [RATED]


def live_vector(index: LiveIndex, document_id: str) -> list[float]:
    for view in index.builder.searcher.views:
        if document_id in view:
            row = view.segment.dense.index.document_ids.index(document_id)
            return view.segment.dense.index.vectors[row].tolist()
    raise AssertionError(f"{document_id} is not live")


def test_vector_solved_after_a_thumb_is_sent(index, engine):
    hand_over(index.project, TARGET)
    encoding = engine.vectors[RATED][0].tolist()
    engine.written.clear()

    solve_by_thumb(index)
    report = sync_handover(index.project, TARGET)

    assert sorted(engine.written) == [RATED, "new"]
    assert report.written == 2
    assert engine.vectors[RATED][0].tolist() == live_vector(index, RATED)
    assert engine.vectors[RATED][0].tolist() != encoding


def test_vector_solved_again_after_forgetting_is_sent(index, engine):
    solve_by_thumb(index)
    hand_over(index.project, TARGET)
    solved = engine.vectors[RATED][0].tolist()
    engine.written.clear()

    forget_query(index, QUERY)
    sync_handover(index.project, TARGET)

    assert engine.written == [RATED]
    assert engine.vectors[RATED][0].tolist() == live_vector(index, RATED)
    assert engine.vectors[RATED][0].tolist() != solved
