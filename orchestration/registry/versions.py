"""The versions of the registered model in MLflow, and the aliases `challenger` and `champion`.

The tag `replaced` of a champion names the version that it replaced, which a rollback makes champion
again. The tag is written before the alias moves, so the previous champion is always known. The
registered model itself has a tag `champion` with the last version that Freshet made champion. If
the alias `champion` is on another version, a person moved it.

`mlflow` is imported inside functions, here and in `built_retriever`, because it takes seconds to
import and most commands do not need it. The functions that read scores import pandas and scipy for
the same reason.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote

from model_code.collection.ledger.events import Position
from model_code.errors import FreshetError
from model_code.files import read_json
from model_code.project import Project, file_lock
from model_code.settings import require
from orchestration.pipeline.runs import (
    KEY,
    OWNER,
    PARENT,
    STAGE,
    open_store,
    page_address,
    store_folder,
    tracking_uri,
    valid_name,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, LoggedModel, Run
    from mlflow.entities.model_registry import ModelVersion, RegisteredModel
    from mlflow.store.entities import PagedList

    from model_code.evaluation.promotion import Verdict
    from model_code.evaluation.scores import SystemScores
    from orchestration.registry.built_retriever import BuiltRetriever

T = TypeVar("T")

MODEL_DESCRIPTION = (
    "The retrievers of this project. The version with the alias `champion` is searched by default. "
    "Moving the alias promotes a version."
)
# Beginning of the address of a model that was logged in a run.
LOGGED_MODEL_PREFIX = "models:/"
# MLflow's limit on the length of a tag. Longer values are cut.
MAX_TAG_CHARACTERS = 5000
# Prefix of the names of MLflow runs that register a version.
RUN_NAME = "register@"
# Name of a lock file in the store. The lock is held while the registry is read or changed.
REGISTRY_LOCK = "registry.lock"

# Roles of a version. `champion` and `challenger` are aliases in MLflow. `previous` is the version
# that the champion replaced. `recorded champion` is the version that `set_champion` was last called
# with; it differs from the champion if a person moved the alias.
CHAMPION = "champion"
CHALLENGER = "challenger"
PREVIOUS = "previous"
RECORDED_CHAMPION = "recorded champion"
ROLES = (CHAMPION, CHALLENGER, PREVIOUS, RECORDED_CHAMPION)

# Tags of a version, in which its retriever, encoder, corpus and the like are recorded.
RETRIEVER = "retriever"
FINGERPRINT = "fingerprint"
CORPUS = "corpus"
REPLACED = "replaced"
GATE_TAG = "gate"
SHADOW_TAG = "shadow"
TEXT_RULES = "text"
EVENT = "watermark"
EVENT_MARK = "watermark_mark"
LEDGER_ID = "log"


@dataclass(frozen=True)
class Version:
    """A registered version.

    Attributes:
        version: Number of the version in MLflow.
        retriever: Name of the retriever.
        key: Stage key, a hash of code, settings and inputs, of the stage that evaluated it.
        fingerprint: Fingerprint of the encoder, which identifies its weights and settings.
        corpus: Hash of the documents, queries and qrels that it was built and scored on.
        run_id: Id of the MLflow run that registered it.
        text: The rules by which documents were cut into passages, as JSON (see `TextRules`). Empty
            if the registration was interrupted.
        snapshot: Ledger position up to which changes are in the documents that it was trained on.
        project: Identity of the project that registered it. It is empty if the registration was
            interrupted. The version then counts as one of this project.
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
    def from_registered(cls, registered: ModelVersion) -> Version:
        """Read a version from its tags in MLflow."""
        tags = registered.tags
        snapshot = Position()
        event = int(tags.get(EVENT, 0))
        if event:
            snapshot = Position(tags.get(LEDGER_ID, ""), event, tags.get(EVENT_MARK, ""))

        return cls(
            version=str(registered.version),
            retriever=tags[RETRIEVER],
            key=tags[KEY],
            fingerprint=tags[FINGERPRINT],
            corpus=tags[CORPUS],
            run_id=registered.run_id,
            text=tags.get(TEXT_RULES, ""),
            snapshot=snapshot,
            project=tags.get(OWNER, ""),
        )

    def is_foreign(self, project: Project) -> bool:
        """Return whether another project registered the version.

        Several projects can share a registry. The documents of such a version are not this
        project's documents.
        """
        return self.project not in ("", project.identity)

    def is_same(self, other: Version | None) -> bool:
        """Return whether `other` is the same registered version, even if its tags were changed."""
        return other is not None and other.version == self.version


