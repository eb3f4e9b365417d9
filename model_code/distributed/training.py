"""Training by several processes that share each step's batches: Ray Train's, running what runs here
otherwise.
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
RESTARTS = 3  # of a group of which a process died; each goes on from the last checkpoint


def train(work: Work, context: StageContext, batches: int) -> dict[str, Any]:
    """`work(context)`, here or in every process of a group of Ray Train's; its report is the first
    one's.

    batches: of a step, which the processes share evenly: they are the largest divisor of it that
    `scale.workers` allows. All of them see the same folders; what others than the first write to
    the output is thrown away.
    """
    settings = engine.current()
    if settings.engine == "local":
        return work(context)
    return _on_ray(work, context, processes(settings.workers, batches), settings)


def processes(workers: int, batches: int) -> int:
    """The largest number up to `workers` that divides `batches`.

    >>> [processes(workers, 4) for workers in (1, 3, 8)]
    [1, 2, 4]
    """
    return max(count for count in range(1, workers + 1) if batches % count == 0)


def _on_ray(
    work: Work, context: StageContext, count: int, settings: ScaleSettings
) -> dict[str, Any]:
    engine.ray()
    # an extra, which `engine.ray` asks for
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    resources = {"CPU": settings.cpus_per_worker, "GPU": settings.gpus_per_worker}
    trainer = TorchTrainer(
        _process,
        train_loop_config={"work": work, "context": context, "folder": Path.cwd()},
        scaling_config=ScalingConfig(
            num_workers=count, use_gpu=settings.gpus_per_worker > 0, resources_per_worker=resources
        ),
        run_config=RunConfig(
            storage_path=str(context.checkpoints.resolve() / "ray"),
            failure_config=FailureConfig(max_failures=RESTARTS),
        ),
    )
    report = trainer.fit().return_value
    if isinstance(report, FreshetError):
        raise report
    return report


def _process(config: dict[str, Any]) -> dict[str, Any] | FreshetError:
    """What the user can mend is returned, not raised: the group would be started anew for it.

    It works in the folder of the process that asked, from where paths count; workers of a cluster
    start elsewhere.
    """
    import ray.train  # which is there: Ray calls this

    work, context, folder = config["work"], config["context"], config["folder"]
    group = ray.train.get_context()
    if not folder.is_dir():
        where = f"{folder}, which is not there on {socket.gethostname()}"
        missing = FreshetError(
            f"the project lies in {where}: mount it there on every machine of the cluster"
        )
        if group.get_world_size() > 1:
            raise missing  # what is returned ends one process, for which the others would wait
        return missing
    try:
        with contextlib.chdir(folder):
            if group.get_world_rank() == 0:
                return work(context)
            with tempfile.TemporaryDirectory() as scratch:
                return work(
                    replace(context, output=Path(scratch), progress=lambda label: no_progress)
                )
    except FreshetError as error:
        return error
