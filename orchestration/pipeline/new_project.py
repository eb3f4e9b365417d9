"""`freshet init`: a project of one's own, beside the code, in a folder that may be moved and
copied.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from model_code.corpus.settings import CorpusSettings
from model_code.corpus.sources.base import open_source, resolve_source_kind
from model_code.corpus.sources.document_files import DOCUMENT_SUFFIXES
from model_code.corpus.sources.folder import FolderSource
from model_code.errors import FreshetError
from model_code.files import write_text
from model_code.project import Project
from orchestration import parameters
from orchestration.pipeline import code_lock, dvc_file
from orchestration.pipeline.dvc import in_git, initialise

DOCUMENTS = "documents"  # the source where none is named
PARAMS = Path(__file__).with_suffix(".yaml")  # `params.yaml`, but for the source
FILES = {
    ".gitignore": "/.freshet/\n/artifacts/\n/live/\n/inbox/\n__pycache__/\n",
    ".dvcignore": ".freshet\nlive\n__pycache__\n",
    "pyproject.toml": """\
[tool.dagster]
module_name = "orchestration.definitions"
code_location_name = "freshet"

[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "orchestration"
code_location_target_module = "orchestration.definitions"
code_location_name = "freshet"
""",
}


def make_project(folder: Path, source: str | None = None, cwd: Path | None = None) -> str:
    """Make a project in `folder` for the documents of `source`, and say what that is.

    source: a folder, a file, a BEIR folder or a hub data set, as seen from `cwd`; by default the
    project's own folder `documents`. A `params.yaml` that lies there alone stays, and names the
    source. FreshetError if there is a project already, or no such source, or two.
    """
    root = ((cwd or Path.cwd()) / folder).resolve()
    params = root / "params.yaml"
    if (root / "dvc.yaml").exists():
        raise FreshetError(
            f"{root / 'dvc.yaml'} is there already: this folder is a project, which is left as it "
            "is"
        )
    if params.exists():
        if source is not None:
            raise FreshetError(
                f"{params} names a source already: leave out --from, or take that file away first"
            )
        settings = resolve_source_kind(parameters.load(params).corpus, root)
        open_source(settings, root)  # before anything is written
    else:
        settings = CorpusSettings(
            path=DOCUMENTS if source is None else _path(root, source, cwd or Path.cwd())
        )
        if source is not None:
            settings = resolve_source_kind(settings, root)
        (root if source else root / DOCUMENTS).mkdir(parents=True, exist_ok=True)
        path = json.dumps(settings.path, ensure_ascii=False)
        write_text(params, PARAMS.read_text(encoding="utf-8").replace("SOURCE", path, 1))
    (root / "inbox").mkdir(exist_ok=True)
    dvc_file.write(root / "dvc.yaml", has_own_code=False)
    for name, text in FILES.items():
        if not (root / name).exists():
            write_text(root / name, text)
    if not in_git(root):
        subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    code_lock.write(root, new=True)
    initialise(Project(root))
    return _source_text(settings, root)


def _path(root: Path, source: str, cwd: Path) -> str:
    """The source as `corpus.path` names it: inside of the project as seen from there, so that it
    moves along.
    """
    place = (cwd / Path(source).expanduser()).resolve()
    if not place.exists():
        return source
    return (
        place.relative_to(root).as_posix()
        if place.is_relative_to(root) and place != root
        else str(place)
    )


def _source_text(settings: CorpusSettings, root: Path) -> str:
    """The kind of source in words."""
    if settings.source == "auto":
        return f"documents: put files ({', '.join(DOCUMENT_SUFFIXES)}) into {settings.path}/"
    source = open_source(settings, root)
    if not isinstance(source, FolderSource):
        return f"source: {', '.join(filter(None, (settings.source, settings.path)))}"
    files = f"source: a folder, {len(source.files):,} documents"
    others = ", ".join(f"{number:,} {kind}" for kind, number in source.passed_over.most_common(8))
    return files + (f"; passed over: {others}" if others else "")
