"""`code.lock.json`: a hash of each stage's code, for a project whose code lies not in its own
folder but is installed.

DVC compares it by key, so an edit or another version reruns exactly the stages that depend on what
changed. Every command that calls DVC writes it first, a bare `dvc repro` by the stage `code_lock`,
and a stage refuses one that is not of the code that runs: DVC would record the output under the
wrong code, and bring it back later.
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
INSTALLED = Path(__file__).parents[2]
hash_once = cache(hash_path)
PACKAGES = ("model_code", "orchestration", "assets")


def code_root(root: Path) -> Path:
    """Where the code of a project lies: in its folder, as in a clone, or where it is installed, if
    there is a lock.
    """
    return INSTALLED if (root / NAME).is_file() else root


def write(root: Path, new: bool = False) -> None:
    """Bring the project's lock up to date; nothing in a clone, whose `dvc.yaml` names the code
    itself.

    new: make one. FreshetError if one of our packages is hidden by another of the same name.
    """
    if not new and not (root / NAME).is_file():
        return
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.origin or Path(spec.origin).parents[1] != INSTALLED:
            where = spec and (spec.origin or list(spec.submodule_search_locations or []))
            raise FreshetError(
                f"the package {name!r} that Python finds is not Freshet's ({where}): install Freshet in an environment "
                "of its own, or rename the other one"
            )
    hash_once.cache_clear()  # what lies there now, however long this process has run
    hashes = {stage.name: code_hash(stage) for stage in TABLE}
    path = root / NAME
    if not path.is_file() or path.read_text(encoding="utf-8") != canonical_json(hashes):
        write_json(path, hashes)


def code_hash(stage: Stage) -> str:
    """The hash of the installed code that the stage depends on."""
    return hash_text(
        canonical_json({path: hash_once(INSTALLED / path) for path in stage.code_files})
    )


def require_current(stage: Stage, root: Path) -> None:
    """FreshetError if the lock that DVC read is of other code than what runs now; nothing in a
    clone.
    """
    hash_once.cache_clear()
    if (root / NAME).is_file() and read_json(root / NAME).get(stage.name) != code_hash(stage):
        raise FreshetError(
            f"{NAME} is of another version of Freshet than this one: `freshet run` writes it anew"
        )


if __name__ == "__main__":
    write(Path.cwd(), new=True)
