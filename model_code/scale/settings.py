"""Settings of the engine: the group `scale` of `params.yaml`. No stage declares it: results stay as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from model_code.settings import require, require_at_least


@dataclass(frozen=True)
class ScaleSettings:
    """Where the work runs that outgrows one process.

    engine: "local", this process; "ray", workers of a Ray cluster, which needs the extra `scale`.
    workers: processes that encode, that compare points with centroids, and that share a training step's batches.
    cpus_per_worker, gpus_per_worker: what Ray reserves for each; with a GPU they compute on it.
    address: of the cluster, such as "auto" on one of its machines; None: a Ray of its own on this machine, for as long
      as the stage takes.

    >>> ScaleSettings(engine="ray", workers=4).cpus
    5
    """

    engine: Literal["local", "ray"] = "local"
    workers: int = 1
    cpus_per_worker: int = 1
    gpus_per_worker: float = 0.0
    address: str | None = None

    def __post_init__(self) -> None:
        """Refuse what only Ray can do without Ray."""
        require_at_least(1, self, "workers", "cpus_per_worker")
        require_at_least(0, self, "gpus_per_worker")
        for name in ("workers", "cpus_per_worker", "gpus_per_worker", "address"):
            value = getattr(self, name)
            unused = self.engine == "ray" or value == getattr(ScaleSettings, name)
            require(unused, f"{name} is {value}, but engine local is this process alone; set scale.engine: ray")

    @property
    def cpus(self) -> int:
        """CPUs that Ray must have: those of the workers and a spare one, without which Ray Data hangs."""
        return self.workers * self.cpus_per_worker + 1

    @property
    def device(self) -> str:
        """What a worker computes on."""
        return "cuda" if self.gpus_per_worker else "cpu"
