"""Guards how additions are wired: plain unless asked for, in the ledger's order however they are grouped, tuned
settings used only for the retriever that they were tuned for while no other one waits, and a command that tries, tells
and remembers, without touching what is live."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from model_code.additions.settings import AdditionSettings
from model_code.additions.writer import RefiningWriter
from model_code.errors import FreshetError
from model_code.incdsi.documents import Status
from model_code.live.build import open_generation_zero
from model_code.live.collection import Collection, set_default_retriever
from model_code.live.searcher import Searcher
from model_code.live.writer import LiveWriter
from orchestration.cli import app
from orchestration.cli.status import project_status, status_text
from orchestration.live import additions
from orchestration.live.collection import LiveCollection
from orchestration.live.upkeep import Upkeep
from orchestration.project import Project
from tests.model_code.live.laws import RULES


@pytest.fixture
def two(own: Project) -> Project:
    """A copy of it with a second live retriever, "s"."""
    build = own.root / "build"
    open_generation_zero(
        own.root, "s", encoder=own.root / "encoder", index=build / "index", documents=build / "documents.parquet",
        hierarchy=build / "hierarchy", provenance={}, text=RULES,
    )  # fmt: skip
    set_default_retriever(own.live, "r")
    return own


def setting(project: Project, monkeypatch: pytest.MonkeyPatch, **values: object) -> None:
    monkeypatch.setattr(additions, "settings_of", lambda _: AdditionSettings(**values))


def test_the_command_remembers_the_best_and_changes_nothing_live(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.root)
    app.callback()(lambda: None)
    before = {path: path.stat().st_mtime_ns for path in project.live.rglob("*")}
    arguments = ["tools", "tune", "--documents", "6", "--trials", "2"]
    told = CliRunner().invoke(app, arguments, catch_exceptions=False)
    best = json.loads(additions.best_file(project, "r").read_text())
    assert f"best: {best['found']['name']}" in told.stdout
    assert best["split"] | {"old_queries": 0} == {
        "documents": 6, "trials": 2, "seed": 0, "old_queries": 0, "new_queries": 6,
    }  # fmt: skip
    again = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    found = json.loads(again.stdout)
    assert found["best"] == best
    assert best["found"]["score"] == max(trial["score"] for trial in found["trials"])
    assert {path: path.stat().st_mtime_ns for path in project.live.rglob("*")} == before


def test_the_writer_is_plain_unless_vectors_are_to_change(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    assert additions.settings_of(project) == AdditionSettings()
    assert type(additions.writer_of(project, "r")) is LiveWriter
    setting(project, monkeypatch, refine=True)
    assert type(additions.writer_of(project, "r")) is RefiningWriter


def test_documents_that_arrive_are_refined_and_their_statuses_told(
    own: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FRESHET_LEDGER", raising=False)
    setting(own, monkeypatch, refine=True)
    collection = LiveCollection(own)
    collection.__dict__["writer"] = additions.writer_of(own, "r")
    collection.receive([{"id": "n", "title": "word1", "text": "word2 word3", "queries": ["word4"]}], "test")
    applied = collection.apply()
    assert (applied.added, applied.statuses) == (("n",), {"n": "added"})
    told = additions.statuses_of(own, applied.generation)
    assert told.keys() == {"n"}
    assert told["n"] in Status.__members__
    collection.revert(0)
    assert additions.statuses_of(own, Collection(own.live, "r").current()) == {}


def vectors(project: Project, retriever: str = "r") -> dict[str, list[float]]:
    found = {}
    for view in Searcher.open(project.live, retriever).views:
        index = view.part.retriever.index
        found |= {key: row.tolist() for key, row in zip(index.document_ids, index.vectors, strict=True) if key in view}
    return found


def receive(project: Project, *names: str) -> None:
    rows = [{"id": name, "title": "word1", "text": f"word2 word3 word{len(name)}"} for name in names]
    LiveCollection(project).receive(rows, "test")


def test_crashes_and_pieces_leave_the_ledgers_order_and_so_the_vectors(
    own: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model_code.encoding.encoder.CPU_BATCH_TOKENS", 2)  # padding moves the last bits of encodings
    setting(own, monkeypatch, refine=True, gamma1=2.0, on_conflict="keep")
    receive(own, "z", "yy", "aaa", "mmmm", "b")
    LiveCollection(own).remove(["yy"], "test")
    once = Project(Path(shutil.copytree(own.root, tmp_path / "once")))
    LiveCollection(once).apply()
    LiveCollection(own).apply(1)
    for step in ("keep", "switch"):
        with monkeypatch.context() as patch:
            patch.setattr(Collection, step, lambda *_, **__: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                LiveCollection(own).apply(2)
    while LiveCollection(own).apply(limit=2):
        pass
    assert vectors(own) == vectors(once)
    assert {"z", "aaa", "mmmm", "b"} <= vectors(own).keys()
    assert len(Collection(own.live, "r").current().segments) == 3, "one for each group that adds"


def test_tuned_settings_are_of_this_retriever_and_of_these_spans(own: Project) -> None:
    tuned = AdditionSettings(use="tuned", gamma1=3.0)
    assert additions.resolved(own, tuned, "r") == tuned
    assert "for r nothing was tuned: until freshet tools tune --retriever r" in additions.untuned(own, tuned, "r")
    _, best = additions.tune(own, 6, trials=1)
    assert additions.untuned(own, tuned, "r") is None
    assert additions.resolved(own, tuned, "r").incdsi == AdditionSettings(**best["settings"]).incdsi
    other_spans = AdditionSettings(use="tuned", spans=1)
    assert additions.resolved(own, other_spans, "r") == other_spans
    assert "with spans 4, not 1" in additions.untuned(own, other_spans, "r")
    assert "for s nothing was tuned" in additions.untuned(own, tuned, "s")
    assert additions.untuned(own, AdditionSettings(), "s") is None


def test_one_that_was_not_tuned_takes_in_what_arrives_and_the_status_says_by_which_settings(
    two: Project, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    additions.tune(two, 6, trials=0)
    setting(two, monkeypatch, use="tuned")
    receive(two, "z", "a")
    assert Upkeep(two).finish() == {}
    assert {"z", "a"} <= vectors(two).keys() & vectors(two, "s").keys()
    told = "additions.use is tuned, but for s nothing was tuned"
    assert [record.message.partition(":")[0] for record in caplog.records] == [told]
    lines = status_text(project_status(two)).splitlines()
    assert [line for line in lines if line.startswith("additions")] == [f"additions   {caplog.records[0].message}"]
    assert lines.index(f"additions   {caplog.records[0].message}") == 1 + next(
        row for row, line in enumerate(lines) if line.startswith("live        s ")
    )


def test_each_retriever_is_tuned_for_itself(two: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(two.root)
    arguments = ["tools", "tune", "--documents", "6", "--trials", "0", "--retriever", "s"]
    assert "used for s if" in CliRunner().invoke(app, arguments, catch_exceptions=False).stdout
    assert additions.best_file(two, "s").is_file()
    tuned = AdditionSettings(use="tuned")
    assert [additions.untuned(two, tuned, name) is None for name in "rs"] == [False, True]
    with pytest.raises(FreshetError, match="'t' is not live"):
        additions.tune(two, 6, 0, retriever="t")


def test_what_an_earlier_version_found_is_used_for_its_own_retriever(own: Project) -> None:
    tuned = AdditionSettings(use="tuned")
    _, best = additions.tune(own, 6, trials=0)
    additions.best_file(own, "r").rename(additions.folder_of(own) / "best.json")
    assert additions.resolved(own, tuned, "r").incdsi == AdditionSettings(**best["settings"]).incdsi
    assert additions.untuned(own, tuned, "s") is not None
