"""Guards how additions are wired: plain unless asked for, tuned settings used only for what they were tuned on, and a
command that tries, tells and remembers, without touching what is live."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from model_code.additions.settings import AdditionSettings
from model_code.additions.writer import RefiningWriter
from model_code.errors import FreshetError
from model_code.incdsi.documents import Status
from model_code.live.collection import Collection
from model_code.live.writer import LiveWriter
from orchestration import additions
from orchestration.cli import additions as command
from orchestration.freshening import Freshener
from orchestration.project import Project
from tests.model_code.live.laws import WORDS, make_encoder, open_build

PARAMS = """
retrievers: {r: {}}
pseudo_queries:
  held_out_generator: short_cloze
  short_cloze: {per_document: 1, min_words: 3, max_words: 3, max_share: 1.0}
"""


def texts() -> dict[str, tuple[str, str]]:
    """Documents of one passage, five words long."""
    random = np.random.default_rng(0)
    return {f"d{i:02d}": (WORDS[i], " ".join(random.choice(WORDS, 5))) for i in range(24)}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A project with a live collection."""
    root = tmp_path_factory.mktemp("project")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda handle: None)
        patch.delenv("FRESHET_STATE", raising=False)
        make_encoder("dense", root / "encoder")
        open_build("dense", root, root / "encoder", texts())
        (root / "params.yaml").write_text(PARAMS)
        (root / "dvc.yaml").touch()
        yield Project(root)


def setting(project: Project, monkeypatch: pytest.MonkeyPatch, **values: object) -> None:
    monkeypatch.setattr(additions, "settings_of", lambda _: AdditionSettings(**values))


def test_the_command_remembers_the_best_and_changes_nothing_live(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.root)
    app = typer.Typer()
    app.callback()(lambda: None)
    command.add_to(app)
    before = {path: path.stat().st_mtime_ns for path in project.live.rglob("*")}
    arguments = ["tune-additions", "--documents", "6", "--trials", "2"]
    told = CliRunner().invoke(app, arguments, catch_exceptions=False)
    best = json.loads((additions.folder_of(project) / "best.json").read_text())
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
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FRESHET_LEDGER", raising=False)
    setting(project, monkeypatch, refine=True)
    freshener = Freshener(project)
    freshener.__dict__["writer"] = additions.writer_of(project, "r")
    freshener.receive([{"id": "n", "title": "word1", "text": "word2 word3", "queries": ["word4"]}], "test")
    applied = freshener.apply_pending()
    assert (applied.added, applied.statuses) == (("n",), {"n": "added"})
    told = additions.statuses_of(project, applied.generation)
    assert told.keys() == {"n"}
    assert told["n"] in Status.__members__
    freshener.rollback(0)
    assert additions.statuses_of(project, Collection(project.live, "r").current()) == {}


def test_tuned_settings_are_of_this_retriever_or_refused(project: Project) -> None:
    own = AdditionSettings(use="tuned")
    file = additions.folder_of(project) / additions.BEST
    file.unlink(missing_ok=True)
    with pytest.raises(FreshetError, match="nothing was tuned"):
        additions.resolved(project, own, "r")
    _, best = additions.tune(project, 6, trials=1)
    assert additions.resolved(project, own, "r").incdsi == AdditionSettings(**best["settings"]).incdsi
    with pytest.raises(FreshetError, match="other spans"):
        additions.resolved(project, AdditionSettings(use="tuned", spans=1), "r")
    with pytest.raises(FreshetError, match="another retriever"):
        additions.resolved(project, own, "other")
