"""The versions of the registered model, and which of them is challenger, champion, and the champion before.

`challenger` and `champion` are aliases. A version that becomes champion remembers in the tag `replaced` whom it
replaced: the champion before is read from there, so that one write moves the champion and says whom to go back to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestration.registry.mlflow_tracker import KEY
from orchestration.watermark import Watermark

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

MODEL = "freshet"
CHALLENGER, CHAMPION, PREVIOUS = "challenger", "champion", "previous"
RETRIEVER, FINGERPRINT, CORPUS, REPLACED = "retriever", "fingerprint", "corpus", "replaced"
TEXT, WATERMARK, MARK = "text", "watermark", "watermark_mark"


@dataclass(frozen=True)
class Version:
    """A registered version: its number, retriever, key of the build, fingerprint of the encoder, and MLflow run.

    corpus: hash of the documents, queries and qrels that it was built and scored on. text: by which rules it cut
    documents into passages, as JSON; empty for a version of before they were kept. watermark: the last event of the
    ledger that its documents hold.
    """

    version: str
    retriever: str
    key: str
    fingerprint: str
    corpus: str
    run_id: str
    text: str = ""
    watermark: Watermark = Watermark()

    def __str__(self) -> str:
        return f"version {self.version} ({self.retriever})"


def read(found: ModelVersion) -> Version:
    """The version as its tags describe it."""
    tags = found.tags
    watermark = Watermark(int(tags.get(WATERMARK, 0)), tags.get(MARK, ""))
    named = (tags[RETRIEVER], tags[KEY], tags[FINGERPRINT], tags[CORPUS])
    return Version(str(found.version), *named, found.run_id, tags.get(TEXT, ""), watermark)


def versions(client: MlflowClient) -> list[Version]:
    """All of them, oldest first."""
    return sorted(map(read, client.search_model_versions(f"name='{MODEL}'")), key=lambda one: int(one.version))


def holder(client: MlflowClient, role: str) -> Version | None:
    """Who is `CHALLENGER`, `CHAMPION` or `PREVIOUS`, or None."""
    number = _replaced(client) if role == PREVIOUS else _aliases(client).get(role)
    return next((one for one in versions(client) if one.version == str(number)), None)


def role_of(client: MlflowClient, version: Version) -> str | None:
    """The role of a version, None if it has none."""
    return next((role for role in (CHAMPION, CHALLENGER, PREVIOUS) if is_same(holder(client, role), version)), None)


def is_same(one: Version | None, other: Version) -> bool:
    """Whether both are the same registered version, whatever was noted on it meanwhile."""
    return one is not None and one.version == other.version


def challenge(client: MlflowClient, version: Version) -> None:
    """Make a version the challenger."""
    client.set_registered_model_alias(MODEL, CHALLENGER, version.version)


def end_challenge(client: MlflowClient, version: Version | None = None) -> None:
    """There is no challenger any more; version: unless it is another one than this."""
    challenger = _aliases(client).get(CHALLENGER)
    if challenger is not None and (version is None or str(challenger) == version.version):
        client.delete_registered_model_alias(MODEL, CHALLENGER)


def crown(client: MlflowClient, version: Version) -> None:
    """Make a version champion; `replaces` says beforehand whom it replaces."""
    client.set_registered_model_alias(MODEL, CHAMPION, version.version)


def replaces(client: MlflowClient, version: Version, champion: Version | None) -> None:
    """Note on a version that is about to become champion whom a rollback of it goes back to."""
    client.set_model_version_tag(MODEL, version.version, REPLACED, champion.version if champion else "")


def _replaced(client: MlflowClient) -> str | None:
    champion = _aliases(client).get(CHAMPION)
    return None if champion is None else client.get_model_version(MODEL, champion).tags.get(REPLACED)


def _aliases(client: MlflowClient) -> dict[str, str]:
    """Alias -> version. Looking up a missing alias by itself is an error, and so is a model without versions."""
    if not client.search_registered_models(f"name='{MODEL}'"):
        return {}
    return dict(client.get_registered_model(MODEL).aliases)
