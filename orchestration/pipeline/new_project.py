"""Make a new project: `freshet init`.

The folder of the project is separate from the code, and may be moved and copied.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from model_code.corpus.settings import CorpusSettings
from model_code.corpus.sources.base import open_source, resolve_source_kind
from model_code.corpus.sources.document_files import DOCUMENT_SUFFIXES
from model_code.corpus.sources.file_names import require_utf8_path
from model_code.corpus.sources.folder import FolderSource, describe_ignored_files
from model_code.errors import FreshetError
from model_code.files import write_text
from model_code.project import Project
from orchestration import parameters
from orchestration.pipeline import code_lock, dvc_file
from orchestration.pipeline.dvc import in_git, initialise

# Default source of a new project: the name of a folder in the project.
DEFAULT_SOURCE = "documents"
# End of the error message for a source that does not exist.
MISSING_SOURCE_REMEDY = "--from names a folder, a file of rows, or a data set such as BeIR/nq"
# The template of `params.yaml`. The word SOURCE in it is replaced by the path of the source.
PARAMS_TEMPLATE = Path(__file__).with_suffix(".yaml")
# Largest number of kinds of ignored files that the description of a folder names, the most frequent
# first.
MAX_LISTED_KINDS = 8
PROJECT_FILES = {
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
    """Make a project for the documents of a source, and return a description of the source.

    If the folder already has a `params.yaml`, the file is kept, and the source that it names is
    used. `dvc.yaml` is written last, because it marks the folder as a project. If the command fails
    before, it can be repeated.

    Args:
        folder: Folder of the project, relative to `cwd`.
        source: A folder, a file, a BEIR folder or a hub data set. Paths are relative to `cwd`.
            None: the folder `documents` in the project.
        cwd: Working directory. None: that of this process.

    Raises:
        FreshetError: If the folder is a project already, if the source does not exist, or if both
            `source` and `params.yaml` name one. Nothing is written then.
    """
    if cwd is None:
        cwd = Path.cwd()
    root = (cwd / folder).resolve()
    require_utf8_path(str(root))
    if (root / "dvc.yaml").exists():
        raise FreshetError(f"{root} is a project already: it has a dvc.yaml. Choose another folder")

    params = root / "params.yaml"
    is_repeated = source is not None and _is_own_params(params, root, source, cwd)
    if params.exists() and not is_repeated:
        corpus = _read_source(params, source)
    else:
        corpus = _write_params(root, source, cwd)
    description = _describe_source(corpus, root)
    _write_project_files(root)
    return description


def _is_own_params(params: Path, root: Path, source: str, cwd: Path) -> bool:
    """Return whether an earlier call for the same source wrote this `params.yaml`."""
    if not params.is_file():
        return False
    text = _params_text(_path_from_project(root, source, cwd))
    return params.read_bytes() == text.encode()


def _read_source(params: Path, source: str | None) -> CorpusSettings:
    """Return the source in an existing `params.yaml`, after checking that it can be opened."""
    if source is not None:
        raise FreshetError(
            f"{params} names a source already: leave out --from, or move that file away first"
        )
    corpus = resolve_source_kind(parameters.load(params).corpus, params.parent)
    open_source(corpus, params.parent)
    return corpus


def _write_params(root: Path, source: str | None, cwd: Path) -> CorpusSettings:
    """Write `params.yaml` from the template, and return the source that it names."""
    if source is None:
        corpus = CorpusSettings(path=DEFAULT_SOURCE)
        (root / DEFAULT_SOURCE).mkdir(parents=True, exist_ok=True)
    else:
        # This raises an error if the source does not exist, with the path that the user means. It
        # is called before anything is written.
        named = CorpusSettings(path=str(Path(source).expanduser()))
        resolve_source_kind(named, cwd, MISSING_SOURCE_REMEDY)
        corpus = CorpusSettings(path=_path_from_project(root, source, cwd))
        corpus = resolve_source_kind(corpus, root)
        root.mkdir(parents=True, exist_ok=True)

    write_text(root / "params.yaml", _params_text(corpus.path))
    return corpus


def _params_text(path: str | None) -> str:
    """Return the settings of a new project with a source."""
    template = PARAMS_TEMPLATE.read_text(encoding="utf-8")
    # A JSON string is valid YAML for any characters in the path.
    return template.replace("SOURCE", json.dumps(path, ensure_ascii=False), 1)


def _path_from_project(root: Path, source: str, cwd: Path) -> str:
    """Return the value of `corpus.path` for a source.

    A path inside the project becomes relative to the project, so that the project can be moved. Any
    other path becomes absolute. A source that is not a path, such as a hub data set, keeps its
    name.
    """
    path = (cwd / Path(source).expanduser()).resolve()
    require_utf8_path(str(path))
    if not path.exists():
        return source
    if path != root and path.is_relative_to(root):
        return path.relative_to(root).as_posix()
    return str(path)


def _write_project_files(root: Path) -> None:
    """Write the files of a project besides `params.yaml`, with `dvc.yaml` as the last one.

    Files that exist already are kept, so that an interrupted call can be repeated.
    """
    (root / "inbox").mkdir(exist_ok=True)
    for name, text in PROJECT_FILES.items():
        if not (root / name).exists():
            write_text(root / name, text)

    # An interrupted `git init` leaves a folder without HEAD, which git does not accept.
    is_interrupted = (root / ".git").is_dir() and not (root / ".git/HEAD").exists()
    if is_interrupted or not in_git(root):
        subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    code_lock.write(root, new=True)
    initialise(Project(root))
    dvc_file.write(root / "dvc.yaml", has_own_code=False)


def _describe_source(corpus: CorpusSettings, root: Path) -> str:
    """Describe the source of a new project in one line: its kind, its size, and ignored files."""
    # The default source is a new folder. Its kind is not known before it contains files.
    if corpus.source == "auto":
        suffixes = ", ".join(DOCUMENT_SUFFIXES)
        return f"documents: put files ({suffixes}) into {corpus.path}/"

    source = open_source(corpus, root)
    if not isinstance(source, FolderSource):
        names = [name for name in (corpus.source, corpus.path) if name]
        return f"source: {', '.join(names)}"

    description = f"source: a folder, {len(source.files):,} documents"
    passed_over = source.passed_over.most_common(MAX_LISTED_KINDS)
    if passed_over:
        counts = ", ".join(f"{number:,} {kind}" for kind, number in passed_over)
        description += f"; passed over: {counts}"
    git_ignored = describe_ignored_files(source)
    if git_ignored:
        description += f"; {git_ignored}"
    return description
