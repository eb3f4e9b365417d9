"""Guards that `dvc.yaml`, the asset graph and the stage table are one graph, and that DVC sees all
code of a stage.

Run: python -m pytest tests/orchestration/pipeline/test_stage_table.py
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
from ruamel.yaml import YAML

from model_code.project import Project
from orchestration import parameters
from orchestration.pipeline import dvc_file, stages

ROOT = Path(__file__).parents[3]
LAYERS = ("model_code", "assets", "orchestration")


@pytest.fixture(scope="module")
def table() -> tuple[stages.Stage, ...]:
    settings = parameters.load(ROOT / "params.yaml")
    return stages.expand(settings.retrievers, settings.fusions)


def test_dvc_yaml_is_what_the_table_says():
    assert YAML(typ="safe", pure=True).load((ROOT / "dvc.yaml").read_text()) == dvc_file.render()


def test_stages_come_after_the_stages_that_they_read(table):
    for position, stage in enumerate(table):
        later = table[position:]
        assert stages.upstream(stage, later) == (), stage.address


def test_dvc_resolves_the_file_to_the_same_graph(table):
    from dvc.repo import Repo

    with Repo(str(ROOT)) as repo:
        resolved = {stage.addressing: stage for stage in repo.index.stages}
        assert set(resolved) == {stage.address for stage in table}
        for stage in table:
            theirs = resolved[stage.address]
            paths = {dep.def_path for dep in theirs.deps if dep.def_path != "params.yaml"}
            groups = {
                name for dep in theirs.deps if dep.def_path == "params.yaml" for name in dep.params
            }
            assert theirs.cmd == stages.run_command(stage)
            assert paths == {*stage.inputs.values(), *stage.code_files}
            assert groups == set(stage.groups)
            assert [out.def_path for out in theirs.outs] == [stage.output]
            upstream = {other.addressing for other in repo.index.graph.successors(theirs)}
            assert upstream == {other.address for other in stages.upstream(stage, table)}


def test_asset_graph_equals_stage_graph_with_contracts(table):
    from assets.stage_assets import LOCK_KEY, asset_key
    from orchestration.project_definitions import definitions

    made = [
        assets
        for assets in definitions(Project(ROOT)).assets
        if isinstance(assets, dg.AssetsDefinition)
    ]
    specs = {spec.key: spec for assets in made for spec in assets.specs}
    checks = {
        check.asset_key for assets in made for check in assets.check_specs if is_contract(check)
    }
    assert checks == {asset_key(stage) for stage in table}
    assert {owner for spec in specs.values() for owner in spec.owners} == {"team:freshet"}
    assert all(spec.owners for spec in specs.values())
    for stage in table:
        before = {asset_key(other) for other in stages.upstream(stage, table)} or {LOCK_KEY}
        assert {dependency.asset_key for dependency in specs[asset_key(stage)].deps} == before
        assert specs[asset_key(stage)].description == stage.description


# Files that have no effect on the content of an output.
WITHOUT_EFFECT = ("model_code/checks/", "model_code/stages/stage.py")


def is_contract(check) -> bool:
    return check.name == "contract_holds" and check.blocking


@pytest.mark.parametrize("stage", stages.TABLE, ids=lambda stage: stage.name)
def test_imported_files_are_dependencies_contracts_are_not(stage):
    """Checks decide whether an output is published, never what is in it: another rule runs
    nothing again. Nor does the class of the declarations.
    """
    covered = stage.code_files
    assert not any(code.startswith(WITHOUT_EFFECT) for code in covered)
    for path in imported_files(stage.module):
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(WITHOUT_EFFECT):
            continue
        inside = any(name == code or name.startswith(code + "/") for code in covered)
        assert inside or name.endswith("/__init__.py"), (
            f"{stage.name} imports {name}, whose edits DVC would not see"
        )


def imported_files(module: str) -> set[Path]:
    """Every file of the project that `module` imports, directly or not, in functions too."""
    found: set[Path] = set()
    waiting = [module]
    while waiting:
        path = module_path(waiting.pop())
        if path is None or path in found:
            continue
        found.add(path)
        if path.relative_to(ROOT).as_posix().startswith(WITHOUT_EFFECT):
            continue
        waiting += imports_of(path)
    return found


def imports_of(path: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return names


def module_path(module: str) -> Path | None:
    base = ROOT / module.replace(".", "/")
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if module.startswith(LAYERS) and path.is_file():
            return path
    return None


SLOW_IMPORTS_CODE = """
import sys

import orchestration.definitions

slow = {
    "torch",
    "mlflow",
    "transformers",
    "faiss",
    "great_expectations",
    "dvc",
    "pandera",
    "sqlalchemy",
}
print(sorted(slow & set(sys.modules)))
"""


def test_definitions_load_without_slow_libraries():
    printed = subprocess.run(
        [sys.executable, "-c", SLOW_IMPORTS_CODE],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert printed.strip() == "[]"
