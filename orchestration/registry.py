"""MLflow's model registry: a retriever is registered as challenger, a gate makes it champion, a rollback undoes it.

The aliases `challenger`, `champion` and `previous` of the registered model "freshet" say who is who. A version that
becomes champion remembers in the tag `replaced` whom it replaced, so rollbacks go back one champion at a time.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from model_code.errors import FreshetError
from model_code.evaluation.promotion import Verdict
from model_code.evaluation.scores import SystemScores, load_scores
from model_code.files import read_json
from orchestration import promotion_history
from orchestration.file_lock import file_lock
from orchestration.gate import Gate
from orchestration.mlflow_tracker import KEY, open_store, valid_name
from orchestration.project import Project
from orchestration.registered_model import ARTIFACT, Build, log_retriever
from orchestration.tracking import store_folder, tracking_uri

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

MODEL = "freshet"
CHALLENGER, CHAMPION, PREVIOUS = "challenger", "champion", "previous"
RETRIEVER, FINGERPRINT, CORPUS, REPLACED = "retriever", "fingerprint", "corpus", "replaced"


@dataclass(frozen=True)
class Version:
    """A registered version: its number, retriever, key of the build, fingerprint of the encoder, and MLflow run.

    corpus: hash of the documents, queries and qrels that it was built and scored on.
    """

    version: str
    retriever: str
    key: str
    fingerprint: str
    corpus: str
    run_id: str


@dataclass(frozen=True)
class Move:
    """What a promotion or rollback came to: the champion now, whether that was the wish, and one line to show."""

    champion: Version | None
    passed: bool
    summary: str


def register(project: Project, build: Build) -> Version:
    """Register a finished build as challenger; one with the same retriever and key is there already, and not copied.

    The build of the champion itself is no challenger: after registering it there is none.
    """
    fingerprint = read_json(build.index / "manifest.json")["fingerprint"]
    tags = {RETRIEVER: build.retriever, KEY: build.key, FINGERPRINT: fingerprint, CORPUS: build.corpus}
    with _registry(project) as (client, experiment):
        version = _find(client, tags) or _create(client, experiment, tags, build)
        _set_alias(client, CHALLENGER, None if version == _holder(client, CHAMPION) else version.version)
        return version


def promote(project: Project, gate: Gate) -> Move:
    """Make the challenger champion if the gate passes it on the test queries; each verdict is a line of the history."""
    with _registry(project) as (client, _):
        challenger, champion = _holder(client, CHALLENGER), _holder(client, CHAMPION)
        if champion is not None and challenger in (None, champion):
            return Move(champion, True, _already(champion))
        challenger = _required(challenger)
        found = _judge(client, challenger, champion, gate)
        old, why = champion and champion.version, "; ".join(found.reasons)
        action = "promote" if found.passed else "refuse"
        promotion_history.append(project, action, old, challenger.version, found.as_dict())
        if not found.passed:
            return Move(champion, False, f"{_spoken(challenger)} stays challenger: {why}")
        client.set_model_version_tag(MODEL, challenger.version, REPLACED, old or "")
        _set_champion(client, challenger.version, old)
        _set_alias(client, CHALLENGER, None)
        return Move(challenger, True, f"{_spoken(challenger)} is the champion: {why}")


def verdict(project: Project, gate: Gate) -> Verdict:
    """What `promote` would decide now; nothing is moved."""
    with _registry(project) as (client, _):
        challenger, champion = _holder(client, CHALLENGER), _holder(client, CHAMPION)
        if champion is not None and challenger in (None, champion):
            return Verdict(True, (_already(champion),), queries=0, source="none", intervals=())
        return _judge(client, _required(challenger), champion, gate)


def refuse(project: Project, found: Verdict) -> None:
    """Write what `verdict` found against the challenger into the history; `promote` does so itself."""
    with _registry(project) as (client, _):
        challenger, champion = _required(_holder(client, CHALLENGER)), _holder(client, CHAMPION)
        promotion_history.append(project, "refuse", champion and champion.version, challenger.version, found.as_dict())


def _required(challenger: Version | None) -> Version:
    if challenger is None:
        raise FreshetError("there is no challenger: register a built retriever first (`freshet register`)")
    return challenger


def _judge(client: MlflowClient, challenger: Version, champion: Version | None, gate: Gate) -> Verdict:
    before = _comparable_scores(client, champion, challenger, gate) if champion else None
    return gate.verdict(_scores(client, challenger), before)


def rollback(project: Project) -> Move:
    """Make the champion's predecessor champion again; raises `FreshetError` if it has none."""
    with _registry(project) as (client, _):
        champion, previous = _holder(client, CHAMPION), _holder(client, PREVIOUS)
        if champion is None or previous is None:
            raise FreshetError("there is no previous champion to go back to; `freshet status` shows the versions")
        promotion_history.append(project, "rollback", champion.version, previous.version, None)
        replaced = client.get_model_version(MODEL, previous.version).tags.get(REPLACED)
        _set_champion(client, previous.version, replaced)
        return Move(previous, True, f"{_spoken(previous)} is the champion again, in place of {_spoken(champion)}")


