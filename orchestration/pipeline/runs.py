"""Record the stages of builds as runs in MLflow, and find them again.

Each stage that ran has one run. It is found by the stage key, a hash of code, inputs and settings.
The run of a build is the parent of the runs of its stages.

Opening MLflow takes seconds, so a stage does not wait for it. The stage writes its record to a
folder, the spool. The process that started the build writes the spooled records to MLflow while DVC
continues. After a bare `dvc repro` there is no such process, and the stage writes its record
itself. After a crash, the next build or `freshet ui` writes the remaining records. `mlflow` is
imported only when a store is opened.
"""

from __future__ import annotations

import getpass
import logging
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model_code.files import read_json, replace_folder, write_json
from model_code.project import Project, file_lock, sqlite_url
from model_code.settings import require

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Metric, Param, Run


# Name of the MLflow experiment of the first project in a store. The experiment of any further
# project has this name with the identity of the project.
EXPERIMENT = "freshet"
# Name of the tag with the identity of the project that an experiment, model or version belongs to.
OWNER = "freshet.owner"
# Tag with the kind of experiment, from which MLflow chooses the pages that it shows.
TRAINING = {"mlflow.experimentKind": "custom_model_development"}
# Address of MLflow's page, as `freshet ui` serves it by default.
PAGE = "http://127.0.0.1:5000"
# Name of the environment variable with the address for artifacts, such as s3://bucket/freshet. It
# is used when an experiment is created. An existing experiment keeps its address.
ARTIFACT_ROOT = "FRESHET_MLFLOW_ARTIFACTS"
# Prefix of MLflow's environment variables for its pool of database connections.
POOL = "MLFLOW_SQLALCHEMYSTORE_POOL"

# Names of the tags by which the runs of stages, builds and systems are found.
KEY = "freshet.key"
STAGE = "freshet.stage"
BUILD = "freshet.build"
KIND = "freshet.kind"
SYSTEM = "freshet.system"
COMMIT = "mlflow.source.git.commit"
DIRTY = "freshet.git_dirty"
DAGSTER_RUN = "dagster.run_id"
PARENT = "mlflow.parentRunId"
VERDICT = "freshet.verdict"
VERDICT_REASONS = "freshet.verdict_reasons"
# Names of tags that MLflow defines and shows in columns of its pages.
SOURCE_NAME = "mlflow.source.name"
SOURCE_TYPE = "mlflow.source.type"
USER = "mlflow.user"
NOTE = "mlflow.note.content"
# Text that MLflow shows as the source of every build, the value of the tag `mlflow.source.name`.
SOURCE_COMMAND = "freshet"

# Paths of the inputs that MLflow shows as data sets, with the names that it shows.
DATA_SETS = {"artifacts/corpus": "corpus", "artifacts/pseudo_queries": "queries"}
# Purpose for which a stage uses the data sets, as MLflow shows it.
DATA_PURPOSE = {"train": "training", "evaluate": "evaluation", "baselines": "evaluation"}
# Largest number of characters of a parameter's value. Longer values are cut. MLflow allows more.
MAX_PARAM_LENGTH = 500
# MLflow accepts at most this many characters in a name, a digest and a tag.
MAX_NAME_LENGTH = 250
MAX_DIGEST_LENGTH = 36
MAX_TAG_LENGTH = 5000
# Numbers of parameters and metrics in one request to MLflow, which accepts at most 100 parameters
# and at most 1000 parameters and metrics together.
PARAMS_PER_BATCH = 100
METRICS_PER_BATCH = 900
# Tables and columns of MLflow's database that hold absolute paths of artifacts.
ARTIFACT_PATH_COLUMNS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "storage_location"),
)
# Names of a file and of a folder in an entry of the spool.
RECORD = "record.json"
ARTIFACTS = "artifacts"


