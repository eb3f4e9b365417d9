"""Guards that another Dagster project can include a Freshet project.

Run: python -m pytest tests/freshet/test_dagster.py
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from freshet.client import Client
from freshet.dagster import FreshetProject, FreshetResource
from model_code.collection.generations.searcher import Searcher
from model_code.collection.index.live_index import LiveIndex
from model_code.errors import SettingsError
from model_code.project import PROJECT, Project
from tests.model_code.collection.conftest import make_build

PYPROJECT = """
[project]
name = "reports"
version = "1"

[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "reports"
"""

DEFS_YAML = """
type: freshet.dagster.FreshetProject
attributes:
  path: ../search
"""

REPORT_ASSETS = """
import dagster as dg

from freshet.dagster import FreshetResource


@dg.asset(deps=["live_generation"])
def weekly_report(freshet: FreshetResource) -> list[str]:
    with freshet.client() as client:
        result = client.search("prices of ferry tickets", k=1)
    return [hit.document_id for hit in result.hits]


weekly_report_check = dg.define_asset_job("refresh_report", [weekly_report])
"""

PARAMS = """
corpus: {path: rows.jsonl}
passages: {words: 12, stride: 5}
retrievers: {hce: {}}
live: {sync: "0 3 * * *"}
"""


@pytest.fixture(scope="module")
def reports(tmp_path_factory) -> Path:
    """Another Dagster project, beside a Freshet project that one of its folders includes."""
    root = tmp_path_factory.mktemp("foreign")
    search = root / "search"
    search.mkdir()
    (search / "params.yaml").write_text(PARAMS)
    (search / "dvc.yaml").touch()
    make_build(root / "build").open(search)

    project = root / "reports"
    defs = project / "src" / "reports" / "defs"
    component = defs / "search"
    component.mkdir(parents=True)
    (project / "pyproject.toml").write_text(PYPROJECT)
    (defs.parent / "__init__.py").touch()
    (defs / "__init__.py").touch()
    (defs / "reports_assets.py").write_text(REPORT_ASSETS)
    (component / "defs.yaml").write_text(DEFS_YAML)
    return project


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as opened:
        yield opened


@pytest.fixture(scope="module")
def definitions(reports) -> dg.Definitions:
    source = str(reports / "src")
    sys.path.insert(0, source)
    try:
        return dg.load_from_defs_folder(path_within_project=reports)
    finally:
        sys.path.remove(source)


def build(folder: Path, **attributes) -> dg.Definitions:
    """Build the definitions of a component without a `defs.yaml`."""
    component = FreshetProject(path=str(folder), **attributes)
    return component.build_defs(dg.ComponentTree.for_test().load_context)


def test_assets_of_both_projects_are_in_one_graph(definitions):
    graph = definitions.resolve_asset_graph()

    report = graph.get(dg.AssetKey("weekly_report"))

    assert report.parent_keys == {dg.AssetKey("live_generation")}
    assert dg.AssetKey(["hce", "encoder"]) in graph.get_all_asset_keys()


def test_checks_sensors_and_schedules_are_included(definitions):
    repository = definitions.get_repository_def()

    sensors = {sensor.name for sensor in repository.sensor_defs}
    schedules = {schedule.name for schedule in repository.schedule_defs}
    checks = {key.name for key in repository.asset_graph.asset_check_keys}

    assert {"freshness", "champion_alias", "notices"} <= sensors
    assert schedules == {"sync_schedule"}
    assert {"contract_holds", "within_thresholds"} <= checks


def test_full_build_leaves_foreign_assets_alone(definitions):
    job = definitions.resolve_job_def("full_build")

    selected = job.asset_layer.executable_asset_keys

    assert dg.AssetKey("champion") in selected
    assert dg.AssetKey("weekly_report") not in selected


def test_included_jobs_run_in_one_process(definitions):
    names = ["add_documents", "check_drift", "pilot", "retrain", "full_build", "evaluate"]
    names += ["sync", "follow_alias"]

    executors = {definitions.resolve_job_def(name).executor_def.name for name in names}

    assert executors == {"in_process"}


def test_foreign_jobs_keep_their_executor(definitions):
    job = definitions.resolve_job_def("refresh_report")

    assert job.executor_def.name == "multi_or_in_process_executor"


def test_included_sensor_starts_the_job_that_adds_documents(definitions, reports, instance):
    project = Project(reports.parent / "search")
    LiveIndex(project).receive([{"id": "fares", "text": "Prices of ferry tickets."}], "test")

    resources = {"project": definitions.resources["project"]}
    context = dg.build_sensor_context(instance, resources=resources)
    (request,) = definitions.resolve_sensor_def("freshness")(context).run_requests
    instance.add_dynamic_partitions("batches", [request.partition_key])
    job = definitions.resolve_job_def(request.job_name)
    run = job.execute_in_process(instance=instance, partition_key=request.partition_key)

    assert run.success
    assert "fares" in Searcher.open(project.live).ids_after("", 20)


def test_foreign_asset_searches_the_included_project(definitions, reports, instance):
    project = Project(reports.parent / "search")
    index = LiveIndex(project)
    index.receive([{"id": "tickets", "text": "Prices of ferry tickets, by season."}], "test")
    index.apply()

    job = definitions.resolve_job_def("refresh_report")
    run = job.execute_in_process(instance=instance)

    assert run.output_for_node("weekly_report")[0] in ("fares", "tickets")


def test_resource_with_path_searches_a_project_of_this_machine(reports):
    with FreshetResource(path=str(reports.parent / "search")).client() as project:
        result = project.search("square root of a number", k=1)

    assert result.hits[0].document_id == "math.sqrt"


def test_sensors_and_schedules_can_be_left_out(reports):
    included = build(reports.parent / "search", sensors=False, schedules=False)

    assert list(included.sensors or []) == []
    assert list(included.schedules or []) == []


def test_folder_without_project_is_refused_in_one_line(reports):
    with pytest.raises(Exception, match=r"reports is not inside a Freshet project") as raised:
        build(reports)

    assert "\n" not in str(raised.value)


def test_resource_opens_client_of_service():
    with FreshetResource(url="http://127.0.0.1:1").client() as client:
        assert isinstance(client, Client)
        assert client.url == "http://127.0.0.1:1"


@pytest.mark.parametrize("places", [{}, {"path": ".", "url": "http://127.0.0.1:1"}])
def test_resource_needs_exactly_one_place(places):
    with (
        pytest.raises(SettingsError, match="needs exactly one"),
        FreshetResource(**places).client(),
    ):
        pass


@pytest.mark.long
def test_dagster_tools_accept_the_foreign_project(reports, monkeypatch):
    """`dagster definitions validate` loads the definitions as Dagster itself does."""
    monkeypatch.delenv(PROJECT, raising=False)
    monkeypatch.setenv("PYTHONPATH", f"{reports / 'src'}:{Path(__file__).parents[2]}")
    command = [sys.executable, "-m", "dagster", "definitions", "validate"]
    code = "import dagster as dg; from pathlib import Path\n"
    code += f"defs = dg.load_from_defs_folder(path_within_project=Path({str(reports)!r}))\n"
    (reports / "src" / "reports" / "definitions.py").write_text(code)

    done = subprocess.run(
        [*command, "-m", "reports.definitions"], cwd=reports, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
