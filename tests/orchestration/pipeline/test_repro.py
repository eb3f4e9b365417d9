"""Test `dvc repro` in a build: what it runs, reports and repairs, and outputs that it removes."""

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
from orchestration.pipeline import dvc, runs, verified_outputs
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
def no_tracking(monkeypatch):
    """Record nothing in MLflow, and send nothing."""
    monkeypatch.setenv("FRESHET_TRACKING", "off")
    monkeypatch.setenv("DVC_NO_ANALYTICS", "1")


@pytest.fixture
def unpacked(tmp_path) -> Project:
    """Return a project as an archive of the repository holds it: DVC settings, and no git."""
    (tmp_path / ".dvc").mkdir()
    for name in (".dvc/config", ".dvc/.gitignore"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    return Project(tmp_path)


def dvc_starts(project: Project) -> bool:
    command = command_line("status", "-q")
    return subprocess.run(command, cwd=project.root, capture_output=True).returncode == 0


def test_dvc_starts_without_git_after_initialisation(unpacked):
    assert not dvc_starts(unpacked)

    initialise(unpacked)

    assert dvc_starts(unpacked)
    assert "no_scm = true" in (unpacked.root / ".dvc" / "config.local").read_text()


def test_second_initialisation_changes_nothing(unpacked):
    initialise(unpacked)
    local_config = unpacked.root / ".dvc" / "config.local"
    content = local_config.read_text()

    initialise(unpacked)

    assert local_config.read_text() == content


def test_dvc_uses_git_once_it_exists(unpacked):
    initialise(unpacked)
    subprocess.run(["git", "init", "-q"], cwd=unpacked.root, check=True)

    initialise(unpacked)

    assert "no_scm" not in (unpacked.root / ".dvc" / "config.local").read_text()
    assert dvc_starts(unpacked)


def test_settings_made_without_git_are_not_changed(tmp_path):
    project = Project(tmp_path)
    initialise(project)
    content = (tmp_path / ".dvc" / "config").read_text()

    initialise(project)

    assert (tmp_path / ".dvc" / "config").read_text() == content
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
    """Replace the plan, because the pipelines here have few stages. Each of them may have to run."""
    planned_stages = [PlannedStage(address, "maybe", ()) for address in addresses]

    def plan(*arguments):
        return planned_stages

    def required_stages(project, address):
        return [address]

    monkeypatch.setattr("orchestration.pipeline.repro.plan", plan)
    monkeypatch.setattr("orchestration.pipeline.repro.required_stages", required_stages)


def test_removed_retriever_comes_back_from_cache(tmp_path, monkeypatch):
    # The outputs of this pipeline keep no contract of the real stages.
    monkeypatch.setattr(verified_outputs, "check_contract", lambda *_: None)
    (tmp_path / "dvc.yaml").write_text(PIPELINE)
    project = Project(tmp_path)

    for names in (["one", "two"], ["one"], ["one", "two"]):
        retrievers = ", ".join(f"{name}: {{epochs: 1}}" for name in names)
        (tmp_path / "params.yaml").write_text(f"retrievers: {{{retrievers}}}\n")
        plan_only(monkeypatch, *[f"train@{name}" for name in names], "comparison")
        list(repro(project))
        compared_names = (tmp_path / "artifacts" / "comparison" / "seen").read_text().split()
        assert compared_names == sorted(names)

    # Each retriever is trained once.
    trained_names = (tmp_path / "log").read_text().split()
    assert sorted(trained_names) == ["one", "two"]


def write_make_stage(project: Project, command: str, **fields) -> None:
    """Write a pipeline whose only stage `make` writes `out`."""
    stage = {"cmd": command, "outs": ["out"]}
    stage.update(fields)
    write_json(project.root / "dvc.yaml", {"stages": {"make": stage}})


@pytest.fixture(scope="module")
def initialised(tmp_path_factory) -> Path:
    """Return the folder of a project with the stage `make`, which DVC has initialised."""
    root = tmp_path_factory.mktemp("initialised") / "project"
    root.mkdir()
    project = Project(root)
    write_make_stage(project, "echo 1 > out; echo '  make: done in 0 s'")
    (root / "params.yaml").write_text("retrievers: {hce: {epochs: 1}}\n")
    initialise(project)
    return root


@pytest.fixture
def one_stage(initialised, tmp_path, monkeypatch) -> Project:
    plan_only(monkeypatch, "make")
    return Project(Path(shutil.copytree(initialised, tmp_path, dirs_exist_ok=True)))


@pytest.fixture
def other_process():
    """Return a running process that is not DVC."""
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def test_locks_of_killed_dvc_are_ignored(one_stage, other_process, capsys):
    # The process id of the killed DVC belongs to another process now.
    holder = {"pid": other_process.pid, "cmd": "dvc repro"}
    locks = {"write": {str(one_stage.root / "out"): holder}, "read": {}}
    (one_stage.root / dvc.NOTES).write_text(json.dumps(locks))

    list(repro(one_stage))

    assert (one_stage.root / "out").read_text() == "1\n"
    assert "notes of a DVC that was killed are removed" in capsys.readouterr().err


def test_half_written_locks_are_ignored(one_stage, capsys):
    (one_stage.root / dvc.NOTES).write_text('{"write": {"')

    list(repro(one_stage))

    assert (one_stage.root / "out").read_text() == "1\n"
    assert "notes of a DVC that was killed are removed" in capsys.readouterr().err


def test_locks_of_running_dvc_are_kept(one_stage):
    notes = one_stage.root / dvc.NOTES
    program = "print(flush=True); import time; time.sleep(60)"
    command = [sys.executable, "-c", program, "dvc", "repro"]
    dvc_process = subprocess.Popen(command, stdout=subprocess.PIPE)
    # After its first line, the process has its own command line.
    assert dvc_process.stdout.readline()
    holder = {"pid": dvc_process.pid, "cmd": "dvc repro"}
    notes.write_text(json.dumps({"write": {}, "read": {"in": [holder]}}))

    try:
        assert not dvc.remove_stale_notes(one_stage.root)
        assert notes.exists()
    finally:
        dvc_process.kill()
        dvc_process.communicate()

    assert dvc.remove_stale_notes(one_stage.root)


def test_unreachable_tracking_store_does_not_stop_build(one_stage, monkeypatch, capsys):
    calls = []

    def fail(project):
        calls.append(project)
        raise OSError("the store is away")

    monkeypatch.setattr(runs, "record_all", fail)

    assert list(repro(one_stage)) == ["make"]

    assert len(calls) == 1
    message = "not recorded in MLflow yet (OSError: the store is away); the next build records it"
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "error", "message"),
    [
        ("echo 'error: the loss is nan' >&2; exit 1", StageRefused, "make: the loss is nan"),
        (
            "kill -9 $$",
            FreshetError,
            "`dvc repro make` failed with exit code 255: failed to run: .*exited with -9",
        ),
    ],
)
def test_stage_failure_is_reported_once(one_stage, command, error, message):
    write_make_stage(one_stage, f"echo first; {command}")
    lines = []
    build = PlannedBuild(one_stage)

    with pytest.raises(FreshetError, match=message) as raised:
        list(build.bring_up_to_date("make", lines.append))

    assert type(raised.value) is error
    assert "first" in lines
    assert not any("nan" in line or line.startswith("> ") for line in lines)


