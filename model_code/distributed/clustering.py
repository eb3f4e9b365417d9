"""K-means on Ray: the points are divided into slices, and a Ray task compares each slice."""

from __future__ import annotations

import warnings

import numpy as np
import torch

from model_code.distributed import engine
from model_code.hierarchy.lloyd import Lloyd

COMPARED_STATE = ("labels", "score", "rival")
"""Attributes of `Lloyd`, a run of k-means, that `compare` changes. Each has one value per point."""


def make_lloyd(vectors: torch.Tensor, clusters: int) -> Lloyd:
    """Return a run of k-means that compares points in this process, or in Ray if it is in use.

    See `Lloyd` for the arguments.
    """
    if engine.current().engine == "local":
        return Lloyd(vectors, clusters)
    return DistributedLloyd(vectors, clusters)


class DistributedLloyd(Lloyd):
    """K-means that compares points with centroids in Ray tasks, one per worker.

    Each task gets a slice of the points. Points are compared independently of each other. So slices
    only change the shapes of matrix products, which may change the last bits of cosines. The
    vectors are stored with Ray once. The centroids and the state of the points are sent in every
    step. A task is a pure function, and Ray repeats it if its worker died.
    """

    def __init__(self, vectors: torch.Tensor, clusters: int) -> None:
        """Prepare a run, and store a slice of the vectors with Ray for each worker; see `Lloyd`."""
        super().__init__(vectors, clusters)
        settings = engine.current()
        ray = engine.ray()

        slice_count = min(settings.workers, len(vectors))
        edges = np.linspace(0, len(vectors), slice_count + 1).astype(int).tolist()
        self._slices = [slice(edges[i], edges[i + 1]) for i in range(slice_count)]
        self._stored_vectors = [ray.put(vectors[part].cpu().numpy()) for part in self._slices]

        self._device = settings.device
        self._task = ray.remote(
            num_cpus=settings.cpus_per_worker,
            num_gpus=settings.gpus_per_worker,
            max_retries=-1,
        )(compare_slice)

    def compare(self, rows: torch.Tensor, columns: torch.Tensor) -> None:
        """Compare points with centroids, one slice of points per Ray task; see `Lloyd.compare`."""
        ray = engine.ray()
        shared = ray.put((self.centroids.cpu().numpy(), columns.cpu().numpy()))
        calls = []
        for part, stored in zip(self._slices, self._stored_vectors, strict=True):
            state = {name: getattr(self, name)[part].cpu().numpy() for name in COMPARED_STATE}
            slice_rows = rows[part].cpu().numpy()
            calls.append(self._task.remote(stored, shared, slice_rows, state, self._device))

        for part, compared in zip(self._slices, ray.get(calls), strict=True):
            for name in COMPARED_STATE:
                values = getattr(self, name)
                values[part] = torch.from_numpy(compared[name].copy()).to(values.device)


def compare_slice(
    vectors: np.ndarray,
    shared: tuple[np.ndarray, np.ndarray],
    rows: np.ndarray,
    state: dict[str, np.ndarray],
    device: str,
) -> dict[str, np.ndarray]:
    """Compare a slice of n points with centroids, as one step of k-means; see `Lloyd.compare`.

    A Ray task runs this function, so it gets and returns plain arrays.

    Args:
        vectors: Unit vectors of the points, (n, H).
        shared: Centroids, (K, H), and a mask of the centroids to compare with, (K,) bool.
        rows: Mask of the points to compare, (n,) bool.
        state: Present values of the points by name: their labels, their cosines to their centroids,
            and bounds on other cosines; see `COMPARED_STATE`.
        device: Device to compute on.

    Returns:
        The same values after the comparison.
    """
    centroids, columns = shared
    lloyd = Lloyd(_read_only_tensor(vectors, device), len(centroids))
    lloyd.centroids = _read_only_tensor(centroids, device)
    for name in COMPARED_STATE:
        setattr(lloyd, name, torch.tensor(state[name], device=device))

    with torch.inference_mode():
        lloyd.compare(torch.tensor(rows, device=device), _read_only_tensor(columns, device))
    return {name: getattr(lloyd, name).cpu().numpy() for name in COMPARED_STATE}


def _read_only_tensor(array: np.ndarray, device: str) -> torch.Tensor:
    """Return a tensor that shares an array in Ray's memory, and must not be written to."""
    with warnings.catch_warnings():
        # torch warns that the array is not writable. Nothing here writes to it.
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array).to(device)
