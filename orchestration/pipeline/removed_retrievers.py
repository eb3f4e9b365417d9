"""Outputs of retrievers that `params.yaml` no longer names, which the comparison's inputs would otherwise hold."""

from __future__ import annotations

import shutil
from pathlib import Path

from orchestration import parameters
from orchestration.pipeline.stages import TABLE
from orchestration.project import Project


def remove_outputs(project: Project) -> list[Path]:
    """Take the outputs of such retrievers away, so that a build depends on the settings and not on what was built
    before; returns the folders, relative to the root. A retriever that comes back is restored from DVC's cache.

    To be called under the project's lock.
    """
    named = parameters.load(project.params_file).retrievers
    folders = [project.root / Path(stage.output).parent for stage in TABLE if stage.per_retriever]
    found = [path for folder in folders if folder.is_dir() for path in sorted(folder.iterdir())]
    removed = [path for path in found if path.name not in named and path.is_dir() and not path.is_symlink()]
    for path in removed:
        shutil.rmtree(path)
    return [path.relative_to(project.root) for path in removed]
