"""From passage vectors to a hierarchy: checks, settings that depend on the corpus, and the chosen method."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import normalize

from model_code.encoding.hardware import pick_device
from model_code.errors import FreshetError
from model_code.hierarchy.bottom_up import bottom_up
from model_code.hierarchy.lloyd import Lloyd, MakeLloyd
from model_code.hierarchy.settings import HierarchySettings
from model_code.hierarchy.sizes import default_branching, level_sizes
from model_code.hierarchy.top_down import top_down
from model_code.hierarchy.tree import Hierarchy
from model_code.progress import Progress, silent

METHODS = {"bottom_up": bottom_up, "top_down": top_down}


def build_hierarchy(
    vectors: np.ndarray,
    settings: HierarchySettings,
    seed: int,
    progress: Progress = silent,
    make_lloyd: MakeLloyd = Lloyd,
) -> Hierarchy:
    """The hierarchy of passages with `vectors` (N, H), of which only the directions count; the same for the same seed.

    make_lloyd: the engine of k-means: `Lloyd`, in this process, or `scale.clustering.make_lloyd`, as the settings say.
    Raises `FreshetError` for no vectors, and for vectors without a direction (zero, infinite or not a number).
    """
    unit = unit_vectors(vectors, settings.device)
    sizes = level_sizes(len(unit), settings.branching or default_branching(len(unit)))
    with torch.inference_mode():
        return METHODS[settings.method](unit, sizes, settings, seed, progress, make_lloyd)


def unit_vectors(vectors: np.ndarray, device: str) -> torch.Tensor:
    """The vectors (N, H) at unit norm, as a float32 tensor on `device`."""
    if vectors.ndim != 2 or not len(vectors):
        raise FreshetError(f"a hierarchy needs vectors (N, H) with N >= 1, not {vectors.shape}; is the corpus empty?")
    tensor = torch.tensor(vectors, dtype=torch.float32, device=pick_device(device))
    norms = tensor.norm(dim=1)
    bad = torch.nonzero(~(torch.isfinite(norms) & (norms > 0)))[:, 0]
    if len(bad):
        raise FreshetError(
            f"vector {int(bad[0])} (and {len(bad) - 1} more) has norm {float(norms[bad[0]])}, so no direction; "
            "encode the corpus again, without empty passages"
        )
    return normalize(tensor, dim=1)
