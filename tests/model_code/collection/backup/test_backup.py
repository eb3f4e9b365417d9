"""Guards backups: made while documents arrive, restored elsewhere, they find the same;
and that what was erased is in no file.
"""

from __future__ import annotations

import json
import re
import threading

import pytest
from typer.testing import CliRunner

from model_code.collection.backup import backup as module
from model_code.collection.backup.backup import backup, restore
from model_code.collection.backup.repair import find_damage
from model_code.collection.erase import erase_documents
from model_code.collection.generations.searcher import Searcher
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.index.project_ledger import WRITER_LOCK
from model_code.collection.ledger.events import Feedback
from model_code.collection.sync.inbox import receive_inbox
from model_code.corpus.sources.files import write_snapshot
from model_code.errors import FreshetError
from model_code.files import write_json
from model_code.project import Project, lock_is_free
from orchestration.cli.app import app
from tests.live_example import add, row
from tests.model_code.collection.laws import rankings


@pytest.fixture
def live(own):
    add(
        LiveIndex(own),
        row("n1", "word1 word2", queries=["what is word1"], package="x"),
        row("d03", "word9"),
    )
    return own


def test_backup_during_writes_restores_same_searches(live, tmp_path):
    stop, written = threading.Event(), []

    def write() -> None:
        own = LiveIndex(live)
        while not stop.is_set():
            add(own, row(f"w{len(written)}", f"word{len(written) % 30}"))
            written.append(len(written))
        own.ledger.close()

    thread = threading.Thread(target=write)
    thread.start()
    while not written:
        pass
    before = len(written)
    assert backup(live, tmp_path / "copy") is None
    stop.set()
    thread.join()
    restored = restore(tmp_path / "copy", tmp_path / "elsewhere")
    assert list(find_damage(restored)) == []
    found = Searcher.open(restored.live)
    assert {"n1", *(f"w{number}" for number in range(before))} <= {
        hit.document_id for hit in found.search("word1", 99)
    }
    number = found.generation.number
    assert rankings(found) == rankings(Searcher(live.live, LiveIndex(live).store.read(number), {}))
    again = LiveIndex(restored)
    assert "later" in add(again, row("later", "word3")).added
    again.ledger.close()


def test_backup_locks_generations_and_overwrites_nothing(live, tmp_path, monkeypatch):
    free, link = [], module.link
    monkeypatch.setattr(
        module,
        "link",
        lambda *paths: free.append(lock_is_free(live.live / WRITER_LOCK)) or link(*paths),
    )
    backup(live, tmp_path / "copy")
    assert set(free) == {False}
    with pytest.raises(FreshetError, match="copy exists: name a new folder"):
        backup(live, tmp_path / "copy")
    with pytest.raises(FreshetError, match="live is there: move it away first"):
        restore(tmp_path / "copy", live.root)
    with pytest.raises(FreshetError, match="is no backup"):
        restore(tmp_path, tmp_path / "elsewhere")


def held_in(folder, secret):
    """The files below a folder that hold a text, read as what they are."""
    import pyarrow.parquet as pq

    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        is_table = path.suffix == ".parquet"
        text = (
            str(pq.read_table(path).to_pylist())
            if is_table
            else path.read_bytes().decode("latin-1")
        )
        if secret in text.lower():
            yield path.relative_to(folder).as_posix()


