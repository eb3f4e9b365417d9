"""Guards that `freshet run` edits the settings only for stages that there are, how `freshet plan`
is printed, and what `freshet results` tells: who is best, what is live, what the gate said and what
systems cost, as text and page.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from model_code.errors import FreshetError
from model_code.files import write_json, write_text
from model_code.project import Project
from orchestration import parameters
from orchestration.cli import app
from orchestration.pipeline import costs, repro

SHIPPED = Path(__file__).parents[3] / "params.yaml"
CELL = {"nDCG@10": {"value": 0.5, "low": 0.4, "high": 0.6, "queries": 9}}
PART = {"split": "test", "queries": 9, "systems": {"bm25": CELL, "hce": CELL}, "differences": []}
FACTS = {
    "main_metric": "nDCG@10",
    "confidence": 0.95,
    "documents": 12,
    "left_out": {},
    "groups": {},
    "examples": {},
}


@pytest.fixture
def project(tmp_path, monkeypatch) -> Project:
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    (tmp_path / "corpus.lock.json").write_text('{"source": "files", "content_hash": "0"}')
    monkeypatch.chdir(tmp_path)
    shutil.copy(SHIPPED, tmp_path / "params.yaml")
    return Project(tmp_path)


def run(*arguments: str) -> str:
    return CliRunner().invoke(app, arguments, catch_exceptions=False).output


def test_unknown_stage_does_not_change_settings(project):
    before = project.params_file.read_bytes()
    with pytest.raises(FreshetError, match="'nosuch' is not a stage"):
        run("run", "--set", "seed=5", "nosuch")
    assert project.params_file.read_bytes() == before


def test_run_accepts_a_new_retriever(project, monkeypatch):
    asked = []
    monkeypatch.setattr(repro, "repro", lambda project, targets, force: asked.extend(targets) or ())
    run("run", "--set", "retrievers.third.epochs=2", "train@third")
    assert asked == ["train@third"]
    assert parameters.load(project.params_file).retrievers["third"].training.epochs == 2


def test_plan_is_printed_as_text_and_json(project, monkeypatch):
    stage = repro.PlannedStage("train@hce", "run", ("it never ran", "seed changed"))
    monkeypatch.setattr(repro, "plan", lambda project, targets: [stage])
    assert run("plan") == "run   train@hce                it never ran; seed changed\n"
    told = {"address": "train@hce", "action": "run", "reasons": ["it never ran", "seed changed"]}
    assert json.loads(run("plan", "--json")) == [told]


def results(project, *arguments: str, **comparison):
    write_json(project.artifacts / "comparison" / "comparison.json", FACTS | PART | comparison)
    return run("results", *arguments)


def test_results_print_summary_verdict_and_table(project):
    move = {"when": "2026-01-02T00:00", "action": "promote", "from": None, "to": "3"}
    move["verdict"] = {"reasons": ["better"]}
    write_text(project.state / "promotions.jsonl", json.dumps(move) + "\n")
    write_text(project.live / "hce" / "current", "000000\n")
    write_text(project.live / "current", "hce\n")
    printed = results(project)
    assert printed.startswith(
        "bm25 is the best of 2 systems: nDCG@10 0.500 [0.400, 0.600], 0.000 above hce"
    )
    assert "Live is hce. Last change: promote of version 3 on 2026-01-02: better." in printed
    assert "hce     0.500 [0.400, 0.600]" in printed
    page = (project.state / "report.html").read_text()
    assert "is the best of 2 systems" in page
    assert "Live is hce" in page
    assert json.loads(results(project, "--json")) == PART["systems"]


def test_costs_stand_beside_effectiveness(project, monkeypatch):
    asked = []
    table = pd.DataFrame([["hce", "1.5"]], columns=["system", "query p50 (ms)"])
    monkeypatch.setattr(costs, "cost_table", lambda *given: asked.append(given[1:]) or table)
    assert "query p50 (ms)" in results(project, "--costs", "7")
    assert asked == [("test", 7)]
    assert "query p50 (ms)" in (project.state / "report.html").read_text()


def test_results_without_judgements(project):
    printed = results(project, queries=0, systems={}, left_out={"hce": "hce is not trained"})
    assert printed.startswith("Nobody has judged dev or test queries of this corpus")
    assert "Hce is not trained." in printed
    assert "No retriever is registered yet" in printed
