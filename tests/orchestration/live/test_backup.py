"""Guards backups: made while documents arrive, restored elsewhere, they find the same; and exports, which add the same.

pytest tests/orchestration/live/test_backup.py
"""

from __future__ import annotations

import json
import threading

import pytest

from model_code.errors import FreshetError
from model_code.live.searcher import Searcher
from orchestration.live.backup import backup, export, restore
from orchestration.live.collection import LiveCollection
from orchestration.live.verify import problems
from tests.model_code.live.laws import rankings
from tests.orchestration.live.test_collection import row


@pytest.fixture
def live(own, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda handle: None)
    collection = LiveCollection(own)
    collection.receive([row("n1", "word1 word2", queries=["what is word1"], package="x"), row("d03", "word9")], "test")
    collection.apply()
    return own


def test_a_backup_under_a_writer_finds_the_same_elsewhere(live, tmp_path):
    stop, written = threading.Event(), []

    def write() -> None:
        own = LiveCollection(live)
        while not stop.is_set():
            own.receive([row(f"w{len(written)}", f"word{len(written) % 30}")], "writer")
            own.apply()
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
    assert list(problems(restored)) == []
    found = Searcher.open(restored.live)
    assert {"n1", *(f"w{number}" for number in range(before))} <= {hit.document_id for hit in found.search("word1", 99)}
    number = found.generation.number
    assert rankings(found) == rankings(found.at(LiveCollection(live).collection.read(number)))
    again = LiveCollection(restored)
    again.receive([row("later", "word3")], "test")
    assert "later" in again.apply().added
    again.ledger.close()


def test_nothing_is_written_over(live, tmp_path):
    backup(live, tmp_path / "copy")
    with pytest.raises(FreshetError, match="copy exists: name a new folder"):
        backup(live, tmp_path / "copy")
    with pytest.raises(FreshetError, match="live is there: move it away first"):
        restore(tmp_path / "copy", live.root)
    with pytest.raises(FreshetError, match="is no backup"):
        restore(tmp_path, tmp_path / "elsewhere")


def test_what_is_exported_is_unchanged_when_it_is_added(live):
    rows = json.loads(json.dumps(list(export(live, "r"))))
    assert len(rows) == 25
    new = next(each for each in rows if each["_id"] == "n1")
    assert (new["queries"], new["fields"]) == (["what is word1"], {"package": "x"})
    collection = LiveCollection(live)
    statuses = collection.forecast(collection.clean(rows, "export").documents)
    assert {name: len(ids) for name, ids in statuses.items()} == {
        "added": 0,
        "updated": 0,
        "deleted": 0,
        "unchanged": 25,
    }