def test_erased_text_is_in_no_file(own, tmp_path):
    live = LiveIndex(own)
    for text in ("word1 quokka one", "word2 quokka two"):
        add(live, row("n1", text, queries=["what is quokka"]), row("n2", "word3"))
    assert len(set(held_in(own.live, "quokka"))) >= 3, "two generations, and the ledger"
    live.ledger.record_feedback(Feedback("where do quokka live", "n1", "up"))
    backup(own, tmp_path / "earlier")
    outcome = erase_documents(live, ["n1", "unknown"])
    assert (outcome.deleted, outcome.erased) == (["n1"], ["n1"])
    assert [refused["document_id"] for refused in outcome.rejected] == ["unknown"]
    assert list(held_in(own.live, "quokka")) == []
    assert list(find_damage(own)) == []
    backup(own, tmp_path / "copy")
    assert list(held_in(tmp_path / "copy", "quokka")) == []
    said = CliRunner().invoke(
        app, ["restore", str(tmp_path / "earlier"), "--into", str(tmp_path / "elsewhere")]
    )
    assert said.exit_code == 0
    assert "documents erased since then are back" in said.output.replace("\n", " ")
    assert list(held_in(tmp_path / "elsewhere" / "live", "quokka"))
    assert [event.payload is None for event in live.ledger_view.life("n1")] == [True] * 3
    again = add(LiveIndex(own), row("n1", "word2 quokka two", queries=["what is quokka"]))
    assert again.added == ("n1",), "the same content is new again"


def test_where_an_erased_text_remains_is_said(live):
    """In what was set aside, and in a build until it is built again."""
    (live.live / "ledger.sqlite.damaged").write_text("word1")
    collection = LiveIndex(live)
    with pytest.raises(
        FreshetError, match=r"ledger\.sqlite\.damaged, which was set aside: delete it"
    ):
        erase_documents(collection, ["n1"])
    (live.live / "ledger.sqlite.damaged").unlink()
    assert erase_documents(collection, ["n1"]).erased == ["n1"]
    with pytest.raises(
        FreshetError, match="texts remain: generation 0 of r, the build that is searched"
    ):
        erase_documents(collection, ["d05"])
    assert "d05" not in {hit.document_id for hit in Searcher.open(live.live).search("word3", 99)}


def test_erasure_names_copies_and_removes_drift_references(live):
    collection, root = LiveIndex(live), live.root
    (root / "inbox").mkdir()
    (root / "inbox/new.jsonl").write_text(json.dumps(row("n8", "word1")) + "\n")
    receive_inbox(collection)
    (root / "inbox/done/2024-new.jsonl").write_text(json.dumps(row("other", "word1")) + "\n")
    (root / "inbox/failed").mkdir()
    (root / "inbox/failed/0123456789ab-bad.jsonl").write_text(
        json.dumps({"_id": "n8", "text": 1}) + "\n"
    )
    snapshot = live.state / "retraining/k/project/snapshot"
    documents = [{"id": "n8", "title": "", "text": "word1", "fields": "{}"}]
    write_snapshot(snapshot, {"documents": documents, "queries": [], "qrels": []})
    write_json(
        live.state / "sync/s.json",
        {"rules": "", "units": {"a.md": {"documents": [["n8", "hash"]]}}},
    )  # of before
    (live.state / "drift/b/reference").mkdir(parents=True)
    with pytest.raises(FreshetError) as told:
        erase_documents(collection, ["n8"])
    for place in (
        r"inbox/done/new\.jsonl, which names one",
        r"failed/0123456789ab-bad\.jsonl, which names one",
        "retraining/k, the work of a retrain",
        "'n8' in what `freshet sync` reads",
    ):
        assert re.search(place, str(told.value))
    assert "2024-new.jsonl" not in str(told.value)
    assert not (live.state / "drift").exists()


def test_there_is_no_backup_of_nothing(tmp_path):
    with pytest.raises(FreshetError, match="nothing is live yet"):
        backup(Project(tmp_path), tmp_path / "copy")
    assert list(tmp_path.iterdir()) == []


def test_revert_to_erased_text_is_refused(live):
    """Its log says that they are removed, so that what its files bring back could never be deleted
    again.
    """
    collection = LiveIndex(live)
    reader = Searcher.open(live.live)
    holding = reader.generation.number
    with pytest.raises(
        FreshetError, match=f"texts remain: generation {holding} of r, which is read just now"
    ):
        erase_documents(collection, ["n1"])
    del reader
    with pytest.raises(
        FreshetError, match=f"generation {holding} still holds n1, which was erased"
    ):
        collection.revert(holding)
    assert "n1" not in {hit.document_id for hit in Searcher.open(live.live).search("word1", 99)}
    assert erase_documents(collection, ["n1"]).erased == ["n1"], "what was left over is gone now"
