"""The versions of the registered model in MLflow, and which of them is challenger, champion, and
the champion before.

`challenger` and `champion` are aliases. A version that becomes champion remembers in the tag
`replaced` whom it replaced: the champion before is read from there, so that one write moves the
champion and says whom to go back to. The model's own tag `champion` is the last one that Freshet
made champion: an alias elsewhere was moved by a person. `mlflow` is imported as late as by
`orchestration.pipeline.runs`, here and in `build`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from model_code.collection.ledger.events import Position
from model_code.errors import FreshetError
from model_code.evaluation.promotion import Verdict
from model_code.evaluation.scores import SystemScores, load_gate_scores
from model_code.files import read_json
from model_code.project import Project, file_lock
from model_code.settings import require
from orchestration.pipeline.runs import (
    KEY,
    OWNER,
    PARENT,
    STAGE,
    open_store,
    store_folder,
    tracking_uri,
    valid_name,
)
from orchestration.registry.built_retriever import ARTIFACT, BuiltRetriever, log_retriever

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, LoggedModel
    from mlflow.entities.model_registry import ModelVersion, RegisteredModel

ABOUT = "Retrievers of this project. `champion` is what is searched by default; moving it is a promotion."
# how a logged model's address begins, and what MLflow takes as a tag
LOGGED, LONGEST_TAG = "models:/", 5000
RUN_NAME = "register@"  # how the name of a run begins that a version was registered from
REGISTRY_LOCK = "registry.lock"  # held by who reads or changes the registry, as long as that takes
CHALLENGER, CHAMPION, PREVIOUS, RECORDED_CHAMPION = (
    "challenger",
    "champion",
    "previous",
    "recorded champion",
)
ROLES = (CHAMPION, CHALLENGER, PREVIOUS, RECORDED_CHAMPION)
RETRIEVER, FINGERPRINT, CORPUS, REPLACED = "retriever", "fingerprint", "corpus", "replaced"
GATE = "gate"  # the tag that says in words what the gate found
TEXT, EVENT, MARK, LOG = "text", "watermark", "watermark_mark", "log"


@dataclass(frozen=True)
class Version:
    """A registered version: its number, retriever, key of the build, fingerprint of the encoder,
    and MLflow run.

    corpus: hash of the documents, queries and qrels that it was built and scored on. text: by which
    rules it cut documents into passages, as JSON; empty for a version of before they were kept.
    snapshot: the position in the log of the documents that it was trained on. project: the identity
    of who registered it; empty for a version of before that was kept, which counts as one's own.
    """

    version: str
    retriever: str
    key: str
    fingerprint: str
    corpus: str
    run_id: str
    text: str = ""
    snapshot: Position = Position()
    project: str = ""

    def __str__(self) -> str:
        return f"version {self.version} ({self.retriever})"

    @classmethod
    def read(cls, registered: ModelVersion) -> Version:
        """The version as its tags describe it."""
        tags = registered.tags
        event = int(tags.get(EVENT, 0))
        snapshot = Position(tags.get(LOG, ""), event, tags.get(MARK, "")) if event else Position()
        named = (tags[RETRIEVER], tags[KEY], tags[FINGERPRINT], tags[CORPUS], registered.run_id)
        return cls(
            str(registered.version), *named, tags.get(TEXT, ""), snapshot, tags.get(OWNER, "")
        )

    def is_foreign(self, project: Project) -> bool:
        """Whether another project registered it, so that its documents are of there."""
        return self.project not in ("", project.identity)

    def is_same(self, other: Version | None) -> bool:
        """Whether both are the same registered version, whatever was noted on it meanwhile."""
        return other is not None and other.version == self.version


class Registry:
    """A project's versions in MLflow's model registry: those of the model that is called as its
    experiment.
    """

    def __init__(self, client: MlflowClient, experiment: Experiment, owner: str) -> None:
        self.client, self.owner = client, owner
        self.experiment: str = experiment.experiment_id
        self.model: str = experiment.name

    def list_versions(self) -> list[Version]:
        """All of them, oldest first."""
        registered = self.client.search_model_versions(f"name='{self.model}'")
        return sorted(map(Version.read, registered), key=lambda version: int(version.version))

    def version_with_alias(self, role: str) -> Version | None:
        """Who has one of the `ROLES`, or None; recorded champion is whom `set_champion` was last
        called with.
        """
        model, alias = self._registered(), role if role == CHALLENGER else CHAMPION
        number = model and (model.tags if role == RECORDED_CHAMPION else model.aliases).get(alias)
        if number and role == PREVIOUS:
            number = self.client.get_model_version(self.model, number).tags.get(REPLACED)
        return next(
            (version for version in self.list_versions() if version.version == str(number)), None
        )

    def remove_challenger(self, version: Version | None = None) -> None:
        """Take the alias from the challenger; version: unless it is another one than this."""
        challenger = self.version_with_alias(CHALLENGER)
        if challenger is not None and (version is None or challenger.is_same(version)):
            self.client.delete_registered_model_alias(self.model, CHALLENGER)

    def set_champion(self, version: Version) -> None:
        """Make a version champion; `record_predecessor` says beforehand whom it replaces."""
        self.client.set_registered_model_alias(self.model, CHAMPION, version.version)
        self.client.set_registered_model_tag(self.model, CHAMPION, version.version)

    def record_predecessor(self, version: Version, champion: Version | None) -> None:
        """Note on a version that is about to become champion whom a rollback of it goes back to."""
        self.client.set_model_version_tag(
            self.model, version.version, REPLACED, champion.version if champion else ""
        )

    def record_verdict(self, version: Version, verdict: Verdict) -> None:
        """Say on the version's page what the gate found of it."""
        words = f"{'passed' if verdict.passed else 'refused'}: {'; '.join(verdict.reasons)}"[
            :LONGEST_TAG
        ]
        self.client.set_model_version_tag(self.model, version.version, GATE, words)
        self._describe(version, words)

    def _describe(self, version: Version, gate: str) -> None:
        """The version's card: what it is, its metrics, what the gate found, and its run."""
        metrics = self.client.get_run(version.run_id).data.metrics
        names = sorted({name.partition(".")[2] for name in metrics})
        rows = [
            f"| {name} | {metrics.get(f'dev.{name}', '')} | {metrics.get(f'test.{name}', '')} |"
            for name in names
        ]
        run = f"#/experiments/{self.experiment}/runs/{version.run_id}"
        card = [
            f"**{version.retriever}**: encoder, index, hierarchy and documents of the build `{version.key[:12]}`, "
            f"as [its run]({run}) registered them. Give it texts in the column `query`; each gets its best documents.",
            f"**Gate** {gate}",
            "\n".join(["| metric | dev | test |", "|---|---|---|", *rows]),
        ]
        self.client.update_model_version(self.model, version.version, "\n\n".join(card))

    def register(self, build: BuiltRetriever) -> Version:
        """Register a build with a copy of its files; one with the same retriever and key is there
        already.
        """
        identity = {
            RETRIEVER: build.retriever,
            KEY: build.key,
            FINGERPRINT: read_json(build.index / "manifest.json")["fingerprint"],
            CORPUS: build.corpus,
        }
        number = self._find(identity) or self._create(identity, build)
        # one that is there already gets today's: its documents are the same
        facts = {TEXT: build.text, OWNER: self.owner}
        if build.snapshot.log and build.snapshot.event:
            facts |= {
                EVENT: str(build.snapshot.event),
                MARK: build.snapshot.mark,
                LOG: build.snapshot.log,
            }
        for name, value in facts.items():
            self.client.set_model_version_tag(self.model, number, name, value)
        return Version.read(self.client.get_model_version(self.model, number))

    def find_runs(self, query: str) -> list[str]:
        """The ids of the project's runs that are as `query` says in MLflow's words."""
        return [run.info.run_id for run in self.client.search_runs([self.experiment], query)]

    def models_of_runs(self, runs: Sequence[str]) -> list[LoggedModel]:
        """What was logged as a model in one of these runs."""
        return [
            model
            for model in self.client.search_logged_models([self.experiment])
            if model.source_run_id in runs
        ]

    def _find(self, identity: dict[str, str]) -> str | None:
        for registered in self.client.search_model_versions(f"name='{self.model}'"):
            if (
                identity.items() <= registered.tags.items()
                and registered.tags.get(OWNER, self.owner) == self.owner
            ):
                return str(registered.version)
        return None

    def _create(self, identity: dict[str, str], build: BuiltRetriever) -> str:
        import mlflow

        name = f"{RUN_NAME}{build.retriever}"
        tags = identity | self._above(build.key)
        with mlflow.start_run(experiment_id=self.experiment, run_name=name, tags=tags) as run:
            for part in ("metrics.json", "scores.parquet"):
                self.client.log_artifact(
                    run.info.run_id, str(build.evaluation / part), "evaluation"
                )
            metrics = _metrics(build.evaluation)
            mlflow.log_metrics(metrics)
            model = log_retriever(build)
            if model.startswith(LOGGED):
                mlflow.log_metrics(metrics, model_id=model.removeprefix(LOGGED))
        if self._registered() is None:
            self.client.create_registered_model(self.model, {OWNER: self.owner}, ABOUT)
        created = self.client.create_model_version(self.model, model, run.info.run_id, identity)
        self._describe(Version.read(created), "has not judged it yet")
        return str(created.version)

    def _above(self, key: str) -> dict[str, str]:
        """The tag that puts a registration below the run of the build that evaluated the retriever,
        if it has one.
        """
        evaluated = f"tags.`{KEY}` = '{key}' and tags.`{STAGE}` != ''"
        for run in self.client.search_runs([self.experiment], evaluated, max_results=1):
            return {PARENT: run.data.tags[PARENT]} if PARENT in run.data.tags else {}
        return {}

    def _registered(self) -> RegisteredModel | None:
        """The model with its aliases and tags; None without versions, of which MLflow's other
        questions are errors.
        """
        return next(iter(self.client.search_registered_models(f"name='{self.model}'")), None)


