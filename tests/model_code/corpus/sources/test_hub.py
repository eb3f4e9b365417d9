"""Guards the hub source on a local data set in the hub's layout (no network): streamed or not,
pinned by the lock.
"""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from model_code.corpus.settings import ColumnSettings, CorpusSettings, HubSettings
from model_code.corpus.sources import hub
from model_code.corpus.sources.base import make_source_lock, open_locked_source
from model_code.errors import FreshetError
from model_code.files import canonical_json, hash_text

CARD = """---
configs:
- config_name: corpus
  data_files: [{split: corpus, path: corpus.jsonl}]
- config_name: queries
  data_files: [{split: queries, path: queries.jsonl}]
- config_name: default
  data_files: [{split: train, path: train.jsonl}, {split: validation, path: dev.jsonl}, {split: test, path: test.jsonl}]
---
"""


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_UPDATE_DOWNLOAD_COUNTS", False)
    datasets.disable_progress_bars()


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "org" / "woods"
    folder.mkdir(parents=True)
    (folder / "README.md").write_text(CARD)
    documents = [{"_id": f"d{i}", "title": "", "text": f"text {i}", "shade": i} for i in range(3)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in documents))
    (folder / "queries.jsonl").write_text(
        "".join(f'{{"_id": "{i}", "text": "query {i}"}}\n' for i in (1, 2, 3))
    )
    for number, split in enumerate(("train", "dev", "test"), start=1):
        row = {"query-id": number, "corpus-id": f"d{number - 1}", "score": 1}
        (folder / f"{split}.jsonl").write_text(json.dumps(row) + "\n")
    return folder


def settings(**more) -> CorpusSettings:
    chosen = {"name": "org/woods", "qrels": "org/woods", "qrels_config": "default", **more}
    return CorpusSettings(source="hub", hub=HubSettings(**chosen))


@pytest.mark.parametrize("streaming", [False, True])
def test_three_tables_of_a_data_set(tmp_path, data, streaming):
    source = hub.HubSource(settings(streaming=streaming), tmp_path)
    documents = list(source.rows("documents"))

    assert [row.values["id"] for row in documents] == ["d0", "d1", "d2"]
    assert documents[1].values["fields"] == {"shade": 1}
    assert documents[1].location == "corpus/corpus:1"
    assert [row.values for row in source.rows("queries")][0] == {"id": "1", "text": "query 1"}

    qrels = {
        (row.values["query_id"], row.values["document_id"], row.values["split"])
        for row in source.rows("qrels")
    }
    assert qrels == {(1, "d0", "train"), (2, "d1", "dev"), (3, "d2", "test")}

    alone = hub.HubSource(settings(queries=None, streaming=streaming), tmp_path)
    assert [list(alone.rows(table)) for table in ("queries", "qrels")] == [[], []]


def test_an_unknown_configuration_is_one_clear_error(tmp_path, data):
    with pytest.raises(FreshetError, match=r"configuration 'leaves'\) does not load"):
        list(hub.HubSource(settings(documents="leaves"), tmp_path).rows("documents"))


@pytest.mark.parametrize("streaming", [False, True])
def test_a_broken_file_is_one_clear_error(tmp_path, data, streaming):
    (data / "corpus.jsonl").write_bytes(b"\x88 no JSON")

    with pytest.raises(FreshetError, match="does not load"):
        list(hub.HubSource(settings(streaming=streaming), tmp_path).rows("documents"))


def test_local_hub_lock_follows_content(tmp_path, data):
    lock = make_source_lock(settings(), tmp_path)
    assert make_source_lock(settings(name=str(data), qrels=str(data)), tmp_path) == lock

    (data / "corpus.jsonl").write_text('{"_id": "d9", "text": "other"}\n')
    assert make_source_lock(settings(), tmp_path)["content_hash"] != lock["content_hash"]


class RecordingHub:
    """A hub whose data sets have the commits `commits`; `asked` records names and revisions."""

    def __init__(self):
        self.commits = {"BeIR/nq": "a1", "BeIR/nq-qrels": "b1"}
        self.asked = []

    def __call__(self):
        return self

    def dataset_info(self, name, revision):
        self.asked.append((name, revision))
        return SimpleNamespace(sha=self.commits[name])


