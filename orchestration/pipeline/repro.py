"""What would run and why, and stages brought up to date, each by a `dvc repro` of its own, as the
plan says.

Under the project's lock, with this interpreter. What DVC and the stages print is passed on line by
line.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from model_code.errors import FreshetError
from model_code.files import hash_path
from model_code.project import Project
from orchestration import parameters
from orchestration.pipeline import dvc, runs, stages


@dataclass(frozen=True)
class PlannedStage:
    """A stage, whether it would run ("run", "skip", or "maybe" if that depends on a stage before
    it), and why.
    """

    address: str
    action: str
    reasons: tuple[str, ...]


def plan(project: Project, targets: Sequence[str] = ()) -> list[PlannedStage]:
    """Every stage in order of running, with its action and reasons; of `targets` and what they
    need, if given.
    """
    dvc.initialise(project)
    table, lacking = _table(project)
    ran = dvc.stages_that_ran(project.root)
    asked = None if lacking else dvc.run_dvc(project, "--wait-for-lock", "status", "--json")
    status = json.loads(asked.stdout or "{}") if asked else {}
    planned: dict[str, PlannedStage] = {}
    for stage in _needed(table, targets):
        if lacking and stage.address in ran:  # DVC can be asked once a build has written it
            why = f"params.yaml lacks {', '.join(lacking)}, which a build writes there"
            planned[stage.address] = PlannedStage(stage.address, "maybe", (why,))
            continue
        required_stages = [
            planned[earlier.address]
            for earlier in stages.upstream(stage, table)
            if earlier.address in planned
        ]
        changes = [line for entry in status.get(stage.address, ()) for line in _describe(entry)]
        changes = changes if stage.address in ran else ["it never ran"]
        planned[stage.address] = _plan_one(stage.address, changes, required_stages)
    return list(planned.values())


def required_stages(project: Project, address: str) -> list[str]:
    """A stage and all that it depends on, in order of running."""
    settings = parameters.load(project.params_file)
    return [
        stage.address
        for stage in _needed(stages.expand(settings.retrievers, settings.fusions), [address])
    ]


def _table(project: Project) -> tuple[tuple[stages.Stage, ...], list[str]]:
    """Every stage, and what params.yaml lacks of the settings that they read, as it is by default."""
    settings = parameters.load(project.params_file)
    table = stages.expand(settings.retrievers, settings.fusions)
    return table, parameters.missing_keys(
        project.params_file, {group for stage in table for group in stage.groups}
    )


def _needed(table: Sequence[stages.Stage], targets: Sequence[str]) -> list[stages.Stage]:
    if not targets:
        return list(table)
    addresses = {stage.address for target in targets for stage in stages.find(target, table)}
    for stage in reversed(table):
        if stage.address in addresses:
            addresses |= {each.address for each in stages.upstream(stage, table)}
    return [stage for stage in table if stage.address in addresses]


def _plan_one(address: str, changes: list[str], before: list[PlannedStage]) -> PlannedStage:
    moving = [stage.address for stage in required_stages if stage.action != "skip"]
    # an artifact that is missing or changed is no reason where a stage before this one is about to
    # write it anyway
    written = ("deleted artifacts/", "modified artifacts/") if moving else ()
    reasons = tuple(change for change in changes if not change.startswith(written))
    if reasons:
        return PlannedStage(address, "run", reasons)
    if moving:
        return PlannedStage(
            address, "maybe", tuple(f"{name} may change its output" for name in moving)
        )
    return PlannedStage(address, "run" if changes else "skip", tuple(changes))


def _describe(entry: Any) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    lines = []
    for kind, paths in entry.items():
        for path, change in paths.items():
            if isinstance(change, dict):
                lines += [f"{value} setting {key}" for key, value in change.items()]
            else:
                lines.append(
                    f"{change} {path}" if kind == "changed deps" else f"{change} output {path}"
                )
    return lines


REFUSAL = "error: "  # how a stage's own last word begins
CHATTER = (
    "> ",
    "Use `dvc push`",
    "Updating lock file",
    "Generating lock file",
    "To track the changes",
    "\tgit add",
    "To enable auto staging",
    "\tdvc config",
)
FAILED = "ERROR: failed to reproduce "  # then the stage, and why
Say = Callable[[str], None]


class StageRefused(FreshetError):
    """A stage that said itself why it failed: the same again would fail again."""


def print_to_stderr(text: str) -> None:
    """Print a line of a build to the terminal."""
    print(text, file=sys.stderr, flush=True)


class PlannedBuild:
    """What a build runs: planned once, by the settings of that moment, and each stage once.

    targets: stages, all by default, with those before them. dagster_run: kept with every run in
    MLflow. name: of the run above them there, kind first.
    """

    def __init__(
        self,
        project: Project,
        targets: Sequence[str] = (),
        dagster_run: str | None = None,
        force: bool = False,
        name: str = "",
    ) -> None:
        name = name or f"build {datetime.now():%Y-%m-%d %H:%M:%S}"
        self.project, self.force = project, force
        self.extra = {dvc.RECORDER: "1", dvc.BUILD_NAME: name}
        if dagster_run:
            self.extra["FRESHET_DAGSTER_RUN"] = dagster_run
        self.copy = (project.root / ".dvc" / "tmp" if project.home else project.state) / dvc.LOCK
        dvc.initialise(project)
        with project.lock():
            self._mend()
            self._complete_settings()
            planned = plan(project, targets)
            self.settings = hash_path(project.params_file)
            # what a killed build left; once the store was away, a build does not wait for it again
            # after each stage
            self.recording = runs.try_record_all(project)
        self.waiting = [stage.address for stage in planned if force or stage.action != "skip"]

    def bring_up_to_date(self, address: str, say: Say = print_to_stderr) -> Iterator[str]:
        """Bring a stage up to date, and before it what it needs; yield each that ran, recorded by
        then.

        FreshetError if one fails, or the settings changed since the plan was made.
        """
        needed = set(required_stages(self.project, address))
        for name in [name for name in self.waiting if name in needed]:
            with self.project.lock():
                if hash_path(self.project.params_file) != self.settings:
                    raise FreshetError(
                        "params.yaml changed since this build began: start another one"
                    )
                ran = self._repro(name, say)
                self.recording = self.recording and runs.try_record_all(self.project)
                dvc.copy_lock(self.project.root, self.copy)
            self.waiting.remove(name)
            if ran:
                yield name

    def _mend(self) -> None:
        if dvc.restore_lock(self.project.root, self.copy):
            print_to_stderr(
                "dvc.lock was half-written by a DVC that was killed: gone back to the last whole one"
            )
        if dvc.remove_stale_notes(self.project.root):
            print_to_stderr("notes of a DVC that was killed are removed: they kept outputs busy")
        for folder in remove_unnamed_outputs(self.project):
            why = "params.yaml no longer names this retriever"
            print_to_stderr(f"{folder} removed: {why} (DVC's cache keeps what it held)")

    def _complete_settings(self) -> None:
        _, lacking = _table(self.project)
        if lacking:
            parameters.write_overrides(self.project.params_file, lacking)
            why = "params.yaml lacked what DVC wants to find there, and has it by default now"
            print_to_stderr(f"{why}: {', '.join(lacking)}")

    def _repro(self, address: str, say: Say) -> bool:
        """Run DVC for one stage, which it may skip or restore; whether the stage itself ran."""
        force = ["--force"] if self.force else []
        command = dvc.command_line("--wait-for-lock", "repro", "--single-item", *force, address)
        ran, refusal, why = False, None, "see the lines above"
        with subprocess.Popen(
            command,
            cwd=self.project.root,
            env=dvc.environment(self.project, **self.extra),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # Ctrl-C in a terminal reaches this process alone, which ends DVC below
            start_new_session=True,
        ) as process:
            try:
                for line in map(str.rstrip, process.stdout or ()):
                    ran = ran or line.startswith(dvc.stage_end_prefix(address))
                    if line.startswith(REFUSAL):
                        refusal = line.removeprefix(REFUSAL)
                    elif line.startswith(FAILED):
                        why = line.partition("': ")[2] or line
                    elif line and not line.startswith(CHATTER):
                        say(line)
            except BaseException:
                process.terminate()
                # leaving `with` by an interrupt waits for a quarter of a second only
                process.wait()
                raise
        if refusal is not None:
            raise StageRefused(f"{address}: {refusal}")
        if process.returncode:
            raise FreshetError(
                f"`dvc repro {address}` failed with exit code {process.returncode}: {why}"
            )
        return ran


def repro(
    project: Project,
    targets: Sequence[str] = (),
    dagster_run: str | None = None,
    force: bool = False,
    name: str = "",
) -> Iterator[str]:
    """Bring `targets` (all stages by default) up to date, yielding the address of each that ran,
    recorded by then.

    A stage that could not be recorded is kept for the next build, which is said: its output is as
    good as ever. Raises `FreshetError` if a stage fails. An interrupt ends DVC and its stage.
    """
    with project.lock():
        build = PlannedBuild(project, targets, dagster_run, force, name)
        for address in list(build.waiting):
            yield from build.bring_up_to_date(address)


def remove_unnamed_outputs(project: Project) -> list[Path]:
    """Delete outputs of what `params.yaml` no longer names; returns the folders, relative to the
    root.

    The comparison reads the folders above them: a build depends on the settings, not on what was
    built before. A retriever that comes back is restored from DVC's cache. To be called under the
    project's lock.
    """
    settings = parameters.load(project.params_file)
    removed = []
    for folder in dict.fromkeys(
        Path(stage.output).parent for stage in stages.TABLE if stage.expand_by
    ):
        named = settings.built if folder.name == "evaluate" else settings.retrievers
        for path in sorted((project.root / folder).glob("*")):
            if path.name not in named and path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
                removed.append(path.relative_to(project.root))
    return removed