class Registry:
    """The versions of a project in MLflow's model registry.

    The registered model has the name of the project's experiment. Use `open_registry`.
    """

    def __init__(self, client: MlflowClient, experiment: Experiment, owner: str) -> None:
        self.client = client
        self.owner = owner
        self.experiment: str = experiment.experiment_id
        self.model: str = experiment.name

    def list_versions(self) -> list[Version]:
        """Return all versions, oldest first."""
        registered = self.client.search_model_versions(f"name='{self.model}'")
        versions = [Version.from_registered(version) for version in registered]
        return sorted(versions, key=lambda version: int(version.version))

    def version_with_alias(self, role: str) -> Version | None:
        """Return the version that has one of the `ROLES`, or None."""
        number = self._number_with_role(role)
        if not number:
            return None
        for version in self.list_versions():
            if version.version == number:
                return version
        return None

    def _number_with_role(self, role: str) -> str | None:
        """Return the number of the version that has one of the `ROLES`.

        Two roles are aliases of the model in MLflow, and one is a tag of the model. The previous
        champion is named by a tag of the champion.
        """
        model = self._registered_model()
        if model is None:
            return None
        if role == RECORDED_CHAMPION:
            return model.tags.get(CHAMPION)
        if role == CHALLENGER:
            return _as_text(model.aliases.get(CHALLENGER))

        champion = _as_text(model.aliases.get(CHAMPION))
        if role == CHAMPION or champion is None:
            return champion
        # The remaining role is the previous champion: the version that the champion replaced.
        return self.client.get_model_version(self.model, champion).tags.get(REPLACED)

    def set_challenger(self, version: Version) -> None:
        """Move the alias `challenger` to a version."""
        self.client.set_registered_model_alias(self.model, CHALLENGER, version.version)

    def remove_challenger(self, version: Version | None = None) -> None:
        """Remove the alias `challenger`, so that no version asks to be promoted.

        The version itself stays.

        Args:
            version: Remove the alias only if it is on this version. None: always.
        """
        challenger = self.version_with_alias(CHALLENGER)
        if challenger is None:
            return
        if version is None or challenger.is_same(version):
            self.client.delete_registered_model_alias(self.model, CHALLENGER)

    def remove_champion(self) -> None:
        """Remove the alias `champion`, so that no version is champion."""
        self.client.delete_registered_model_alias(self.model, CHAMPION)

    def set_champion(self, version: Version) -> None:
        """Make a version champion, which is searched by default.

        The alias moves, and a tag of the model records the move. If a person moves the alias in
        MLflow, the two differ. Call `record_predecessor` before, so that a rollback finds the
        version that was replaced.
        """
        self.client.set_registered_model_alias(self.model, CHAMPION, version.version)
        self.client.set_registered_model_tag(self.model, CHAMPION, version.version)

    def record_predecessor(self, version: Version, champion: Version | None) -> None:
        """Record on a version that is about to become champion which version it replaces."""
        # MLflow has no tags without a value, so an empty text stands for no predecessor.
        predecessor = champion.version if champion else ""
        self.client.set_model_version_tag(self.model, version.version, REPLACED, predecessor)

    def record_verdict(self, version: Version, verdict: Verdict) -> None:
        """Write the gate's verdict to the version's tags and to its page in MLflow."""
        outcome = "passed" if verdict.passed else "refused"
        text = f"{outcome}: {'; '.join(verdict.statements)}"[:MAX_TAG_CHARACTERS]
        self.client.set_model_version_tag(self.model, version.version, GATE_TAG, text)
        self._describe(version, text)

    def register(self, build: BuiltRetriever) -> Version:
        """Register a build with a copy of its files, and return the version.

        If a version has the same retriever, key, fingerprint and corpus, no new version is made.
        The passage rules and the ledger position of this version are updated to those of the build.
        """
        identity = {
            RETRIEVER: build.retriever,
            KEY: build.key,
            FINGERPRINT: read_json(build.index / "manifest.json")["fingerprint"],
            CORPUS: build.corpus,
        }
        number = self._find_version(identity)
        if number is None:
            number = self._create_version(identity, build)

        tags = {TEXT_RULES: build.text, OWNER: self.owner}
        # A build from another source than the ledger has no ledger position.
        if build.snapshot.log and build.snapshot.event:
            tags[EVENT] = str(build.snapshot.event)
            tags[EVENT_MARK] = build.snapshot.mark
            tags[LEDGER_ID] = build.snapshot.log
        for name, value in tags.items():
            self.client.set_model_version_tag(self.model, number, name, value)

        return Version.from_registered(self.client.get_model_version(self.model, number))

    def find_runs(self, query: str) -> list[str]:
        """Return the ids of the project's runs that match a search query of MLflow."""

        def search(token: str | None) -> PagedList[Run]:
            return self.client.search_runs([self.experiment], query, page_token=token)

        return [run.info.run_id for run in _all_pages(search)]

    def models_of_runs(self, run_ids: Sequence[str]) -> list[LoggedModel]:
        """Return the models that were logged in these runs."""

        def search(token: str | None) -> PagedList[LoggedModel]:
            return self.client.search_logged_models([self.experiment], page_token=token)

        return [model for model in _all_pages(search) if model.source_run_id in run_ids]

    def _find_version(self, identity: dict[str, str]) -> str | None:
        """Return the number of this project's version that has these tags, or None."""
        for registered in self.client.search_model_versions(f"name='{self.model}'"):
            has_identity = identity.items() <= registered.tags.items()
            is_own = registered.tags.get(OWNER, self.owner) == self.owner
            if has_identity and is_own:
                return str(registered.version)
        return None

    def _create_version(self, identity: dict[str, str], build: BuiltRetriever) -> str:
        """Log the build as a model in an MLflow run of its own, and register it.

        Returns:
            The number of the new version.
        """
        import mlflow

        from orchestration.registry import built_retriever

        tags = dict(identity)
        parent = self._parent_run(build.key)
        if parent is not None:
            tags[PARENT] = parent

        name = f"{RUN_NAME}{build.retriever}"
        with mlflow.start_run(experiment_id=self.experiment, run_name=name, tags=tags) as run:
            run_id = run.info.run_id
            for file_name in ("metrics.json", "scores.parquet"):
                self.client.log_artifact(run_id, str(build.evaluation / file_name), "evaluation")
            metrics = _read_metrics(build.evaluation)
            mlflow.log_metrics(metrics)
            model_uri = built_retriever.log_retriever(build)
            # MLflow shows metrics on the page of the model only if they name the model.
            if model_uri.startswith(LOGGED_MODEL_PREFIX):
                model_id = model_uri.removeprefix(LOGGED_MODEL_PREFIX)
                mlflow.log_metrics(metrics, model_id=model_id)

        if self._registered_model() is None:
            self.client.create_registered_model(self.model, {OWNER: self.owner}, MODEL_DESCRIPTION)
        created = self.client.create_model_version(self.model, model_uri, run_id, identity)
        self._describe(Version.from_registered(created), "has not judged it yet")
        return str(created.version)

    def _parent_run(self, key: str) -> str | None:
        """Return the id of the MLflow run of the build that evaluated the retriever.

        The run of the registration becomes a child of this run. None if the build was not tracked.
        """
        query = f"tags.`{KEY}` = '{key}' and tags.`{STAGE}` != ''"
        for run in self.client.search_runs([self.experiment], query, max_results=1):
            return run.data.tags.get(PARENT)
        return None

    def _describe(self, version: Version, gate: str) -> None:
        """Write the version's page in MLflow: what it is, the gate's verdict, and its metrics."""
        run_link = f"#/experiments/{self.experiment}/runs/{version.run_id}"
        introduction = (
            f"**{version.retriever}**: encoder, index, hierarchy and documents of the build "
            f"`{version.key[:12]}`, registered by [this run]({run_link}). "
            "The input is a table with texts in the column `query`; "
            "the output has the best documents for each text."
        )

        # Metrics have names such as dev.nDCG_at_10, because MLflow refuses an @. The table has a
        # row per metric.
        metrics = self.client.get_run(version.run_id).data.metrics
        table = ["| metric | dev | test |", "|---|---|---|"]
        for name in sorted({name.partition(".")[2] for name in metrics}):
            cells = [name.replace("_at_", "@")]
            for split in ("dev", "test"):
                key = f"{split}.{name}"
                cell = f"{metrics[key]:.4g}" if key in metrics else ""
                cells.append(cell)
            table.append(f"| {' | '.join(cells)} |")

        page = "\n\n".join([introduction, f"**Gate** {gate}", "\n".join(table)])
        self.client.update_model_version(self.model, version.version, page)

    def _registered_model(self) -> RegisteredModel | None:
        """Return the model with its aliases and tags; None if it has no versions.

        The model is searched for, because MLflow's other queries raise an error if it is missing.
        """
        found = self.client.search_registered_models(f"name='{self.model}'")
        return found[0] if found else None


