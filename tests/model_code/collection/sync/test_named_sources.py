"""Guards several sources of one index: ids, deletions, names, removal and renaming."""

from __future__ import annotations

import json
import os
import sys

import pytest
from typer.testing import CliRunner

from model_code.collection.generations.generation_store import default_retriever
from model_code.collection.index.changes import add_files
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.ledger.events import Feedback
from model_code.collection.sync import source_changes
from model_code.collection.sync.named_sources import (
    read_sources,
    source_states,
    write_sources,
)
from model_code.collection.sync.source_changes import remove_source, rename_source
from model_code.collection.sync.sync import sync, sync_all
from model_code.corpus.judgement_file import JudgedPair, read_judgements, record_judgements
from model_code.corpus.source_ids import name_in_source, source_document_id
from model_code.errors import FreshetError
from model_code.project import file_lock, lock_owner
from orchestration.cli import app
from orchestration.cli.status import project_status, status_text
from orchestration.freshness.judged_pairs import rename_judged_source
from tests.live_example import collection_of, make_project, open_build


@pytest.fixture
def live(tmp_path):
    """A project in `project` whose own folder is `notes`, beside a folder `wiki`."""
    (tmp_path / "project").mkdir()
    project = make_project(tmp_path / "project")
    project.params_file.write_text("{corpus: {path: notes}, retrievers: {hce: {}}}\n")
    index = collection_of(project)
    write(tmp_path / "project/notes", {"a.md": "own a", "b.md": "own b"})
    write(tmp_path / "wiki", {"a.md": "wiki a", "deep/c.md": "wiki c"})
    sync(index, force=True)
    return index


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def follow_wiki(live, **options):
    return sync(live, str(live.project.root.parent / "wiki"), name="wiki", **options)


def ids(live):
    return sorted(live.content_hashes())


def test_second_source_adds_and_renames_nothing(live):
    outcome = follow_wiki(live)

    assert outcome.added == ["wiki:a.md", "wiki:deep/c.md"]
    assert ids(live) == ["a.md", "b.md", "wiki:a.md", "wiki:deep/c.md"]
    assert live.present_documents(["wiki:a.md"])["wiki:a.md"].fields["source"] == "wiki"
    assert "source" not in live.present_documents(["a.md"])["a.md"].fields


def test_sync_of_one_source_never_deletes_of_another(live):
    follow_wiki(live)
    (live.project.root / "notes/a.md").unlink()
    (live.project.root.parent / "wiki/a.md").unlink()

    assert sync(live).deleted == ["a.md"]
    assert ids(live) == ["b.md", "wiki:a.md", "wiki:deep/c.md"]
    assert sync(live, name="wiki").deleted == ["wiki:a.md"]
    assert ids(live) == ["b.md", "wiki:deep/c.md"]


def test_path_alone_means_its_source(live, tmp_path):
    assert sync(live, "wiki", cwd=tmp_path).source == "wiki"

    follow_wiki(live)
    assert read_sources(live.project) == {"wiki": str(tmp_path / "wiki")}
    assert sync(live, "notes", cwd=live.project.root).source == "default"
    assert sync(live, name="default").source == "default"

    (tmp_path / "team").mkdir()
    write(tmp_path / "team/wiki", {"a.md": "other"})

    with pytest.raises(FreshetError, match=r"'wiki' is the name .*--source NAME"):
        sync(live, "team/wiki", cwd=tmp_path)
    assert sync(live, "team/wiki", cwd=tmp_path, name="team").added == ["team:a.md"]


@pytest.mark.parametrize(
    ("path", "name", "reason"),
    [
        (None, "unknown", "there is no source 'unknown'"),
        ("wiki", "a:b", "cannot be the name of a source"),
        ("wiki", "default", "choose another name"),
        ("project/notes", "notes", "is the project's own source"),
        ("absent", "x", "does not exist"),
    ],
)
def test_bad_names_and_places_change_nothing(live, tmp_path, path, name, reason):
    with pytest.raises(FreshetError, match=reason):
        sync(live, path, cwd=tmp_path, name=name)
    assert read_sources(live.project) == {}


