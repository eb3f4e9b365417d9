"""Guards `freshet verify` and `freshet repair`: each kind of file that can be torn is recognised in
one line, the remedy that the line names is followed, and no document is missing anywhere
afterwards.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from model_code.collection.backup.repair import find_damage, repair
from model_code.collection.generations.generation import document_hashes
from model_code.collection.generations.generation_store import GenerationStore, retrievers
from model_code.collection.generations.searcher import Searcher
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.index.project_ledger import open_ledger, read_feedback
from model_code.collection.ledger.events import Feedback, LedgerCursor, Position
from model_code.collection.ledger.ledger import Ledger
from model_code.collection.ledger.salvage import salvage_changes
from model_code.corpus.corpus_queries import query_hash
from model_code.errors import Damaged, FreshetError
from model_code.project import Project
from model_code.text.documents import Document
from orchestration import cli
from tests.disk import skip_fsync
from tests.live_example import BASE, add, collection_of, make_project, open_build, row, texts


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path):
    path.write_bytes(b"")


def scramble(path):
    content = bytearray(path.read_bytes())
    content[: len(content) // 2] = b"\xff" * (len(content) // 2)
    path.write_bytes(content)


def lose(path):
    path.unlink()


NEWEST = "r/generations/{current:06d}/"
# Files, and what a crash, a full disk or a mistake does to them.
TORN = {
    "the default pointer": ("current", empty),
    "the pointer": ("r/current", empty),
    "the pointer, cut off": ("r/current", cut),
    "a manifest": (NEWEST + "manifest.json", cut),
    "an empty manifest": (NEWEST + "manifest.json", empty),
    "no manifest": (NEWEST + "manifest.json", lose),
    "the list of what is removed": (NEWEST + "removed.json", cut),
    "the solved documents": ("r/generations/000001/solved.json", cut),
    "the queries of solved documents": ("r/generations/000001/solved.npy", cut),
    "vectors": ("r/generations/000001/index/vectors.npy", cut),
    "placements": ("r/generations/000001/placements.safetensors", cut),
    "documents": ("r/generations/000001/documents.safetensors", cut),
    "documents, scrambled": ("r/generations/000001/documents.safetensors", scramble),
    "passages": ("r/generations/000001/hierarchy/document_ids.json", cut),
    "the manifest of an index": ("r/generations/000001/index/manifest.json", cut),
    "the ledger": ("ledger.sqlite", scramble),
    "the ledger, cut off": ("ledger.sqlite", cut),
    "the ledger, empty": ("ledger.sqlite", empty),
    "no ledger": ("ledger.sqlite", lose),
}
# Files that `freshet status` does not read, because it compares no checksums.
UNREAD = ("vectors", "placements", "documents", "passages", "the manifest of")
COMMANDS = (
    "verify",
    "search word1",
    "status",
    "add --dry-run more.jsonl",
    "delete nothing",
    "tools compact",
)


def run(capsys, monkeypatch, line: str) -> tuple[int, str]:
    """Run a command and return its exit code and its output, which has no traceback."""
    monkeypatch.setattr(sys, "argv", ["freshet", *line.split()])
    try:
        cli.main()
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    return code, printed.out + printed.err


@pytest.fixture(scope="module")
def changed(project, tmp_path_factory):
    """A project with a real live collection: documents were added, updated and deleted."""
    ignored = shutil.ignore_patterns(".freshet", "ledger*")
    root = tmp_path_factory.mktemp("changed") / "project"
    changed = Project(Path(shutil.copytree(project.root, root, ignore=ignored)))
    (root / "more.jsonl").write_text('{"id": "more", "title": "", "text": "word1 word2"}\n')
    with pytest.MonkeyPatch.context() as patch:
        skip_fsync(patch)
        patch.delenv("FRESHET_STATE", raising=False)
        collection = LiveIndex(changed)
        add(
            collection,
            row("n1", "word1 word2", queries=["what is word1"], note="x"),
            row("n2", "word3"),
        )
        collection.receive([row("d03", "word4 word5")], "test")
        collection.remove(["n2"], "test")
        collection.apply()
        collection.ledger.close()
    return changed


@pytest.fixture
def live(changed, tmp_path, monkeypatch):
    """A copy of that project, which is the working directory."""
    copy = Project(Path(shutil.copytree(changed.root, tmp_path / "live")))
    monkeypatch.chdir(copy.root)
    return copy


def test_count_of_a_generation_without_a_segment_is_checked(own):
    index = LiveIndex(own)
    index.remove(["d03"], "test")
    index.apply()
    generation = LiveIndex(own).generation
    manifest = generation.folder / "manifest.json"
    assert list(find_damage(own)) == []
    assert not (generation.folder / "index").exists()

    count = len(document_hashes(generation))
    manifest.write_text(manifest.read_text().replace(f'"documents": {count}', '"documents": 999'))

    assert any("but its manifest states 999" in message for message in find_damage(own))


def damage_file(project, kind):
    """Damage a file of the project and return its path."""
    name, damage = TORN[kind]
    current = GenerationStore(project.live, "r").current().number
    file = project.live / name.format(current=current)
    if kind == "vectors" and not file.is_file():
        # A retriever without a dense index has another file of the index.
        index = project.live / "r/generations/000001/index"
        file = next(path for path in index.iterdir() if path.suffix != ".json")
    assert file.is_file()
    damage(file)
    return file


def require_remedy(command, output):
    """Check that a failed command names the remedy in each line, and in one line if it can."""
    lines = output.strip().splitlines()
    for line in lines:
        assert "rejected" in line or re.search(r"freshet repair\b", line), output
    if command != "verify" and "rejected" not in output:
        assert len(lines) == 1, output


@pytest.mark.parametrize("kind", TORN)
def test_damaged_file_is_reported_with_its_remedy(live, kind, capsys, monkeypatch):
    damage_file(live, kind)

    for command in COMMANDS:
        code, output = run(capsys, monkeypatch, command)
        assert code in (0, 1), output
        if command == "verify":
            assert code == 1, output
        if code == 1:
            require_remedy(command, output)


@pytest.mark.parametrize("kind", TORN)
def test_status_names_the_damaged_file(live, kind, capsys, monkeypatch):
    file = damage_file(live, kind)

    code, output = run(capsys, monkeypatch, "status")

    problem = re.search(r"^problem +(.*freshet repair.*)$", output, re.M)
    assert code == 0, output
    assert bool(problem) != kind.startswith(UNREAD)
    if problem and file.exists() and kind != "the ledger, empty":
        assert file.name in problem[1]


@pytest.mark.parametrize("kind", TORN)
def test_damaged_file_is_repaired_by_named_command(live, kind, capsys, monkeypatch):
    store = GenerationStore(live.live, "r")
    before = document_hashes(store.current())
    damage_file(live, kind)
    # Commands that find the damage must not make it worse.
    for command in COMMANDS:
        run(capsys, monkeypatch, command)

    code, output = run(capsys, monkeypatch, "repair")

    assert code == 0
    assert output
    assert run(capsys, monkeypatch, "verify") == (0, "no problems found\n"), output
    assert document_hashes(store.current()) == before
    found = {hit.document_id for hit in Searcher.open(live.live).search("word1", 100)}
    assert found == before.keys()
    # The repaired project can be used.
    assert run(capsys, monkeypatch, "repair") == (0, "nothing had to be repaired\n")
    add_code, _ = run(capsys, monkeypatch, "add more.jsonl")
    assert add_code == 0


FEEDBACK = Feedback("what is word1", "d03", "up", 2, "me", 5.0)


def overwrite_page(content, text):
    """Overwrite the page of a database that holds a text with zeros."""
    start = content.index(text) // 4096 * 4096
    return content[:start] + b"\0" * 4096 + content[start + 4096 :]


@pytest.fixture
def torn_ledger(live):
    """A project whose ledger lost a page.

    It holds feedback, a forgotten query, an applied and two pending changes. The last change is only
    in the write-ahead log.
    """
    index = LiveIndex(live)
    index.ledger.record_feedback(FEEDBACK, FEEDBACK.received)
    index.ledger.forget_query("who is Jane Doe")
    index.receive([row("n1", "word1")], "sync notes")
    index.apply()
    index.receive([row("waiting", "word7 " * 2000)], "test")
    index.ledger.close()
    index.receive([row("d03", "word8")], "test")

    contents = {path: path.read_bytes() for path in live.live.glob("ledger.sqlite*")}
    index.ledger.close()
    file = live.live / "ledger.sqlite"
    contents[file] = overwrite_page(contents[file], b"word7 " * 600)
    for path, content in contents.items():
        path.write_bytes(content)
    return live


def test_torn_ledger_is_found_and_repaired(torn_ledger):
    damage = list(find_damage(torn_ledger))
    repair(torn_ledger)

    assert any("ledger" in line for line in damage)
    assert list(find_damage(torn_ledger)) == []


def test_pending_changes_are_recovered_from_torn_ledger(torn_ledger):
    repair(torn_ledger)

    with open_ledger(torn_ledger) as ledger:
        assert ledger.latest(["d03"])["d03"].document.text == "word8"


@pytest.mark.parametrize("step", ["append_missing_events", "_publish_whole_generation"])
def test_repair_after_interrupted_repair_recovers_pending_changes(torn_ledger, monkeypatch, step):
    with monkeypatch.context() as patch:
        patch.setattr(f"model_code.collection.backup.repair.{step}", interrupt)
        with pytest.raises(KeyboardInterrupt):
            repair(torn_ledger)

    repair(torn_ledger)

    with open_ledger(torn_ledger) as ledger:
        assert ledger.latest(["d03"])["d03"].document.text == "word8"
    assert repair(torn_ledger) == []


def interrupt(*arguments):
    raise KeyboardInterrupt


def test_feedback_is_recovered_from_torn_ledger(torn_ledger):
    repair(torn_ledger)

    assert read_feedback(torn_ledger) == [FEEDBACK]


def test_forgotten_queries_are_recovered_from_torn_ledger(torn_ledger):
    repair(torn_ledger)

    with open_ledger(torn_ledger) as ledger:
        assert ledger.forgotten_queries() == {query_hash("who is jane doe")}


def test_sources_are_recovered_from_torn_ledger(torn_ledger):
    """Otherwise a sync would no longer delete what its source no longer has."""
    repair(torn_ledger)

    with open_ledger(torn_ledger) as ledger:
        assert ledger.document_sources()["n1"] == "sync notes"


def test_document_with_damaged_text_is_left_out_of_the_recovery(tmp_path):
    """A damaged text, which SQLite does not find, must not stop the recovery of the others."""
    file = tmp_path / "ledger.sqlite"
    with Ledger.open(f"sqlite:///{file}") as ledger:
        ledger.receive([Document("a", "", "apple"), Document("b", "", "bread")], "test")
    with closing(sqlite3.connect(file)) as connection, connection:
        damaged = """UPDATE ledger_events SET payload = '{"text": "app' WHERE document_id = 'a'"""
        connection.execute(damaged)

    changes = salvage_changes(file, after=0)

    assert changes == {"b": Document("b", "", "bread")}


def test_repair_without_intact_generation_names_promote(live):
    cut(next((live.live / "r/generations/000000/encoder").glob("*.safetensors")))
    with pytest.raises(Damaged, match="freshet repair"):
        Searcher.open(live.live)

    said = repair(live)
    assert any("make it live again by freshet promote" in line for line in said)
    assert retrievers(live.live) == []
    # Nothing was deleted.
    assert len(list((live.live / "r" / "damaged").glob("0*"))) == 3


@pytest.fixture
def two(tmp_path):
    """A project with two live retrievers.

    The second lags three documents behind, and holds one that the first never had.
    """
    project = make_project(tmp_path)
    open_build(project, {**BASE, "only.here": "in one corpus"}, retriever="other")
    first = collection_of(project)
    other = collection_of(project, "other")
    updated = row("str.split", "2", queries=["how to split"], package="x")
    add(first, row("a"), updated, row("gone"))
    other.apply()
    first.receive([row(name) for name in "bcd"], "api")
    first.remove(["gone", "numpy.sort"], "api")
    first.apply()
    for collection in (first, other):
        collection.ledger.close()
    return project


# Documents that both retrievers had, and documents that only the second still had.
COMMON = {"a": "some text", "b": "some text", "c": "some text", "d": "some text", "str.split": "2"}
ONLY_OTHER = {
    "gone": "some text",
    "numpy.sort": BASE["numpy.sort"],
    "only.here": "in one corpus",
}


def lose_ledger(project, loss):
    """Delete the ledger, and write another one or nonsense in its place."""
    for path in project.live.glob("ledger.sqlite*"):
        path.unlink()
    if loss == "foreign":
        with open_ledger(project) as ledger:
            ledger.remove(["never"], "elsewhere")
    elif loss == "torn":
        (project.live / "ledger.sqlite").write_bytes(b"nonsense" * 1000)


every_loss = pytest.mark.parametrize("loss", ["lost", "foreign", "torn"])


@every_loss
@pytest.mark.parametrize("retriever", ["hce", "other"])
def test_lost_ledger_is_refused_with_the_remedy(two, loss, retriever):
    lose_ledger(two, loss)
    remedy = "freshet repair"
    if loss == "foreign":
        remedy = "freshet repair --adopt"

    with pytest.raises(FreshetError, match=remedy):
        collection_of(two, retriever).apply()


@pytest.fixture
def repaired(two, loss):
    """The project after its ledger was lost and repaired, and the lines of the report."""
    lose_ledger(two, loss)
    lines = repair(two, adopt=loss == "foreign", open_index=collection_of)
    return two, lines


@every_loss
@pytest.mark.parametrize("retriever", ["hce", "other"])
def test_repair_after_lost_ledger_restores_all_documents(repaired, loss, retriever):
    project, _ = repaired

    names = [*COMMON, *ONLY_OTHER, "waiting"]
    assert texts(project, names, retriever) == {**COMMON, **ONLY_OTHER}
    assert list(find_damage(project)) == []


@every_loss
def test_repair_names_documents_of_one_retriever(repaired, loss):
    _, lines = repaired

    expected = "only other held them: gone, numpy.sort, only.here"
    assert any(expected in line for line in lines)


@every_loss
def test_repaired_ledger_knows_its_documents(repaired, loss):
    project, _ = repaired
    index = collection_of(project, "other")

    event = index.ledger.latest(["str.split"])["str.split"]

    assert index.existing_ids(["b"]) == {"b"}
    assert event.document.queries == ("how to split",)
    assert event.document.fields == {"package": "x"}


def test_older_ledger_copy_receives_newer_documents(two, tmp_path):
    with_hce = collection_of(two, "hce")
    shutil.copyfile(two.live / "ledger.sqlite", tmp_path / "copy")
    add(with_hce, row("a", "newer"), row("e"))
    with_hce.ledger.close()
    for path in two.live.glob("ledger.sqlite*"):
        path.unlink()
    shutil.copyfile(tmp_path / "copy", two.live / "ledger.sqlite")
    identity = with_hce.ledger.id

    with pytest.raises(FreshetError, match="an older copy of it: .*freshet repair, which"):
        with_hce.apply()

    repair(two, open_index=collection_of)
    assert collection_of(two).ledger.id == identity
    for name in ("hce", "other"):
        assert texts(two, ["a", "e", "numpy.sort"], name) == {"a": "newer", "e": "some text"}
    assert list(find_damage(two)) == []


def test_pending_changes_are_not_repaired_as_lost(two):
    first = collection_of(two, "hce")
    first.receive([row("a", "newest"), row("waiting")], "api")
    first.remove(["b"], "api")
    elsewhere = LedgerCursor(Position("elsewhere", 3, "m"))
    open_build(two, {**BASE, "b": "old", "a": "old"}, elsewhere, "other")

    assert repair(two, open_index=collection_of)
    for name in ("hce", "other"):
        assert texts(two, ["a", "b", "waiting"], name) == {"a": "newest", "waiting": "some text"}
    assert repair(two, open_index=collection_of) == []
