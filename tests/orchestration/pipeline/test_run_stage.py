"""Guards running a stage: its inputs, its contract, checkpoints and record; and that none outlives
what started it.

Run: python -m pytest tests/orchestration/pipeline/test_run_stage.py
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import psutil
import pytest

from model_code.checks.rules import require
from model_code.errors import FreshetError
from model_code.files import read_json, write_json
from model_code.project import Project
from model_code.stages.stage import Stage
from orchestration.pipeline import run_stage, stage_key

PARAMS = """\
seed: 3
index: {flat_below: 10}
retrievers: {hce: {hierarchy_weight: 0.2}}
corpus: {packages: [numpy]}
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "params.yaml").write_text(PARAMS)
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "numbers.txt").write_text("1 2 3")
    (tmp_path / "code.py").write_text("one = 1\n")
    monkeypatch.setenv("FRESHET_TRACKING", "off")
    monkeypatch.setattr("model_code.stages.stage.BASE_CODE", ())
    monkeypatch.setattr(Stage, "code_files", property(lambda stage: ("code.py",)))
    return Project(tmp_path)


@pytest.fixture
def stage(monkeypatch):
    """A stage whose function a test can replace."""
    module = ModuleType("model_code.stages.summing")
    module.run = add_up
    module.check = holds_a_number
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return Stage(
        "summing",
        "Adds up.",
        ("seed", "index"),
        {"numbers": "input"},
        "artifacts/summing",
        ("code.py",),
    )


def add_up(context):
    numbers = [
        int(number) for number in (context.inputs["numbers"] / "numbers.txt").read_text().split()
    ]
    (context.output / "sum.txt").write_text(str(sum(numbers) + context.settings["seed"]))
    return {"numbers": len(numbers)}


def holds_a_number(context):
    """The contract of that stage."""
    text = (context.output / "sum.txt").read_text()
    require(text.isdecimal(), f"sum.txt must hold a number, not {text!r}")


def test_stage_sees_declared_inputs_and_writes_atomically(project, stage):
    record = run_stage.run_stage(stage, project)
    output = project.root / "artifacts" / "summing"
    assert (output / "sum.txt").read_text() == "9"
    assert read_json(output / "report.json") == {"numbers": 3}
    assert record.metrics["numbers"] == 3
    assert set(
        run_stage.declared_settings(stage, run_stage.parameters.load(project.params_file))
    ) == {"seed", "index"}


def test_stage_receives_part_of_a_settings_group(project):
    part, group = "pseudo_queries.training", "pseudo_queries.generators"
    stage = Stage(
        "train", "Trains.", (part, "retrievers.hce", group), {}, "artifacts/x", (), retriever="hce"
    )
    settings = run_stage.parameters.load(project.params_file)
    assert run_stage.declared_settings(stage, settings) == {
        part: settings.pseudo_queries.training,
        group: settings.pseudo_queries.generators,
        "retriever": settings.retrievers["hce"],
    }


def test_missing_setting_is_refused_by_name(project):
    stage = Stage(
        "train",
        "Trains.",
        ("seed", "retrievers.gone", "index.no"),
        {},
        "artifacts/x",
        (),
        retriever="gone",
    )
    settings = run_stage.parameters.load(project.params_file)
    with pytest.raises(
        FreshetError,
        match="train@gone reads what the settings do not have: retrievers.gone, index.no",
    ):
        run_stage.declared_settings(stage, settings)


EDITED = {"params.yaml": "params.yaml: seed", "code.py": "code.py", "input/numbers.txt": "input"}


@pytest.mark.parametrize("victim", EDITED)
def test_edit_during_run_keeps_old_output(project, stage, victim):
    run_stage.run_stage(stage, project)

    def edit_meanwhile(context):
        (context.output / "sum.txt").write_text("wrong")  # which breaks the contract, too
        path = project.root / victim
        path.write_text(path.read_text().replace("3", "4").replace("one = 1", "one = 2"))
        return {}

    sys.modules[stage.module].run = edit_meanwhile
    with pytest.raises(FreshetError, match=f"read {EDITED[victim]}, which changed while it ran"):
        run_stage.run_stage(stage, project)
    assert (project.root / "artifacts" / "summing" / "sum.txt").read_text() == "9"


def write_a_word(context):
    (context.output / "sum.txt").write_text("nine")
    return {}


