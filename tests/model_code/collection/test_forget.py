"""Guards `freshet forget`: a query finds nothing, and its text is nowhere but where the message says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from model_code.collection.forget import forget_query
from model_code.collection.index.live_index import LiveIndex, additions_folder
from model_code.collection.ledger.events import Feedback, Opinion
from model_code.collection.sync.sync import sync
from model_code.errors import FreshetError, SettingsError
from model_code.project import Project
from tests.model_code.collection.known_collection import found, judged, open_known_collection

pytestmark = pytest.mark.usefixtures("no_waiting_for_the_disk")

SECRET = "who is Jane Doe"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LiveIndex:
    """A live collection in which a row and feedback brought the query."""
    monkeypatch.delenv("FRESHET_LEDGER", raising=False)
    monkeypatch.delenv("FRESHET_STATE", raising=False)
    open_known_collection(tmp_path)
    live_index = LiveIndex(Project(tmp_path))
    row = {"id": "jd", "title": "jd", "text": "A person.", "queries": [SECRET, "a person"]}
    live_index.receive([row], "api")
    live_index.ledger.record_feedback(Feedback("Who is JANE Doe?", "wc", Opinion.UP))
    live_index.ledger.record_feedback(Feedback("count lines", "wc", Opinion.UP))
    live_index.apply()
    return live_index


def files_with(folder: Path, text: str) -> list[str]:
    """Return the files that contain a text, whatever its case."""
    names = []
    for path in folder.rglob("*"):
        if path.is_file() and text.lower().encode() in path.read_bytes().lower():
            names.append(path.name)
    return names


def test_forgotten_query_is_in_no_file(index: LiveIndex) -> None:
    root = index.project.root
    assert set(found(index.builder.searcher, "jane")) == {"jd", "wc"}
    assert files_with(root, "jane")

    report = forget_query(index, "WHO is Jane Doe")

    assert report.documents == ["jd", "wc"]
    assert report.rewritten == ["jd"]
    assert report.opinions == 1
    assert files_with(root, "jane") == []
    assert found(index.builder.searcher, "jane") == []
    texts = {query.text for query in index.builder.searcher.known_queries()}
    assert texts == {"a person", "count lines"}


def test_forgotten_query_never_comes_back(index: LiveIndex) -> None:
    forget_query(index, SECRET)
    index.ledger.record_feedback(Feedback(SECRET, "ls", Opinion.UP))
    index.receive([{"id": "j2", "title": "j2", "text": "Someone.", "queries": [SECRET]}], "api")
    index.apply()

    assert found(index.builder.searcher, "jane") == []
    texts = {query.text for query in index.builder.searcher.known_queries()}
    assert texts == {"a person", "count lines"}


def test_sync_does_not_bring_back_forgotten_query(index: LiveIndex, tmp_path: Path) -> None:
    source = tmp_path / "people.jsonl"
    row = {"id": "p1", "title": "p1", "text": "Someone.", "queries": [SECRET, "someone"]}
    source.write_text(json.dumps(row) + "\n")
    sync(index, str(source), name="people")
    forget_query(index, SECRET)

    unchanged = sync(index, str(source), name="people")
    row["text"] = "Someone else."
    source.write_text(json.dumps(row) + "\n")
    changed = sync(index, str(source), name="people")

    assert unchanged.changed == []
    assert changed.updated == ["people:p1"]
    assert index.present_documents(["people:p1"])["people:p1"].queries == ("someone",)
    source.unlink()
    assert files_with(index.project.root, "jane") == []


def test_row_with_forgotten_query_is_recorded_without_it(index: LiveIndex) -> None:
    forget_query(index, SECRET)

    index.receive([{"id": "j2", "text": "Someone.", "queries": [SECRET, "someone"]}], "api")

    assert index.present_documents(["j2"])["j2"].queries == ("someone",)


def test_caches_are_deleted_under_their_lock(
    index: LiveIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = additions_folder(index.project)
    folder.mkdir(parents=True)
    locked: list[str] = []

    @contextmanager
    def lock(path: Path) -> Iterator[None]:
        locked.append(path.name)
        assert folder.exists()
        yield
        assert not folder.exists()

    monkeypatch.setattr("model_code.incdsi.constraints.file_lock", lock)
    forget_query(index, SECRET)

    assert locked == ["additions.lock"]


def test_report_says_that_nothing_knew_a_query(index: LiveIndex) -> None:
    report = forget_query(index, "nobody asked this")
    assert str(report).startswith("no document knew the query")


def test_feedback_and_forgetting_are_one_transaction(
    index: LiveIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("killed")

    monkeypatch.setattr("model_code.collection.ledger.ledger._insert_forgotten", fail)
    with pytest.raises(RuntimeError, match="killed"):
        index.ledger.forget_query(SECRET)

    assert len(index.ledger.feedback()) == 2


def test_query_of_the_build_stays_in_its_files_and_the_message_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FRESHET_LEDGER", raising=False)
    monkeypatch.delenv("FRESHET_STATE", raising=False)
    open_known_collection(tmp_path, known={"wc": [judged("wc", SECRET)]})
    index = LiveIndex(Project(tmp_path))
    assert found(index.builder.searcher, "jane") == ["wc"]

    with pytest.raises(FreshetError, match="its text remains: generation 0 .* build again"):
        forget_query(index, SECRET)
    assert found(index.builder.searcher, "jane") == []


def test_empty_query_is_refused(index: LiveIndex) -> None:
    with pytest.raises(SettingsError, match="the query is empty"):
        forget_query(index, "  ")
