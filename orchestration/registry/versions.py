"""MLflow's model registry: a retriever is registered as challenger, a gate makes it champion, a rollback undoes it.

A version is searchable before the alias moves to it: whatever fails or is cut off until then leaves the champion as it
was, and the same call again does the rest.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model_code.errors import FreshetError
from model_code.evaluation.promotion import Verdict
from model_code.evaluation.scores import SystemScores, load_scores
from model_code.files import read_json
from orchestration.file_lock import file_lock
from orchestration.project import Project
from orchestration.registry import promotion_history, roles
from orchestration.registry.gate import Gate
from orchestration.registry.mlflow_tracker import KEY, open_store, valid_name
from orchestration.registry.registered_model import ARTIFACT, Build, log_retriever
from orchestration.registry.roles import CHALLENGER, CHAMPION, MODEL, PREVIOUS, Version
from orchestration.registry.tracking import store_folder, tracking_uri

if TYPE_CHECKING:
    from mlflow import MlflowClient

Open = Callable[[Version], Any]
"""Makes a version what users search; if it raises, the champion stays."""


@dataclass(frozen=True)
class Move:
    """What a promotion or rollback came to: the champion now, whether that was the wish, and one line to show.

    again: it was so already, by a promotion before, which may have been cut off behind its last step here.
    """

    champion: Version | None
    passed: bool
    summary: str
    again: bool = False


def register(project: Project, build: Build) -> Version:
    """Register a finished build as challenger; one with the same retriever and key is there already, and not copied.

    The build of the champion itself is no challenger: after registering it there is none.
    """
    identity = {
        roles.RETRIEVER: build.retriever,
        KEY: build.key,
        roles.FINGERPRINT: read_json(build.index / "manifest.json")["fingerprint"],
        roles.CORPUS: build.corpus,
    }
    with _registry(project) as (client, experiment):
        number = _find(client, identity) or _create(client, experiment, identity, build)
        version = _describe(client, number, build)
        if roles.is_same(roles.holder(client, CHAMPION), version):
            roles.end_challenge(client)
        else:
            roles.challenge(client, version)
        return version


def promote(
    project: Project, gate: Gate, open_it: Open = lambda version: None, challenger: Version | None = None
) -> Move:
    """Make the challenger champion if the gate passes it on the test queries; each verdict is a line of the history.

    challenger: a version that need not have the alias, such as a retrain's; refused, it is no challenger any more.
    """
    with _registry(project) as (client, _):
        wanted, champion = _candidates(client, challenger)
        if roles.is_same(champion, wanted):
            open_it(wanted)
            return Move(wanted, True, _already(wanted), again=True)
        found = _judge(client, wanted, champion, gate)
        why = "; ".join(found.reasons)
        if found.passed:
            open_it(wanted)
            _crown(project, client, wanted, champion, found)
            return Move(wanted, True, f"{wanted} is the champion: {why}")
        _refuse(project, wanted, champion, found)
        if challenger is None:
            return Move(champion, False, f"{wanted} stays challenger: {why}")
        roles.end_challenge(client, challenger)
        return Move(champion, False, f"{wanted} is refused: {why}")


def verdict(project: Project, gate: Gate, challenger: Version | None = None) -> Verdict:
    """What `promote` would decide now; nothing is moved."""
    with _registry(project) as (client, _):
        wanted, champion = _candidates(client, challenger)
        if roles.is_same(champion, wanted):
            return Verdict(True, (_already(wanted),), queries=0, source="none", intervals=())
        return _judge(client, wanted, champion, gate)


def refuse(project: Project, found: Verdict, challenger: Version) -> None:
    """Write what `verdict` found against a version into the history; it is no challenger any more.

    `promote` does so itself with a version that it is given.
    """
    with _registry(project) as (client, _):
        _refuse(project, challenger, roles.holder(client, CHAMPION), found)
        roles.end_challenge(client, challenger)


def rollback(project: Project, open_it: Open = lambda version: None) -> Move:
    """Make the champion's predecessor champion again; raises `FreshetError` if it has none."""
    with _registry(project) as (client, _):
        champion, previous = roles.holder(client, CHAMPION), roles.holder(client, PREVIOUS)
        if champion is None or previous is None:
            raise FreshetError("there is no previous champion to go back to; `freshet status` shows the versions")
        open_it(previous)
        promotion_history.append_once(project, "rollback", champion.version, previous.version, None)
        roles.crown(client, previous)
        return Move(previous, True, f"{previous} is the champion again, in place of {champion}")


def holder(project: Project, role: str = CHAMPION) -> Version | None:
    """The version that is `champion`, `challenger` or `previous` (the champion before), or None."""
    with _registry(project) as (client, _):
        return roles.holder(client, role)


def versions(project: Project) -> list[Version]:
    """All registered versions, oldest first."""
    with _registry(project) as (client, _):
        return roles.versions(client)


