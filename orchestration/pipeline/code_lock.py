"""Write and check the code lock of a project that uses the installed code.

The code lock is the file `code.lock.json` with a hash of each stage's code. DVC tracks the hash of
each stage in place of the code. An edit of the code, or another version, therefore reruns exactly
the stages that depend on the changed code. A clone, a project folder that contains the code itself,
has no code lock.

Every command that calls DVC writes the lock first. For a bare `dvc repro`, the stage `code_lock`
writes it. A stage raises an error if the lock does not match the code that runs. Otherwise DVC
would record the output under the wrong code, and restore it later.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

from model_code.errors import FreshetError
from model_code.files import canonical_json, hash_path, hash_text, read_json, write_json
from model_code.stages.stage import Stage
from orchestration.pipeline.stages import TABLE

NAME = "code.lock.json"
COMMAND = "python -m orchestration.pipeline.code_lock"
# The folder with the installed packages of Freshet.
INSTALLED = Path(__file__).parents[2]
PACKAGES = ("freshet", "model_code", "orchestration", "assets")
# Returns the hash of a file or folder, which is computed once per process until `cache_clear`.
hash_once = cache(hash_path)


def code_root(root: Path) -> Path:
    """Return the folder with the code that a project uses.

    A project with the file `code.lock.json` uses the installed code. A clone has no such file and
    uses the code in its own folder.
    """
    if (root / NAME).is_file():
        return INSTALLED
    return root


def write(root: Path, new: bool = False) -> None:
    """Update the code lock of a project: the file with a hash of each stage's code.

    DVC runs the stages again whose hashes have changed. Nothing is written in a clone, because its
    `dvc.yaml` names the files of the code.

    Args:
        root: Folder of the project.
        new: Whether to write a lock even if the project has none.

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
    is_current = path.is_file() and path.read_text(encoding="utf-8") == canonical_json(hashes)
    if not is_current:
        write_json(path, hashes)


def _require_own_package(name: str) -> None:
    """Check that Python imports Freshet's package of this name, and not another one.

    Packages such as `assets` have common names. Another package of the name would be hashed and run
    in place of Freshet's.
    """
    # The origin of a package is its `__init__.py`. A folder without this file has no origin.
    spec = importlib.util.find_spec(name)
    origin = None if spec is None else spec.origin
    if origin and Path(origin).parents[1] == INSTALLED:
        return

    location: Any = origin
    if spec is not None and origin is None:
        location = list(spec.submodule_search_locations or [])
    raise FreshetError(
        f"Python finds another package {name!r} than Freshet's ({location}). Install Freshet in a "
        "separate environment, or rename the other package"
    )


def code_hash(stage: Stage) -> str:
    """Return the hash of the installed code that a stage depends on."""
    hashes = {path: hash_once(INSTALLED / path) for path in stage.code_files}
    return hash_text(canonical_json(hashes))


def require_current(stage: Stage, root: Path) -> None:
    """Check that the code lock, the file with a hash of each stage's code, matches the code.

    DVC compares the hashes of the code lock to decide whether a stage has to run. If Freshet was
    upgraded since the lock was written, that decision was wrong. A clone without a code lock always
    passes.

    Raises:
        FreshetError: If the code lock was written by another version of the code.
    """
    # The code may have changed on disk since this process first hashed it.
    hash_once.cache_clear()
    path = root / NAME
    if not path.is_file():
        return
    if read_json(path).get(stage.name) != code_hash(stage):
        raise FreshetError(
            f"{NAME} belongs to another version of Freshet; `freshet run` writes it again"
        )


if __name__ == "__main__":
    write(Path.cwd(), new=True)