@dataclass(frozen=True)
class StageRecord:
    """One stage that ran to its end.

    Attributes:
        stage: Address of the stage, such as `train@hce`.
        key: Stage key: a hash of the command, code, inputs and settings.
        params: Settings of the stage, by dotted keys.
        metrics: Numbers of the stage's report, by dotted keys.
        inputs: Hash of each path that the stage read.
        artifacts: Small files that MLflow keeps.
        curves: Rows with a "step" and values at that step.
        git_commit: The commit that was checked out.
        git_dirty: Whether files differed from the commit.
        dagster_run_id: Id of the Dagster run that the stage was a part of.
        started: Time of the start, in seconds since the epoch.
        ended: Time of the end, in seconds since the epoch.
        build: Name of the build. It begins with its kind: build, retrain, pilot or experiment.
        systems: Metrics of each system that the stage evaluated.
    """

    stage: str
    key: str
    params: Mapping[str, Any]
    metrics: Mapping[str, float]
    inputs: Mapping[str, str]
    artifacts: Sequence[Path]
    curves: Sequence[Mapping[str, Any]]
    git_commit: str | None
    git_dirty: bool
    dagster_run_id: str | None
    started: float
    ended: float
    build: str = ""
    systems: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The kind of build: build, retrain, pilot (a training on a sample) or experiment."""
        return self.build.partition(" ")[0]

    @property
    def name(self) -> str:
        """Name of the stage's run. For a pilot or a retrain it contains the kind of build."""
        if self.kind in ("", "build"):
            return self.stage
        return f"{self.stage} ({self.kind})"


def tracking_uri(project: Project) -> str:
    """Return the address of the MLflow store.

    It is MLFLOW_TRACKING_URI if that is set, and the SQLite file in the project's state folder
    otherwise.
    """
    return os.environ.get("MLFLOW_TRACKING_URI") or _own_uri(project)


def _own_uri(project: Project) -> str:
    """Return the address of the MLflow store in the project's state folder."""
    return sqlite_url(store_folder(project) / "mlflow.db")


def store_folder(project: Project) -> Path:
    """Return the folder of the project's own MLflow store: database, artifacts and locks."""
    return project.state.resolve() / "mlflow"


def run_store(project: Project) -> RunStore:
    """Return the project's store of runs. It is opened once per process and address."""
    return _cached_store(tracking_uri(project), project)


@lru_cache(maxsize=4)
def _cached_store(uri: str, project: Project) -> RunStore:
    """Open the store. The address is an argument only because the cache must depend on it."""
    return RunStore(project)


def find_run(project: Project, key: str) -> str | None:
    """Return the id of the newest finished run with a stage key.

    The stage key is a hash of the command, code, inputs and settings of a stage. None if there is
    no such run, or if tracking is off.
    """
    if not tracking_is_on():
        return None
    return run_store(project).find_run(key)


def run_page(project: Project, run: str) -> str:
    """Return the URL of a run at the tracking server, or at the address of `freshet ui`."""
    return f"{page_address(project)}/#/experiments/{run_store(project).experiment}/runs/{run}"


def page_address(project: Project) -> str:
    """Return the address of MLflow's pages: the tracking server, or the page of `freshet ui`."""
    uri = tracking_uri(project)
    return uri if uri.startswith("http") else PAGE


def runs_page(project: Project) -> str:
    """Return the path of the page with the project's runs. MLflow's first page shows no runs."""
    # In the project's own store the experiment always has the number 1, so the store need not be
    # opened.
    experiment = "1"
    if tracking_uri(project) != _own_uri(project):
        experiment = run_store(project).experiment
    return f"/#/experiments/{experiment}/runs?workflowType=machine_learning"


def tracking_is_on() -> bool:
    """Return whether runs are recorded in MLflow.

    The environment variable `FRESHET_TRACKING=off` switches tracking off. Stages then start sooner,
    and their outputs are the same.

    Raises:
        SettingsError: If the variable has another value than on or off.
    """
    switch = os.environ.get("FRESHET_TRACKING", "on")
    require(switch in ("on", "off"), f"FRESHET_TRACKING is {switch!r}, but must be on or off")
    return switch == "on"


def git_state(root: Path) -> tuple[str | None, bool]:
    """Return the commit that is checked out, and whether files below `root` differ from it.

    Changes of `dvc.lock` are ignored, because every stage that runs rewrites it. Outside a
    repository, or if git is not installed, the result is (None, False).
    """
    commit = _git_output(root, "rev-parse", "--verify", "HEAD")
    if commit is None:
        return None, False
    changes = _git_output(root, "status", "--porcelain", "--", ".", ":!dvc.lock")
    return commit, bool(changes)


def _git_output(root: Path, *arguments: str) -> str | None:
    """Return what git prints, or None if it fails or is not installed."""
    command = ["git", "-C", str(root), *arguments]
    try:
        completed = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    if completed.returncode != 0:
        return None
    return completed.stdout.strip()


