"""Run one stage, `python -m orchestration.pipeline.run_stage train@hce`, as every command in
`dvc.yaml` does.

The same inputs at start and end, its contract kept, its output put in place whole, its run kept for
MLflow.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from model_code.context import StageContext
from model_code.distributed import engine
from model_code.errors import FreshetError
from model_code.files import canonical_json, read_json, replace_folder, write_json
from model_code.progress import LineProgress
from model_code.project import LOCK_HELD, Project
from model_code.stages.stage import Stage
from model_code.text.words import escape_invisible
from orchestration import parameters
from orchestration.parameters import Parameters, flatten
from orchestration.pipeline import code_lock, runs, stage_key, stages
from orchestration.pipeline.dvc import BUILD_NAME, RECORDER, runs_dvc, stage_end_prefix
from orchestration.pipeline.runs import StageRecord, git_state

# of a stage's files, in its run: kinds, bytes
KEPT, LARGEST = {".json", ".md", ".html", ".png", ".csv"}, 2_000_000


def run_stage(stage: Stage, project: Project) -> StageRecord:
    """Run `stage` in `project` and record it; FreshetError if it breaks its contract, or what it
    read changed.
    """
    with project.lock():
        code_lock.require_current(stage, project.root)
        settings = parameters.load(project.params_file)
        reads = stage_key.read_stage_inputs(stage, project.root)
        checkpoints = project.state / "checkpoints" / reads.key
        started = time.time()
        report = _execute(stage, project, settings, reads, checkpoints)
        record = stage_record(stage, project, reads, report, (started, time.time()))
        runs.spool_record(project, record)
        if RECORDER not in os.environ:
            runs.try_record_all(project)
        # last: to DVC, a stage that fails on the way here has made nothing
        shutil.rmtree(checkpoints)
    return record


def _execute(
    stage: Stage,
    project: Project,
    settings: Parameters,
    reads: stage_key.StageInputs,
    checkpoints: Path,
) -> dict[str, Any]:
    staging = project.state / "staging" / stage.address
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    checkpoints.mkdir(parents=True, exist_ok=True)
    context = stage_context(stage, project, settings, staging, checkpoints)
    with engine.using(settings.scale):
        report = importlib.import_module(stage.module).run(context)
    # a report that is not plain JSON must fail here, not after the output is in place
    canonical_json(report)
    write_json(staging / "report.json", report)
    # with pandas and pandera, which definitions do without
    from model_code.stages.contract import check_contract

    try:
        check_contract(stage.name, context)
    except FreshetError as error:
        raise FreshetError(
            f"stage {stage.address} made what breaks its contract, so nothing is put in place: {error}"
        ) from error
    # last of all, as DVC would record any later edit; and where one broke the contract, it is the
    # reason
    finally:
        if changed := reads.changes(stage_key.read_stage_inputs(stage, project.root)):
            raise FreshetError(
                f"stage {stage.address} read {', '.join(changed[:3])}, which changed while it ran. DVC would record "
                "the new version as what made the old output, so the output is thrown away: run it again"
            )
    replace_folder(staging, project.root / stage.output)
    return report


def stage_context(
    stage: Stage, project: Project, settings: Parameters, output: Path, checkpoints: Path
) -> StageContext:
    """What the stage is given to write to `output`, and its contract to read there."""
    return StageContext(
        root=project.root,
        inputs={name: project.root / path for name, path in stage.inputs.items()},
        output=output,
        settings=declared_settings(stage, settings),
        checkpoints=checkpoints,
        name=stage.retriever,
        progress=LineProgress,
    )


def declared_settings(stage: Stage, settings: Parameters) -> dict[str, Any]:
    """Only the groups that `stage` declares, dotted ones under their whole name.

    A retriever's own is called "retriever", and a fusion's "fusion". FreshetError if one is not
    there.
    """
    absent = object()
    picked = {group: parameters.get_by_path(settings, group, absent) for group in stage.groups}
    if missing := [group for group, value in picked.items() if value is absent]:
        raise FreshetError(
            f"stage {stage.address} reads what the settings do not have: {', '.join(missing)}"
        )
    names = {f"retrievers.{stage.retriever}": "retriever", f"fusions.{stage.retriever}": "fusion"}
    return {names.get(group, group): value for group, value in picked.items()}


def stage_record(
    stage: Stage,
    project: Project,
    reads: stage_key.StageInputs,
    report: dict[str, Any],
    span: tuple[float, float],
) -> StageRecord:
    """What MLflow is to remember of a stage that is finished; span: when it started and ended, part
    of no artifact.
    """
    output, (started, ended) = project.root / stage.output, span
    systems = {system: _numbers(rows) for system, rows in _evaluated(report)}
    numbers = _numbers(report if not systems else systems.get(stage.retriever or "", {}))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    commit, dirty = git_state(project.root)
    experiment = os.environ.get("DVC_EXP_NAME")  # of DVC; nothing below a bare `dvc repro`
    return StageRecord(
        stage=stage.address,
        key=reads.key,
        params=flatten(reads.settings),
        metrics={**numbers, "seconds": ended - started, "peak_memory_mb": memory},
        inputs=dict(reads.hashes),
        artifacts=sorted(
            path
            for path in output.glob("*")
            if path.suffix in KEPT and path.stat().st_size < LARGEST
        ),
        curves=_history(output),
        git_commit=commit,
        git_dirty=dirty,
        dagster_run_id=os.environ.get("FRESHET_DAGSTER_RUN"),
        started=started,
        ended=ended,
        build=os.environ.get(BUILD_NAME) or (f"experiment {experiment}" if experiment else ""),
        systems=systems,
    )


def _evaluated(report: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each system that a report holds the metrics of, variants and baselines included, with those
    of each split.
    """
    if "system" in report:
        yield report["system"], {split: report[split] for split in ("dev", "gate", "test")}
    for inner in report.values():
        if isinstance(inner, dict):
            yield from _evaluated(inner)


