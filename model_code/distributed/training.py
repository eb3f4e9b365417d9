"""Training in several processes of Ray Train, which share the batches of each step.

Every process runs the same code as a local training.
"""

from __future__ import annotations

import contextlib
import socket
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from model_code.context import StageContext
from model_code.distributed import engine
from model_code.distributed.engine import ScaleSettings
from model_code.errors import FreshetError
from model_code.progress import no_progress

Work = Callable[[StageContext], dict[str, Any]]
# Number of times that a group of processes is restarted after one of them died. The training then
# resumes from the last checkpoint.
MAX_RESTARTS = 3


def train(work: Work, context: StageContext, batches: int) -> dict[str, Any]:
    """Run `work(context)` in this process, or in every process of a group of Ray Train.

    All processes must see the same folders. Only the output of the first process is kept.

    Args:
        work: A function that trains with accelerate.
        context: Context of the stage.
        batches: Number of batches of a step. The processes share the batches evenly; see
            `processes` for the number of processes.

    Returns:
        The report of the first process.

    Raises:
        FreshetError: If `work` raises one.
    """
    settings = engine.current()
    if settings.engine == "local":
        return work(context)
    process_count = processes(settings.workers, batches)
    return _train_on_ray(work, context, process_count, settings)


def processes(workers: int, batches: int) -> int:
    """Return the number of processes that can share the batches of a step evenly.

    It is the largest number up to `workers` that divides `batches`.

    >>> [processes(workers, 4) for workers in (1, 3, 8)]
    [1, 2, 4]
    """
    return max(count for count in range(1, workers + 1) if batches % count == 0)


def _train_on_ray(
    work: Work, context: StageContext, process_count: int, settings: ScaleSettings
) -> dict[str, Any]:
    """Run `work(context)` in a group of Ray Train, and return the report of the first process."""
    # This call comes before the imports, because it reports a missing Ray as FreshetError.
    engine.ray()
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    resources = {"CPU": settings.cpus_per_worker, "GPU": settings.gpus_per_worker}
    trainer = TorchTrainer(
        _process,
        train_loop_config={"work": work, "context": context, "folder": Path.cwd()},
        scaling_config=ScalingConfig(
            num_workers=process_count,
            use_gpu=settings.gpus_per_worker > 0,
            resources_per_worker=resources,
        ),
        run_config=RunConfig(
            storage_path=str(context.checkpoints.resolve() / "ray"),
            failure_config=FailureConfig(max_failures=MAX_RESTARTS),
        ),
    )
    report = trainer.fit().return_value
    if isinstance(report, FreshetError):
        raise report
    return report


def _process(config: dict[str, Any]) -> dict[str, Any] | FreshetError:
    """Run the work in one process of a group.

    Errors that the user can fix are returned instead of raised, because Ray would restart the group
    after a raised error. Workers start in another folder than the caller. So the process changes to
    the caller's folder, which relative paths refer to.
    """
    # A process of Ray runs this function, so the import cannot fail.
    import ray.train

    work = config["work"]
    context = config["context"]
    folder = config["folder"]
    group = ray.train.get_context()
    if not folder.is_dir():
        missing = FreshetError(
            f"the project lies in {folder}, which is not there on {socket.gethostname()}: "
            "mount it there on every machine of the cluster"
        )
        if group.get_world_size() > 1:
            # If this process returned the error, the other processes would wait for it forever. A
            # raised error ends all of them.
            raise missing
        return missing

    try:
        with contextlib.chdir(folder):
            if group.get_world_rank() == 0:
                return work(context)
            with tempfile.TemporaryDirectory() as scratch:
                discarded = replace(
                    context, output=Path(scratch), progress=lambda label: no_progress
                )
                return work(discarded)
    except FreshetError as error:
        return error
