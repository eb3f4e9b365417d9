"""Tests of backups and erasure.

A backup can be made while documents arrive. Restored elsewhere, it finds the same. An erased
document is in no file.
"""

from __future__ import annotations

import json
import threading
import time

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from model_code.collection.backup import backup as backup_module
from model_code.collection.backup.backup import PROJECT_FILES, backup, restore
from model_code.collection.backup.repair import find_damage
from model_code.collection.erase import erase_documents
from model_code.collection.generations.searcher import Searcher
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.index.project_ledger import WRITER_LOCK
from model_code.collection.ledger.events import Feedback
from model_code.collection.sync.inbox import receive_inbox
from model_code.corpus.corpus_queries import KNOWN_QUERIES, CorpusQueries
from model_code.corpus.sources.files import write_snapshot
from model_code.errors import FreshetError
from model_code.files import write_json
from model_code.project import Project, lock_is_free
from model_code.text.known_queries import KnownQuery, QuerySource
from orchestration.cli.app import app
from tests.live_example import add, row
from tests.model_code.collection.laws import rankings


@pytest.fixture
def live(own):
    """A project to which a document was added and in which one was updated."""
    added = row("n1", "word1 word2", queries=["what is word1"], package="x")
    updated = row("d03", "word9")
    add(LiveIndex(own), added, updated)
    return own


def test_restored_project_has_the_files_of_freshet_init(live, tmp_path):
    for name in PROJECT_FILES:
        (live.root / name).write_text("of freshet init")

    backup(live, tmp_path / "copy")
    restored = restore(tmp_path / "copy", tmp_path / "elsewhere")

    # Without code.lock.json, DVC refuses every build.
    assert [name for name in PROJECT_FILES if not (restored.root / name).is_file()] == []


def test_backup_of_a_clone_leaves_out_files_of_the_code(live, tmp_path):
    (live.root / "pyproject.toml").write_text("of the code")

    backup(live, tmp_path / "copy")

    assert not (tmp_path / "copy" / "pyproject.toml").exists()


class RepeatingWriter:
    """A thread that adds one document after the other until it is stopped."""

    def __init__(self, project):
        self.project = project
        self.written = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def stop(self):
        """Stop after the current document."""
        self._stop.set()
        self._thread.join()

    def _write(self):
        index = LiveIndex(self.project)
        while not self._stop.is_set():
            add(index, row(f"w{self.written}", f"word{self.written % 30}"))
            self.written += 1
        index.ledger.close()


def test_backup_during_writes_restores_same_searches(live, tmp_path):
    writer = RepeatingWriter(live)
    while not writer.written:
        time.sleep(0.01)
    written_before = writer.written
    assert backup(live, tmp_path / "copy") is None
    writer.stop()

    restored = restore(tmp_path / "copy", tmp_path / "elsewhere")

    searcher = Searcher.open(restored.live)
    found = {hit.document_id for hit in searcher.search("word1", 99)}
    generation = LiveIndex(live).store.read(searcher.generation.number)
    assert list(find_damage(restored)) == []
    assert {"n1", *(f"w{number}" for number in range(written_before))} <= found
    assert rankings(searcher) == rankings(Searcher(live.live, generation, {}))


def test_ledger_of_another_name_is_restored(own, tmp_path, monkeypatch):
    monkeypatch.setenv("FRESHET_LEDGER", "sqlite:///live/changes.sqlite")
    add(LiveIndex(own), row("n1", "word1 word2"))
    backup(own, tmp_path / "copy")

    restored = restore(tmp_path / "copy", tmp_path / "elsewhere")

    assert "n1" in LiveIndex(restored).ledger.content_hashes()
    assert not (restored.live / "ledger.sqlite").exists()


def test_restored_project_takes_additions(live, tmp_path):
    backup(live, tmp_path / "copy")
    restored = restore(tmp_path / "copy", tmp_path / "elsewhere")
    index = LiveIndex(restored)

    result = add(index, row("later", "word3"))

    index.ledger.close()
    assert "later" in result.added