@pytest.mark.parametrize(
    ("run", "error", "message"),
    [
        (
            write_a_word,
            FreshetError,
            "^the output of stage summing breaks its contract.*must hold a number",
        ),
        (lambda context: {}, FreshetError, "cannot be read: FileNotFoundError: .*sum.txt"),
        (lambda context: add_up(context) and {"where": context.output}, TypeError, "JSON"),
    ],
)
def test_output_that_breaks_contract_is_discarded(project, stage, run, error, message):
    for before in ([], ["9"]):
        sys.modules[stage.module].run = run
        with pytest.raises(error, match=message) as refused:
            run_stage.run_stage(stage, project)
        assert "\n" not in str(refused.value)
        assert [path.read_text() for path in project.artifacts.glob("summing/sum.txt")] == before
        # of the stage as it failed, to go on from
        assert len(list((project.state / "checkpoints").iterdir())) == 1
        sys.modules[stage.module].run = add_up
        run_stage.run_stage(stage, project)


def test_edit_during_contract_check_is_refused(project, stage, monkeypatch):
    def edit_code(context):
        (project.root / "code.py").write_text("two = 2\n")

    monkeypatch.setattr(sys.modules[stage.module], "check", edit_code)
    with pytest.raises(FreshetError, match="code.py, which changed while it ran"):
        run_stage.run_stage(stage, project)


def test_edit_of_unread_settings_is_allowed(project, stage):
    def edit_meanwhile(context):
        project.params_file.write_text(PARAMS.replace("numpy", "pandas"))
        return add_up(context)

    sys.modules[stage.module].run = edit_meanwhile
    run_stage.run_stage(stage, project)


def test_stage_key_depends_on_every_input(project, stage):
    keys = {stage_key.read_stage_inputs(stage, project.root).key}
    assert run_stage.run_stage(stage, project).key in keys
    for path, text in (
        ("input/numbers.txt", "1"),
        ("code.py", "two = 2\n"),
        ("params.yaml", PARAMS.replace("3", "4")),
    ):
        (project.root / path).write_text(text)
        keys.add(stage_key.read_stage_inputs(stage, project.root).key)
    assert len(keys) == 4


def test_checkpoints_outlive_a_failure_and_go_with_success(project, stage):
    seen = []

    def fail_once(context):
        seen.append((context.checkpoints / "half.txt").exists())
        (context.checkpoints / "half.txt").write_text("half")
        if len(seen) == 1:
            raise RuntimeError("out of memory")
        return add_up(context)

    sys.modules[stage.module].run = fail_once
    with pytest.raises(RuntimeError):
        run_stage.run_stage(stage, project)
    assert not (project.root / "artifacts").exists()
    run_stage.run_stage(stage, project)
    assert seen == [False, True]
    assert not list((project.state / "checkpoints").iterdir())


def test_a_missing_input_names_the_remedy(project, stage):
    (project.root / "input" / "numbers.txt").unlink()
    (project.root / "input").rmdir()
    with pytest.raises(
        FreshetError, match=r"reads input, which is missing: run the stages before it"
    ):
        run_stage.run_stage(stage, project)


def test_checkpoints_survive_a_failed_record(project, stage, monkeypatch):
    """To DVC such a stage has made nothing, so it runs again: from its last checkpoint."""

    def full(*given):
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(run_stage.runs, "spool_record", full)
        with pytest.raises(OSError, match="no space left"):
            run_stage.run_stage(stage, project)
    assert len(list((project.state / "checkpoints").iterdir())) == 1
    run_stage.run_stage(stage, project)
    assert not list((project.state / "checkpoints").iterdir())


def test_dev_curve_uses_common_metric_names(tmp_path: Path):
    assert run_stage.training_curve(tmp_path) == []
    write_json(tmp_path / "history.json", [{"step": 0, "loss": 2.0, "nDCG@10": 0.5}])
    assert run_stage.training_curve(tmp_path) == [{"step": 0, "loss": 2.0, "dev.nDCG@10": 0.5}]


CHILD = """
import time
from orchestration.pipeline.run_stage import die_with_ancestors
die_with_ancestors(interval=0.05)
print('on', flush=True)
time.sleep(60)
"""
PARENT = """
import subprocess, sys
process = subprocess.Popen([sys.executable, '-c', sys.stdin.read()])
print(process.pid, flush=True)
process.wait()
"""


def start_family(title: str) -> tuple[subprocess.Popen[str], psutil.Process]:
    """A parent whose command line holds `title` and nothing else that a stage would watch, and its
    child.
    """
    root = Path(__file__).parents[3]
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, title],
        cwd=root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    parent.stdin.write(CHILD)
    parent.stdin.close()
    child = psutil.Process(int(parent.stdout.readline()))
    assert parent.stdout.readline() == "on\n"
    return parent, child


def test_stage_ends_with_dvc_not_with_terminal():
    families = [start_family(title) for title in ("dvc repro", "terminal")]
    for parent, _ in families:
        parent.kill()
        parent.wait()
    (_, stage), (_, other) = families
    assert not psutil.wait_procs([stage], timeout=30)[1]
    time.sleep(0.3)
    assert other.status() != psutil.STATUS_ZOMBIE, "nor is it gone"
    other.kill()
