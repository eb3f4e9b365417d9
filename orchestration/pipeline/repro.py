"""Plan a build, and bring its stages up to date with one `dvc repro` each.

A plan lists the stages that would run, and the reasons. A build holds the lock of the project and
uses this Python interpreter. It passes on the lines that DVC and the stages print.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from model_code.errors import FreshetError
from model_code.files import hash_path
from model_code.project import Project
from model_code.stages.stage import Stage
from orchestration import parameters
from orchestration.pipeline import dvc, ingest, runs, stages, verified_outputs
from orchestration.pipeline.warm_python import program

# Prefix of the line in which a stage prints the reason of its failure.
STAGE_ERROR_PREFIX = "error: "
# Prefix of the line that DVC prints about a failed stage, with the stage and the reason.
DVC_ERROR_PREFIX = "ERROR: failed to reproduce "
# Prefixes of lines of DVC that are not shown, because they say nothing about the build.
IGNORED_PREFIXES = (
    "> ",
    "Use `dvc push`",
    "Updating lock file",
    "Generating lock file",
    "To track the changes",
    "\tgit add",
    "To enable auto staging",
    "\tdvc config",
)
# Type of the function that receives each line that DVC and the stages print.
PrintLine = Callable[[str], None]


class StageRefused(FreshetError):
    """A stage failed for a stated reason, so the same run would fail again."""


@dataclass(frozen=True)
class PlannedStage:
    """A stage of a plan.

    Attributes:
        address: Address of the stage, such as `train@hce`.
        action: "run", "skip" or "maybe". A stage with "maybe" runs only if the output of an earlier
            stage changes.
        reasons: The reasons why the stage runs or may run.
    """

    address: str
    action: str
    reasons: tuple[str, ...]


def plan(project: Project, targets: Sequence[str] = ()) -> list[PlannedStage]:
    """Return every stage with its action and reasons, in an order in which they can run.

    Args:
        project: The project.
        targets: Addresses of stages. The stages that they depend on are planned as well. Empty: all
            stages.
    """
    dvc.initialise(project)
    table, missing_keys = _table_and_missing_keys(project)
    recorded = dvc.stages_that_ran(project.root)

    # `dvc status` reports the changes of each stage since it last ran. If no stage ever ran, there
    # is nothing to report. If params.yaml lacks settings that stages depend on, `dvc status` fails.
    # A build adds the missing settings, but a plan does not. So DVC is asked in neither case.
    status: dict[str, Any] = {}
    if recorded and not missing_keys:
        completed = dvc.run_dvc(project, "--wait-for-lock", "status", "--json")
        status = json.loads(completed.stdout or "{}")

    planned: dict[str, PlannedStage] = {}
    for stage in required_rows(table, targets):
        address = stage.address
        has_run = address in recorded
        if missing_keys and has_run:
            reason = f"params.yaml lacks {', '.join(missing_keys)}, which a build writes there"
            planned[address] = PlannedStage(address, "maybe", (reason,))
            continue

        changes = ["it never ran"]
        if has_run:
            changes = describe_changes(status.get(address, ()))
        upstream = []
        for earlier in stages.upstream(stage, table):
            if earlier.address in planned:
                upstream.append(planned[earlier.address])
        planned[address] = plan_stage(address, changes, upstream)
    return list(planned.values())


def required_stages(project: Project, address: str) -> list[str]:
    """Return a stage and all stages that it depends on, in an order in which they can run."""
    settings = parameters.load(project.params_file)
    table = stages.expand(settings.retrievers, settings.fusions)
    return [stage.address for stage in required_rows(table, [address])]


def print_to_stderr(text: str) -> None:
    """Print a line of a build to the terminal."""
    print(text, file=sys.stderr, flush=True)


class PlannedBuild:
    """A build that is planned once, with the settings at that time, and runs each stage once.

    Creating the object prepares the project for the build and makes the plan. The lock of the
    project is held meanwhile. `bring_up_to_date` then runs the stages.

    Args:
        project: The project.
        targets: Addresses of stages. The stages that they depend on are built as well. Empty: all
            stages.
        dagster_run: Id of the Dagster run. It is recorded with every MLflow run of the build.
        force: Whether to run even the stages that are up to date.
        name: Name of the MLflow run of the build, the parent of the runs of its stages. The first
            word is the kind of build, such as `retrain`.
    """

    def __init__(
        self,
        project: Project,
        targets: Sequence[str] = (),
        dagster_run: str | None = None,
        force: bool = False,
        name: str = "",
    ) -> None:
        self.project = project
        self.force = force
        self.environment = {
            dvc.RECORDER: "1",
            dvc.BUILD_NAME: name or f"build {datetime.now():%Y-%m-%d %H:%M:%S}",
        }
        if dagster_run:
            self.environment["FRESHET_DAGSTER_RUN"] = dagster_run

        # A retrain builds in a temporary workspace, a copy of the project in another folder. Both
        # share one state folder. So the workspace keeps the backup of its `dvc.lock` in its own
        # folder, where it does not overwrite the backup of the project.
        backup_folder = project.state
        if project.home:
            backup_folder = project.root / ".dvc" / "tmp"
        self.lock_backup = backup_folder / dvc.LOCK

        dvc.initialise(project)
        with project.lock():
            self._repair()
            self._complete_settings()
            planned = plan(project, targets)
            self._adopt_synced_source(planned)
            self.settings_hash = hash_path(project.params_file)
            # This records the stages of an earlier build that was killed. If the store cannot be
            # reached, the build does not try again after each stage.
            self.is_recording = runs.try_record_all(project)
        self.waiting = [stage.address for stage in planned if force or stage.action != "skip"]
        # A warm Python is a process that has imported slow libraries, from which stages are forked.
        # It saves no time if only one stage runs.
        self.warm_python: program.WarmPython | None = None
        if len(self.waiting) > 1 and program.is_on():
            self.warm_python = program.WarmPython()

    def bring_up_to_date(
        self, address: str, print_line: PrintLine = print_to_stderr
    ) -> Iterator[str]:
        """Bring a stage, and all stages that it depends on, up to date.

        An output that DVC restored is checked against the contract of its stage.

        Yields:
            The address of each stage that ran, after its run was recorded.

        Raises:
            FreshetError: If a stage fails, if the settings changed since the plan was made, or if
                a restored output breaks its contract.
        """
        required = set(required_stages(self.project, address))
        with self.project.lock():
            self._verify(required.difference(self.waiting))
        for name in list(self.waiting):
            if name not in required:
                continue
            # The lock is released between two stages, so that other commands can use the project.
            with self.project.lock():
                if hash_path(self.project.params_file) != self.settings_hash:
                    raise FreshetError(
                        "params.yaml changed since this build began: start another one"
                    )
                ran = self._repro(name, print_line)
                if ran:
                    verified_outputs.note_verified(self.project, self._stages([name]))
                else:
                    self._verify([name])
                if self.is_recording:
                    self.is_recording = runs.try_record_all(self.project)
                dvc.copy_lock(self.project.root, self.lock_backup)
            self.waiting.remove(name)
            if not self.waiting:
                self.close()
            # A stage whose output DVC skipped or restored is not reported.
            if ran:
                yield name

    def close(self) -> None:
        """End the warm Python, the process from which the stages are forked.

        A finished build has ended it already. Call this for a build that was not finished.
        """
        if self.warm_python is not None:
            self.warm_python.close()
            self.warm_python = None

    def _verify(self, addresses: Iterable[str]) -> None:
        """Check that outputs meet the contracts of their stages.

        DVC may have restored them from its cache, and DVC checks no contract.

        Raises:
            StageRefused: If an output breaks the contract of its stage.
        """
        try:
            verified_outputs.verify_outputs(self.project, self._stages(addresses))
        except verified_outputs.BrokenOutput as error:
            raise StageRefused(str(error)) from error

    def _stages(self, addresses: Iterable[str]) -> list[Stage]:
        """Return the stages with these addresses, in the order of the table."""
        settings = parameters.load(self.project.params_file)
        table = stages.expand(settings.retrievers, settings.fusions)
        wanted = set(addresses)
        return [stage for stage in table if stage.address in wanted]

    def _repair(self) -> None:
        """Repair DVC's files after a crash, and remove outputs that params.yaml no longer names."""
        if dvc.restore_lock(self.project.root, self.lock_backup):
            print_to_stderr(
                "dvc.lock was half-written by a DVC that was "
                "killed; the last complete one is restored"
            )
        if dvc.remove_stale_notes(self.project.root):
            print_to_stderr("notes of a DVC that was killed are removed: they kept outputs busy")
        for folder in remove_unnamed_outputs(self.project):
            print_to_stderr(
                f"{folder} removed: params.yaml no longer names this "
                "retriever (DVC's cache keeps its content)"
            )

    def _adopt_synced_source(self, planned: Sequence[PlannedStage]) -> None:
        """Lock the source if it is the same as at the last sync, and the corpus is built anyway.

        `freshet sync` has made the documents of the source searchable. The next build of the corpus
        then uses the same documents, without a separate `freshet ingest`.
        """
        # A workspace, the copy in which a retrain builds, reads exported documents that do not
        # change.
        is_workspace = self.project.home is not None
        reads_source = any(
            stage.address == "corpus" and stage.action != "skip" for stage in planned
        )
        if is_workspace or not reads_source:
            return
        if ingest.adopt_synced_source(self.project):
            print_to_stderr("the source is built as the last `freshet sync` read it")

    def _complete_settings(self) -> None:
        """Add keys that DVC requires and that are missing in params.yaml, with default values."""
        _, missing_keys = _table_and_missing_keys(self.project)
        if not missing_keys:
            return
        if self.project.home is None:
            parameters.change_settings(self.project, missing_keys)
        else:
            # A workspace is a temporary project with its own settings. No audit log records their
            # changes.
            parameters.write_overrides(self.project.params_file, missing_keys)
        print_to_stderr(
            "params.yaml lacked keys that DVC requires; their defaults are added: "
            f"{', '.join(missing_keys)}"
        )

    def _repro(self, address: str, print_line: PrintLine) -> bool:
        """Run DVC for one stage, and return whether the stage itself ran.

        DVC may skip the stage or restore its output from the cache.
        """
        options = ["--force"] if self.force else []
        command = dvc.command_line("--wait-for-lock", "repro", "--single-item", *options, address)
        variables = dvc.environment(self.project, **self.environment)
        if self.warm_python is not None:
            # The program of the warm Python runs DVC. It comes first in PATH under the name
            # `python`, so DVC also starts the stage with it.
            python = self.warm_python.program
            command[0] = str(python)
            variables["PATH"] = os.pathsep.join([str(python.parent), variables["PATH"]])
        output = _DvcOutput(address, print_line)

        # DVC runs in a separate session, so that Ctrl-C in the terminal reaches only this process.
        # This process then ends DVC below.
        with subprocess.Popen(
            command,
            cwd=self.project.root,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                for line in process.stdout or ():
                    output.read_line(line.rstrip())
            except BaseException:
                process.terminate()
                # After an interrupt, the exit of `with` waits only a quarter of a second.
                process.wait()
                raise

        if output.stage_error is not None:
            raise StageRefused(f"{address}: {output.stage_error}")
        if process.returncode:
            raise FreshetError(
                f"`dvc repro {address}` failed with exit code {process.returncode}: "
                f"{output.dvc_error}"
            )
        return output.ran


class _DvcOutput:
    """Reads the lines that DVC and one stage print.

    Attributes:
        ran: Whether the stage itself ran. Otherwise DVC skipped it or restored its output.
        stage_error: The reason why the stage failed, if the stage printed one.
        dvc_error: The reason that DVC gives for a failure.
    """

    def __init__(self, address: str, print_line: PrintLine) -> None:
        """Prepare to read.

        Args:
            address: Address of the stage.
            print_line: Receives the lines that are shown to the user.
        """
        self.ran = False
        self.stage_error: str | None = None
        self.dvc_error = "see the lines above"
        self._end_prefix = dvc.stage_end_prefix(address)
        self._print_line = print_line

    def read_line(self, line: str) -> None:
        """Keep the information of a line, or pass the line on to the user."""
        if line.startswith(self._end_prefix):
            self.ran = True
        if line.startswith(STAGE_ERROR_PREFIX):
            self.stage_error = line.removeprefix(STAGE_ERROR_PREFIX)
        elif line.startswith(DVC_ERROR_PREFIX):
            # The line is: ERROR: failed to reproduce 'STAGE': REASON
            reason = line.partition("': ")[2]
            self.dvc_error = reason or line
        elif line and not line.startswith(IGNORED_PREFIXES):
            self._print_line(line)


def repro(
    project: Project,
    targets: Sequence[str] = (),
    dagster_run: str | None = None,
    force: bool = False,
    name: str = "",
) -> Iterator[str]:
    """Bring stages up to date. See `PlannedBuild` for the arguments.

    If MLflow cannot record a run now, its record is kept for the next build, and a message says so.
    The output of the stage is valid nevertheless. An interrupt ends DVC and the running stage.

    Yields:
        The address of each stage that ran, after its run was recorded.

    Raises:
        FreshetError: If a stage fails.
    """
    with project.lock():
        build = PlannedBuild(project, targets, dagster_run, force, name)
        try:
            for address in list(build.waiting):
                yield from build.bring_up_to_date(address)
        finally:
            build.close()


def remove_unnamed_outputs(project: Project) -> list[Path]:
    """Delete the outputs of retrievers and fusions that `params.yaml` no longer names.

    The stage `comparison` reads all folders below `artifacts/evaluate`, so an old output would
    appear in its results. If a retriever is named again later, DVC restores its output from the
    cache. The caller must hold the lock of the project.

    Returns:
        The deleted folders, relative to the root of the project.
    """
    settings = parameters.load(project.params_file)
    parents = []
    for stage in stages.TABLE:
        parent = Path(stage.output).parent
        if stage.expand_by is not None and parent not in parents:
            parents.append(parent)

    removed = []
    for parent in parents:
        # A fusion has only an evaluation folder, because it is neither trained nor indexed.
        named = settings.built if parent.name == "evaluate" else settings.retrievers
        for path in sorted((project.root / parent).glob("*")):
            is_output = path.is_dir() and not path.is_symlink()
            if path.name in named or not is_output:
                continue
            shutil.rmtree(path)
            removed.append(path.relative_to(project.root))
    return removed


def _table_and_missing_keys(project: Project) -> tuple[tuple[Stage, ...], list[str]]:
    """Return every stage, and `key=value` defaults for the keys that params.yaml lacks."""
    settings = parameters.load(project.params_file)
    table = stages.expand(settings.retrievers, settings.fusions)
    groups: set[str] = set()
    for stage in table:
        groups.update(stage.groups)
    return table, parameters.missing_keys(project.params_file, groups)


def required_rows(table: Sequence[Stage], targets: Sequence[str]) -> list[Stage]:
    """Return the targets and all stages that they depend on, in the order of the table."""
    if not targets:
        return list(table)

    addresses = set()
    for target in targets:
        addresses.update(stage.address for stage in stages.find(target, table))
    # A stage depends only on earlier stages of the table. Going backwards, one pass finds them all.
    for stage in reversed(table):
        if stage.address in addresses:
            addresses.update(earlier.address for earlier in stages.upstream(stage, table))
    return [stage for stage in table if stage.address in addresses]


def plan_stage(address: str, changes: list[str], upstream: list[PlannedStage]) -> PlannedStage:
    """Decide the action of one stage.

    Args:
        address: Address of the stage.
        changes: Changes of its inputs, settings and code, in words.
        upstream: The plans of the stages whose outputs it reads.
    """
    rebuilt = [stage.address for stage in upstream if stage.action != "skip"]

    # A missing or changed input is not a reason if an earlier stage of this build writes it.
    ignored: tuple[str, ...] = ()
    if rebuilt:
        ignored = ("deleted artifacts/", "modified artifacts/")
    reasons = tuple(change for change in changes if not change.startswith(ignored))

    if reasons:
        return PlannedStage(address, "run", reasons)
    if rebuilt:
        possible_reasons = tuple(f"{name} may change its output" for name in rebuilt)
        return PlannedStage(address, "maybe", possible_reasons)
    return PlannedStage(address, "skip", ())


def describe_changes(entries: Sequence[Any]) -> list[str]:
    """Return a line per change from the entries of `dvc status --json` for one stage.

    Args:
        entries: Texts, or objects such as {"changed deps": {"params.yaml": {"seed": "modified"}}}.
            An object has the changes of inputs and outputs by path, and of settings by file and
            key.

    >>> describe_changes([{"changed deps": {"params.yaml": {"seed": "modified"}}}, "changed cmd"])
    ['modified setting seed', 'changed cmd']
    """
    lines = []
    for entry in entries:
        if isinstance(entry, str):
            lines.append(entry)
            continue
        for kind, paths in entry.items():
            for path, change in paths.items():
                lines.extend(_describe_change(kind, path, change))
    return lines


def _describe_change(kind: str, path: str, change: Any) -> list[str]:
    """Return the lines about one path in the output of `dvc status --json`.

    Args:
        kind: "changed deps" or "changed outs".
        path: Path of an input, an output or a file of settings.
        change: A word such as "modified"; for a file of settings, the words by key.
    """
    if isinstance(change, dict):
        return [f"{word} setting {key}" for key, word in change.items()]
    if kind == "changed deps":
        return [f"{change} {path}"]
    return [f"{change} output {path}"]