@pytest.fixture
def fake_hub(monkeypatch):
    """A hub with two data sets."""
    fake = RecordingHub()
    monkeypatch.setattr("model_code.corpus.sources.hub.HfApi", fake)
    return fake


def revision_settings():
    """Return settings that name a revision of the documents."""
    return settings(name="BeIR/nq", qrels="BeIR/nq-qrels", qrels_config=None, revision="v1")


def test_lock_has_the_commits_of_the_hub(tmp_path, fake_hub):
    lock = make_source_lock(revision_settings(), tmp_path)

    assert lock["versions"] == {"BeIR/nq": "a1", "BeIR/nq-qrels": "b1"}
    assert lock["watermark"] == "a1"
    assert set(fake_hub.asked) == {("BeIR/nq", "v1"), ("BeIR/nq-qrels", None)}


def test_hub_error_without_text_is_named_by_its_type(tmp_path, monkeypatch):
    class SilentHub:
        def dataset_info(self, name, revision):
            raise TimeoutError

    monkeypatch.setattr("model_code.corpus.sources.hub.HfApi", SilentHub)

    with pytest.raises(FreshetError, match="does not answer for .*: TimeoutError$"):
        make_source_lock(revision_settings(), tmp_path)


def test_build_reads_the_locked_commits(tmp_path, fake_hub, monkeypatch):
    lock = make_source_lock(revision_settings(), tmp_path)
    fake_hub.commits["BeIR/nq"] = "a2"
    fake_hub.asked.clear()
    loads = []

    def record_load(*arguments, **options):
        loads.append((arguments, options))
        return {}

    monkeypatch.setattr("datasets.load_dataset", record_load)
    source = hub.HubSource(revision_settings(), tmp_path, lock)
    rows = list(source.rows("documents"))

    locked_load = (("BeIR/nq", "corpus"), {"revision": "a1", "streaming": False})
    assert rows == []
    # The first load finds the columns, the second reads the rows.
    assert loads == [locked_load, locked_load]
    assert source.describe()["content_hash"] == lock["content_hash"]
    assert fake_hub.asked == []


def test_another_revision_than_the_locked_one_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(
        hub.HubSource, "_newest_commit", lambda self, name: f"commit of {self.hub.revision}"
    )
    lock = make_source_lock(settings(name="BeIR/nq"), tmp_path)
    open_locked_source(settings(name="BeIR/nq"), tmp_path, lock)

    with pytest.raises(
        FreshetError, match=r"\(corpus.hub.revision: absent -> v2\).*run `freshet ingest` again"
    ):
        open_locked_source(settings(name="BeIR/nq", revision="v2"), tmp_path, lock)


def test_lock_without_requested_revision_is_accepted(tmp_path, monkeypatch):
    monkeypatch.setattr(hub.HubSource, "_newest_commit", lambda self, name: "a1")
    chosen = settings(name="BeIR/nq", qrels="BeIR/nq", revision="main")
    digest = hash_text(canonical_json({"BeIR/nq": "a1"}))
    lock = {
        "source": "hub",
        "versions": {"BeIR/nq": "a1"},
        "watermark": "a1",
        "content_hash": digest,
    }
    open_locked_source(chosen, tmp_path, lock)
    made = make_source_lock(chosen, tmp_path)

    assert made == {**lock, "settings": {"corpus.hub.revision": "main"}}

    other = settings(name="BeIR/nq", qrels="BeIR/nq", revision="v2")
    with pytest.raises(FreshetError, match=r"\(corpus.hub.revision: main -> v2\)"):
        open_locked_source(other, tmp_path, made)
    # not the revision, of which it says nothing
    with pytest.raises(FreshetError, match=r"\(BeIR/nq: absent -> a1\)"):
        open_locked_source(chosen, tmp_path, {**lock, "versions": {}, "content_hash": "0"})


@pytest.mark.parametrize("streaming", [False, True])
def test_misspelt_hub_column_is_refused(tmp_path, data, streaming):
    def rows(date: str) -> list:
        chosen = settings(streaming=streaming).replace(columns=ColumnSettings(date=date))
        return list(hub.HubSource(chosen, tmp_path).rows("documents"))

    message = r"org/woods/corpus has no column 'opend' \(corpus.columns.date\); it has: _id"
    with pytest.raises(FreshetError, match=message):
        rows(date="opend")
    assert len(rows(date="shade")) == 3