def holder(project: Project, alias: str = CHAMPION) -> Version | None:
    """The version that has the alias `champion`, `challenger` or `previous`, or None."""
    with _registry(project) as (client, _):
        return _holder(client, alias)


def versions(project: Project) -> list[Version]:
    """All registered versions, oldest first."""
    with _registry(project) as (client, _):
        found = client.search_model_versions(f"name='{MODEL}'")
        return sorted(map(_version, found), key=lambda version: int(version.version))


def files(project: Project, version: Version) -> Path:
    """A local folder with the version's `encoder/`, `index/`, `hierarchy/` and `documents.parquet`, to be read only."""
    with _registry(project):
        from mlflow.artifacts import download_artifacts

        return Path(download_artifacts(f"models:/{MODEL}/{version.version}")) / "artifacts" / ARTIFACT


def delete(project: Project, version: Version) -> None:
    """Delete a version and its files; raises `FreshetError` if it is champion, challenger or previous."""
    folder = files(project, version).parents[1]
    with _registry(project) as (client, _):
        held = [alias for alias, number in _aliases(client).items() if str(number) == version.version]
        if held:
            raise FreshetError(f"{_spoken(version)} is {held[0]}: it cannot be deleted")
        client.delete_model_version(MODEL, version.version)
    if folder.is_relative_to(store_folder(project)):
        shutil.rmtree(folder)


@contextmanager
def _registry(project: Project) -> Iterator[tuple[MlflowClient, str]]:
    """The registry's client and the experiment's id, while no other process changes the registry."""
    uri, folder = tracking_uri(project), store_folder(project)
    with file_lock(folder / "registry.lock"):
        client, experiment = open_store(uri, folder)
        import mlflow

        mlflow.set_tracking_uri(uri)  # for the functions that take no client: start_run, log_model, download_artifacts
        mlflow.set_registry_uri(uri)
        yield client, experiment


def _create(client: MlflowClient, experiment: str, tags: dict[str, str], build: Build) -> Version:
    import mlflow

    with mlflow.start_run(experiment_id=experiment, run_name=f"register@{build.retriever}", tags=tags) as run:
        for part in ("metrics.json", "scores.parquet"):
            client.log_artifact(run.info.run_id, str(build.evaluation / part), "evaluation")
        mlflow.log_metrics(_metrics(build.evaluation))
        model = log_retriever(build)
    if not client.search_registered_models(f"name='{MODEL}'"):
        client.create_registered_model(MODEL)
    return _version(client.create_model_version(MODEL, model, run.info.run_id, tags))


def _metrics(evaluation: Path) -> dict[str, float]:
    splits = {split: rows for split, rows in read_json(evaluation / "metrics.json").items() if isinstance(rows, dict)}
    flat = {f"{split} {metric}": value for split, rows in splits.items() for metric, value in rows.items()}
    return {valid_name(name): value for name, value in flat.items() if isinstance(value, (int, float))}


def _find(client: MlflowClient, tags: dict[str, str]) -> Version | None:
    for found in client.search_model_versions(f"name='{MODEL}'"):
        if all(found.tags.get(name) == value for name, value in tags.items()):
            return _version(found)
    return None


def _version(found: ModelVersion) -> Version:
    tags = found.tags
    return Version(str(found.version), tags[RETRIEVER], tags[KEY], tags[FINGERPRINT], tags[CORPUS], found.run_id)


def _aliases(client: MlflowClient) -> dict[str, str]:
    """Alias -> version. Looking up a missing alias by itself is an error, and so is a model without versions."""
    if not client.search_registered_models(f"name='{MODEL}'"):
        return {}
    return dict(client.get_registered_model(MODEL).aliases)


def _holder(client: MlflowClient, alias: str) -> Version | None:
    version = _aliases(client).get(alias)
    return None if version is None else _version(client.get_model_version(MODEL, version))


def _set_champion(client: MlflowClient, version: str, previous: str | None) -> None:
    existing = {str(found.version) for found in client.search_model_versions(f"name='{MODEL}'")}
    _set_alias(client, PREVIOUS, previous if previous in existing else None)
    _set_alias(client, CHAMPION, version)


def _set_alias(client: MlflowClient, alias: str, version: str | None) -> None:
    """Give the alias to `version`, or take it from whichever has it."""
    if version is not None:
        client.set_registered_model_alias(MODEL, alias, version)
    elif alias in _aliases(client):
        client.delete_registered_model_alias(MODEL, alias)


def _scores(client: MlflowClient, version: Version) -> SystemScores:
    with tempfile.TemporaryDirectory() as folder:
        return load_scores(Path(client.download_artifacts(version.run_id, "evaluation", folder)), "test")


def _comparable_scores(client: MlflowClient, champion: Version, challenger: Version, gate: Gate) -> SystemScores:
    if champion.corpus == challenger.corpus:
        return _scores(client, champion)
    return load_scores(gate.rescore(champion), "test")


def _spoken(version: Version) -> str:
    return f"version {version.version} ({version.retriever})"


def _already(champion: Version) -> str:
    return f"{_spoken(champion)} is the champion already: nothing to promote"