def test_generations_are_locked_during_backup(live, tmp_path, monkeypatch):
    link = backup_module.link
    is_free_at_link = []

    def record_lock_and_link(*paths):
        is_free_at_link.append(lock_is_free(live.live / WRITER_LOCK))
        return link(*paths)

    monkeypatch.setattr(backup_module, "link", record_lock_and_link)
    backup(live, tmp_path / "copy")

    assert set(is_free_at_link) == {False}


def test_backup_overwrites_nothing(live, tmp_path):
    backup(live, tmp_path / "copy")

    with pytest.raises(FreshetError, match="copy exists: name a new folder"):
        backup(live, tmp_path / "copy")


def test_restore_overwrites_no_live_collection(live, tmp_path):
    backup(live, tmp_path / "copy")

    with pytest.raises(FreshetError, match="live is there: move it away first"):
        restore(tmp_path / "copy", live.root)


def test_folder_without_backup_cannot_be_restored(tmp_path):
    with pytest.raises(FreshetError, match="is no backup"):
        restore(tmp_path, tmp_path / "elsewhere")


def held_in(folder, secret):
    """Yield the files below a folder that hold a text; tables are read as tables."""
    import pyarrow.parquet as pq

    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        if path.suffix == ".parquet":
            text = str(pq.read_table(path).to_pylist())
        else:
            text = path.read_bytes().decode("latin-1")
        if secret in text.lower():
            yield path.relative_to(folder).as_posix()


@pytest.fixture
def with_secret(own):
    """The live index of a project with two versions of a document about a quokka."""
    index = LiveIndex(own)
    for text in ("word1 quokka one", "word2 quokka two"):
        add(index, row("n1", text, queries=["what is quokka"]), row("n2", "word3"))
    index.ledger.record_feedback(Feedback("where do quokka live", "n1", "up"))
    return index


def test_erased_text_is_in_no_file(own, with_secret, tmp_path):
    files_before = set(held_in(own.live, "quokka"))

    erase_documents(with_secret, ["n1"])
    backup(own, tmp_path / "copy")

    # Two generations and the ledger held the text.
    assert len(files_before) >= 3
    assert list(held_in(own.live, "quokka")) == []
    assert list(held_in(own.state, "quokka")) == []
    assert list(held_in(tmp_path / "copy", "quokka")) == []
    assert list(find_damage(own)) == []


def test_erased_document_of_the_build_is_in_no_cache(own):
    """IncDSI caches the known queries of the build, with their vectors."""
    index = LiveIndex(own)
    queries = {}
    for document_id, document in index.present_documents(["d05", "d06"]).items():
        queries[document_id] = f"{document.title} {document.text}"
    queries["d05"] += " quokka"
    known = [KnownQuery(name, text, QuerySource.QRELS) for name, text in queries.items()]
    base = Searcher.open(own.live).base.folder
    CorpusQueries(tuple(known)).save(base / KNOWN_QUERIES)
    add(index, row("n1", "word1", queries=["word3"]))
    caches = own.state / "additions"
    (cache,) = caches.glob("r-known-*")
    vector = np.load(cache / "vectors.npy")[0].tobytes().decode("latin-1").lower()
    assert [name.split("/")[-1] for name in held_in(caches, "quokka")] == ["constraints.json"]
    assert [name.split("/")[-1] for name in held_in(caches, vector)] == ["vectors.npy"]

    with pytest.raises(FreshetError, match="generation 0 of r, the build that is searched"):
        erase_documents(index, ["d05"])

    assert list(held_in(own.state, "quokka")) == []
    assert list(held_in(caches, "d05")) == []
    assert list(held_in(own.state, vector)) == []
    assert [name.split("/")[-1] for name in held_in(caches, queries["d06"])] == ["constraints.json"]
    add(LiveIndex(own), row("n2", "word1", queries=["word4"]))
    assert list(held_in(own.state, "quokka")) == []