@contextmanager
def open_registry(project: Project) -> Iterator[Registry]:
    """Open the project's registry, and keep other processes from using it until it is closed."""
    uri = tracking_uri(project)
    with file_lock(store_folder(project) / REGISTRY_LOCK):
        client, experiment = open_store(project)
        registry = Registry(client, experiment, project.identity)

        import mlflow

        # `start_run`, `log_model` and `download_artifacts` take no client. They use these global
        # addresses instead.
        mlflow.set_tracking_uri(uri)
        mlflow.set_registry_uri(uri)
        yield registry


def require_own_version(project: Project, version: Version) -> None:
    """Raise an error if another project registered the version.

    Raises:
        FreshetError: If another project registered it. The message says what to do.
    """
    require(
        not version.is_foreign(project),
        f"{version} belongs to the project {version.project}, and this is {project.identity}: "
        "register a retriever of this project (`freshet register`); "
        f"if both are the same project, write {version.project} into {project.state / 'identity'}",
    )


def register(project: Project, build: BuiltRetriever) -> Version:
    """Register a finished build, and make it challenger, the version that asks to be promoted.

    A build that is registered already is not copied again. If it is the champion, the alias
    `challenger` is removed instead, because a champion does not challenge itself.
    """
    with open_registry(project) as registry:
        version = registry.register(build)
        if version.is_same(registry.version_with_alias(CHAMPION)):
            registry.remove_challenger()
        else:
            registry.set_challenger(version)
        return version


