"""Guards `freshet results`: who is best, what is live, what the gate said and what systems cost, as text and page."""

from __future__ import annotations

import json

import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from model_code.files import write_json, write_text
from orchestration.cli.build import results
from orchestration.pipeline import costs
from orchestration.project import Project

CELL = {"nDCG@10": {"value": 0.5, "low": 0.4, "high": 0.6, "queries": 9}}
PART = {"split": "test", "queries": 9, "systems": {"bm25": CELL, "hce": CELL}, "differences": []}
FACTS = {"main_metric": "nDCG@10", "confidence": 0.95, "documents": 12, "left_out": {}, "groups": {}, "examples": {}}


@pytest.fixture
def project(tmp_path, monkeypatch):
    write_text(tmp_path / "params.yaml", "retrievers: {}\n")
    write_text(tmp_path / "dvc.yaml", "")
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path)


def told(project, *arguments: str, **comparison):
    write_json(project.artifacts / "comparison" / "comparison.json", FACTS | PART | comparison)
    app = typer.Typer()
    app.command()(results)
    return CliRunner().invoke(app, arguments, catch_exceptions=False).output


def test_the_first_sentence_the_verdict_and_the_table_are_printed_and_written(project):
    move = {
        "when": "2026-01-02T00:00",
        "action": "promote",
        "from": None,
        "to": "3",
        "verdict": {"reasons": ["better"]},
    }
    write_text(project.state / "promotions.jsonl", json.dumps(move) + "\n")
    write_text(project.live / "hce" / "current", "000000\n")
    write_text(project.live / "current", "hce\n")
    printed = told(project)
    assert printed.startswith("bm25 is the best of 2 systems: nDCG@10 0.500 [0.400, 0.600], 0.000 above hce")
    assert "Live is hce. Last move: promote of version 3 on 2026-01-02: better." in printed
    assert "hce     0.500 [0.400, 0.600]" in printed
    page = (project.state / "report.html").read_text()
    assert "is the best of 2 systems" in page
    assert "Live is hce" in page
    assert json.loads(told(project, "--json")) == PART["systems"]


def test_costs_stand_beside_effectiveness(project, monkeypatch):
    asked = []
    table = pd.DataFrame([["hce", "1.5"]], columns=["system", "query p50 (ms)"])
    monkeypatch.setattr(costs, "cost_table", lambda *given: asked.append(given[1:]) or table)
    assert "query p50 (ms)" in told(project, "--costs", "7")
    assert asked == [("test", 7)]
    assert "query p50 (ms)" in (project.state / "report.html").read_text()


def test_where_nobody_judged_that_and_what_was_left_out_is_said(project):
    printed = told(project, queries=0, systems={}, left_out={"hce": "hce is not trained"})
    assert printed.startswith("Nobody has judged dev or test queries of this corpus")
    assert "Hce is not trained." in printed
    assert "No retriever was registered and judged yet" in printed
