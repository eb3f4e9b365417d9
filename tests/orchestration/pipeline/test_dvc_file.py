"""Guards that `dvc plots` draws whatever the retrievers are called.

Run: python -m pytest tests/orchestration/pipeline/test_dvc_file.py
"""

from __future__ import annotations

import json
import subprocess

import pytest
from ruamel.yaml import YAML

from orchestration.pipeline.dvc_file import PLOTS
from orchestration.pipeline.repro import dvc_command, initialise
from orchestration.project import Project

TABLES = {
    "training": "retriever,step,loss\nmine,1,2.5\nmine,2,2.0\n",
    "recall": "k,bm25,zero_shot,mine\n1,0.2,0.3,0.4\n10,0.5,0.6,0.7\n",
    "levels": "level,bm25,zero_shot,mine\n1,0.5,0.6,0.75\n2,0.25,0.3,0.5\n",
}


@pytest.fixture
def plots(tmp_path) -> dict:
    """What DVC draws of a comparison whose only retriever is `mine`: its plots and errors."""
    (tmp_path / "artifacts" / "comparison").mkdir(parents=True)
    for name, table in TABLES.items():
        (tmp_path / "artifacts" / "comparison" / f"{name}.csv").write_text(table)
    YAML().dump({"plots": PLOTS}, tmp_path / "dvc.yaml")
    initialise(Project(tmp_path))
    command = dvc_command("plots", "show", "--json", "--split")
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    return json.loads(shown.stdout)


def test_every_plot_has_a_line_of_a_retriever(plots):
    assert not plots.get("errors")
    drawn = {name: renderings[0]["anchor_definitions"] for name, renderings in plots["data"].items()}
    lines = {name: (one["<DVC_METRIC_Y_LABEL>"], len(one["<DVC_METRIC_DATA>"])) for name, one in drawn.items()}
    assert lines == {
        "artifacts/comparison/training.csv": ("loss", 2),
        "artifacts/comparison/recall.csv": ("mine", 2),
        "artifacts/comparison/levels.csv": ("mine", 2),
    }