def _numbers(report: dict[str, Any]) -> dict[str, float]:
    numbers = (
        (key, value) for key, value in flatten(report).items() if isinstance(value, (int, float))
    )
    return {key: float(value) for key, value in numbers if not isinstance(value, bool)}


def _history(output: Path) -> list[dict[str, Any]]:
    """The rows of a training curve; what is measured on dev is called as everywhere."""
    path = output / "history.json"
    rows = read_json(path) if path.exists() else []
    return [
        {f"dev.{key}" if "@" in key else key: value for key, value in row.items()} for row in rows
    ]


def die_with_ancestors(generations: int = 2, interval: float = 0.1) -> None:
    """Watch the DVC (and shell) above this process and the holder of the project's lock; if one
    ends, end too.

    A signal on the parent's death would not do: between DVC and the stage there may be a shell that
    survives DVC. A terminal above may be closed on purpose.
    """
    above = psutil.Process().parents()[:generations]
    watched = [
        process for process in above if runs_dvc(process.pid, "orchestration.pipeline.run_stage")
    ]
    if LOCK_HELD in os.environ:
        watched.append(psutil.Process(int(os.environ[LOCK_HELD])))
    if watched:
        threading.Thread(
            target=_watch, args=(watched, interval), daemon=True, name="parent-watch"
        ).start()


def _watch(watched: list[psutil.Process], interval: float) -> None:
    while all(_alive(process) for process in watched):
        time.sleep(interval)
    os.kill(os.getpid(), signal.SIGKILL)


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def main(arguments: list[str]) -> int:
    """Run the stage that the only argument names; returns the exit code."""
    die_with_ancestors()
    try:
        project = Project.find(Path.cwd())  # whatever FRESHET_PROJECT says: DVC may be in a copy
        settings = parameters.load(project.params_file)
        (stage,) = stages.find(arguments[0], stages.expand(settings.retrievers, settings.fusions))
        record = run_stage(stage, project)
    except FreshetError as error:
        print(f"error: {escape_invisible(str(error))}", file=sys.stderr)
        return error.exit_code
    print(
        f"{stage_end_prefix(stage.address)}{record.ended - record.started:.1f} s", file=sys.stderr
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