def test_dvc_error_before_first_stage_is_reported(one_stage):
    write_make_stage(one_stage, "echo 1 > out", params=["mine"])
    message = "with exit code 255: Parameters 'mine' are missing from 'params.yaml'"

    with pytest.raises(FreshetError, match=message):
        list(PlannedBuild(one_stage).bring_up_to_date("make", print))


def test_unknown_dvc_failure_is_reported_in_full(one_stage, monkeypatch):
    build = PlannedBuild(one_stage)
    line = "ERROR: failed to reproduce what is there"

    def failing_command(*arguments):
        return ["sh", "-c", f"echo '{line}'; exit 1"]

    monkeypatch.setattr(dvc, "command_line", failing_command)

    with pytest.raises(FreshetError, match=f"with exit code 1: {line}"):
        list(build.bring_up_to_date("make", print))


def test_interrupt_ends_dvc_and_its_stage(one_stage):
    write_make_stage(one_stage, "echo first; exec sleep 60")

    def interrupt(line):
        if line == "first":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(PlannedBuild(one_stage).bring_up_to_date("make", interrupt))

    assert not psutil.Process().children(recursive=True)


def test_build_runs_a_stage_once(one_stage):
    build = PlannedBuild(one_stage)

    assert list(build.bring_up_to_date("make")) == ["make"]
    assert list(build.bring_up_to_date("make")) == []


def test_stage_that_is_up_to_date_does_not_run(one_stage):
    list(PlannedBuild(one_stage).bring_up_to_date("make"))

    assert list(PlannedBuild(one_stage).bring_up_to_date("make")) == []


def test_build_is_refused_after_a_change_of_settings(one_stage):
    build = PlannedBuild(one_stage)
    one_stage.params_file.write_text("retrievers: {hce: {epochs: 2}}\n")

    with pytest.raises(FreshetError, match="changed since this build began"):
        list(build.bring_up_to_date("make"))


@pytest.fixture
def project(tmp_path) -> Project:
    (tmp_path / "params.yaml").write_text("retrievers: {hce: {hierarchy_weight: 0.2}}\n")
    for name in ("train/hce", "index/hce", "evaluate/hce", "baselines/bm25", "corpus", "old"):
        write_folder(tmp_path / "artifacts" / name)
    write_folder(tmp_path / "elsewhere")
    return Project(tmp_path)


def write_folder(folder: Path) -> None:
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "a.txt").write_text("a")


def test_outputs_of_named_retrievers_are_kept(project):
    (project.artifacts / "train" / ".gitignore").write_text("/hce\n")
    (project.artifacts / "train" / "link").symlink_to(project.root / "elsewhere")
    before = hash_path(project.root)

    assert remove_unnamed_outputs(project) == []
    assert hash_path(project.root) == before


def test_only_outputs_of_removed_retrievers_are_deleted(project):
    (project.artifacts / "train" / ".gitignore").write_text("/hce\n")
    (project.artifacts / "train" / "link").symlink_to(project.root / "elsewhere")
    before = hash_path(project.root)
    for name in ("train/old", "index/old", "evaluate/old", "train/.hce.old"):
        write_folder(project.artifacts / name)

    removed = remove_unnamed_outputs(project)

    assert sorted(str(path) for path in removed) == [
        "artifacts/evaluate/old",
        "artifacts/index/old",
        "artifacts/train/.hce.old",
        "artifacts/train/old",
    ]
    assert hash_path(project.root) == before


def test_nothing_is_deleted_before_the_first_build(project):
    shutil.rmtree(project.artifacts)

    assert remove_unnamed_outputs(project) == []
