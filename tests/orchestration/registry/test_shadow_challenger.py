"""The challenger for shadow mode is found in MLflow, which gets the finding."""

from __future__ import annotations

import json

import pytest

from model_code.project import Project
from orchestration.registry import shadow_challenger, versions
from orchestration.registry.shadow_challenger import find_challenger
from orchestration.registry.shadow_record import ShadowRecord, load_record, record_path, save_record
from orchestration.registry.versions import SHADOW_TAG
from tests.orchestration.registry.test_read_only import add_version


@pytest.fixture
def project(tmp_path, monkeypatch) -> Project:
    monkeypatch.delenv("FRESHET_STATE", raising=False)
    (tmp_path / "params.yaml").touch()
    (tmp_path / "dvc.yaml").touch()
    project = Project(tmp_path)
    monkeypatch.setattr(versions, "download_files", lambda project, version: project.root / "files")
    return project


def test_challenger_is_found_and_gets_its_finding(project):
    # One test, because each new store of MLflow takes seconds.
    assert find_challenger(project, "") is None
    with versions.open_registry(project) as registry:
        champion = add_version(registry, "untrained")
        registry.set_champion(champion)
        registry.set_challenger(champion)
    # A champion does not challenge itself.
    assert find_challenger(project, "") is None

    with versions.open_registry(project) as registry:
        challenger = add_version(registry, "fused")
        registry.set_challenger(challenger)
    record = ShadowRecord(
        challenger.version, "fused", "untrained", "0", queries=4, overlap=3, rbo=2
    )
    save_record(project, record)

    found = find_challenger(project, "")
    opened = find_challenger(project, challenger.version)

    assert found["retriever"] == "fused"
    assert found["files"] == str(project.root / "files")
    # The files of the open version are not downloaded again.
    assert opened == {"version": challenger.version, "retriever": "fused", "files": None}
    with versions.open_registry(project) as registry:
        tagged = registry.client.get_model_version(registry.model, challenger.version)
    assert tagged.tags[SHADOW_TAG] == record.text
    assert "overlap@10 0.75, RBO 0.50" in record.text


def test_last_line_of_the_process_is_json(project, monkeypatch, capsys):
    found = {"version": "2", "retriever": "fused", "files": "/files"}
    monkeypatch.setattr(shadow_challenger, "find_challenger", lambda *_: found)

    shadow_challenger.main([str(project.root), ""])

    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == found


def test_record_of_another_format_is_ignored(project):
    save_record(project, ShadowRecord("4", "fused", "untrained", "0", queries=4))
    assert load_record(project, "4").queries == 4

    path = record_path(project, "4")
    path.write_text(path.read_text().replace('"format": 1', '"format": 0'))

    assert load_record(project, "4") is None