@contextmanager
def open_registry(project: Project) -> Iterator[Registry]:
    """The project's registry, while no other process changes it."""
    uri, folder = tracking_uri(project), store_folder(project)
    with file_lock(folder / REGISTRY_LOCK):
        registry = Registry(*open_store(project), project.identity)
        import mlflow

        # for the functions that take no client: start_run, log_model, download_artifacts
        mlflow.set_tracking_uri(uri)
        mlflow.set_registry_uri(uri)
        yield registry


def require_own_version(project: Project, version: Version) -> None:
    """FreshetError if another project registered the version."""
    require(
        not version.is_foreign(project),
        f"{version} is of the project {version.project}, and this is {project.identity}: register a retriever of this "
        f"one (`freshet register`); if both are the same, write {version.project} into {project.state / 'identity'}",
    )


def register(project: Project, build: BuiltRetriever) -> Version:
    """Register a finished build as challenger; one with the same retriever and key is there
    already, and not copied.

    The build of the champion itself is no challenger: after registering it there is none.
    """
    with open_registry(project) as registry:
        version = registry.register(build)
        if version.is_same(registry.version_with_alias(CHAMPION)):
            registry.remove_challenger()
        else:
            registry.client.set_registered_model_alias(registry.model, CHALLENGER, version.version)
        return version


