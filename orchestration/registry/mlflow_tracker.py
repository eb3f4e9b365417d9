"""The tracker on MLflow: one run per stage that ran, found again by the stage's key.

`mlflow` takes seconds to import, so it is imported when a store is opened and not before.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from orchestration import quiet  # noqa: F401  telemetry is switched off before mlflow is imported
from orchestration.file_lock import file_lock
from orchestration.registry.stage_record import StageRecord

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run

EXPERIMENT = "freshet"
ARTIFACTS = "FRESHET_MLFLOW_ARTIFACTS"
KEY, STAGE, COMMIT, DIRTY, DAGSTER_RUN = (
    "freshet.key", "freshet.stage", "mlflow.source.git.commit", "freshet.git_dirty", "dagster.run_id",
)  # fmt: skip
LONGEST_PARAM, LONGEST_NAME, LONGEST_DIGEST = 500, 250, 36  # characters: the first is ours, the others are MLflow's
PARAMS_PER_BATCH, METRICS_PER_BATCH = 100, 900  # MLflow takes 100 params, 1000 metrics and 1000 of both


class MlflowTracker:
    """A `Tracker` on an MLflow store; runs lie in the experiment "freshet"."""

    def __init__(self, uri: str, folder: Path) -> None:
        self.client, self.experiment = open_store(uri, folder)

    def record_stage(self, record: StageRecord) -> str:
        """Keep `record` as one run; it counts as finished only once everything is stored.

        A run that a crash left unfinished is deleted, and made again.
        """
        started = int(record.started * 1000)
        for run in self._newest_runs(f"tags.`{KEY}` = '{record.key}' and attributes.start_time = {started}"):
            if run.info.status == "FINISHED":
                return run.info.run_id
            self.client.delete_run(run.info.run_id)
        tags = {KEY: record.key, STAGE: record.stage, DIRTY: str(record.git_dirty).lower()}
        optional = {COMMIT: record.git_commit, DAGSTER_RUN: record.dagster_run_id}
        tags |= {name: value for name, value in optional.items() if value}
        run = self.client.create_run(self.experiment, started, tags, run_name=record.stage)
        run_id = run.info.run_id
        self._log_numbers(run_id, record)
        self._log_inputs(run_id, record.inputs)
        for path in record.artifacts:
            self.client.log_artifact(run_id, str(path))
        self.client.set_terminated(run_id, "FINISHED", int(record.ended * 1000))
        return run_id

    def find_run(self, key: str) -> str | None:
        """The newest finished run tagged with the stage key `key`, or None."""
        runs = self._newest_runs(f"tags.`{KEY}` = '{key}' and attributes.status = 'FINISHED'", at_most=1)
        return runs[0].info.run_id if runs else None

    def _newest_runs(self, wanted: str, at_most: int = 10) -> list[Run]:
        order = ["attributes.start_time DESC"]
        return self.client.search_runs([self.experiment], wanted, max_results=at_most, order_by=order)

    def _log_numbers(self, run_id: str, record: StageRecord) -> None:
        from mlflow.entities import Param

        params = [Param(valid_name(k), str(v)[:LONGEST_PARAM]) for k, v in record.params.items()]
        metrics = _metrics(record)
        self.client.log_batch(run_id, metrics[:METRICS_PER_BATCH], params[:PARAMS_PER_BATCH])
        for start in range(PARAMS_PER_BATCH, len(params), PARAMS_PER_BATCH):
            self.client.log_batch(run_id, params=params[start : start + PARAMS_PER_BATCH])
        for start in range(METRICS_PER_BATCH, len(metrics), METRICS_PER_BATCH):
            self.client.log_batch(run_id, metrics[start : start + METRICS_PER_BATCH])

    def _log_inputs(self, run_id: str, inputs: Mapping[str, str]) -> None:
        from mlflow.entities import Dataset, DatasetInput

        datasets = [Dataset(name, digest[:LONGEST_DIGEST], "local", name) for name, digest in inputs.items()]
        if datasets:
            self.client.log_inputs(run_id, [DatasetInput(dataset) for dataset in datasets])


def _metrics(record: StageRecord) -> list[Metric]:
    from mlflow.entities import Metric

    when = int(record.ended * 1000)
    single = [Metric(valid_name(name), float(value), when, 0) for name, value in record.metrics.items()]
    points = [
        Metric(valid_name(name), float(value), when, int(row["step"]))
        for row in record.curves
        for name, value in row.items()
        if name != "step" and isinstance(value, (int, float))
    ]
    return single + points


def valid_name(name: str) -> str:
    """`name` in the characters that MLflow allows.

    >>> valid_name("dev nDCG@10 (all)")
    'dev nDCG_at_10 _all_'
    """
    return re.sub(r"[^\w./: -]", "_", name.replace("@", "_at_"))[:LONGEST_NAME]


def open_store(uri: str, folder: Path) -> tuple[MlflowClient, str]:
    """A client of the store at `uri`, and the id of the experiment; both are made if they are missing.

    Two processes that initialise a SQLite store at once would break it, so one waits for the other.
    """
    with file_lock(folder / "open.lock"):
        from mlflow import MlflowClient

        for noisy in ("mlflow", "alembic"):  # importing mlflow sets its own levels
            logging.getLogger(noisy).setLevel(logging.ERROR)
        os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        client = MlflowClient(uri, uri)
        experiment = client.get_experiment_by_name(EXPERIMENT)
        if experiment is not None:
            return client, experiment.experiment_id
        return client, client.create_experiment(EXPERIMENT, _artifact_root(uri, folder))


def _artifact_root(uri: str, folder: Path) -> str | None:
    """The environment's `FRESHET_MLFLOW_ARTIFACTS`, else beside our own database; None: as another store has it.

    Such as `s3://bucket/freshet`: any place that MLflow writes to. It is fixed once the experiment exists.
    """
    own = (folder / "artifacts").as_uri() if uri == f"sqlite:///{folder / 'mlflow.db'}" else None
    return os.environ.get(ARTIFACTS) or own
