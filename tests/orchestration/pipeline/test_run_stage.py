"""Tests of running a stage: its inputs, its contract, its checkpoints and its record.

A stage also ends with the process that started it.
"""

from __future__ import annotations

import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import ModuleType

import psutil
import pytest

from model_code.checks.rules import require
from model_code.errors import FreshetError
from model_code.files import read_json, write_json
from model_code.project import Project
from model_code.stages.stage import Stage
from orchestration import parameters
from orchestration.pipeline import run_stage, stage_key
from orchestration.pipeline.stage_context import declared_settings

PARAMS = """\
seed: 3
index: {flat_below: 10}
retrievers: {hce: {hierarchy_weight: 0.2}}
corpus: {packages: [numpy]}
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with the input, the code and the settings that the stage `summing` reads."""
    (tmp_path / "params.yaml").write_text(PARAMS)
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "numbers.txt").write_text("1 2 3")
    (tmp_path / "code.py").write_text("one = 1\n")
    monkeypatch.setenv("FRESHET_TRACKING", "off")
    monkeypatch.setattr("model_code.stages.stage.BASE_CODE", ())

    def code_files(stage: Stage) -> tuple[str, ...]:
        return ("code.py",)

    monkeypatch.setattr(Stage, "code_files", property(code_files))
    return Project(tmp_path)


def add_numbers(context):
    """Write the sum of the numbers in the input and the seed."""
    text = (context.inputs["numbers"] / "numbers.txt").read_text()
    numbers = [int(number) for number in text.split()]
    total = sum(numbers) + context.settings["seed"]
    (context.output / "sum.txt").write_text(str(total))
    return {"numbers": len(numbers)}


def require_number(context):
    """Check the contract of the stage `summing`."""
    text = (context.output / "sum.txt").read_text()
    require(text.isdecimal(), f"sum.txt must hold a number, not {text!r}")


@pytest.fixture
def module(monkeypatch):
    """The module of the stage `summing`. A test can replace its functions."""
    module = ModuleType("model_code.stages.summing")
    module.run = add_numbers
    module.check = require_number
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


@pytest.fixture
def stage(module):
    """A stage that adds up the numbers of a file."""
    return Stage(
        "summing",
        "Adds up.",
        ("seed", "index"),
        {"numbers": "input"},
        "artifacts/summing",
        ("code.py",),
    )


def test_output_and_report_are_written(project, stage):
    record = run_stage.run_stage(stage, project)

    output = project.root / "artifacts" / "summing"
    assert (output / "sum.txt").read_text() == "9"
    assert read_json(output / "report.json") == {"numbers": 3}
    assert record.metrics["numbers"] == 3


def test_stage_receives_its_settings_groups(project, stage):
    settings = parameters.load(project.params_file)

    declared = declared_settings(stage, settings)

    assert set(declared) == {"seed", "index"}


def test_stage_receives_part_of_a_settings_group(project):
    groups = ("pseudo_queries.training", "retrievers.hce", "pseudo_queries.generators")
    stage = Stage("train", "Trains.", groups, {}, "artifacts/x", (), retriever="hce")
    settings = parameters.load(project.params_file)

    declared = declared_settings(stage, settings)

    assert declared == {
        "pseudo_queries.training": settings.pseudo_queries.training,
        "pseudo_queries.generators": settings.pseudo_queries.generators,
        "retriever": settings.retrievers["hce"],
    }


def test_missing_setting_is_refused_by_name(project):
    groups = ("seed", "retrievers.gone", "index.no")
    stage = Stage("train", "Trains.", groups, {}, "artifacts/x", (), retriever="gone")
    settings = parameters.load(project.params_file)

    with pytest.raises(
        FreshetError,
        match="train@gone reads what the settings do not have: retrievers.gone, index.no",
    ):
        declared_settings(stage, settings)


@pytest.mark.parametrize(
    ("edited", "name"),
    [
        ("params.yaml", "params.yaml: seed"),
        ("code.py", "code.py"),
        ("input/numbers.txt", "input"),
    ],
)
def test_edit_during_run_keeps_old_output(project, stage, module, edited, name):
    run_stage.run_stage(stage, project)

    def edit_while_running(context):
        # This output breaks the contract, too.
        (context.output / "sum.txt").write_text("wrong")
        path = project.root / edited
        path.write_text(path.read_text().replace("3", "4").replace("one = 1", "one = 2"))
        return {}

    module.run = edit_while_running
    with pytest.raises(FreshetError, match=f"read {name}, which changed while it ran"):
        run_stage.run_stage(stage, project)

    assert (project.root / "artifacts" / "summing" / "sum.txt").read_text() == "9"


def write_word(context):
    """Write an output that breaks the contract."""
    (context.output / "sum.txt").write_text("nine")
    return {}


def write_nothing(context):
    """Write no output."""
    return {}


def report_path(context):
    """Return a report that JSON cannot hold."""
    add_numbers(context)
    return {"where": context.output}


BROKEN_RUNS = [
    (
        write_word,
        FreshetError,
        "^the output of stage summing breaks its contract.*must hold a number",
    ),
    (write_nothing, FreshetError, "cannot be read: FileNotFoundError: .*sum.txt"),
    (report_path, TypeError, "JSON"),
]


