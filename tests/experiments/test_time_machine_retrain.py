"""The judged retrain of the time machine: what follows from the gate's verdict. Stages are fakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from experiments.time_machine import live_project
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.ledger.tasks import TaskKind, TaskState
from model_code.evaluation.gate_power import GAIN_DEVIATION
from model_code.evaluation.scores import SystemScores
from model_code.evaluation.settings import PromotionSettings
from model_code.project import Project
from tests.model_code.collection.laws import OLD, make_encoder, open_build
from tests.orchestration.freshness.conftest import make_project

QUERIES = [f"q{number:02}" for number in range(40)]


def make_scores(value: float) -> SystemScores:
    """Return scores of all queries on all metrics, which alternate around a value."""
    values = value + np.tile([0.1, -0.1], len(QUERIES) // 2)
    table = pd.DataFrame(dict.fromkeys(PromotionSettings().protected, values), index=QUERIES)
    return SystemScores("r", "gate", table)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A live retriever to which one document was added."""
    make_encoder("dense", tmp_path / "encoder")
    open_build("dense", tmp_path, tmp_path / "encoder", OLD)
    project = make_project(tmp_path)
    index = LiveIndex(project)
    index.receive([{"id": "new", "title": "word1", "text": "word2 word3 word4"}], "test")
    index.apply()
    return project


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replace all stages; `challenger` is the score that the new build gets, the live one has .5.

    Half of the queries ask for new documents.
    """
    calls: dict[str, Any] = {"challenger": 0.5, "opened": []}

    def load_scores(folder: Path) -> SystemScores:
        is_live_index = folder.name == "searched"
        return make_scores(0.5 if is_live_index else calls["challenger"])

    def open_live(project: Project, built: Project, snapshot: Any) -> None:
        calls["opened"].append((built.root.name, snapshot.event))

    def do_nothing(*_: Any) -> None:
        pass

    monkeypatch.setattr(live_project, "FUSION", "r")
    monkeypatch.setattr(live_project, "export_snapshot", do_nothing)
    monkeypatch.setattr(live_project, "build", do_nothing)
    monkeypatch.setattr(live_project, "_evaluate_live", do_nothing)
    monkeypatch.setattr(live_project, "load_gate_scores", load_scores)
    monkeypatch.setattr(live_project, "gate_queries_for", lambda *_: frozenset(QUERIES[::2]))
    monkeypatch.setattr(live_project, "open_live", open_live)
    return calls


@pytest.mark.parametrize(
    ("challenger", "passes", "opened", "state"),
    [
        (0.7, True, [("workspace", 1)], TaskState.DONE),
        (0.5, False, [], TaskState.REFUSED),
        (0.3, False, [], TaskState.REFUSED),
    ],
)
def test_the_gate_decides_what_is_live(
    project: Project,
    stages: dict[str, Any],
    challenger: float,
    passes: bool,
    opened: list[tuple[str, int]],
    state: TaskState,
) -> None:
    stages["challenger"] = challenger

    verdict = live_project.retrain(project, project.root / "retrain-0")

    assert verdict.passed == passes
    assert stages["opened"] == opened
    (task,) = LiveIndex(project).ledger.tasks.last("r", 9, TaskKind.RETRAIN)
    assert task.state == state
    assert task.outcome == "; ".join(verdict.reasons)
    assert task.details["new"] == 1
    assert task.details[GAIN_DEVIATION] == 0.0