def test_path_that_is_no_utf8_is_refused(live, tmp_path):
    folder = os.fsdecode(b"caf\xe9")
    write(tmp_path / folder, {"a.md": "text"})

    for name in (None, "cafe"):
        with pytest.raises(FreshetError, match=r"caf\\xe9 holds bytes that are no UTF-8"):
            sync(live, folder, cwd=tmp_path, name=name)
    assert read_sources(live.project) == {}


def test_lock_names_command_with_bytes_that_are_no_utf8(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["freshet", "sync", os.fsdecode(b"caf\xe9")])
    with file_lock(tmp_path / "x.lock"):
        assert lock_owner(tmp_path / "x.lock").endswith("(freshet sync caf\\udce9)")


def test_dry_run_names_no_source(live):
    assert follow_wiki(live, dry_run=True).added == ["wiki:a.md", "wiki:deep/c.md"]
    assert read_sources(live.project) == {}
    assert ids(live) == ["a.md", "b.md"]


NAMES_WITH_COLONS = ["a", "a:b", "a\\:b", "a\\", "a\\b", ":", "\\:", "a::b"]


def test_ids_with_colons_are_never_shared(live):
    ids_of_a = {source_document_id("a", name) for name in NAMES_WITH_COLONS}
    ids_of_b = {source_document_id("b", name) for name in NAMES_WITH_COLONS}

    assert len(ids_of_a | ids_of_b) == 2 * len(NAMES_WITH_COLONS)


@pytest.mark.parametrize("name", NAMES_WITH_COLONS)
def test_name_in_source_follows_from_the_id(live, name):
    assert name_in_source(source_document_id("a", name)) == name


def test_new_source_may_not_take_prefix_of_others(live):
    write(live.project.root / "notes", {"wiki:a.md": "an own document"})
    sync(live)

    with pytest.raises(FreshetError, match="'wiki:a.md' is of another source"):
        follow_wiki(live)
    assert "wiki:a.md" in ids(live)


def test_own_document_with_prefix_of_source_is_refused(live):
    follow_wiki(live)
    write(live.project.root / "notes", {"wiki:a.md": "an own document"})
    outcome = sync(live)

    assert [row["document_id"] for row in outcome.rejected] == ["wiki:a.md"]
    assert live.present_documents(["wiki:a.md"])["wiki:a.md"].text == "wiki a"


