"""Which engine is in use, and the Ray that it needs: imported and started only once some work is
for it.

Its settings are the group `scale` of `params.yaml`. No stage declares them: results stay as they
are.
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

# default: 15
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_worker_niceness": "0",
}


class ScaleSettings(Settings):
    """Where the work runs that outgrows one process.

    >>> ScaleSettings(engine="ray", workers=4).cpus
    5
    """

    engine: Literal["local", "ray"] = Field(
        "local",
        description="Where encoding, clustering and training run. local: this process. ray: workers of a Ray "
        "cluster, which needs the extra `scale`.",
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
        description="Address of the Ray cluster, such as auto on one of its machines. null: each stage starts "
        "its own Ray.",
    )

    def check(self) -> None:
        """Refuse what only Ray can do without Ray."""
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            unused = self.engine == "ray" or value == field.default
            require(
                unused,
                f"{name} is {value}, but engine local is this process alone; set scale.engine: ray",
            )

    @property
    def cpus(self) -> int:
        """CPUs that Ray must have: those of the workers and a spare one, without which Ray Data
        hangs.
        """
        return self.workers * self.cpus_per_worker + 1

    @property
    def device(self) -> str:
        """What a worker computes on."""
        return "cuda" if self.gpus_per_worker else "cpu"


LOCAL = ScaleSettings()  # this process alone
_CURRENT: ContextVar[ScaleSettings] = ContextVar("scale", default=LOCAL)


def current() -> ScaleSettings:
    """The settings in use: those of the innermost `using`, otherwise this process alone."""
    return _CURRENT.get()


@contextmanager
def using(settings: ScaleSettings) -> Iterator[None]:
    """Work runs as `settings` say until the block ends, and so does a Ray that was started for it.

    FreshetError if they ask for Ray and it is not installed.
    """
    if settings.engine == "ray" and importlib.util.find_spec("ray") is None:
        raise FreshetError("scale.engine is ray, which is not installed: pip install -e '.[scale]'")
    before, token = _running(), _CURRENT.set(settings)
    try:
        yield
    finally:
        _CURRENT.reset(token)
        if _running() and not before:
            sys.modules["ray"].shutdown()


def ray() -> Any:
    """The module `ray`, connected; in the process that uses it, to one with room for the settings
    in use.

    Its usage statistics are off, and its workers no nicer than others. FreshetError if it cannot be
    reached, or is too small.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import ray

    if current().engine == "ray":
        if not ray.is_initialized():
            _start(ray, current())
        _require_room(current(), ray.cluster_resources())
    return ray


def _running() -> bool:
    return "ray" in sys.modules and sys.modules["ray"].is_initialized()


def _start(ray: Any, settings: ScaleSettings) -> None:
    sizes = {} if settings.address else {"num_cpus": settings.cpus, "include_dashboard": False}
    try:
        ray.init(settings.address or "local", logging_level="WARNING", **sizes)
    except Exception as error:  # Ray has no error of its own for it: some are plain exceptions
        where = (
            f"at scale.address {settings.address!r}"
            if settings.address
            else "of its own on this machine"
        )
        hint = (
            " (where it asks for a token, set RAY_AUTH_MODE=token here)" if settings.address else ""
        )
        raise FreshetError(f"there is no Ray {where}{hint}: {error}") from error


def _require_room(settings: ScaleSettings, resources: dict[str, float]) -> None:
    needed = {"CPU": settings.cpus, "GPU": settings.workers * settings.gpus_per_worker}
    for name, count in needed.items():
        if resources.get(name, 0) < count:
            spare = ", one of them a spare" if name == "CPU" else ""
            raise FreshetError(
                f"scale asks for {settings.workers} workers, so {count:g} {name}s{spare}, and Ray has "
                f"{resources.get(name, 0):g}: lower scale.workers, or add machines"
            )
