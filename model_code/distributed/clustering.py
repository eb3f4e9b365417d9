"""The assignment step of k-means over slices of the points, each a task of Ray's."""

from __future__ import annotations

import warnings

import numpy as np
import torch

from model_code.distributed import engine
from model_code.hierarchy.lloyd import Lloyd

STATE = ("labels", "score", "rival")  # what comparing changes, per point


def make_lloyd(vectors: torch.Tensor, clusters: int) -> Lloyd:
    """The run of k-means, as the engine in use runs it."""
    settings = engine.current()
    kind = Lloyd if settings.engine == "local" else DistributedLloyd
    return kind(vectors, clusters)


class DistributedLloyd(Lloyd):
    """k-means whose points are compared with the centroids by tasks, one per worker and slice of
    the points.

    Every point is compared for itself, so slices change nothing but the shapes of matrix products,
    hence perhaps last bits of cosines. The vectors are stored once and stay with Ray; centroids and
    the points' state travel each time. A task is a pure function: Ray repeats one whose worker
    died.
    """

    def __init__(self, vectors: torch.Tensor, clusters: int) -> None:
        super().__init__(vectors, clusters)
        settings, ray = engine.current(), engine.ray()
        edges = (
            np.linspace(0, len(vectors), min(settings.workers, len(vectors)) + 1)
            .astype(int)
            .tolist()
        )
        self._slices = [slice(*pair) for pair in zip(edges[:-1], edges[1:], strict=True)]
        self._points = [ray.put(vectors[part].cpu().numpy()) for part in self._slices]
        options = {
            "num_cpus": settings.cpus_per_worker,
            "num_gpus": settings.gpus_per_worker,
            "max_retries": -1,
        }
        self._device, self._task = settings.device, ray.remote(**options)(compare_slice)

    def _compare(self, rows: torch.Tensor, columns: torch.Tensor) -> None:
        ray = engine.ray()
        shared = ray.put((self.centroids.cpu().numpy(), columns.cpu().numpy()))
        calls = []
        for part, points in zip(self._slices, self._points, strict=True):
            state = {name: getattr(self, name)[part].cpu().numpy() for name in STATE}
            calls.append(
                self._task.remote(points, shared, rows[part].cpu().numpy(), state, self._device)
            )
        for part, compared in zip(self._slices, ray.get(calls), strict=True):
            for name in STATE:
                array = getattr(self, name)
                array[part] = torch.from_numpy(compared[name].copy()).to(array.device)


def compare_slice(
    part: np.ndarray,
    shared: tuple[np.ndarray, np.ndarray],
    rows: np.ndarray,
    state: dict[str, np.ndarray],
    device: str,
) -> dict[str, np.ndarray]:
    """`Lloyd._compare` for a slice of n points.

    part: vectors (n, H); shared: centroids (K, H) and the mask of those that are compared with
    (K,); rows: the mask of the points that are (n,); state: `STATE` before, returned as it is then.
    """
    vectors, centroids, columns = (_unwritten(array, device) for array in (part, *shared))
    lloyd = Lloyd(vectors, len(centroids))
    lloyd.centroids = centroids
    for name in STATE:
        setattr(lloyd, name, torch.tensor(state[name], device=device))
    with torch.inference_mode():
        lloyd._compare(torch.tensor(rows, device=device), columns)
    return {name: getattr(lloyd, name).cpu().numpy() for name in STATE}


def _unwritten(array: np.ndarray, device: str) -> torch.Tensor:
    """A view of Ray's memory on a CPU; torch warns that writing to it would be wrong, and nothing
    here does.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array).to(device)
