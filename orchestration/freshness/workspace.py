"""A temporary project to retrain in, so that the user's settings, artifacts and `dvc.lock` stay as they are.

It has its own copy of the code, and settings that differ in where the documents come from; runs, models, checkpoints
and live collections are those of the project that it belongs to. DVC's cache is shared.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from model_code.errors import FreshetError
from model_code.files import hash_path, read_json, replace_folder
from model_code.live.generation import ENCODER, INDEX, Generation
from model_code.manifest import MANIFEST
from orchestration import parameters
from orchestration.parameters import flatten
from orchestration.pipeline import code_lock, dvc_file
from orchestration.pipeline.dvc_process import dvc_command, environment
from orchestration.project import Project

START = "start"  # the folder of that encoder
WORKSPACE = "project"  # in the folder of a retrain, beside its plan
FILES = ("params.yaml", "dvc.yaml", "pyproject.toml")
OWN = {
    *code_lock.PACKAGES,
    code_lock.NAME,
    *FILES,
    "artifacts",
    "corpus.lock.json",
    "dvc.lock",
    "live",
    "snapshot",
    START,
}
MODELS = ("base", "start", "model")  # settings, of whichever group, that name a hub's model or a folder
SETTINGS = (  # what is live was accepted once: nothing is merged, cut off, held back or quarantined again
    "corpus.source=snapshot",
    "corpus.path=snapshot",
    "corpus.limit=null",
    "corpus.merge_duplicates=none",
    "corpus.quarantine_limit=0.0",
    "corpus.parts={by: none}",
)


def make_workspace(
    project: Project, folder: Path, snapshot: Path, start: Path | None = None, share_cache: bool = True
) -> Project:
    """A project at `folder` that builds from `snapshot`; one that is there already is left as it is.

    So every step of a retrain has the code and settings of its start, whatever is edited meanwhile. start: the encoder
    whose weights training begins with; None: the base. share_cache: what is built goes to the cache of the project, and
    is not repeated; else it goes with the folder.
    """
    if not folder.is_dir():
        aside = folder.with_name(f".{folder.name}.making")
        shutil.rmtree(aside, ignore_errors=True)
        _fill(project.root, aside, snapshot, start)
        replace_folder(aside, folder)
    workspace = workspace_at(project, folder)
    if share_cache:
        _share_cache(project, workspace)
    return workspace


def workspace_at(project: Project, folder: Path) -> Project:
    """The workspace that was made at `folder` before."""
    return Project(folder, home=project.root)


def _fill(root: Path, folder: Path, snapshot: Path, start: Path | None) -> None:
    folder.mkdir(parents=True)
    code = code_lock.code_root(root)
    for name in code_lock.PACKAGES:
        shutil.copytree(code / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        if (root / name).is_file():
            shutil.copyfile(root / name, folder / name)
    if code != root:
        dvc_file.write(folder / "dvc.yaml")
    _link_the_rest(root, folder)
    shutil.copytree(snapshot, folder / "snapshot")
    parameters.assign(folder / "params.yaml", SETTINGS)
    _name_in_full(root, folder)
    if start is not None:
        begin_with(start, folder)


def _link_the_rest(root: Path, folder: Path) -> None:
    """Settings may name folders of the project, such as a base encoder's: they are found under the same names."""
    for path in root.iterdir():
        if path.name not in OWN and not path.name.startswith(".") and not (folder / path.name).exists():
            (folder / path.name).symlink_to(path)


def _name_in_full(root: Path, folder: Path) -> None:
    """Folders of models that only lie where the settings say as seen from `root`, hidden ones and those beside it."""
    named = flatten(parameters.read(folder / "params.yaml"))
    models = {name: value for name, value in named.items() if name.rpartition(".")[2] in MODELS and value}
    beyond = {name: root / value for name, value in models.items() if not (folder / value).exists()}
    full = [f"{name}={json.dumps(str(path.resolve()))}" for name, path in beyond.items() if path.is_dir()]
    parameters.assign(folder / "params.yaml", full)


def _share_cache(project: Project, workspace: Project) -> None:
    def dvc(*arguments: str) -> None:
        command = dvc_command(*arguments)
        subprocess.run(command, cwd=workspace.root, env=environment(workspace), check=True)

    if not (workspace.root / ".dvc").is_dir():
        dvc("init", "-q", "--no-scm")
    dvc("config", "-q", "cache.dir", str(project.root / ".dvc" / "cache"))


def keep_start(project: Project, generation: Generation, folder: Path) -> None:
    """Copy the encoder of a generation to `folder`, if `live.retrain_from` says that training begins with it.

    Of a fused retriever it is that of its first dense part. FreshetError if it has no dense encoder to go on from.
    """
    shutil.rmtree(folder, ignore_errors=True)
    if parameters.load(project.params_file).live.retrain_from == "base":
        return
    base = generation.sibling(generation.base)
    encoder = _dense_encoder(base / ENCODER, base / INDEX)
    if encoder is None:
        raise FreshetError(
            f"live.retrain_from is champion, but {generation.retriever} has no dense encoder that training could go on "
            "from; set it to base"
        )
    shutil.copytree(encoder, folder)


def _dense_encoder(encoder: Path, index: Path) -> Path | None:
    """The folder of the encoder that makes a vector of a text; that of the first such part, where they are fused."""
    facts = read_json(index / MANIFEST)
    if facts["kind"] == "fused":
        parts = (_dense_encoder(encoder / part, index / part) for part in facts["parts"])
        return next((part for part in parts if part is not None), None)
    return encoder if facts["kind"] in ("dense", "dsi") else None


def begin_with(encoder: Path, workspace: Path) -> None:
    """Copy `encoder` into the workspace, and have every retriever begin with it that can: the dense and dsi ones.

    The copy is named for its content: DVC's run cache and checkpoints, which all retrains share, know it by name.
    """
    name, params = f"{START}/{hash_path(encoder)[:16]}", workspace / "params.yaml"
    shutil.copytree(encoder, workspace / name, dirs_exist_ok=True)
    able = [key for key, one in parameters.load(params).retrievers.items() if one.kind != "lexical"]
    parameters.assign(params, [f"retrievers.{key}.start={name}" for key in able])
