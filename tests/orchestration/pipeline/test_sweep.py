"""Guards `freshet tools sweep`: DVC's real experiments by the values of one setting, and no others.

Run: python -m pytest tests/orchestration/pipeline/test_sweep.py
"""

from __future__ import annotations

import subprocess

import pytest

from model_code.errors import FreshetError
from orchestration.pipeline import sweep
from orchestration.pipeline.dvc_process import dvc_command, environment
from orchestration.project import Project

PARAMS = "hierarchy:\n  branching: null\nseed: 0\n"
WRITE = """\
import json, pathlib, yaml
settings = yaml.safe_load(open("params.yaml"))
folder = pathlib.Path("artifacts/comparison")
folder.mkdir(parents=True, exist_ok=True)
value = (settings["hierarchy"]["branching"] or 16) / 100
(folder / "metrics.json").write_text(json.dumps({"bm25": {"R@1": 0.5}, "hce": {"R@1": value}}))
"""
METRICS = {"hce": {"R@1": 0.5}}
PIPELINE = """\
stages:
  comparison:
    cmd: python write.py
    params: [hierarchy, seed]
    outs: [artifacts/comparison]
metrics: [artifacts/comparison/metrics.json]
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Project:
    """A repository with one commit, and three experiments: two of the branching, one of it and of the seed."""
    root = tmp_path_factory.mktemp("sweep")
    for name, text in (("params.yaml", PARAMS), ("write.py", WRITE), ("dvc.yaml", PIPELINE)):
        (root / name).write_text(text)
    found = Project(root)

    def run(*command):
        subprocess.run(command, cwd=root, check=True, capture_output=True, env=environment(found))

    run("git", "init", "-q")
    run("git", "config", "user.name", "a")
    run("git", "config", "user.email", "a@b.c")
    run(*dvc_command("init", "-q"))
    run("git", "add", ".")
    run(*dvc_command("repro", "-q"))
    run("git", "add", ".")
    run("git", "commit", "-qm", "first")
    for changes in (("hierarchy.branching=64",), ("hierarchy.branching=4",), ("hierarchy.branching=8", "seed=1")):
        run(*dvc_command("exp", "run", "-q", *(word for change in changes for word in ("-S", change))))
        run("git", "checkout", "-q", "params.yaml", "dvc.lock")
        run(*dvc_command("checkout", "-q"))
    return found


def test_values_come_in_order_each_system_in_each_and_confounded_ones_are_left_out(project):
    found = sweep.sweep(project, "hierarchy.branching", "R@1")
    assert found.to_dict("list") == {
        "value": ["null", "null", "4", "4", "64", "64"],
        "system": ["bm25", "hce"] * 3,
        "R@1": [0.5, 0.16, 0.5, 0.04, 0.5, 0.64],
    }
    picture = sweep.write_picture(found, "hierarchy.branching", "R@1", project.state / "sweeps")
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("key", "metric", "message"),
    [
        ("seed", "R@1", "no experiment of this commit changes seed alone"),
        ("hierarchy.branchign", "R@1", "no setting 'hierarchy.branchign'"),
        ("hierarchy.branching", "R@2", "'R@2' is no metric"),
    ],
)
def test_what_cannot_be_swept_is_told(project, key, metric, message):
    with pytest.raises(FreshetError, match=message):
        sweep.sweep(project, key, metric)


def test_a_list_is_a_value_and_an_experiment_that_cannot_be_read_is_passed_over(project, monkeypatch):
    def experiment(generators, seed=0):
        settings = {"pseudo_queries": {"generators": generators}, "seed": seed}
        return {"params": {"params.yaml": {"data": settings}}, "metrics": {sweep.METRICS_FILE: {"data": METRICS}}}

    unread = {"params": {}, "metrics": {}}
    shown = [experiment(["a"]), unread, experiment(["a", "b"]), experiment(["c"], seed=1)]
    monkeypatch.setattr(sweep, "_experiments", lambda project: shown)
    found = sweep.sweep(project, "pseudo_queries.generators", "R@1")
    assert found["value"].tolist() == ['["a", "b"]', '["a"]']


def test_without_git_it_says_what_experiments_need(tmp_path):
    (tmp_path / "params.yaml").write_text(PARAMS)
    with pytest.raises(FreshetError, match="experiments need git"):
        sweep.sweep(Project(tmp_path), "seed", "R@1")
