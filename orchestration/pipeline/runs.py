"""Runs of MLflow: one for each stage that ran, found again by the stage's key, below one for its
build.

A stage spools what is to be remembered of it, as opening MLflow takes seconds. Whoever drives the
build records what is spooled while DVC runs on; a stage that nobody follows (a bare `dvc repro`)
does it itself. After a crash it waits for the next build or `freshet ui`. `mlflow` is imported when
a store is opened and not before.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
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
    from mlflow.entities import Experiment, Metric, Run


# of the one project that has a store, or came first; others' end with their identity
EXPERIMENT = "freshet"
OWNER = "freshet.owner"  # the tag that names whose experiment, model or version it is
TRAINING = {"mlflow.experimentKind": "custom_model_development"}  # what MLflow takes it for
PAGE = "http://127.0.0.1:5000"
# such as s3://bucket/freshet; fixed once the experiment exists
ARTIFACT_ROOT = "FRESHET_MLFLOW_ARTIFACTS"
# how the names of MLflow's variables for its connections begin
POOL = "MLFLOW_SQLALCHEMYSTORE_POOL"
KEY, STAGE, COMMIT, DIRTY, DAGSTER_RUN = (
    "freshet.key",
    "freshet.stage",
    "mlflow.source.git.commit",
    "freshet.git_dirty",
    "dagster.run_id",
)
BUILD, KIND, SYSTEM, PARENT = (
    "freshet.build",
    "freshet.kind",
    "freshet.system",
    "mlflow.parentRunId",
)
# what MLflow calls data sets
DATA = {"artifacts/corpus": "corpus", "artifacts/pseudo_queries": "queries"}
# of the data, by stage
PURPOSE = {"train": "training", "evaluate": "evaluation", "baselines": "evaluation"}
# characters: the first is ours, the others are MLflow's
LONGEST_PARAM, LONGEST_NAME, LONGEST_DIGEST = 500, 250, 36
# MLflow takes 100 params, 1000 metrics and 1000 of both
PARAMS_PER_BATCH, METRICS_PER_BATCH = 100, 900
PLACES = (  # where MLflow's tables name artifacts in full
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "storage_location"),
)
RECORD, ARTIFACTS = "record.json", "artifacts"  # in the spool


@dataclass(frozen=True)
class StageRecord:
    """One stage that ran to its end.

    `stage` is its address, such as `train@hce`; `key` identifies it by command, inputs and
    settings; `inputs` maps each path it read to a hash (the lineage); `artifacts` are small files
    to keep; each row of `curves` holds a "step" and values at that step; `started` and `ended` are
    seconds since the epoch. `build` names what the stage is a part of, beginning with its kind:
    build, retrain, pilot or experiment. `systems` are the metrics of what it evaluated.
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
        """Build, retrain, pilot or experiment."""
        return self.build.partition(" ")[0]

    @property
    def name(self) -> str:
        """The stage, as its run is called: a pilot's or a retrain's is not taken for the build's."""
        return self.stage if self.kind in ("", "build") else f"{self.stage} ({self.kind})"


def tracking_uri(project: Project) -> str:
    """MLFLOW_TRACKING_URI, or else the SQLite file in the project's state folder."""
    return os.environ.get("MLFLOW_TRACKING_URI") or _own_uri(project)


def _own_uri(project: Project) -> str:
    return sqlite_url(store_folder(project) / "mlflow.db")


def store_folder(project: Project) -> Path:
    """The folder of the project's own MLflow store: database, artifacts and locks."""
    return project.state.resolve() / "mlflow"


@lru_cache(maxsize=4)
def _store(uri: str, project: Project) -> RunStore:
    return RunStore(project)


def run_store(project: Project) -> RunStore:
    """The project's store of runs; one per process and address, as opening it takes seconds."""
    return _store(tracking_uri(project), project)


def find_run(project: Project, key: str) -> str | None:
    """The newest finished run of a stage key; None without one, and where runs are not recorded."""
    return run_store(project).find_run(key) if tracking_is_on() else None