def test_erasure_deletes_caches_that_do_not_name_documents(own, with_secret):
    unfinished = own.state / "additions" / "r-known-0" / "encoding"
    unfinished.mkdir(parents=True)

    erase_documents(with_secret, ["n1"])

    assert not unfinished.parent.exists()


def test_erasure_reports_unknown_documents(with_secret):
    report = erase_documents(with_secret, ["n1", "unknown"])

    assert report.deleted == ["n1"]
    assert report.erased == ["n1"]
    assert [refused["document_id"] for refused in report.rejected] == ["unknown"]


def test_events_of_erased_document_have_no_payload(with_secret):
    erase_documents(with_secret, ["n1"])

    events = with_secret.ledger_view.life("n1")

    assert [event.payload for event in events] == [None, None, None]


def test_restored_backup_warns_of_erased_documents(own, with_secret, tmp_path):
    backup(own, tmp_path / "earlier")
    erase_documents(with_secret, ["n1"])
    options = ["restore", str(tmp_path / "earlier"), "--into", str(tmp_path / "elsewhere")]

    result = CliRunner().invoke(app, options)

    assert result.exit_code == 0
    assert "documents erased since then are back" in result.output.replace("\n", " ")
    assert list(held_in(tmp_path / "elsewhere" / "live", "quokka"))


def test_erased_document_can_be_added_again(own, with_secret):
    erase_documents(with_secret, ["n1"])

    result = add(LiveIndex(own), row("n1", "word2 quokka two", queries=["what is quokka"]))

    # The same content is new again.
    assert result.added == ("n1",)


def test_remaining_copies_of_erased_text_are_named(live):
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


def write_row(path, content):
    """Write a file of one row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content) + "\n")


@pytest.fixture
def copied(live):
    """The live index of a project in which other files name the document n8."""
    index = LiveIndex(live)
    inbox = live.root / "inbox"
    write_row(inbox / "new.jsonl", row("n8", "word1"))
    receive_inbox(index)
    write_row(inbox / "done/2024-new.jsonl", row("other", "word1"))
    write_row(inbox / "failed/0123456789ab-bad.jsonl", {"_id": "n8", "text": 1})

    snapshot = live.state / "retraining/k/project/snapshot"
    documents = [{"id": "n8", "title": "", "text": "word1", "fields": "{}"}]
    write_snapshot(snapshot, {"documents": documents, "queries": [], "qrels": []})
    corpus = live.artifacts / "corpus" / "documents.parquet"
    corpus.parent.mkdir(parents=True)
    pd.DataFrame({"document_id": ["d01", "n8"]}).to_parquet(corpus)
    units = {"a.md": {"documents": [["n8", "hash"]]}}
    write_json(live.state / "sync/s.json", {"rules": "", "units": units})
    return index


@pytest.mark.parametrize(
    "place",
    [
        r"inbox/done/new\.jsonl, which names one",
        r"failed/0123456789ab-bad\.jsonl, which names one",
        "retraining/k, the work of a retrain",
        "artifacts/corpus: take them out of the corpus's source, and build again",
        "'n8' in what `freshet sync` reads",
    ],
)
def test_erasure_names_copies(copied, place):
    with pytest.raises(FreshetError, match=place):
        erase_documents(copied, ["n8"])


def test_erasure_names_no_file_of_other_documents(copied):
    with pytest.raises(FreshetError) as raised:
        erase_documents(copied, ["n8"])

    assert "2024-new.jsonl" not in str(raised.value)


def test_erasure_removes_drift_references(copied, live):
    (live.state / "drift/b/reference").mkdir(parents=True)

    with pytest.raises(FreshetError):
        erase_documents(copied, ["n8"])

    assert not (live.state / "drift").exists()


def test_backup_of_nothing_is_refused(tmp_path):
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
    # What was left over is gone now.
    assert erase_documents(collection, ["n1"]).erased == ["n1"]
