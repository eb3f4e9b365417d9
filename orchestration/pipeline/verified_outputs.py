"""Verify outputs that DVC restored from its cache or from a remote.

A stage checks the contract of its output before the output is put in place. An output that DVC
restores was made elsewhere or earlier, and DVC checks no contract. Such an output is therefore
checked before anything uses it. This happens in a build, before a stage of a plain `dvc repro`
reads it, and before it is registered. Dagster's asset checks look at every output as well.

Each version of an output is checked once. Its hash in `dvc.lock` is then noted in a file of DVC's
temporary folder. Without the file, the outputs are checked again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from model_code.errors import FreshetError
from model_code.files import read_json, write_json
from model_code.project import Project
from model_code.stages.contract import check_contract
from model_code.stages.stage import Stage
from orchestration import parameters
from orchestration.pipeline import dvc
from orchestration.pipeline.stage_context import stage_context

NOTES = Path(".dvc", "tmp", "verified_outputs.json")


class BrokenOutput(FreshetError):
    """An output in place breaks the contract of its stage, the conditions that it must meet."""


def verify_outputs(project: Project, stages: Iterable[Stage]) -> None:
    """Check the contracts of the outputs of stages, unless the same versions were checked before.

    DVC may have restored an output from a cache, and does not check its content. Stages that never
    ran are left out. The caller must hold the lock of the project.

    Raises:
        BrokenOutput: If an output breaks the contract of its stage, with the command that makes it
            again.
    """
    verified = _read_notes(project)
    for stage, version in _versions(project, stages):
        if verified.get(stage.address) == version:
            continue
        _check(project, stage)
        verified[stage.address] = version
        write_json(project.root / NOTES, verified)


def note_verified(project: Project, stages: Iterable[Stage]) -> None:
    """Note that the outputs of stages keep their contracts, because the stages have just run.

    The caller must hold the lock of the project.
    """
    verified = _read_notes(project)
    for stage, version in _versions(project, stages):
        verified[stage.address] = version
    write_json(project.root / NOTES, verified)


def _versions(project: Project, stages: Iterable[Stage]) -> Iterator[tuple[Stage, str]]:
    """Yield each stage that ran, with the hash of its output."""
    finished = dvc.stages_that_ran(project.root)
    for stage in stages:
        if stage.address in finished:
            yield stage, dvc.output_version(project.root, stage)


def _check(project: Project, stage: Stage) -> None:
    """Check that the output of a stage, as it lies in place, keeps the stage's contract.

    Raises:
        BrokenOutput: If it does not.
    """
    settings = parameters.load(project.params_file)
    output = project.root / stage.output
    context = stage_context(stage, project, settings, output, project.state / "checkpoints")
    try:
        check_contract(stage.name, context)
    except FreshetError as error:
        raise BrokenOutput(
            f"the output of stage {stage.address}, which DVC kept or restored, breaks its "
            f"contract: {error}; make it again: dvc repro --force --single-item {stage.address}"
        ) from error


def _read_notes(project: Project) -> dict[str, str]:
    """Return the hash of the checked output of each stage, by address.

    If a crash cut the file off, there are no notes, and all outputs are checked again.
    """
    path = project.root / NOTES
    if not path.is_file():
        return {}
    try:
        return dict(read_json(path))
    except ValueError:
        return {}
