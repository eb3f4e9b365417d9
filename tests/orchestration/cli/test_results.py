"""Tests of `freshet results`: summary, last promotion, tables and costs, as text and as a page."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from model_code.files import hash_path, write_json, write_text
from model_code.project import Project
from model_code.stages.system_comparison import compare
from orchestration import parameters
from orchestration.cli import app
from orchestration.pipeline import costs
from tests.model_code.evaluation.tiny_corpus import DOCUMENTS
from tests.model_code.stages.test_comparison import context, write_inputs

SHIPPED_SETTINGS = Path(__file__).parents[3] / "params.yaml"

CELL = {
    "nDCG@10": {
        "value": 0.5,
        "low": 0.4,
        "high": 0.6,
        "queries": 9,
        "over": "queries",
        "trainings": 1,
    }
}
COMPARISON = {
    "main_metric": "nDCG@10",
    "confidence": 0.95,
    "documents": 12,
    "left_out": {},
    "groups": {},
    "examples": {},
    "split": "test",
    "queries": 9,
    "systems": {"bm25": CELL, "hce": CELL},
    "differences": [],
}
PROMOTION = {
    "when": "2026-01-02T00:00",
    "action": "promote",
    "from": None,
    "to": "3",
    "verdict": {"reasons": ["better"], "findings": ["below bm25_known"]},
}


@pytest.fixture
def project(tmp_path, monkeypatch) -> Project:
    (tmp_path / "dvc.yaml").touch()
    (tmp_path / "params.yaml").touch()
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path)


@pytest.fixture
def promoted_project(project) -> Project:
    """A project in which hce is live after a promotion."""
    write_text(project.state / "promotions.jsonl", json.dumps(PROMOTION) + "\n")
    write_text(project.live / "hce" / "current", "000000\n")
    write_text(project.live / "current", "hce\n")
    return project


def run_results(project: Project, *options: str, **changes) -> str:
    """Run the command on a comparison with some changed keys; returns the output."""
    comparison = {**COMPARISON, **changes}
    write_json(project.artifacts / "comparison" / "comparison.json", comparison)
    return CliRunner().invoke(app, ["results", *options], catch_exceptions=False).output


def read_report(project: Project) -> str:
    return (project.state / "report.html").read_text()


def test_results_print_summary_promotion_and_table(promoted_project):
    output = run_results(promoted_project)

    assert output.startswith("bm25 is the best of 2 systems: nDCG@10 0.500 [0.400, 0.600]")
    assert "0.000 above hce" in output
    assert (
        "Live is hce. Last change: promote of version 3 on 2026-01-02: better; below bm25_known."
        in output
    )
    assert "hce     0.500 [0.400, 0.600]" in output


def test_report_has_summary_and_live_retriever(promoted_project):
    run_results(promoted_project)

    assert "is the best of 2 systems" in read_report(promoted_project)
    assert "Live is hce" in read_report(promoted_project)


def test_json_has_one_object_per_system(project):
    assert json.loads(run_results(project, "--json")) == COMPARISON["systems"]


def test_costs_are_printed_and_reported(project, monkeypatch):
    monkeypatch.setattr(costs, "measure_costs", measured_costs)

    output = run_results(project, "--costs", "7")

    assert "query p50 (ms)" in output
    assert "query p50 (ms)" in read_report(project)


def measured_costs(project: Project, split: str, queries: int) -> dict[str, costs.SystemCosts]:
    assert split == "test"
    assert queries == 7
    return {"hce": costs.SystemCosts(1.5, 2.5, 1000, 20.0, None)}


def test_json_has_costs(project, monkeypatch):
    monkeypatch.setattr(costs, "measure_costs", measured_costs)

    systems = json.loads(run_results(project, "--json", "--costs", "7"))

    assert systems["hce"]["costs"]["query_p50_ms"] == 1.5
    assert systems["hce"]["costs"]["indexing_seconds"] is None
    assert "costs" not in systems["bm25"]


def test_results_without_judgements(project):
    output = run_results(project, queries=0, systems={}, left_out={"hce": "hce is not trained"})

    assert "judged" in output.splitlines()[0]
    assert "Hce is not trained." in output
    assert "No retriever is registered yet" in output


@pytest.fixture
def built_project(tmp_path, monkeypatch) -> Project:
    """A project with evaluated systems and their comparison."""
    inputs = write_inputs(tmp_path / "inputs")
    for name, place in (("corpus", "corpus"), ("baselines", "baselines")):
        shutil.copytree(inputs[name], tmp_path / "artifacts" / place)
    shutil.copytree(inputs["evaluations"], tmp_path / "artifacts" / "evaluate")
    (tmp_path / "dvc.yaml").touch()
    shutil.copyfile(SHIPPED_SETTINGS, tmp_path / "params.yaml")
    overrides = ['retrievers={"contrastive": {}, "hce": {}}', "fusions={}"]
    parameters.write_overrides(tmp_path / "params.yaml", overrides)

    content = compare(context(inputs, tmp_path))
    write_json(tmp_path / "artifacts" / "comparison" / "comparison.json", content)
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path)


def write_perfect_run(folder):
    path = folder / "outside.trec"
    path.write_text("".join(f"test:{name} Q0 {name} 1 1.0 outside\n" for name in DOCUMENTS))
    return path


def test_added_run_is_a_row_and_artifacts_stay(built_project):
    run = write_perfect_run(built_project.root)
    before = hash_path(built_project.artifacts)

    done = CliRunner().invoke(app, ["results", "--add-run", f"outside={run}"])

    assert done.exit_code == 0, done.output
    assert "outside is the best of" in done.output.lower()
    assert "outside" in read_report(built_project)
    assert hash_path(built_project.artifacts) == before


def test_added_run_has_the_name_of_no_system(built_project):
    run = write_perfect_run(built_project.root)

    done = CliRunner().invoke(app, ["results", "--add-run", f"bm25={run}"])

    assert done.exit_code != 0
    assert "a system of this name" in str(done.exception or done.output)