def version_with_alias(project: Project, role: str = CHAMPION) -> Version | None:
    """Return the version that has one of the `ROLES`, or None."""
    with open_registry(project) as registry:
        return registry.version_with_alias(role)


def list_versions(project: Project) -> list[Version]:
    """Return all registered versions, oldest first."""
    with open_registry(project) as registry:
        return registry.list_versions()


def version_page(project: Project, version: Version) -> str:
    """Return the URL of a version at the tracking server, or at the address of `freshet ui`."""
    with open_registry(project) as registry:
        return f"{page_address(project)}/#/models/{registry.model}/versions/{version.version}"


def load_scores(project: Project, version: Version) -> SystemScores:
    """Load the scores on the gate's queries that were saved when the version was registered."""
    from model_code.evaluation.scores import load_gate_scores

    with open_registry(project) as registry, tempfile.TemporaryDirectory() as folder:
        evaluation = registry.client.download_artifacts(version.run_id, "evaluation", folder)
        return load_gate_scores(Path(evaluation))


def download_files(project: Project, version: Version) -> Path:
    """Return a local folder with the version's files.

    The files must not be changed, because they may be the registry's own copy.

    Returns:
        A folder with `encoder/`, `index/`, `hierarchy/`, `documents.parquet` and the known queries.
    """
    with open_registry(project) as registry:
        from mlflow.artifacts import download_artifacts

        from orchestration.registry.built_retriever import ARTIFACT

        model = download_artifacts(f"models:/{registry.model}/{version.version}")
        return Path(model) / "artifacts" / ARTIFACT


