"""Cluster a million vectors on the GPU, and add documents to a million others by IncDSI."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

import torch

from model_code.hierarchy.build import build_hierarchy, unit_vectors
from model_code.hierarchy.settings import HierarchySettings

VECTORS = 1_000_000
DIMENSION = 384
# Number of centres around which vectors lie, and the standard deviation of the noise that is added.
CENTRES = 4096
NOISE = 0.7
# IncDSI: number of indexed documents, of documents that are added to them, and of those added
# documents that the published loop adds as well.
DOCUMENTS = 1_000_000
ADDED = 32
PUBLISHED = 2
# Threads of the process that measures the addition while the GPU measurements run.
THREADS = 4


def measure_clustering(vectors: int = VECTORS) -> dict[str, Any]:
    """Return the seconds that the hierarchy of synthetic vectors takes, and its quality."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device=device).manual_seed(0)
    centres = torch.randn(CENTRES, DIMENSION, generator=generator, device=device)
    nearest = torch.randint(CENTRES, (vectors,), generator=generator, device=device)
    points = torch.randn(vectors, DIMENSION, generator=generator, device=device)
    points.mul_(NOISE).add_(centres[nearest])
    matrix = points.cpu().numpy()
    # The clustering needs the memory of the GPU.
    del points

    started = time.perf_counter()
    hierarchy = build_hierarchy(matrix, HierarchySettings(device=device), seed=0)
    seconds = time.perf_counter() - started

    unit = unit_vectors(matrix, device)
    lowest = torch.from_numpy(hierarchy.centroids[-1]).to(device)
    leaves = torch.from_numpy(hierarchy.leaves).long().to(device)
    cosine = float((unit * lowest[leaves]).sum(dim=1).mean())
    return {
        "vectors": vectors,
        "nodes by level": [len(level) for level in hierarchy.centroids],
        "seconds": round(seconds, 2),
        "mean cosine to the leaf's centroid": round(cosine, 4),
    }


def start_addition() -> subprocess.Popen[str]:
    """Start the measurement of IncDSI in another process, beside those on the GPU.

    It needs no GPU.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(THREADS), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.gpu.scale"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def finish_addition(process: subprocess.Popen[str] | None, deadline: float) -> Any:
    """Wait for the measurement of IncDSI, and return its rows.

    Args:
        process: The process.
        deadline: Time of `time.monotonic` after which it is stopped.
    """
    if process is None:
        raise ValueError("the measurement of IncDSI was not started")
    try:
        output, errors = process.communicate(timeout=max(1.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {"error": "the time was over before it ended"}
    if process.returncode:
        return {"error": errors}
    return json.loads(output)


def measure_addition() -> list[dict[str, Any]]:
    """Return the rows of `freshet bench incdsi` for a million documents."""
    from benchmarks import incdsi

    return incdsi.rows(large=True, sizes=[(DOCUMENTS, DIMENSION)], added=ADDED, published=PUBLISHED)


if __name__ == "__main__":
    print(json.dumps(measure_addition()))
