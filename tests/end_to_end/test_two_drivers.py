"""Guards that DVC and Dagster run the same stages: equal hashes in two folders, whichever of them
goes first.

Run: python -m pytest tests/end_to_end/test_two_drivers.py
"""

from __future__ import annotations

import json

import pytest

from orchestration import parameters
from tests.end_to_end.tiny_project import dvc, freshet, output_hashes, run

MATERIALIZED = """
import json
from model_code.project import Project
from orchestration.instance import open_instance
import dagster as dg
with open_instance(Project.find()) as instance:
    records = {}
    for key in instance.get_asset_keys():
        event = instance.get_latest_data_version_record(key)
        data = event.asset_materialization
        text = {name: str(value.value)[:99] for name, value in data.metadata.items()}
        records[key.to_user_string()] = {"version": data.tags.get("dagster/data_version"), **text}
    print(json.dumps(records))
"""


def test_both_drivers_build_the_same_outputs(built_by_dvc, built_by_dagster):
    hashes = output_hashes(built_by_dvc)

    assert output_hashes(built_by_dagster) == hashes
    assert "artifacts/comparison" in hashes


def test_after_dagster_there_is_nothing_left_for_dvc(built_by_dagster):
    assert "didn't change, skipping" in dvc(built_by_dagster, "repro").stdout
    assert json.loads(dvc(built_by_dagster, "status", "--json").stdout) == {}


@pytest.mark.full
def test_after_dvc_dagster_runs_nothing_and_knows_everything(copy_of_build):
    before = output_hashes(copy_of_build)
    done = freshet(copy_of_build, "demo")

    assert output_hashes(copy_of_build) == before
    assert "Running stage" not in done.stdout + done.stderr


def test_data_versions_are_dvc_hashes(built_by_dagster):
    hashes = output_hashes(built_by_dagster)
    recorded = json.loads(run(built_by_dagster, MATERIALIZED))
    by_output = {row["stage output"]: row for row in recorded.values() if "stage output" in row}

    assert {path: row["version"] for path, row in by_output.items()} == hashes
    assert all(len(row["MLflow run"]) == 32 for row in by_output.values())
    assert {
        "corpus_lock",
        "first_champion",
        "registered_retriever",
        "champion",
        "live_generation",
    } <= set(recorded)


def test_plan_shows_effect_of_a_setting(built_by_dvc, copy_of_build):
    assert {line.split()[0] for line in freshet(built_by_dvc, "plan").stdout.splitlines()} == {
        "skip"
    }

    parameters.write_overrides(copy_of_build / "params.yaml", ["bm25.k1=0.9"])
    actions = {
        line.split()[1]: line.split()[0]
        for line in freshet(copy_of_build, "plan").stdout.splitlines()
    }

    assert actions["baselines"] == "run"
    assert actions["comparison"] == "maybe"
    assert actions["train@hce"] == "skip"
