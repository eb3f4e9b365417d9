"""Where a retrain's training begins: with the base encoder, or with the encoder that is searched now."""

from __future__ import annotations

import shutil
from pathlib import Path

from model_code.encoding.sides import QUERY_ENCODER
from model_code.errors import FreshetError
from model_code.files import hash_path, read_json
from model_code.live.generation import ENCODER, INDEX, Generation
from model_code.manifest import MANIFEST
from orchestration import parameters
from orchestration.project import Project

START = "start"  # the folder of that encoder


def keep_start(project: Project, generation: Generation, folder: Path) -> None:
    """Copy the encoder of a generation to `folder`, if `live.retrain_from` says that training begins with it.

    FreshetError if it is lexical, which has no dense encoder to go on from.
    """
    shutil.rmtree(folder, ignore_errors=True)
    if parameters.load(project.params_file).live.retrain_from == "base":
        return
    base = generation.sibling(generation.base)
    if read_json(base / INDEX / MANIFEST)["kind"] == "lexical":
        raise FreshetError(
            f"live.retrain_from is champion, but {generation.retriever} is lexical, which training cannot go on from; "
            "set it to base"
        )
    shutil.copytree(base / ENCODER, folder)


def begin_with(encoder: Path, workspace: Path) -> None:
    """Copy `encoder` into the workspace, and have every retriever begin with it that can: the dense and dsi ones, and
    of an encoder with two sides those that have two.

    The copy is named for its content: DVC's run cache and checkpoints, which all retrains share, know it by name.
    """
    name, params = f"{START}/{hash_path(encoder)[:16]}", workspace / "params.yaml"
    shutil.copytree(encoder, workspace / name, dirs_exist_ok=True)
    two = (encoder / QUERY_ENCODER).is_dir()
    retrievers = parameters.load(params).retrievers.items()
    able = [key for key, one in retrievers if one.kind != "lexical" and (not two or one.encoders == "separate")]
    parameters.assign(params, [f"retrievers.{key}.start={name}" for key in able])
