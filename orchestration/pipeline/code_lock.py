"""`code.lock.json`: a hash of each stage's code, for a project whose code is installed elsewhere.

DVC compares it by key. An edit of the code, or another version, therefore reruns exactly the stages
that depend on what changed. Every command that calls DVC writes it first. For a bare `dvc repro`,
the stage `code_lock` writes it. A stage refuses a lock that does not match the code that runs: DVC
would record the output under the wrong code, and restore it later.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

from model_code.errors import FreshetError
from model_code.files import canonical_json, hash_path, hash_text, read_json, write_json
from model_code.stages.stage import Stage
from orchestration.pipeline.stages import TABLE

NAME = "code.lock.json"
COMMAND = "python -m orchestration.pipeline.code_lock"
# The folder that holds Freshet's packages.
INSTALLED = Path(__file__).parents[2]
PACKAGES = ("freshet", "model_code", "orchestration", "assets")
# The hash of a path, computed once per process unless the cache is cleared.
hash_once = cache(hash_path)


def code_root(root: Path) -> Path:
    """Return the folder of a project's code.

    A project with a lock uses the installed code. A clone has no lock and contains the code.
    """
    if (root / NAME).is_file():
        return INSTALLED
    return root


def write(root: Path, new: bool = False) -> None:
    """Update the code lock of a project.

    A clone has no lock: its `dvc.yaml` names the code itself. Nothing is written there.

    Args:
        root: Folder of the project.
        new: Write a lock where there is none.

    Raises:
        FreshetError: If another package hides one of Freshet's packages.
    """
    if not new and not (root / NAME).is_file():
        return
    for name in PACKAGES:
        _require_own_package(name)

    # The code may have changed since this process cached the hashes.
    hash_once.cache_clear()
    hashes = {stage.name: code_hash(stage) for stage in TABLE}
    path = root / NAME
    if not path.is_file() or path.read_text(encoding="utf-8") != canonical_json(hashes):
        write_json(path, hashes)


def _require_own_package(name: str) -> None:
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.origin and Path(spec.origin).parents[1] == INSTALLED:
        return

    location = None
    if spec is not None:
        location = spec.origin or list(spec.submodule_search_locations or [])
    raise FreshetError(
        f"Python finds another package {name!r} than Freshet's ({location}). Install Freshet in a "
        "separate environment, or rename the other package"
    )


def code_hash(stage: Stage) -> str:
    """Return the hash of the installed code that a stage depends on."""
    hashes = {path: hash_once(INSTALLED / path) for path in stage.code_files}
    return hash_text(canonical_json(hashes))


def require_current(stage: Stage, root: Path) -> None:
    """Raise `FreshetError` if the lock, which DVC has read, does not match the code that runs.

    A clone has no lock and is always accepted.
    """
    hash_once.cache_clear()
    path = root / NAME
    if path.is_file() and read_json(path).get(stage.name) != code_hash(stage):
        raise FreshetError(
            f"{NAME} belongs to another version of Freshet; `freshet run` writes it again"
        )


if __name__ == "__main__":
    write(Path.cwd(), new=True)