class RunStore:
    """The runs of stages in the MLflow experiment of a project."""

    def __init__(self, project: Project) -> None:
        self.client, experiment = open_store(project)
        self.experiment: str = experiment.experiment_id

    def record_stage(self, record: StageRecord) -> str:
        """Record a stage as one run below the run of its build, and return the run's id.

        The run is marked as finished when everything is stored. If a crash left an unfinished run
        of the same stage, this run is deleted first. Each system that the stage evaluated has a
        separate run, so that MLflow's page can sort all systems by one column.
        """
        started_ms = int(record.started * 1000)
        ended_ms = int(record.ended * 1000)
        query = f"tags.`{KEY}` = '{record.key}' and attributes.start_time = {started_ms}"
        for run in self._newest_runs(query):
            if run.info.status == "FINISHED":
                return run.info.run_id
            self.client.delete_run(run.info.run_id)

        build_tags = self._build_tags(record, started_ms)
        tags = _stage_tags(record)
        tags.update(build_tags)
        run = self.client.create_run(self.experiment, started_ms, tags, run_name=record.name)
        run_id = run.info.run_id
        self._log_numbers(run_id, record)
        self._log_inputs(run_id, record)
        for path in record.artifacts:
            self.client.log_artifact(run_id, str(path))

        # The runs of systems are children of the build or, without a build, of the stage.
        parent_tags = build_tags or {PARENT: run_id}
        for system, metrics in record.systems.items():
            self._record_system(system, metrics, record, parent_tags)

        self.client.set_terminated(run_id, "FINISHED", ended_ms)
        if build_tags:
            self.client.set_terminated(build_tags[PARENT], "FINISHED", ended_ms)
        return run_id

    def find_run(self, key: str) -> str | None:
        """Return the newest finished run with a stage key (a hash of all inputs), or None."""
        # The run of a registered version has the same key, but no tag with a stage.
        query = (
            f"tags.`{KEY}` = '{key}' and tags.`{STAGE}` != '' and attributes.status = 'FINISHED'"
        )
        runs = self._newest_runs(query, limit=1)
        return runs[0].info.run_id if runs else None

    def _build_tags(self, record: StageRecord, started_ms: int) -> dict[str, str]:
        """Find or create the run of the build, and return the tags of its children.

        The run of the build is created with the first stage, and shows the results of all stages.
        The tags make the run of a stage a child of it. Without a build there are no tags.
        """
        if not record.build:
            return {}
        build_tags = {
            BUILD: record.build,
            KIND: record.kind,
            SOURCE_NAME: SOURCE_COMMAND,
            SOURCE_TYPE: "LOCAL",
            USER: _user_name(),
        }
        if record.git_commit:
            build_tags[COMMIT] = record.git_commit
        query = f"tags.`{BUILD}` = '{record.build}' and attributes.run_name = '{record.build}'"
        build_run = self._find_or_create_run(query, started_ms, build_tags, record.build)
        build_run_id = build_run.info.run_id
        self._log_inputs(build_run_id, record)
        self._show_on_build(build_run_id, record)
        return {BUILD: record.build, KIND: record.kind, PARENT: build_run_id}

    def _show_on_build(self, run_id: str, record: StageRecord) -> None:
        """Write the stage's changed settings and its systems' metrics to the run of the build."""
        from mlflow.entities import Param

        changed = self._changed_params(record)
        # MLflow refuses another value of a parameter that the run has already.
        known = self.client.get_run(run_id).data.params
        params = []
        for key, value in changed.items():
            name = valid_name(key)
            if name not in known:
                params.append(Param(name, value[:MAX_PARAM_LENGTH]))

        values: dict[str, float] = {}
        for system, metrics in record.systems.items():
            for metric, value in metrics.items():
                values[f"{system}.{metric}"] = value
        points = _metrics(values, (), int(record.ended * 1000))
        self._log_in_batches(run_id, points, params)

    def _changed_params(self, record: StageRecord) -> dict[str, str]:
        """Return the settings that have changed since the last finished run of the stage.

        Returns:
            The old and the new value as one text, by the key of the setting. Empty if the stage
            has no earlier run.
        """
        query = f"tags.`{STAGE}` = '{record.stage}' and attributes.status = 'FINISHED'"
        earlier = self._newest_runs(query, limit=1)
        if not earlier:
            return {}
        before = earlier[0].data.params
        changed = {}
        for key, value in record.params.items():
            text = str(value)[:MAX_PARAM_LENGTH]
            old = before.get(valid_name(key))
            if old is not None and old != text:
                changed[key] = f"{old} -> {text}"
        return changed

    def record_verdict(self, build: str, passed: bool, reasons: str) -> None:
        """Write the gate's verdict to the run of a build. Do nothing if the build has no run.

        The gate is the statistical test that decides whether a challenger is promoted.

        Args:
            build: Name of the build, such as "retrain hce-000001".
            passed: Whether the challenger passed.
            reasons: The gate's reasons in one line.
        """
        query = f"tags.`{BUILD}` = '{build}' and attributes.run_name = '{build}'"
        for run in self._newest_runs(query, limit=1):
            outcome = "passed" if passed else "refused"
            self.client.set_tag(run.info.run_id, VERDICT, outcome)
            self.client.set_tag(run.info.run_id, VERDICT_REASONS, reasons[:MAX_TAG_LENGTH])
            self.client.set_tag(run.info.run_id, NOTE, f"{outcome}: {reasons}"[:MAX_TAG_LENGTH])

    def _record_system(
        self,
        system: str,
        metrics: Mapping[str, float],
        record: StageRecord,
        parent_tags: Mapping[str, str],
    ) -> None:
        """Record the metrics of one evaluated system in a run of its own.

        Args:
            system: Name of the system.
            metrics: Its metrics.
            record: The record of the stage that evaluated it.
            parent_tags: Tags that name the parent run: the build or, without a build, the stage.
        """
        ended_ms = int(record.ended * 1000)
        query = f"tags.`{SYSTEM}` = '{system}' and tags.`{PARENT}` = '{parent_tags[PARENT]}'"
        # The run has the name of the system and, for a pilot or a retrain, the kind of build.
        name = record.name.replace(record.stage, system)
        tags = {SYSTEM: system}
        tags.update(parent_tags)
        run = self._find_or_create_run(query, ended_ms, tags, name)
        self.client.log_batch(run.info.run_id, _metrics(metrics, (), ended_ms))
        self.client.set_terminated(run.info.run_id, "FINISHED", ended_ms)

    def _find_or_create_run(self, query: str, time_ms: int, tags: dict[str, str], name: str) -> Run:
        """Return the newest run that matches an MLflow query; a new run if none matches.

        Args:
            query: The query.
            time_ms: Start of a new run, in milliseconds since the epoch.
            tags: Tags of a new run.
            name: Name of a new run.
        """
        runs = self._newest_runs(query, limit=1)
        if runs:
            return runs[0]
        return self.client.create_run(self.experiment, time_ms, tags, run_name=name)

    def _newest_runs(self, query: str, limit: int = 10) -> list[Run]:
        """Return at most `limit` runs of the project that match an MLflow query, newest first."""
        return self.client.search_runs(
            [self.experiment], query, max_results=limit, order_by=["attributes.start_time DESC"]
        )

    def _log_numbers(self, run_id: str, record: StageRecord) -> None:
        """Write the settings of a stage as parameters of its run, and its numbers as metrics."""
        from mlflow.entities import Param

        params = []
        for key, value in record.params.items():
            params.append(Param(valid_name(key), str(value)[:MAX_PARAM_LENGTH]))
        metrics = _metrics(record.metrics, record.curves, int(record.ended * 1000))
        self._log_in_batches(run_id, metrics, params)

    def _log_in_batches(self, run_id: str, metrics: list[Metric], params: list[Param]) -> None:
        """Write metrics and parameters to a run, in requests that MLflow does not refuse."""
        while metrics or params:
            self.client.log_batch(run_id, metrics[:METRICS_PER_BATCH], params[:PARAMS_PER_BATCH])
            metrics = metrics[METRICS_PER_BATCH:]
            params = params[PARAMS_PER_BATCH:]

    def _log_inputs(self, run_id: str, record: StageRecord) -> None:
        """Log the corpus and the queries as data sets, and all input hashes as `inputs.json`."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        self.client.log_dict(run_id, dict(record.inputs), "inputs.json")

        tags = []
        # The address of a stage is its name or, as in train@hce, its name and a retriever.
        stage_name = record.stage.partition("@")[0]
        purpose = DATA_PURPOSE.get(stage_name)
        if purpose:
            tags.append(InputTag("mlflow.data.context", purpose))
        data_sets = []
        for path, name in DATA_SETS.items():
            if path in record.inputs:
                digest = record.inputs[path][:MAX_DIGEST_LENGTH]
                data_sets.append(DatasetInput(Dataset(name, digest, "local", path), tags))
        if data_sets:
            self.client.log_inputs(run_id, data_sets)


def _user_name() -> str:
    """Return the name of the user of this process; "unknown" if the system has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def record_verdict(project: Project, build: str, passed: bool, reasons: str) -> None:
    """Write the gate's verdict to the run of a build; see `RunStore.record_verdict`.

    Do nothing if tracking is off.
    """
    if tracking_is_on():
        run_store(project).record_verdict(build, passed, reasons)