def version_with_alias(project: Project, role: str = CHAMPION) -> Version | None:
    """The version that is `champion`, `challenger` or `previous` (the champion before), or None."""
    with open_registry(project) as registry:
        return registry.version_with_alias(role)


def list_versions(project: Project) -> list[Version]:
    """All registered versions, oldest first."""
    with open_registry(project) as registry:
        return registry.list_versions()


def load_scores(project: Project, version: Version) -> SystemScores:
    """The version's scores on the queries of the gate, as they were when it was registered."""
    with open_registry(project) as registry, tempfile.TemporaryDirectory() as folder:
        return load_gate_scores(
            Path(registry.client.download_artifacts(version.run_id, "evaluation", folder))
        )


def download_files(project: Project, version: Version) -> Path:
    """A local folder with the version's `encoder/`, `index/`, `hierarchy/` and `documents.parquet`,
    to be read only.
    """
    with open_registry(project) as registry:
        from mlflow.artifacts import download_artifacts

        return (
            Path(download_artifacts(f"models:/{registry.model}/{version.version}"))
            / "artifacts"
            / ARTIFACT
        )


def delete_version(project: Project, version: Version) -> None:
    """Delete a version with its run and files; raises `FreshetError` if it is champion, challenger
    or previous.
    """
    with open_registry(project) as registry:
        role = next(
            (role for role in ROLES if version.is_same(registry.version_with_alias(role))), None
        )
        if role is not None:
            raise FreshetError(f"{version} is {role}: it cannot be deleted")
        registry.client.delete_model_version(registry.model, version.version)
    if not version.is_foreign(project):
        delete_runs(project, [version.run_id])


def delete_runs(project: Project, runs: Sequence[str]) -> None:
    """Delete runs, with their models and files."""
    folders = run_folders(project, runs)
    with open_registry(project) as registry:
        for model in registry.models_of_runs(runs):
            registry.client.delete_logged_model(model.model_id)
        for run in runs:
            registry.client.delete_run(run)
    for folder in folders:
        shutil.rmtree(folder)


def run_folders(project: Project, runs: Sequence[str]) -> list[Path]:
    """The folders of runs and of their models that are there, in the project's own store."""
    with open_registry(project) as registry:
        places = [registry.client.get_run(run).info.artifact_uri for run in runs]
        places += [model.artifact_location for model in registry.models_of_runs(runs)]
    folders = [Path(unquote(place.removeprefix("file://"))).parent for place in places]
    return [
        folder
        for folder in folders
        if folder.is_relative_to(store_folder(project)) and folder.is_dir()
    ]


def _metrics(evaluation: Path) -> dict[str, float]:
    splits = {
        split: rows
        for split, rows in read_json(evaluation / "metrics.json").items()
        if isinstance(rows, dict)
    }
    flat = {
        f"{split}.{metric}": value
        for split, rows in splits.items()
        for metric, value in rows.items()
    }
    return {
        valid_name(name): value for name, value in flat.items() if isinstance(value, (int, float))
    }
