"""The engine that encodes, clusters and trains: this process or Ray.

Ray is imported and started only if the settings select it. The settings are the group `scale` of
`params.yaml`. No stage depends on them, because they do not change results.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

from model_code.errors import FreshetError
from model_code.settings import Field, Settings, require

RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_V2_ENABLED": "1",
    # Ray's default is 15, so that every other process would have precedence over its workers.
    "RAY_worker_niceness": "0",
}
"""Environment variables that are set before Ray is imported. Values of the user are kept."""


class ScaleSettings(Settings):
    """Where work runs that is too large for one process.

    >>> ScaleSettings(engine="ray", workers=4).cpus
    5
    """

    engine: Literal["local", "ray"] = Field(
        "local",
        description="Where encoding, clustering and training run. local: this process. ray: "
        "workers of a Ray cluster, which needs the extra `scale`.",
    )
    workers: int = Field(
        1,
        ge=1,
        description="Number of processes that share the work.",
    )
    cpus_per_worker: int = Field(1, ge=1, description="CPUs that Ray reserves for each worker.")
    gpus_per_worker: float = Field(
        0.0,
        ge=0,
        description="GPUs that Ray reserves for each worker, which then computes on them.",
    )
    address: str | None = Field(
        None,
        description="Address of the Ray cluster, such as auto on one of its machines. null: each "
        "stage starts its own Ray.",
    )

    def check(self) -> None:
        """Refuse settings that only Ray reads, such as an address, without the engine Ray."""
        if self.engine == "ray":
            return
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            require(
                value == field.default,
                f"{name} is {value}, but engine local is this process alone; set scale.engine: ray",
            )

    @property
    def cpus(self) -> int:
        """Number of CPUs that Ray needs: those of the workers, and one that Ray Data needs."""
        return self.workers * self.cpus_per_worker + 1

    @property
    def device(self) -> str:
        """The device that a worker computes on."""
        return "cuda" if self.gpus_per_worker else "cpu"


THIS_PROCESS = ScaleSettings()
_CURRENT: ContextVar[ScaleSettings] = ContextVar("scale", default=THIS_PROCESS)


def current() -> ScaleSettings:
    """Return the settings of the innermost `using` block; outside of one, `THIS_PROCESS`."""
    return _CURRENT.get()


@contextmanager
def using(settings: ScaleSettings) -> Iterator[None]:
    """Run a `with` block on an engine.

    If the block starts Ray in this process, Ray is stopped at its end.

    Raises:
        FreshetError: If the settings ask for Ray and it is not installed.
    """
    if settings.engine == "ray" and importlib.util.find_spec("ray") is None:
        raise FreshetError("scale.engine is ray, which is not installed: pip install -e '.[scale]'")

    was_running = _is_running()
    token = _CURRENT.set(settings)
    try:
        yield
    finally:
        _CURRENT.reset(token)
        if _is_running() and not was_running:
            sys.modules["ray"].shutdown()


def ray() -> Any:
    """Return the module `ray`, connected to a cluster with enough CPUs and GPUs.

    Inside a Ray worker no settings are in use, and the module is returned without a connection.
    Ray's usage statistics are switched off.

    Raises:
        FreshetError: If Ray cannot be reached, or has too few CPUs or GPUs for the settings.
    """
    for name, value in RAY_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import ray

    if current().engine == "ray":
        if not ray.is_initialized():
            _start(ray, current())
        _require_room(current(), ray.cluster_resources())
    return ray


def _is_running() -> bool:
    """Return whether this process has started Ray, without importing it."""
    return "ray" in sys.modules and sys.modules["ray"].is_initialized()


def _start(ray: Any, settings: ScaleSettings) -> None:
    """Connect to the Ray cluster of the settings, or start Ray in this machine.

    Args:
        ray: The module `ray`.
        settings: Address and number of CPUs.

    Raises:
        FreshetError: If there is no cluster at the address, or Ray does not start.
    """
    if settings.address:
        options: dict[str, Any] = {}
        place = f"at scale.address {settings.address!r}"
        hint = " (where it asks for a token, set RAY_AUTH_MODE=token here)"
    else:
        options = {"num_cpus": settings.cpus, "include_dashboard": False}
        place = "of its own on this machine"
        hint = ""

    try:
        ray.init(settings.address or "local", logging_level="WARNING", **options)
    except Exception as error:
        # Ray raises errors of many classes if it cannot connect or start, even plain `Exception`.
        raise FreshetError(f"there is no Ray {place}{hint}: {error}") from error


def _require_room(settings: ScaleSettings, resources: dict[str, float]) -> None:
    """Raise FreshetError if a cluster has too few CPUs or GPUs; Ray would wait for them forever.

    Args:
        settings: Number and resources of the workers.
        resources: Number of CPUs and GPUs of the cluster, by name.
    """
    needed = {"CPU": settings.cpus, "GPU": settings.workers * settings.gpus_per_worker}
    for name, count in needed.items():
        available = resources.get(name, 0)
        if available < count:
            spare = ", one of them a spare" if name == "CPU" else ""
            raise FreshetError(
                f"scale asks for {settings.workers} workers, so {count:g} {name}s{spare}, and Ray "
                f"has {available:g}: lower scale.workers, or add machines"
            )
