"""Compute the stage key: a hash of the command, inputs, code and settings of a stage.

Equal keys mean equal outputs, so recorded runs and registered versions are found by the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model_code.errors import FreshetError
from model_code.files import canonical_json, hash_path, hash_text
from model_code.stages.stage import Stage
from orchestration import parameters
from orchestration.pipeline.code_lock import code_root
from orchestration.pipeline.stages import run_command


@dataclass(frozen=True)
class StageInputs:
    """The inputs, code and settings of a stage at one time.

    Attributes:
        command: The shell command that runs the stage.
        hashes: Hash of each input and of each file or folder of code, by path.
        settings: The groups of `params.yaml` that the stage declares, as plain values.
    """

    command: str
    hashes: Mapping[str, str]
    settings: Mapping[str, Any]

    @property
    def key(self) -> str:
        """The stage key: SHA-256 of the command, the hashes and the settings, in hexadecimal."""
        content = {"command": self.command, "reads": self.hashes, "settings": self.settings}
        return hash_text(canonical_json(content))

    def changes(self, later: StageInputs) -> list[str]:
        """Return the paths and settings that differ in `later`."""
        changed = [path for path in self.hashes if self.hashes[path] != later.hashes[path]]
        for group in self.settings:
            if self.settings[group] != later.settings[group]:
                changed.append(f"params.yaml: {group}")
        return changed


def read_stage_inputs(stage: Stage, root: Path) -> StageInputs:
    """Hash everything that `stage` reads in the project at `root`.

    Raises:
        FreshetError: If an input does not exist.
    """
    for name, path in stage.inputs.items():
        if not (root / path).exists():
            remedy = "run the stages before it (`freshet run`)"
            if name == "lock":
                remedy = "run `freshet ingest`"
            raise FreshetError(f"stage {stage.address} reads {path}, which is missing: {remedy}")

    hashes = {path: hash_path(root / path) for path in stage.inputs.values()}
    code = code_root(root)
    for path in stage.code_files:
        hashes[path] = hash_path(code / path)

    mapping = parameters.read_mapping(root / "params.yaml")
    settings = {group: parameters.get_by_path(mapping, group) for group in stage.groups}
    return StageInputs(run_command(stage), hashes, settings)