@pytest.mark.parametrize(("run", "error", "message"), BROKEN_RUNS)
def test_output_that_breaks_contract_is_discarded(project, stage, module, run, error, message):
    module.run = run

    with pytest.raises(error, match=message) as refused:
        run_stage.run_stage(stage, project)

    assert "\n" not in str(refused.value)
    assert not (project.artifacts / "summing").exists()
    # The failed stage keeps its checkpoints, so that it can be resumed.
    assert len(list((project.state / "checkpoints").iterdir())) == 1


@pytest.mark.parametrize(("run", "error", "message"), BROKEN_RUNS)
def test_output_that_breaks_contract_keeps_old_output(project, stage, module, run, error, message):
    run_stage.run_stage(stage, project)
    module.run = run

    with pytest.raises(error, match=message):
        run_stage.run_stage(stage, project)

    assert (project.artifacts / "summing" / "sum.txt").read_text() == "9"
    assert len(list((project.state / "checkpoints").iterdir())) == 1


def test_stage_can_run_after_a_broken_output(project, stage, module):
    module.run = write_word
    with pytest.raises(FreshetError, match="must hold a number"):
        run_stage.run_stage(stage, project)

    module.run = add_numbers
    run_stage.run_stage(stage, project)

    assert (project.artifacts / "summing" / "sum.txt").read_text() == "9"


def test_edit_during_contract_check_is_refused(project, stage, module):
    def edit_code(context):
        (project.root / "code.py").write_text("two = 2\n")

    module.check = edit_code

    with pytest.raises(FreshetError, match="code.py, which changed while it ran"):
        run_stage.run_stage(stage, project)


def test_edit_of_unread_settings_is_allowed(project, stage, module):
    def edit_other_settings(context):
        project.params_file.write_text(PARAMS.replace("numpy", "pandas"))
        return add_numbers(context)

    module.run = edit_other_settings
    run_stage.run_stage(stage, project)

    assert (project.artifacts / "summing" / "sum.txt").read_text() == "9"


def test_record_has_the_key_of_the_inputs(project, stage):
    expected = stage_key.read_stage_inputs(stage, project.root).key

    record = run_stage.run_stage(stage, project)

    assert record.key == expected


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("input/numbers.txt", "1"),
        ("code.py", "two = 2\n"),
        ("params.yaml", PARAMS.replace("3", "4")),
    ],
)
def test_stage_key_depends_on_every_input(project, stage, path, text):
    before = stage_key.read_stage_inputs(stage, project.root).key

    (project.root / path).write_text(text)

    assert stage_key.read_stage_inputs(stage, project.root).key != before


def test_failed_stage_resumes_from_its_checkpoints(project, stage, module):
    found_checkpoint = []

    def fail_once(context):
        checkpoint = context.checkpoints / "half.txt"
        found_checkpoint.append(checkpoint.exists())
        checkpoint.write_text("half")
        if len(found_checkpoint) == 1:
            raise RuntimeError("out of memory")
        return add_numbers(context)

    module.run = fail_once
    with pytest.raises(RuntimeError):
        run_stage.run_stage(stage, project)
    failed_run_left_output = (project.root / "artifacts").exists()
    run_stage.run_stage(stage, project)

    assert not failed_run_left_output
    assert found_checkpoint == [False, True]
    assert not list((project.state / "checkpoints").iterdir())


def test_warning_is_one_line_without_a_path(capsys, monkeypatch):
    monkeypatch.setattr("warnings.showwarning", run_stage.show_warning)

    warnings.warn("training takes only 2 steps", UserWarning, stacklevel=1)

    assert capsys.readouterr().err == "warning: training takes only 2 steps\n"


def test_missing_input_names_the_remedy(project, stage):
    (project.root / "input" / "numbers.txt").unlink()
    (project.root / "input").rmdir()

    with pytest.raises(
        FreshetError, match=r"reads input, which is missing: run the stages before it"
    ):
        run_stage.run_stage(stage, project)


def test_checkpoints_survive_a_failed_record(project, stage, monkeypatch):
    """Without a record, DVC runs the stage again, from its last checkpoint."""

    def fail_to_record(*arguments):
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(run_stage.runs, "spool_record", fail_to_record)
        with pytest.raises(OSError, match="no space left"):
            run_stage.run_stage(stage, project)
    checkpoints_after_failure = list((project.state / "checkpoints").iterdir())
    run_stage.run_stage(stage, project)

    assert len(checkpoints_after_failure) == 1
    assert not list((project.state / "checkpoints").iterdir())


def test_output_without_history_has_no_curve(tmp_path: Path):
    assert run_stage.training_curve(tmp_path) == []


def test_dev_curve_uses_common_metric_names(tmp_path: Path):
    write_json(tmp_path / "history.json", [{"step": 0, "loss": 2.0, "nDCG@10": 0.5}])

    curve = run_stage.training_curve(tmp_path)

    assert curve == [{"step": 0, "loss": 2.0, "dev.nDCG@10": 0.5}]


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
    """Start a parent with `title` in its command line, and its child, which watches its ancestors.

    The command line holds nothing else that a stage would watch.

    Returns:
        The parent and the child.
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
    dvc, stage_of_dvc = start_family("dvc repro")
    terminal, stage_of_terminal = start_family("terminal")

    for parent in (dvc, terminal):
        parent.kill()
        parent.wait()

    _, still_running = psutil.wait_procs([stage_of_dvc], timeout=30)
    assert not still_running
    # The other stage had the same time to end, and more.
    time.sleep(0.3)
    assert stage_of_terminal.status() != psutil.STATUS_ZOMBIE
    stage_of_terminal.kill()
