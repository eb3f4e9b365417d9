"""A stage's identity, known before it runs: the hash of its command, of everything it reads and of
its settings.
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
    """What a stage reads at one moment: the hash of each path, and its groups of `params.yaml` as
    they stand.
    """

    command: str
    hashes: Mapping[str, str]
    settings: Mapping[str, Any]

    @property
    def key(self) -> str:
        """SHA-256 over all of it, in hex: equal keys mean equal outputs."""
        return hash_text(
            canonical_json(
                {"command": self.command, "reads": self.hashes, "settings": self.settings}
            )
        )

    def changes(self, later: StageInputs) -> list[str]:
        """The paths and settings that differ in `later`."""
        paths = [path for path in self.hashes if self.hashes[path] != later.hashes[path]]
        groups = [
            f"params.yaml: {key}"
            for key in self.settings
            if self.settings[key] != later.settings[key]
        ]
        return paths + groups


def read_stage_inputs(stage: Stage, root: Path) -> StageInputs:
    """Hash everything that `stage` reads; raises `FreshetError` if an input is not there yet."""
    for name, path in stage.inputs.items():
        if not (root / path).exists():
            remedy = (
                "run `freshet ingest`"
                if name == "lock"
                else "run the stages before it (`freshet run`)"
            )
            raise FreshetError(f"stage {stage.address} reads {path}, which is not there: {remedy}")
    code = code_root(root)
    hashes = {path: hash_path(root / path) for path in stage.inputs.values()}
    hashes |= {path: hash_path(code / path) for path in stage.code_files}
    mapping = parameters.read_mapping(root / "params.yaml")
    return StageInputs(
        run_command(stage),
        hashes,
        {group: parameters.get_by_path(mapping, group) for group in stage.groups},
    )