def run_page(project: Project, run: str) -> str:
    """Where a browser finds a run: at the tracking server, or at MLflow's page as `freshet ui`
    opens it by itself.
    """
    uri = tracking_uri(project)
    return f"{uri if uri.startswith('http') else PAGE}/#/experiments/{run_store(project).experiment}/runs/{run}"


def runs_page(project: Project) -> str:
    """Where MLflow's page shows the project's runs, as its own first page is of traces."""
    alone = tracking_uri(project) == _own_uri(project)  # then MLflow need not be opened for it
    return f"/#/experiments/{1 if alone else run_store(project).experiment}/runs?workflowType=machine_learning"


def tracking_is_on() -> bool:
    """Whether runs are recorded: unless `FRESHET_TRACKING=off`, with which each stage starts sooner
    and is built alike.

    FreshetError for another value than on or off.
    """
    switch = os.environ.get("FRESHET_TRACKING", "on")
    require(switch in ("on", "off"), f"FRESHET_TRACKING is {switch!r}, but must be on or off")
    return switch == "on"


def git_state(root: Path) -> tuple[str | None, bool]:
    """The commit that is checked out, and whether files below `root` differ from it; (None, False)
    outside of git, or where git is not installed.

    `dvc.lock` does not count: each stage that runs rewrites it.
    """

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(root), *arguments], capture_output=True, text=True
            )
        except FileNotFoundError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "--verify", "HEAD")
    return commit, bool(commit and git("status", "--porcelain", "--", ".", ":!dvc.lock"))


