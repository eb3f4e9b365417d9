"""Tests that roles read from the SQLite file are the ones that MLflow tells."""

from __future__ import annotations

import pytest

from model_code.project import Project
from orchestration.registry import versions
from orchestration.registry.read_only import read_roles


@pytest.fixture
def project(tmp_path) -> Project:
    (tmp_path / "params.yaml").touch()
    (tmp_path / "dvc.yaml").touch()
    return Project(tmp_path)


def add_version(registry: versions.Registry, retriever: str) -> versions.Version:
    """Register a version without files."""
    run = registry.client.create_run(registry.experiment)
    if not registry.client.search_registered_models():
        registry.client.create_registered_model(registry.model)
    registered = registry.client.create_model_version(
        registry.model, run.info.artifact_uri, run.info.run_id
    )
    tags = {
        versions.RETRIEVER: retriever,
        versions.KEY: f"key of {retriever}",
        versions.FINGERPRINT: "0",
        versions.CORPUS: "1",
        versions.EVENT: "7",
        versions.EVENT_MARK: "mark",
        versions.LEDGER_ID: "log",
    }
    for name, value in tags.items():
        registry.client.set_model_version_tag(registry.model, registered.version, name, value)
    tagged = registry.client.get_model_version(registry.model, registered.version)
    return versions.Version.from_registered(tagged)


def roles_by_mlflow(project: Project) -> dict[str, versions.Version | None]:
    return {role: versions.version_with_alias(project, role) for role in versions.ROLES}


def test_missing_store_is_empty_and_not_created(project):
    assert read_roles(project) == dict.fromkeys(versions.ROLES)
    assert not project.state.exists()


def test_roles_equal_those_of_mlflow(project):
    with versions.open_registry(project) as registry:
        first = add_version(registry, "hce")
        second = add_version(registry, "svdr")
        registry.record_predecessor(first, None)
        registry.set_champion(first)
        registry.record_predecessor(second, first)
        registry.set_champion(second)
        third = add_version(registry, "hce")
        registry.client.set_registered_model_alias(
            registry.model, versions.CHALLENGER, third.version
        )

    roles = read_roles(project)

    assert roles == roles_by_mlflow(project)
    assert roles[versions.CHAMPION] == second
    assert roles[versions.PREVIOUS] == first
    assert roles[versions.CHALLENGER] == third


def test_deleted_version_has_no_role(project):
    with versions.open_registry(project) as registry:
        first = add_version(registry, "hce")
        second = add_version(registry, "svdr")
        registry.record_predecessor(second, first)
        registry.set_champion(second)
        registry.client.delete_model_version(registry.model, first.version)

    roles = read_roles(project)

    assert roles == roles_by_mlflow(project)
    assert roles[versions.PREVIOUS] is None