def _stage_tags(record: StageRecord) -> dict[str, str]:
    """Return the tags by which the run of a stage is found: its key, its stage and its commit."""
    tags = {KEY: record.key, STAGE: record.stage, DIRTY: str(record.git_dirty).lower()}
    if record.git_commit:
        tags[COMMIT] = record.git_commit
    if record.dagster_run_id:
        tags[DAGSTER_RUN] = record.dagster_run_id
    return tags


def _metrics(
    values: Mapping[str, float], curves: Sequence[Mapping[str, Any]], time_ms: int
) -> list[Metric]:
    """Return the points for MLflow: one for each value, and one for each number in the curves.

    Args:
        values: Values by name. Their points have step 0.
        curves: Rows with a "step" and values at that step.
        time_ms: Time of all points, in milliseconds since the epoch.
    """
    from mlflow.entities import Metric

    metrics = []
    for name, value in values.items():
        metrics.append(Metric(valid_name(name), float(value), time_ms, step=0))
    for row in curves:
        step = int(row["step"])
        for name, value in row.items():
            if name != "step" and isinstance(value, (int, float)):
                metrics.append(Metric(valid_name(name), float(value), time_ms, step))
    return metrics


def valid_name(name: str) -> str:
    """Replace the characters of a name that MLflow does not allow.

    >>> valid_name("dev nDCG@10 (all)")
    'dev nDCG_at_10 _all_'
    """
    return re.sub(r"[^\w./: -]", "_", name.replace("@", "_at_"))[:MAX_NAME_LENGTH]


