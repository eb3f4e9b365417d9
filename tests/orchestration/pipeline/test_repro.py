"""Guards `dvc repro` from here: what it runs, tells and mends, and that outputs of retrievers which
are gone go, too.

Run: python -m pytest tests/orchestration/pipeline/test_repro.py
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from model_code.errors import FreshetError
from model_code.files import hash_path, write_json
from model_code.project import Project
from orchestration.pipeline import dvc, runs
from orchestration.pipeline.dvc import command_line, initialise
from orchestration.pipeline.repro import (
    PlannedBuild,
    PlannedStage,
    StageRefused,
    remove_unnamed_outputs,
    repro,
)

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    """Nothing is recorded or sent."""
    for name, value in (("FRESHET_TRACKING", "off"), ("DVC_NO_ANALYTICS", "1")):
        monkeypatch.setenv(name, value)


@pytest.fixture
def unpacked(tmp_path) -> Project:
    """What an unpacked archive of the repository holds of DVC: its settings, and no git."""
    (tmp_path / ".dvc").mkdir()
    for name in (".dvc/config", ".dvc/.gitignore"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    return Project(tmp_path)


def dvc_starts(project: Project) -> bool:
    return (
        subprocess.run(
            command_line("status", "-q"), cwd=project.root, capture_output=True
        ).returncode
        == 0
    )


def test_dvc_uses_git_once_it_exists(unpacked):
    assert not dvc_starts(unpacked)
    initialise(unpacked)
    assert dvc_starts(unpacked)
    local = unpacked.root / ".dvc" / "config.local"
    told = local.read_text()
    assert "no_scm = true" in told
    initialise(unpacked)
    assert local.read_text() == told
    subprocess.run(["git", "init", "-q"], cwd=unpacked.root, check=True)
    initialise(unpacked)
    assert "no_scm" not in local.read_text()
    assert dvc_starts(unpacked)


def test_settings_made_without_git_are_left_alone(tmp_path):
    project = Project(tmp_path)
    initialise(project)
    before = (tmp_path / ".dvc" / "config").read_text()
    initialise(project)
    assert (tmp_path / ".dvc" / "config").read_text() == before
    assert not (tmp_path / ".dvc" / "config.local").exists()


PIPELINE = """\
stages:
  train:
    foreach: ${retrievers}
    do:
      cmd: echo ${key} >> log && mkdir -p artifacts/train/${key} && echo ${key} > artifacts/train/${key}/model
      params: ["retrievers.${key}"]
      outs: ["artifacts/train/${key}"]
  comparison:
    cmd: mkdir -p artifacts/comparison && ls artifacts/train > artifacts/comparison/seen
    deps: [artifacts/train]
    outs: [artifacts/comparison]
