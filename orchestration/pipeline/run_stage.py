"""Run one stage: `python -m orchestration.pipeline.run_stage train@hce`, the command of `dvc.yaml`.

This module ensures that no input changes while the stage runs and that the output meets its
contract. It moves the complete output into place in one step, and records the run for MLflow.
"""

from __future__ import annotations

import importlib
import os
import resource
import shutil
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import psutil

from model_code.distributed import engine
from model_code.errors import FreshetError
from model_code.files import canonical_json, read_json, replace_folder, write_json
from model_code.project import LOCK_HELD, Project
from model_code.stages.contract import check_contract
from model_code.stages.stage import Stage
from model_code.text.words import escape_invisible
from orchestration import parameters
from orchestration.parameters import Parameters, flatten
from orchestration.pipeline import code_lock, runs, stage_key, stages
from orchestration.pipeline.dvc import BUILD_NAME, RECORDER, runs_dvc, stage_end_prefix
from orchestration.pipeline.runs import StageRecord, git_state
from orchestration.pipeline.stage_context import stage_context
from orchestration.pipeline.stage_key import StageInputs
from orchestration.pipeline.verified_outputs import verify_outputs
from orchestration.pipeline.warm_python.server import LAUNCHER

# Files of an output that are copied to its MLflow run, by suffix and largest size.
RECORDED_SUFFIXES = {".json", ".md", ".html", ".png", ".csv"}
MAX_RECORDED_BYTES = 2_000_000
BYTES_PER_KIB = 1024


def run_stage(stage: Stage, project: Project) -> StageRecord:
    """Run a stage, put its output into place, and record the run.

    Raises:
        FreshetError: If the output breaks its contract, or if an input changed while the stage ran.
    """
    with project.lock():
        code_lock.require_current(stage, project.root)
        settings = parameters.load(project.params_file)
        inputs = stage_key.read_stage_inputs(stage, project.root)
        checkpoints = project.state / "checkpoints" / inputs.key

        started = time.time()
        report = _execute(stage, project, settings, inputs, checkpoints)
        record = make_stage_record(stage, project, inputs, report, started, time.time())

        runs.spool_record(project, record)
        # In a build of Freshet, the process that started DVC writes the record to MLflow.
        if RECORDER not in os.environ:
            runs.try_record_all(project)
        # Checkpoints are deleted last. If the stage fails before, DVC runs it again, and training
        # resumes from them.
        shutil.rmtree(checkpoints)
    return record


def _execute(
    stage: Stage,
    project: Project,
    settings: Parameters,
    inputs: StageInputs,
    checkpoints: Path,
) -> dict[str, Any]:
    """Run the stage in a staging folder, check the output, and move it into place.

    The contract of a stage is the conditions that its output must meet.

    Args:
        stage: The stage.
        project: The project.
        settings: All settings of the project.
        inputs: Hashes of the inputs, code and settings before the stage runs.
        checkpoints: Folder from which an interrupted training resumes.

    Returns:
        The report of the stage.
    """
    staging = project.state / "staging" / stage.address
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    checkpoints.mkdir(parents=True, exist_ok=True)
    context = stage_context(stage, project, settings, staging, checkpoints)

    with engine.using(settings.scale):
        report = importlib.import_module(stage.module).run(context)
    # This raises an error if the report is not plain JSON, before the output is in place.
    canonical_json(report)
    write_json(staging / "report.json", report)

    try:
        check_contract(stage.name, context)
    except FreshetError as error:
        raise FreshetError(
            f"the output of stage {stage.address} breaks its contract, "
            f"so it is not put in place: {error}"
        ) from error
    finally:
        # If an input was edited while the stage ran, this check raises an error. The error replaces
        # an error about the contract, because the edit may be its cause. The check comes last:
        # after it, DVC records the output together with the hashes of the present inputs.
        _require_unchanged(stage, project, inputs)

    replace_folder(staging, project.root / stage.output)
    return report


def _require_unchanged(stage: Stage, project: Project, inputs: StageInputs) -> None:
    """Raise an error if an input, the code or a setting of a stage changed while it ran."""
    changed = inputs.changes(stage_key.read_stage_inputs(stage, project.root))
    if changed:
        raise FreshetError(
            f"stage {stage.address} read {', '.join(changed[:3])}, which changed while it ran. DVC "
            "would record the new version as the input of this output, so the output is deleted: "
            "run the stage again"
        )