def open_store(project: Project) -> tuple[MlflowClient, Experiment]:
    """Open the project's store, and create the store and the experiment if they are missing.

    A lock ensures that two processes do not create a SQLite store at the same time and damage it.

    Returns:
        A client of the store, and the project's experiment.
    """
    uri = tracking_uri(project)
    folder = store_folder(project)
    is_own = uri == _own_uri(project)
    with file_lock(folder / "open.lock"):
        from mlflow import MlflowClient

        _configure_mlflow(uri)
        artifact_root = os.environ.get(ARTIFACT_ROOT)
        if not artifact_root and is_own:
            artifact_root = (folder / "artifacts").as_uri()
        is_missing = is_own and not (folder / "mlflow.db").exists()
        if is_missing and artifact_root:
            _create_own_store(folder, uri, artifact_root)

        client = MlflowClient(uri, uri)
        experiment = _find_or_create_experiment(client, project, is_own, artifact_root)
        # The project's own store holds absolute paths. They are wrong after the project was moved.
        # An address that a user has chosen is never rewritten.
        is_chosen = ARTIFACT_ROOT in os.environ
        has_moved = experiment.artifact_location != artifact_root
        if artifact_root and has_moved and not is_chosen:
            _rewrite_artifact_paths(folder, experiment.artifact_location, artifact_root)
        return client, experiment


def _configure_mlflow(uri: str) -> None:
    """Set MLflow's log levels and environment variables, which it reads when a store is opened."""
    # The import of mlflow sets log levels that print too much, so they are set again here.
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")

    has_pool_settings = any(name.startswith(POOL) for name in os.environ)
    if uri.startswith("sqlite:") and not has_pool_settings:
        # Without a pool of connections, a long-running process keeps no database file open between
        # two queries.
        os.environ[f"{POOL}CLASS"] = "NullPool"


def _create_own_store(folder: Path, uri: str, artifact_root: str) -> None:
    """Create the project's SQLite store.

    MLflow's client would create the store as well. It would use the working directory as the
    address of artifacts, and quotes in that path would break its SQL.
    """
    has_allowed_path = set("?#%").isdisjoint(str(folder))
    require(
        has_allowed_path,
        f"MLflow loses models below {folder}: move the project to a path without ?, # and %",
    )
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    SqlAlchemyStore(uri, artifact_root)


