"""Checkpoints to resume from after a kill: folders written aside and then renamed, so that each is whole or not there.

Weights of the objective, state of the optimiser and random states are accelerate's (`save_state`, read back with
`weights_only=True`); beside them lie the training state, the best weights so far, a hierarchy of co-training's, and
the table that hard negatives are drawn from.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from model_code.files import fsync, fsync_tree, read_json, write_json
from model_code.hierarchy.tree import Hierarchy
from model_code.training.state import TrainingState

STATE, BEST, HIERARCHY, NEGATIVES = "state.json", "best.safetensors", "hierarchy", "negatives.safetensors"


def save_checkpoint(
    folder: Path,
    accelerator: Any,
    state: TrainingState,
    hierarchy: Hierarchy | None = None,
    negatives: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Write `folder/step-N`, then remove older ones. Every process calls it; `state.window` must be empty.

    negatives: what `Negatives.state` gives.
    """
    from safetensors.numpy import save_file as save_arrays
    from safetensors.torch import save_file

    aside, target = folder / f".step-{state.step}", folder / f"step-{state.step}"
    if accelerator.is_main_process:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
    accelerator.wait_for_everyone()
    accelerator.save_state(str(aside))
    accelerator.wait_for_everyone()
    if not accelerator.is_main_process:
        return
    save_file(state.best_weights, aside / BEST)
    write_json(aside / STATE, state.to_json())
    if hierarchy is not None:
        hierarchy.save(aside / HIERARCHY)
    if negatives:
        save_arrays(dict(negatives), aside / NEGATIVES)
    fsync_tree(aside)
    aside.rename(target)
    fsync(folder)
    for older in folder.glob("*step-*"):
        if older != target:
            shutil.rmtree(older, ignore_errors=True)


def latest_checkpoint(folder: Path | None) -> Path | None:
    """The newest whole checkpoint in `folder`, or None."""
    if folder is None or not folder.is_dir():
        return None
    found = {int(match[1]): path for path in folder.iterdir() if (match := re.fullmatch(r"step-(\d+)", path.name))}
    return found[max(found)] if found else None


def load_training_state(checkpoint: Path) -> tuple[TrainingState, Hierarchy | None]:
    """The training state of a checkpoint, and its hierarchy if training had re-clustered."""
    from safetensors.torch import load_file

    state = TrainingState.from_json(read_json(checkpoint / STATE))
    state.best_weights = load_file(checkpoint / BEST)
    folder = checkpoint / HIERARCHY
    return state, Hierarchy.load(folder) if folder.is_dir() else None


def load_negatives(checkpoint: Path) -> dict[str, np.ndarray]:
    """What a checkpoint keeps for `Negatives.restore`; empty if nothing."""
    from safetensors.numpy import load_file

    path = checkpoint / NEGATIVES
    return load_file(path) if path.is_file() else {}