def test_field_source_of_document_is_kept(live, tmp_path):
    row = {"_id": "1", "text": "one", "source": "a book", "original_source": "x"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    sync(live, "rows.jsonl", cwd=tmp_path)
    fields = live.present_documents(["rows:1"])["rows:1"].fields

    assert fields == {"source": "rows", "original_source": "x", "original_source_": "a book"}


def test_refused_file_of_source_keeps_its_document(live, tmp_path):
    follow_wiki(live)
    (tmp_path / "wiki/a.md").write_bytes(b"\0")
    outcome = sync(live, name="wiki")

    assert [row["document_id"] for row in outcome.rejected] == ["wiki:a.md"]
    assert outcome.deleted == []
    assert "wiki:a.md" in ids(live)


def test_lost_source_deletes_nothing_and_names_its_command(live, tmp_path):
    follow_wiki(live)
    for path in (tmp_path / "wiki").rglob("*.md"):
        path.unlink()

    with pytest.raises(FreshetError, match="freshet sync --source wiki --force"):
        sync(live, name="wiki")


def test_source_that_moves_keeps_its_documents(live, tmp_path):
    follow_wiki(live)
    (tmp_path / "wiki").rename(tmp_path / "moved")
    outcome = sync(live, "moved", cwd=tmp_path, name="wiki")

    assert outcome.unchanged == 2
    assert read_sources(live.project) == {"wiki": str(tmp_path / "moved")}


def test_built_documents_belong_to_source_of_their_id(tmp_path):
    """The ledger knows no origin of built documents."""
    project = make_project(tmp_path)
    project.params_file.write_text("{corpus: {path: notes}, retrievers: {hce: {}}}\n")
    open_build(project, {"a.md": "one", "wiki:a.md": "two"})
    write(tmp_path / "notes", {"a.md": "one"})
    write_sources(project, {"wiki": "wiki"})
    index = collection_of(project)

    sync(index, force=True)

    assert ids(index) == ["a.md", "wiki:a.md"]


def test_status_without_sources_lists_none(live, monkeypatch):
    monkeypatch.chdir(live.project.root)

    assert "source  " not in status_text(project_status(live.project))


def test_sources_have_names_and_sizes(live, monkeypatch):
    monkeypatch.chdir(live.project.root)
    follow_wiki(live)

    default, wiki = source_states(live.project)

    assert default.name == "default"
    assert default.documents == 2
    assert default.location == "notes"
    assert wiki.name == "wiki"
    assert wiki.documents == 2
    assert default.synced <= wiki.synced


def test_status_lists_sources(live, monkeypatch):
    monkeypatch.chdir(live.project.root)
    follow_wiki(live)

    status = project_status(live.project)

    assert status["sources"][1]["documents"] == 2
    assert "source      wiki  2 documents, synced 2" in status_text(status)


@pytest.mark.parametrize("content", ["{", "[]", '{"wiki": 1}', '{"a:b": "x"}'])
def test_damaged_list_of_sources_hides_no_other_status(live, content):
    live.project.sources.write_text(content)
    lines = status_text(project_status(live.project)).splitlines()

    assert [line for line in lines if line.startswith("source ")][0].startswith(
        "source      unknown: "
    )
    assert any(line.startswith("live ") for line in lines)


def test_removal_deletes_only_documents_of_source(live):
    follow_wiki(live)

    assert remove_source(live, "wiki", dry_run=True).deleted == ["wiki:a.md", "wiki:deep/c.md"]
    assert len(ids(live)) == 4
    assert remove_source(live, "wiki").deleted == ["wiki:a.md", "wiki:deep/c.md"]
    assert ids(live) == ["a.md", "b.md"]
    assert read_sources(live.project) == {}
    with pytest.raises(FreshetError, match="there is no source 'wiki'"):
        remove_source(live, "wiki")
    assert sync(live).unchanged == 2


def test_rename_keeps_all_that_belongs_to_documents(live, tmp_path):
    row = {"_id": "1", "text": "one", "queries": ["which number?"], "kind": "x"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    sync(live, "rows.jsonl", cwd=tmp_path)
    live.ledger.record_feedback(Feedback("a number", "rows:1", "up"))
    live.ledger.record_feedback(Feedback("a letter", "a.md", "up"))
    judged = [JudgedPair("which?", "rows:1"), JudgedPair("which?", "a.md")]
    record_judgements(live.project.judgements, judged)

    assert rename_source(live, "rows", "table", dry_run=True).renamed == 1
    assert rename_judged_source(live.project, "rows", "table") == 1
    assert rename_source(live, "rows", "table").renamed == 1

    assert ids(live) == ["a.md", "b.md", "table:1"]
    document = live.present_documents(["table:1"])["table:1"]
    assert document.queries == ("which number?",)
    assert document.fields == {"kind": "x", "source": "table"}
    opinions = {(opinion.query, opinion.document_id) for opinion in live.ledger.feedback()}
    assert opinions == {("a number", "table:1"), ("a letter", "a.md")}
    documents = [pair.document_id for pair in read_judgements(live.project.judgements)]
    assert documents == ["table:1", "a.md"]
    assert read_sources(live.project) == {"table": str(tmp_path / "rows.jsonl")}
    assert sync(live, name="table").unchanged == 1


def test_interrupted_rename_goes_on(live, monkeypatch):
    follow_wiki(live)
    with monkeypatch.context() as patch:
        patch.setattr(source_changes, "apply_changes", interrupt)
        with pytest.raises(KeyboardInterrupt):
            rename_source(live, "wiki", "handbook")
    rename_source(live, "wiki", "handbook")
    live.apply()

    assert ids(live) == ["a.md", "b.md", "handbook:a.md", "handbook:deep/c.md"]
    assert list(read_sources(live.project)) == ["handbook"]
    assert sync(live, name="handbook").unchanged == 2


def interrupt(*arguments):
    raise KeyboardInterrupt


def test_rename_takes_no_name_in_use(live, tmp_path):
    follow_wiki(live)
    row = {"_id": "doi:1", "text": "one"}
    (tmp_path / "more.jsonl").write_text(json.dumps(row) + "\n")
    add_files(live, [tmp_path / "more.jsonl"])

    for name in ("doi", "wiki", "default", "a b"):
        with pytest.raises(FreshetError, match="choose another name|cannot be the name"):
            rename_source(live, "wiki", name)
    assert list(read_sources(live.project)) == ["wiki"]


def test_document_changed_during_rename_stops_it(live, monkeypatch):
    follow_wiki(live)
    documents = source_changes._renamed_documents(live, ["wiki:a.md"], "wiki", "handbook")
    stale = dict.fromkeys(live.content_hashes(), "another version")
    monkeypatch.setattr(LiveIndex, "content_hashes", lambda self: stale)

    with pytest.raises(FreshetError, match="'wiki:a.md' was changed meanwhile"):
        live.rename_documents(documents, "sync --source handbook")

    monkeypatch.undo()
    assert "wiki:a.md" in ids(live)


def test_commands_print_counts_and_names(live, monkeypatch, tmp_path):
    monkeypatch.chdir(live.project.root)
    monkeypatch.setattr(LiveIndex, "builder", property(lambda self, builder=live.builder: builder))
    assert default_retriever(live.project.live) == "hce"

    def run(*arguments):
        return CliRunner().invoke(app, list(arguments), catch_exceptions=False).output

    assert run("sync", "--source", "wiki", "../wiki").startswith("wiki: 2 added")
    assert "wiki  2 documents, synced" in run("sources", "list")
    assert json.loads(run("sources", "list", "--json"))[1]["name"] == "wiki"
    assert run("sources", "rename", "wiki", "w", "--dry-run").startswith("would be: 2 documents")
    assert run("sources", "rename", "wiki", "w").startswith("2 documents renamed")
    assert run("sources", "remove", "w", "--dry-run").startswith("would be: 2 deleted")
    assert run("sources", "remove", "w").startswith("2 deleted")


def test_all_sources_are_synced(live, tmp_path):
    follow_wiki(live)
    write(tmp_path / "wiki", {"new.md": "wiki new"})
    write(tmp_path / "project/notes", {"c.md": "own c"})

    assert [report.added for report in sync_all(live, dry_run=True).reports] == [
        ["c.md"],
        ["wiki:new.md"],
    ]
    result = sync_all(live)

    result.require_complete()
    assert [report.source for report in result.reports] == ["default", "wiki"]
    assert {"c.md", "wiki:new.md"} <= set(ids(live))


def test_source_that_fails_does_not_keep_others_from_a_sync(live, tmp_path):
    follow_wiki(live)
    sync(live, "more", name="more", cwd=write_more(tmp_path))
    write(tmp_path / "more", {"new.md": "more new"})
    (tmp_path / "wiki").rename(tmp_path / "gone")

    result = sync_all(live)

    assert "more:new.md" in ids(live)
    assert "wiki:a.md" in ids(live)
    with pytest.raises(
        FreshetError, match="not synced: wiki: .* is the place of the source 'wiki'"
    ):
        result.require_complete()


def write_more(folder):
    write(folder / "more", {"a.md": "more a"})
    return folder


def test_missing_folder_is_not_blamed_on_the_settings(live):
    with pytest.raises(FreshetError, match="/nosuch does not exist; name a folder") as refusal:
        sync(live, "/nosuch")
    assert "params.yaml" not in str(refusal.value)


def test_all_sources_are_an_option_of_their_own(live, monkeypatch):
    monkeypatch.chdir(live.project.root)
    answer = CliRunner().invoke(app, ["sync", "--all", "--source", "wiki"])

    assert "leave out the path and --source" in str(answer.exception)