def make_stage_record(
    stage: Stage,
    project: Project,
    inputs: StageInputs,
    report: dict[str, Any],
    started: float,
    ended: float,
) -> StageRecord:
    """Return the record of a finished stage that is written to MLflow.

    Args:
        stage: The stage.
        project: The project.
        inputs: Inputs, code and settings that the stage read.
        report: The report that its `run` returned.
        started: Time of the start, in seconds since the epoch.
        ended: Time of the end, in seconds since the epoch.
    """
    output = project.root / stage.output
    commit, is_dirty = git_state(project.root)
    systems = {system: collect_numbers(metrics) for system, metrics in evaluated_systems(report)}

    # Each evaluated system gets a separate run with its metrics. The stage's own run has only the
    # metrics of the stage's retriever, or none if the stage belongs to no retriever.
    if systems:
        metrics = dict(systems.get(stage.retriever or "", {}))
    else:
        metrics = collect_numbers(report)
    metrics["seconds"] = ended - started
    metrics["peak_memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / BYTES_PER_KIB

    return StageRecord(
        stage=stage.address,
        key=inputs.key,
        params=flatten(inputs.settings),
        metrics=metrics,
        inputs=dict(inputs.hashes),
        artifacts=_recorded_files(output),
        curves=training_curve(output),
        git_commit=commit,
        git_dirty=is_dirty,
        dagster_run_id=os.environ.get("FRESHET_DAGSTER_RUN"),
        started=started,
        ended=ended,
        build=_build_name(),
        systems=systems,
    )


def _build_name() -> str:
    """Return the name of the build or the DVC experiment; "" for a bare `dvc repro`."""
    build = os.environ.get(BUILD_NAME)
    if build:
        return build
    experiment = os.environ.get("DVC_EXP_NAME")
    return f"experiment {experiment}" if experiment else ""


def _recorded_files(output: Path) -> list[Path]:
    """Return the small reports, tables and pictures in a stage's output, which MLflow keeps."""
    files = []
    for path in sorted(output.glob("*")):
        if path.suffix in RECORDED_SUFFIXES and path.stat().st_size < MAX_RECORDED_BYTES:
            files.append(path)
    return files


def evaluated_systems(report: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each system of a report, baselines and variants included, with its metrics by split.

    A system is a retriever that was evaluated. The report of a stage may nest the reports of
    several systems at any depth.
    """
    if "system" in report:
        yield report["system"], {split: report[split] for split in ("dev", "gate", "test")}
    for value in report.values():
        if isinstance(value, dict):
            yield from evaluated_systems(value)


def collect_numbers(report: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of a nested report, by dotted keys. Booleans are left out."""
    numbers = {}
    for key, value in flatten(report).items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            numbers[key] = float(value)
    return numbers


def training_curve(output: Path) -> list[dict[str, Any]]:
    """Return the rows of `history.json`, the values that a training measured at its steps.

    Metrics such as `nDCG@10` are renamed to `dev.nDCG@10`, as in the runs of other stages. Empty
    for a stage that does not train.
    """
    path = output / "history.json"
    if not path.exists():
        return []

    curve = []
    for row in read_json(path):
        renamed_row = {}
        for key, value in row.items():
            is_metric = "@" in key
            name = f"dev.{key}" if is_metric else key
            renamed_row[name] = value
        curve.append(renamed_row)
    return curve


def die_with_ancestors(generations: int = 2, interval: float = 0.1) -> None:
    """End this process when the DVC that started it, or the holder of the project's lock, ends.

    A signal on the death of the parent process would not suffice: a shell between DVC and the stage
    may survive DVC. A terminal is not watched, because a person may close it on purpose.

    Args:
        generations: Number of ancestor processes among which DVC is looked for.
        interval: Seconds between two checks.
    """
    # A stage may be forked from a warm Python, a process that has imported slow libraries. It is
    # then not a child of DVC, and the environment names the process that DVC started.
    launcher = psutil.Process(int(os.environ.get(LAUNCHER, os.getpid())))
    watched = []
    for process in launcher.parents()[:generations]:
        if runs_dvc(process.pid, "orchestration.pipeline.run_stage"):
            watched.append(process)
    if LOCK_HELD in os.environ:
        # The variable has the process id of the build that holds the project's lock.
        watched.append(psutil.Process(int(os.environ[LOCK_HELD])))
    if not watched:
        return
    threading.Thread(
        target=_kill_when_one_ends, args=(watched, interval), daemon=True, name="parent-watch"
    ).start()


def _kill_when_one_ends(watched: list[psutil.Process], interval: float) -> None:
    """Kill this process as soon as one of the watched processes has ended.

    Args:
        watched: The processes.
        interval: Seconds between two checks.
    """
    while all(_is_alive(process) for process in watched):
        time.sleep(interval)
    os.kill(os.getpid(), signal.SIGKILL)


def _is_alive(process: psutil.Process) -> bool:
    """Return whether a process has not ended. A zombie has ended, and waits for its parent."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _verify_inputs(project: Project, stage: Stage, table: Sequence[Stage]) -> None:
    """Check the contracts of the outputs that a stage reads.

    A plain `dvc repro` may have restored them from a cache, and DVC checks no contract.
    """
    with project.lock():
        verify_outputs(project, stages.upstream(stage, table))


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning as one line, without the place in the code that Python adds.

    Args:
        message: The warning.
        category: Not used, like the arguments that follow. `warnings.showwarning` has them.
        filename: Not used.
        lineno: Not used.
        file: Not used.
        line: Not used.
    """
    print(f"warning: {escape_invisible(str(message))}", file=sys.stderr)


def main(arguments: list[str]) -> int:
    """Run the stage whose address is the only argument, and return the exit code."""
    die_with_ancestors()
    warnings.showwarning = show_warning
    try:
        # The variable FRESHET_PROJECT is ignored, because DVC may run the stage in a copy of the
        # project.
        project = Project.find(Path.cwd())
        settings = parameters.load(project.params_file)
        table = stages.expand(settings.retrievers, settings.fusions)
        (stage,) = stages.find(arguments[0], table)
        # A build of Freshet sets the variable. It has verified the inputs already.
        is_bare_dvc = RECORDER not in os.environ
        if is_bare_dvc:
            _verify_inputs(project, stage, table)
        record = run_stage(stage, project)
    except FreshetError as error:
        print(f"error: {escape_invisible(str(error))}", file=sys.stderr)
        return error.exit_code

    seconds = record.ended - record.started
    print(f"{stage_end_prefix(stage.address)}{seconds:.1f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