"""


def plan_only(monkeypatch, *addresses):
    """The pipelines here have a few stages of the table only; each of them may have to run."""
    planned = [PlannedStage(address, "maybe", ()) for address in addresses]
    monkeypatch.setattr("orchestration.pipeline.repro.plan", lambda *_: planned)
    monkeypatch.setattr(
        "orchestration.pipeline.repro.required_stages", lambda _, address: [address]
    )


def test_removed_retriever_comes_back_from_cache(tmp_path, monkeypatch):
    (tmp_path / "dvc.yaml").write_text(PIPELINE)
    project = Project(tmp_path)
    for names in (("one", "two"), ("one",), ("one", "two")):
        retrievers = ", ".join(f"{name}: {{epochs: 1}}" for name in names)
        (tmp_path / "params.yaml").write_text(f"retrievers: {{{retrievers}}}\n")
        plan_only(monkeypatch, *(f"train@{name}" for name in names), "comparison")
        list(repro(project))
        seen = (tmp_path / "artifacts" / "comparison" / "seen").read_text().split()
        assert seen == sorted(names)
    assert sorted((tmp_path / "log").read_text().split()) == ["one", "two"], "each is trained once"


@pytest.fixture
def one_stage(tmp_path, monkeypatch) -> Project:
    plan_only(monkeypatch, "make")
    make = "echo 1 > out; echo '  make: done in 0 s'"
    write_json(tmp_path / "dvc.yaml", {"stages": {"make": {"cmd": make, "outs": ["out"]}}})
    (tmp_path / "params.yaml").write_text("retrievers: {hce: {epochs: 1}}\n")
    initialise(Project(tmp_path))
    return Project(tmp_path)


def test_stale_locks_of_killed_dvc_are_ignored(one_stage, capsys):
    other = subprocess.Popen(["sleep", "60"])
    stale = {
        "write": {str(one_stage.root / "out"): {"pid": other.pid, "cmd": "dvc repro"}},
        "read": {},
    }
    try:
        for notes in (json.dumps(stale), '{"write": {"'):
            (one_stage.root / dvc.NOTES).write_text(notes)
            list(repro(one_stage))
            assert (one_stage.root / "out").read_text() == "1\n"
            assert "notes of a DVC that was killed are removed" in capsys.readouterr().err
            (one_stage.root / "out").unlink()
    finally:
        other.kill()
        other.wait()


def test_locks_of_running_dvc_are_kept(one_stage):
    path = one_stage.root / dvc.NOTES
    waits = "print(flush=True); import time; time.sleep(60)"
    running = subprocess.Popen(
        [sys.executable, "-c", waits, "dvc", "repro"], stdout=subprocess.PIPE
    )
    assert running.stdout.readline(), "it runs, and has its own command line"
    path.write_text(
        json.dumps({"write": {}, "read": {"in": [{"pid": running.pid, "cmd": "dvc repro"}]}})
    )
    try:
        assert not dvc.remove_stale_notes(one_stage.root)
        assert path.exists()
    finally:
        running.kill()
        running.communicate()
    assert dvc.remove_stale_notes(one_stage.root)


def test_unreachable_tracking_store_does_not_stop_build(one_stage, monkeypatch, capsys):
    asked = []

    def away(project):
        asked.append(project)
        raise OSError("the store is away")

    monkeypatch.setattr(runs, "record_all", away)
    assert list(repro(one_stage)) == ["make"]
    assert len(asked) == 1
    assert (
        "not recorded in MLflow yet (OSError: the store is away); the next build records it"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("ending", "error", "message"),
    [
        ("echo 'error: the loss is nan' >&2; exit 1", StageRefused, "make: the loss is nan"),
        (
            "kill -9 $$",
            FreshetError,
            "`dvc repro make` failed with exit code 255: failed to run: .*exited with -9",
        ),
    ],
)
def test_stage_failure_is_reported_once(one_stage, ending, error, message):
    write_json(
        one_stage.root / "dvc.yaml",
        {"stages": {"make": {"cmd": f"echo first; {ending}", "outs": ["out"]}}},
    )
    lines = []
    build = PlannedBuild(one_stage)
    with pytest.raises(FreshetError, match=message) as failed:
        list(build.bring_up_to_date("make", lines.append))
    assert type(failed.value) is error
    assert "first" in lines
    assert not any("nan" in line or line.startswith("> ") for line in lines)


def test_dvc_error_before_first_stage_is_reported(one_stage):
    entry = {"cmd": "echo 1 > out", "outs": ["out"], "params": ["mine"]}
    write_json(one_stage.root / "dvc.yaml", {"stages": {"make": entry}})
    with pytest.raises(
        FreshetError, match="with exit code 255: Parameters 'mine' are missing from 'params.yaml'"
    ):
        list(PlannedBuild(one_stage).bring_up_to_date("make", print))


def test_unknown_dvc_failure_is_reported_in_full(one_stage, monkeypatch):
    build, line = PlannedBuild(one_stage), "ERROR: failed to reproduce what is there"
    monkeypatch.setattr(dvc, "command_line", lambda *_: ["sh", "-c", f"echo '{line}'; exit 1"])
    with pytest.raises(FreshetError, match=f"with exit code 1: {line}"):
        list(build.bring_up_to_date("make", print))


def test_an_interrupt_ends_dvc_and_its_stage(one_stage):
    write_json(
        one_stage.root / "dvc.yaml",
        {"stages": {"make": {"cmd": "echo first; exec sleep 60", "outs": ["out"]}}},
    )

    def interrupt(line):
        if line == "first":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(PlannedBuild(one_stage).bring_up_to_date("make", interrupt))
    assert not psutil.Process().children(recursive=True)


def test_build_keeps_settings_of_its_start(one_stage):
    build = PlannedBuild(one_stage)
    assert (list(build.bring_up_to_date("make")), list(build.bring_up_to_date("make"))) == (
        ["make"],
        [],
    )
    build = PlannedBuild(one_stage)
    assert list(build.bring_up_to_date("make")) == [], "DVC has nothing to do"
    build = PlannedBuild(one_stage)
    one_stage.params_file.write_text("retrievers: {hce: {epochs: 2}}\n")
    with pytest.raises(FreshetError, match="changed since this build began"):
        list(build.bring_up_to_date("make"))


@pytest.fixture
def project(tmp_path) -> Project:
    (tmp_path / "params.yaml").write_text("retrievers: {hce: {hierarchy_weight: 0.2}}\n")
    for name in ("train/hce", "index/hce", "evaluate/hce", "baselines/bm25", "corpus", "old"):
        write(tmp_path / "artifacts" / name)
    write(tmp_path / "elsewhere")
    return Project(tmp_path)


def write(folder: Path) -> None:
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "a.txt").write_text("a")


def test_only_outputs_of_removed_retrievers_are_deleted(project):
    (project.artifacts / "train" / ".gitignore").write_text("/hce\n")
    (project.artifacts / "train" / "link").symlink_to(project.root / "elsewhere")
    before = hash_path(project.root)
    assert remove_unnamed_outputs(project) == []
    for name in ("train/old", "index/old", "evaluate/old", "train/.hce.old"):
        write(project.artifacts / name)
    removed = remove_unnamed_outputs(project)
    assert sorted(map(str, removed)) == [
        "artifacts/evaluate/old",
        "artifacts/index/old",
        "artifacts/train/.hce.old",
        "artifacts/train/old",
    ]
    assert hash_path(project.root) == before
    shutil.rmtree(project.artifacts)
    assert remove_unnamed_outputs(project) == [], "before the first build"
