"""Guards DVC's own commands on this project: experiments with -S, metrics diff, plots.

Run: python -m pytest tests/end_to_end/test_dvc_commands.py
"""

from __future__ import annotations

import json

import pytest

from tests.end_to_end.tiny_project import dvc, git

pytestmark = pytest.mark.full


def test_dvc_experiment_shows_metrics_of_a_setting(copy_of_build):
    git(copy_of_build, "add", "-A")
    git(copy_of_build, "commit", "-qm", "the first build")
    dvc(copy_of_build, "exp", "run", "--name", "blunt", "-S", "bm25.b=0.0", "-S", "bm25.k1=0.0")
    rows = json.loads(dvc(copy_of_build, "metrics", "diff", "--json").stdout)
    changes = rows["artifacts/comparison/metrics.json"]
    assert any(name.startswith("bm25") for name in changes)
    lone = [name for name in changes if name.startswith("hce") and not name.startswith("hce.rrf")]
    assert not lone, "only the hybrid with BM25 may change with BM25"
    dvc(copy_of_build, "plots", "show", "-o", "plots")
    assert "comparison.png" in (copy_of_build / "plots" / "index.html").read_text()