def _find_or_create_experiment(
    client: MlflowClient, project: Project, is_own_store: bool, artifact_root: str | None
) -> Experiment:
    """Return the project's experiment, and create it if it is missing.

    The registered model has the name of the experiment. The name is `freshet`, or `freshet-` with
    the project's identity if `freshet` belongs to another project of a shared store. A copy of a
    project needs an identity of its own to use a shared store.

    The experiment `freshet` may have no tag with its owner. It then belongs to this project if the
    store is the project's own, or if this project has promoted a version.
    """
    if not is_own_store:
        project.require_own_identity()
    identity = project.identity

    # Find out who owns the experiment `freshet`. A missing one will be this project's.
    experiment = client.get_experiment_by_name(EXPERIMENT)
    owner = experiment.tags.get(OWNER) if experiment else identity
    may_claim = is_own_store or project.promotions.exists()
    if owner is None and may_claim:
        client.set_experiment_tag(experiment.experiment_id, OWNER, identity)
        owner = identity

    name = EXPERIMENT
    if owner != identity:
        name = f"{EXPERIMENT}-{identity}"
        experiment = client.get_experiment_by_name(name)
    if experiment:
        return experiment
    tags = {**TRAINING, OWNER: identity}
    return client.get_experiment(client.create_experiment(name, artifact_root, tags))


def _rewrite_artifact_paths(folder: Path, old: str, new: str) -> None:
    """Correct the artifact paths in a store that was moved or copied with its project.

    Args:
        folder: Folder of the store, with the SQLite database.
        old: Address of the artifacts before, with which the stored paths begin.
        new: Address of the artifacts now.
    """
    with closing(sqlite3.connect(folder / "mlflow.db")) as database, database:
        for table, column in ARTIFACT_PATH_COLUMNS:
            statement = (
                f"UPDATE {table} SET {column} = ? || substr({column}, ?) "
                f"WHERE substr({column}, 1, ?) = ?"
            )
            # SQL counts characters from 1, so the rest of a path begins at this character.
            rest_start = len(old) + 1
            database.execute(statement, (new, rest_start, len(old), old))


def spool_record(project: Project, record: StageRecord) -> None:
    """Write a record with copies of its files to the spool, in one atomic step.

    The spool is a folder of stages that ran and are not recorded in MLflow yet. A stage writes its
    record there, because opening MLflow takes seconds. Do nothing if tracking is off.
    """
    if not tracking_is_on():
        return
    staging = project.state / "staging" / f"{record.stage}.record"
    shutil.rmtree(staging, ignore_errors=True)
    (staging / ARTIFACTS).mkdir(parents=True)

    names = []
    for path in record.artifacts:
        shutil.copyfile(path, staging / ARTIFACTS / path.name)
        names.append(path.name)
    write_json(staging / RECORD, asdict(replace(record, artifacts=names)))

    # The name of an entry begins with the start in microseconds, so entries sort by their start.
    started_us = round(record.started * 1e6)
    replace_folder(staging, project.state / "spool" / f"{started_us:020d}.{record.stage}")


def record_all(project: Project) -> None:
    """Record the stages in the spool in MLflow, in the order in which they started.

    The spool is a folder of stages that ran and are not recorded yet. Nothing is recorded if
    tracking is off. A record is deleted from the spool only when its run is complete, and recording
    it twice gives one run. A crash therefore neither loses nor duplicates a run.
    """
    if not tracking_is_on() or not _spool_entries(project):
        return
    with file_lock(project.state / "spool.lock"):
        for entry in _spool_entries(project):
            record = StageRecord(**read_json(entry / RECORD))
            artifacts = [entry / ARTIFACTS / name for name in record.artifacts]
            run_store(project).record_stage(replace(record, artifacts=artifacts))
            # A folder without `record.json` is not an entry. This file is deleted first, so a crash
            # between the two deletions is harmless.
            (entry / RECORD).unlink()
            shutil.rmtree(entry)


def _spool_entries(project: Project) -> list[Path]:
    """Return the folders of the records that wait to be written to MLflow, oldest first."""
    return sorted(path.parent for path in project.state.glob(f"spool/*/{RECORD}"))


def try_record_all(project: Project) -> bool:
    """Record the stages that are not in MLflow yet, and return whether that worked.

    Every error is printed and not raised, because a store that cannot be reached must not end a
    build. The records stay in the spool, a folder, and the outputs of the stages are not affected.
    """
    try:
        record_all(project)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        print(
            f"not recorded in MLflow yet ({type(error).__name__}: "
            f"{reason}); the next build records it",
            file=sys.stderr,
        )
        return False
    return True