def delete_version(project: Project, version: Version) -> None:
    """Delete a version with its run and files.

    If another project registered the version, its run and files are kept.

    Raises:
        FreshetError: If the version has one of the `ROLES`.
    """
    with open_registry(project) as registry:
        for role in ROLES:
            if version.is_same(registry.version_with_alias(role)):
                raise FreshetError(f"{version} is {role}: it cannot be deleted")
        registry.client.delete_model_version(registry.model, version.version)

    if not version.is_foreign(project):
        delete_runs(project, [version.run_id])


def delete_runs(project: Project, run_ids: Sequence[str]) -> None:
    """Delete MLflow runs with their logged models and files."""
    # The folders are looked up first, because MLflow does not know the files of deleted runs.
    folders = run_folders(project, run_ids)
    with open_registry(project) as registry:
        for model in registry.models_of_runs(run_ids):
            registry.client.delete_logged_model(model.model_id)
        for run_id in run_ids:
            registry.client.delete_run(run_id)
    for folder in folders:
        shutil.rmtree(folder)


def run_folders(project: Project, run_ids: Sequence[str]) -> list[Path]:
    """Return the existing folders of runs and of their logged models in the project's store."""
    with open_registry(project) as registry:
        uris = [registry.client.get_run(run_id).info.artifact_uri for run_id in run_ids]
        uris.extend(model.artifact_location for model in registry.models_of_runs(run_ids))

    store = store_folder(project)
    folders = []
    for uri in uris:
        folder = Path(unquote(uri.removeprefix("file://"))).parent
        # Files on a server, or in the store of another project, are not deleted.
        if folder.is_relative_to(store) and folder.is_dir():
            folders.append(folder)
    return folders


def _all_pages(search: Callable[[str | None], PagedList[T]]) -> Iterator[T]:
    """Yield the results of all pages of a search. MLflow returns 100 models or 1,000 runs a page.

    Args:
        search: Function that returns a page, given the token of the page, which is None for the
            first one.
    """
    token: str | None = None
    while True:
        page = search(token)
        yield from page
        token = page.token
        if not token:
            return


def _read_metrics(evaluation: Path) -> dict[str, float]:
    """Read the numbers of `metrics.json`, by flat names such as `test.nDCG@10`."""
    metrics = {}
    for split, rows in read_json(evaluation / "metrics.json").items():
        if not isinstance(rows, dict):
            continue
        for name, value in rows.items():
            if isinstance(value, (int, float)):
                metrics[valid_name(f"{split}.{name}")] = value
    return metrics


def _as_text(number: str | int | None) -> str | None:
    """Return the number of a version as text."""
    # MLflow returns the numbers of aliases as text or as integers, depending on the store.
    return None if number is None else str(number)