class RunStore:
    """The store that stages which ran are recorded in, and found again; runs lie in the project's
    experiment.
    """

    def __init__(self, project: Project) -> None:
        self.client, experiment = open_store(project)
        self.experiment: str = experiment.experiment_id

    def record_stage(self, record: StageRecord) -> str:
        """Keep `record` as one run below its build's; it counts as finished only once everything is
        stored.

        A run that a crash left unfinished is deleted, and made again. Each system that the stage
        evaluated has a run of its own, so that one column of the page sorts them all.
        """
        started = int(record.started * 1000)
        for run in self._newest_runs(
            f"tags.`{KEY}` = '{record.key}' and attributes.start_time = {started}"
        ):
            if run.info.status == "FINISHED":
                return run.info.run_id
            self.client.delete_run(run.info.run_id)
        tags = {KEY: record.key, STAGE: record.stage, DIRTY: str(record.git_dirty).lower()}
        optional = {COMMIT: record.git_commit, DAGSTER_RUN: record.dagster_run_id}
        tags |= {name: value for name, value in optional.items() if value}
        above = self._build_run(record, started)
        run = self.client.create_run(self.experiment, started, tags | above, run_name=record.name)
        run_id = run.info.run_id
        self._log_numbers(run_id, record)
        self._log_inputs(run_id, record)
        for path in record.artifacts:
            self.client.log_artifact(run_id, str(path))
        for system, metrics in record.systems.items():
            self._record_system(system, metrics, record, above or {PARENT: run_id})
        self.client.set_terminated(run_id, "FINISHED", int(record.ended * 1000))
        if above:
            self.client.set_terminated(above[PARENT], "FINISHED", int(record.ended * 1000))
        return run_id

    def _build_run(self, record: StageRecord, started: int) -> dict[str, str]:
        """The tags that put a run below the one of its build, which the build's first stage makes;
        none without one.
        """
        if not record.build:
            return {}
        tags = {BUILD: record.build, KIND: record.kind}
        same = f"tags.`{BUILD}` = '{record.build}' and attributes.run_name = '{record.build}'"
        runs = self._newest_runs(same, at_most=1)
        run = (
            runs[0]
            if runs
            else self.client.create_run(self.experiment, started, tags, run_name=record.build)
        )
        return {**tags, PARENT: run.info.run_id}

    def _record_system(
        self,
        system: str,
        metrics: Mapping[str, float],
        record: StageRecord,
        above: Mapping[str, str],
    ) -> None:
        when, tags = int(record.ended * 1000), {SYSTEM: system, **above}
        same = f"tags.`{SYSTEM}` = '{system}' and tags.`{PARENT}` = '{above[PARENT]}'"
        runs = self._newest_runs(same, at_most=1)
        name = record.name.replace(record.stage, system)
        run = (
            runs[0] if runs else self.client.create_run(self.experiment, when, tags, run_name=name)
        )
        self.client.log_batch(run.info.run_id, _metrics(metrics, (), when))
        self.client.set_terminated(run.info.run_id, "FINISHED", when)

    def find_run(self, key: str) -> str | None:
        """The newest finished run tagged with the stage key `key`, or None."""
        finished = (
            f"tags.`{KEY}` = '{key}' and tags.`{STAGE}` != '' and attributes.status = 'FINISHED'"
        )
        # a registered version has the key, too, and no stage
        runs = self._newest_runs(finished, at_most=1)
        return runs[0].info.run_id if runs else None

    def _newest_runs(self, query: str, at_most: int = 10) -> list[Run]:
        order = ["attributes.start_time DESC"]
        return self.client.search_runs(
            [self.experiment], query, max_results=at_most, order_by=order
        )

    def _log_numbers(self, run_id: str, record: StageRecord) -> None:
        from mlflow.entities import Param

        params = [Param(valid_name(k), str(v)[:LONGEST_PARAM]) for k, v in record.params.items()]
        metrics = _metrics(record.metrics, record.curves, int(record.ended * 1000))
        while metrics or params:
            self.client.log_batch(run_id, metrics[:METRICS_PER_BATCH], params[:PARAMS_PER_BATCH])
            metrics, params = metrics[METRICS_PER_BATCH:], params[PARAMS_PER_BATCH:]

    def _log_inputs(self, run_id: str, record: StageRecord) -> None:
        """Log corpus and queries as data sets, and the hash of every file that the stage read as
        `inputs.json`.
        """
        from mlflow.entities import Dataset, DatasetInput, InputTag

        self.client.log_dict(run_id, dict(record.inputs), "inputs.json")
        purpose = PURPOSE.get(record.stage.partition("@")[0])
        tags = [InputTag("mlflow.data.context", purpose)] if purpose else []
        data = [
            DatasetInput(Dataset(name, record.inputs[path][:LONGEST_DIGEST], "local", path), tags)
            for path, name in DATA.items()
            if path in record.inputs
        ]
        if data:
            self.client.log_inputs(run_id, data)


