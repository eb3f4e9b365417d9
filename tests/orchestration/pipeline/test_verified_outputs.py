"""Guards that outputs which DVC restored are checked by their contract, in every way of running."""

from __future__ import annotations

import json
import shutil

import pytest

from model_code.errors import FreshetError
from model_code.files import write_json
from model_code.project import Project
from model_code.stages import corpus
from orchestration.pipeline import run_stage
from orchestration.pipeline.repro import PlannedStage, StageRefused, repro
from orchestration.pipeline.verified_outputs import (
    NOTES,
    BrokenOutput,
    note_verified,
    verify_outputs,
)
from orchestration.registry import built_retriever

CORPUS = [corpus.STAGE]
BROKEN = "documents.parquet has no rows"


class Contract:
    """The contract of the stage `corpus`, which counts its checks and can be broken."""

    def __init__(self) -> None:
        self.checks = 0
        self.is_broken = False

    def check(self, context) -> None:
        assert context.output.name == "corpus"
        self.checks += 1
        if self.is_broken:
            raise FreshetError(BROKEN)


@pytest.fixture
def contract(monkeypatch) -> Contract:
    contract = Contract()
    monkeypatch.setattr(corpus, "check", contract.check)
    return contract


@pytest.fixture
def project(tmp_path, monkeypatch) -> Project:
    monkeypatch.delenv("FRESHET_STATE", raising=False)
    monkeypatch.setenv("FRESHET_TRACKING", "off")
    (tmp_path / "params.yaml").write_text("retrievers: {hce: {}}\n")
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    record_output(Project(tmp_path), "a1")
    return Project(tmp_path)


def record_output(project: Project, version: str) -> None:
    """Write `dvc.lock` as DVC does after it restored an output of the stage `corpus`."""
    (project.artifacts / "corpus").mkdir(parents=True, exist_ok=True)
    output = {"path": "artifacts/corpus", "md5": version}
    lock = {"schema": "2.0", "stages": {"corpus": {"cmd": "true", "outs": [output]}}}
    write_json(project.root / "dvc.lock", lock)


def test_each_version_is_checked_once(project, contract):
    verify_outputs(project, CORPUS)
    verify_outputs(project, CORPUS)
    assert contract.checks == 1

    record_output(project, "b2")
    verify_outputs(project, CORPUS)
    assert contract.checks == 2


def test_broken_output_is_refused_each_time(project, contract):
    contract.is_broken = True

    for _ in range(2):
        with pytest.raises(BrokenOutput, match=rf"corpus, .*{BROKEN}; make it again: dvc repro"):
            verify_outputs(project, CORPUS)

    assert contract.checks == 2


def test_output_of_this_run_is_not_checked_again(project, contract):
    note_verified(project, CORPUS)

    verify_outputs(project, CORPUS)

    assert contract.checks == 0


def test_stage_that_never_ran_is_left_out(project, contract):
    (project.root / "dvc.lock").unlink()

    verify_outputs(project, CORPUS)

    assert contract.checks == 0


def test_cut_off_notes_lead_to_another_check(project, contract):
    verify_outputs(project, CORPUS)
    (project.root / NOTES).write_text('{"corp')

    verify_outputs(project, CORPUS)

    assert contract.checks == 2


def test_stage_of_plain_dvc_checks_its_inputs(project, contract, monkeypatch, capsys):
    contract.is_broken = True
    monkeypatch.delenv(run_stage.RECORDER, raising=False)
    monkeypatch.setattr(run_stage, "die_with_ancestors", lambda: None)
    monkeypatch.chdir(project.root)

    assert run_stage.main(["acceptance"]) == 1
    assert BROKEN in capsys.readouterr().err


def test_broken_output_is_not_registered(project, contract, monkeypatch):
    contract.is_broken = True
    planned = [PlannedStage("corpus", "skip", ())]
    monkeypatch.setattr(built_retriever, "plan", lambda *_: planned)

    with pytest.raises(BrokenOutput, match=BROKEN):
        built_retriever.require_current(project, ["bm25"])


def test_build_checks_what_the_run_cache_restores(project, contract, monkeypatch):
    monkeypatch.setenv("DVC_NO_ANALYTICS", "1")
    planned = [PlannedStage("corpus", "maybe", ())]
    monkeypatch.setattr("orchestration.pipeline.repro.plan", lambda *_: planned)
    command = (
        "mkdir -p artifacts/corpus && echo 1 >> runs && cp runs artifacts/corpus/documents && "
        "echo '  corpus: done in 0 s'"
    )
    stage = {"cmd": command, "params": ["retrievers"], "outs": ["artifacts/corpus"]}
    (project.root / "dvc.yaml").write_text(json.dumps({"stages": {"corpus": stage}}))
    (project.root / "dvc.lock").unlink()
    assert list(repro(project)) == ["corpus"]
    for path in (project.root / "dvc.lock", project.root / NOTES):
        path.unlink()
    shutil.rmtree(project.artifacts)

    contract.is_broken = True
    with pytest.raises(StageRefused, match=BROKEN):
        list(repro(project))
    contract.is_broken = False
    assert list(repro(project)) == []

    # The stage ran once, and its restored output was checked twice.
    assert (project.root / "runs").read_text() == "1\n"
    assert contract.checks == 2