def files(project: Project, version: Version) -> Path:
    """A local folder with the version's `encoder/`, `index/`, `hierarchy/` and `documents.parquet`, to be read only."""
    with _registry(project):
        from mlflow.artifacts import download_artifacts

        return Path(download_artifacts(f"models:/{MODEL}/{version.version}")) / "artifacts" / ARTIFACT


def own_files(project: Project, version: Version) -> Path | None:
    """The folder that deleting the version frees; None where the registry keeps files elsewhere, such as in a bucket:
    the project deletes nothing there, and fetches nothing from there to know its size.
    """
    with _registry(project) as (client, experiment):
        place = client.get_experiment(experiment).artifact_location
    if not place.startswith(store_folder(project).as_uri()):
        return None
    folder = files(project, version).parents[1]
    return folder if folder.is_relative_to(store_folder(project)) else None


def delete(project: Project, version: Version) -> None:
    """Delete a version and its `own_files`; raises `FreshetError` if it is champion, challenger or previous."""
    folder = own_files(project, version)
    with _registry(project) as (client, _):
        role = roles.role_of(client, version)
        if role is not None:
            raise FreshetError(f"{version} is {role}: it cannot be deleted")
        client.delete_model_version(MODEL, version.version)
    if folder is not None:
        shutil.rmtree(folder)


def _candidates(client: MlflowClient, challenger: Version | None) -> tuple[Version, Version | None]:
    """Who asks to be champion, and who is; the champion itself where nobody else does."""
    champion = roles.holder(client, CHAMPION)
    wanted = challenger or roles.holder(client, CHALLENGER) or champion
    if wanted is None:
        raise FreshetError("there is no challenger: register a built retriever first (`freshet register`)")
    return wanted, champion


def _judge(client: MlflowClient, challenger: Version, champion: Version | None, gate: Gate) -> Verdict:
    before = _comparable_scores(client, champion, challenger, gate) if champion else None
    return gate.verdict(_scores(client, challenger), before)


def _crown(project: Project, client: MlflowClient, wanted: Version, champion: Version | None, found: Verdict) -> None:
    promotion_history.append_once(project, "promote", _number(champion), wanted.version, found.as_dict())
    roles.replaces(client, wanted, champion)
    roles.crown(client, wanted)
    roles.end_challenge(client, wanted)


def _refuse(project: Project, wanted: Version, champion: Version | None, found: Verdict) -> None:
    promotion_history.append(project, "refuse", _number(champion), wanted.version, found.as_dict())


def _number(version: Version | None) -> str | None:
    return None if version is None else version.version


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


def _create(client: MlflowClient, experiment: str, tags: dict[str, str], build: Build) -> str:
    import mlflow

    with mlflow.start_run(experiment_id=experiment, run_name=f"register@{build.retriever}", tags=tags) as run:
        for part in ("metrics.json", "scores.parquet"):
            client.log_artifact(run.info.run_id, str(build.evaluation / part), "evaluation")
        mlflow.log_metrics(_metrics(build.evaluation))
        model = log_retriever(build)
    if not client.search_registered_models(f"name='{MODEL}'"):
        client.create_registered_model(MODEL)
    return str(client.create_model_version(MODEL, model, run.info.run_id, tags).version)


def _describe(client: MlflowClient, number: str, build: Build) -> Version:
    """Note what opening the version must know. One that is there already gets today's: its documents are the same."""
    facts = {roles.TEXT: build.text}
    if build.watermark.event:
        facts |= {roles.WATERMARK: str(build.watermark.event), roles.MARK: build.watermark.mark}
    for name, value in facts.items():
        client.set_model_version_tag(MODEL, number, name, value)
    return roles.read(client.get_model_version(MODEL, number))


def _metrics(evaluation: Path) -> dict[str, float]:
    splits = {split: rows for split, rows in read_json(evaluation / "metrics.json").items() if isinstance(rows, dict)}
    flat = {f"{split} {metric}": value for split, rows in splits.items() for metric, value in rows.items()}
    return {valid_name(name): value for name, value in flat.items() if isinstance(value, (int, float))}


def _find(client: MlflowClient, tags: dict[str, str]) -> str | None:
    for found in client.search_model_versions(f"name='{MODEL}'"):
        if all(found.tags.get(name) == value for name, value in tags.items()):
            return str(found.version)
    return None


def _scores(client: MlflowClient, version: Version) -> SystemScores:
    with tempfile.TemporaryDirectory() as folder:
        return load_scores(Path(client.download_artifacts(version.run_id, "evaluation", folder)), "test")


def _comparable_scores(client: MlflowClient, champion: Version, challenger: Version, gate: Gate) -> SystemScores:
    if champion.corpus == challenger.corpus:
        return _scores(client, champion)
    return load_scores(gate.rescore(champion), "test")


def _already(champion: Version) -> str:
    return f"{champion} is the champion already: nothing to promote"