def _metrics(
    values: Mapping[str, float], curves: Sequence[Mapping[str, Any]], when: int
) -> list[Metric]:
    from mlflow.entities import Metric

    single = [Metric(valid_name(name), float(value), when, 0) for name, value in values.items()]
    points = [
        Metric(valid_name(name), float(value), when, int(row["step"]))
        for row in curves
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


def open_store(project: Project) -> tuple[MlflowClient, Experiment]:
    """A client of the project's store, and its experiment; both are made if they are missing.

    Two processes that initialise a SQLite store at once would break it, so one waits for the other.
    """
    uri, folder = tracking_uri(project), store_folder(project)
    with file_lock(folder / "open.lock"):
        from mlflow import MlflowClient

        for noisy in ("mlflow", "alembic"):  # importing mlflow sets its own levels
            logging.getLogger(noisy).setLevel(logging.ERROR)
        os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        if uri.startswith("sqlite:") and not any(name.startswith(POOL) for name in os.environ):
            os.environ[f"{POOL}CLASS"] = "NullPool"  # no file stays open between looks of a daemon
        is_own = uri == _own_uri(project)
        place = os.environ.get(ARTIFACT_ROOT) or (
            (folder / "artifacts").as_uri() if is_own else None
        )
        if place and is_own and not (folder / "mlflow.db").exists():
            sound = set("?#%").isdisjoint(str(folder))
            require(
                sound,
                f"MLflow loses models below {folder}: move the project to where no ?, # or % is in the path",
            )
            from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

            # the client's own would name the working directory, whose quotes break its SQL
            SqlAlchemyStore(uri, place)
        client = MlflowClient(uri, uri)
        experiment = _experiment(client, project, uri, place)
        if ARTIFACT_ROOT not in os.environ and place and experiment.artifact_location != place:
            _follow_move(folder, experiment.artifact_location, place)
        return client, experiment


def _experiment(client: MlflowClient, project: Project, uri: str, place: str | None) -> Experiment:
    """The project's experiment, whose name the registered model has, too: `freshet`, unless it is
    another project's.

    One that an older version made names no project: it is this one's if the store is, or if this
    one has promoted. In a store that several share, a copy is not taken for its original.
    """
    if uri != _own_uri(project):
        project.require_own_identity()
    identity, experiment = project.identity, client.get_experiment_by_name(EXPERIMENT)
    owner = experiment.tags.get(OWNER) if experiment else identity
    if owner is None and (uri == _own_uri(project) or project.promotions.exists()):
        client.set_experiment_tag(experiment.experiment_id, OWNER, identity)
        owner = identity
    name = EXPERIMENT if owner == identity else f"{EXPERIMENT}-{identity}"
    experiment = client.get_experiment_by_name(name)
    return experiment or client.get_experiment(
        client.create_experiment(name, place, {**TRAINING, OWNER: identity})
    )


def _follow_move(folder: Path, old: str, new: str) -> None:
    """Have a store that was moved or copied with its project name the artifacts that came along, in
    place of others.
    """
    with closing(sqlite3.connect(folder / "mlflow.db")) as database, database:
        for table, column in PLACES:
            where = f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE substr({column}, 1, ?) = ?"
            database.execute(where, (new, len(old) + 1, len(old), old))


def spool_record(project: Project, record: StageRecord) -> None:
    """Spool `record`, whole or not at all, with copies of its small files; nothing if tracking is
    off.
    """
    if not tracking_is_on():
        return
    aside = project.state / "staging" / f"{record.stage}.record"
    shutil.rmtree(aside, ignore_errors=True)
    (aside / ARTIFACTS).mkdir(parents=True)
    for path in record.artifacts:
        shutil.copyfile(path, aside / ARTIFACTS / path.name)
    write_json(
        aside / RECORD, asdict(replace(record, artifacts=[path.name for path in record.artifacts]))
    )
    replace_folder(
        aside, project.state / "spool" / f"{round(record.started * 1e6):020d}.{record.stage}"
    )


def record_all(project: Project) -> None:
    """Record every spooled stage in the order in which they started; nothing if there is none, or
    tracking is off.

    A record leaves the spool once its run is whole, and the same record twice is one run: a crash
    loses and doubles nothing.
    """
    if not tracking_is_on() or not any(_spooled(project)):
        return
    with file_lock(project.state / "spool.lock"):
        for entry in sorted(_spooled(project)):
            record = StageRecord(**read_json(entry / RECORD))
            artifacts = [entry / ARTIFACTS / name for name in record.artifacts]
            run_store(project).record_stage(replace(record, artifacts=artifacts))
            (entry / RECORD).unlink()  # first, as a folder without it is no entry
            shutil.rmtree(entry)


def _spooled(project: Project) -> Iterator[Path]:
    return (path.parent for path in project.state.glob(f"spool/*/{RECORD}"))


def try_record_all(project: Project) -> bool:
    """`record_all`, but if that fails say so and return False: a store that is away must not end a
    build.

    Whatever the tracking server, its database or the disk has against it: the records stay, and so
    do the outputs.
    """
    try:
        record_all(project)
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        print(
            f"not recorded in MLflow yet ({type(error).__name__}: {first}); the next build does it",
            file=sys.stderr,
        )
        return False
    return True
