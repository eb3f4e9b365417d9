"""Guards that another engine ends with the live documents, whatever happened in between.

A dictionary stands in for the engine. The engines themselves are tested in `test_engines.py`.

Run: python -m pytest tests/model_code/collection/handover/test_handover.py
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from model_code.collection.generations.searcher import Searcher
from model_code.collection.handover import handover
from model_code.collection.handover.handover import HandoverTarget, hand_over, sync_handover
from model_code.collection.index.live_index import LiveIndex
from model_code.errors import FreshetError
from model_code.project import Project

TARGET = HandoverTarget("opensearch", "elsewhere", "notes")


class Crash(Exception):
    """Stands for a process that was killed."""


class DictionaryEngine:
    """An engine in memory, which can crash after a number of writes."""

    def __init__(self) -> None:
        self.documents: dict[str, tuple[list[str], np.ndarray]] | None = None
        self.writes_before_crash: int | None = None
        self.writes = 0

    def exists(self) -> bool:
        return self.documents is not None

    def create(self, dimension: int) -> None:
        self.documents = {}
        self.dimension = dimension

    def write(self, documents) -> None:
        for encoded in documents:
            self._count_write()
            document = encoded.document
            self.documents[document.document_id] = (list(encoded.texts), encoded.vectors)

    def delete(self, document_ids) -> None:
        for document_id in document_ids:
            self._count_write()
            self.documents.pop(document_id, None)

    def finish(self) -> None:
        pass

    def _count_write(self) -> None:
        if self.writes_before_crash is not None and self.writes >= self.writes_before_crash:
            raise Crash
        self.writes += 1

    def crash_after(self, writes: int | None) -> None:
        self.writes = 0
        self.writes_before_crash = writes


@pytest.fixture
def engine(monkeypatch) -> DictionaryEngine:
    engine = DictionaryEngine()
    monkeypatch.setattr(handover, "open_engine", lambda *_, **__: engine)
    return engine


def change(project: Project, puts: dict[str, str], deletes: list[str] = ()) -> None:
    """Add, update and delete documents, and make the changes searchable."""
    index = LiveIndex(project)
    rows = [{"_id": name, "title": name, "text": text} for name, text in puts.items()]
    index.receive(rows, "test")
    if deletes:
        index.remove(list(deletes), "test")
    index.apply()


def require_equal(engine: DictionaryEngine, project: Project) -> None:
    """Compare ids, texts and vectors with what a search reads."""
    searcher = Searcher.open(project.live, "r")
    live: set[str] = set()
    for view in searcher.views:
        vectors = view.segment.dense.passage_vectors(view.segment.rows.document_ids)
        for document_id in view.document_ids():
            live.add(document_id)
            rows = view.segment.rows.rows_by_document[document_id]
            np.testing.assert_array_equal(engine.documents[document_id][1], vectors[rows])
    assert engine.documents.keys() == live


def test_export_writes_every_live_document(own, engine):
    report = hand_over(own, TARGET)

    assert report.written == len(engine.documents) > 20
    require_equal(engine, own)


def test_passages_are_handed_over_without_title(own, engine):
    change(own, {"long": "one two three four five six seven"})

    hand_over(own, TARGET)

    assert engine.documents["long"][0] == ["one two three four five", "four five six seven"]


def test_sync_sends_only_what_changed(own, engine):
    hand_over(own, TARGET)
    change(own, {"d01": "a new text", "added": "another text"}, deletes=["d02"])
    engine.crash_after(None)

    report = sync_handover(own, TARGET)

    assert engine.writes == 3
    assert report.written == 2
    assert report.deleted == 1
    require_equal(engine, own)


def test_repeated_sync_changes_nothing(own, engine):
    hand_over(own, TARGET)
    change(own, {"added": "another text"})
    sync_handover(own, TARGET)
    engine.crash_after(0)

    report = sync_handover(own, TARGET)

    assert report.written == 0
    assert report.deleted == 0


def test_compaction_and_revert_are_followed(own, engine):
    hand_over(own, TARGET)
    before = LiveIndex(own).generation.number
    change(own, {"added": "another text"}, deletes=["d03"])
    LiveIndex(own).compact()
    sync_handover(own, TARGET)
    assert "added" in engine.documents

    LiveIndex(own).revert(before)
    sync_handover(own, TARGET)

    assert "added" not in engine.documents
    require_equal(engine, own)


def test_crash_at_any_write_leaves_nothing_behind(own, engine):
    """After each crash a document that was only half sent is deleted here, so it must go there."""
    hand_over(own, TARGET)
    rng = random.Random(7)
    for crash in range(4):
        engine.crash_after(None)
        change(own, {f"new{crash}": "x y z", f"d{crash + 5:02d}": f"text {crash}"}, ["d04"])
        engine.crash_after(rng.randrange(2))
        with pytest.raises(Crash):
            sync_handover(own, TARGET)
        change(own, {"d04": f"back {crash}"}, [f"new{crash}"])
    engine.crash_after(None)

    sync_handover(own, TARGET)

    require_equal(engine, own)


def test_interrupted_export_is_repeated(own, engine):
    engine.crash_after(3)
    with pytest.raises(Crash):
        hand_over(own, TARGET)
    with pytest.raises(FreshetError, match="was interrupted; repeat it: freshet export --to"):
        sync_handover(own, TARGET)
    engine.crash_after(None)

    hand_over(own, TARGET)

    require_equal(engine, own)


def test_existing_collection_is_not_overwritten(own, engine):
    engine.create(4)
    engine.documents["theirs"] = ([], np.zeros((0, 4)))

    with pytest.raises(FreshetError, match=r"exists; .* --replace"):
        hand_over(own, TARGET)

    assert "theirs" in engine.documents


def test_replace_removes_foreign_documents(own, engine):
    engine.create(4)
    engine.documents["theirs"] = ([], np.zeros((0, 4)))

    hand_over(own, TARGET, replace=True)

    assert "theirs" not in engine.documents


def test_vectors_of_two_encoders_are_not_mixed(own, engine):
    hand_over(own, TARGET)
    path = next((own.state / "handovers").glob("*.json"))
    text = path.read_text()
    fingerprint = Searcher.open(own.live, "r").generation.fingerprint
    path.write_text(text.replace(fingerprint, "0" * len(fingerprint)))

    with pytest.raises(FreshetError, match=r"encoder 0{12}.*--replace"):
        sync_handover(own, TARGET)


def test_sync_without_export_is_refused(own, engine):
    command = "freshet export --to opensearch elsewhere --name notes"
    with pytest.raises(FreshetError, match=f"nothing was handed over.*: {command}$"):
        sync_handover(own, TARGET)


def test_lost_collection_is_reported(own, engine):
    hand_over(own, TARGET)
    engine.documents = None

    with pytest.raises(FreshetError, match="is gone"):
        sync_handover(own, TARGET)


def test_password_in_address_is_refused():
    with pytest.raises(FreshetError, match="contains a password") as raised:
        HandoverTarget("qdrant", "https://ada:secret@host:6333", "notes")

    assert "secret" not in str(raised.value)


def test_malformed_address_is_explained():
    with pytest.raises(FreshetError, match=r"'http://\[host' cannot be read"):
        HandoverTarget("qdrant", "http://[host", "notes")


def test_erased_document_leaves_the_engine(own, engine):
    from model_code.collection.erase import erase_documents

    change(own, {"private": "a private text"})
    hand_over(own, TARGET)
    erase_documents(LiveIndex(own), ["private"])

    sync_handover(own, TARGET)

    assert "private" not in engine.documents
