"""Tests that `dvc.yaml`, the asset graph and the stage table describe one graph.

DVC also sees all code of a stage.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
from ruamel.yaml import YAML

from model_code.errors import FreshetError
from model_code.project import Project
from orchestration import parameters
from orchestration.pipeline import dvc_file, stages

ROOT = Path(__file__).parents[3]
LAYERS = ("model_code", "assets", "orchestration")


@pytest.fixture(scope="module")
def table() -> tuple[stages.Stage, ...]:
    """The stages of this repository's settings."""
    settings = parameters.load(ROOT / "params.yaml")
    return stages.expand(settings.retrievers, settings.fusions)


def test_dvc_yaml_follows_the_table():
    dvc_yaml = YAML(typ="safe", pure=True).load((ROOT / "dvc.yaml").read_text())

    assert dvc_yaml == dvc_file.render()


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
            dvc_stage = resolved[stage.address]
            paths = set()
            groups = set()
            for dependency in dvc_stage.deps:
                if dependency.def_path == "params.yaml":
                    groups.update(dependency.params)
                else:
                    paths.add(dependency.def_path)
            upstream = {other.addressing for other in repo.index.graph.successors(dvc_stage)}

            assert dvc_stage.cmd == stages.run_command(stage)
            assert paths == {*stage.inputs.values(), *stage.code_files}
            assert groups == set(stage.groups)
            assert [output.def_path for output in dvc_stage.outs] == [stage.output]
            assert upstream == {other.address for other in stages.upstream(stage, table)}


@pytest.fixture(scope="module")
def asset_definitions() -> list[dg.AssetsDefinition]:
    """The assets of this repository that Dagster can materialise."""
    from orchestration.project_definitions import definitions

    assets = definitions(Project(ROOT)).assets
    return [asset for asset in assets if isinstance(asset, dg.AssetsDefinition)]


@pytest.fixture(scope="module")
def specs(asset_definitions) -> dict[dg.AssetKey, dg.AssetSpec]:
    """The asset specs of `asset_definitions`, by key."""
    specs = {}
    for definition in asset_definitions:
        for spec in definition.specs:
            specs[spec.key] = spec
    return specs


def test_asset_graph_equals_stage_graph(table, specs):
    from assets.stage_assets import LOCK_KEY, asset_key

    for stage in table:
        upstream = {asset_key(other) for other in stages.upstream(stage, table)}
        if not upstream:
            upstream = {LOCK_KEY}
        spec = specs[asset_key(stage)]
        assert {dependency.asset_key for dependency in spec.deps} == upstream
        assert spec.description == stage.description


def test_stage_without_page_is_refused(monkeypatch):
    from assets.corpus import PAGES
    from orchestration.project_definitions import definitions

    monkeypatch.delitem(PAGES, "acceptance")

    with pytest.raises(FreshetError, match="no asset page for these stages: acceptance; add one"):
        definitions(Project(ROOT))


def test_every_asset_has_the_same_owner(specs):
    assert specs
    for spec in specs.values():
        assert set(spec.owners) == {"team:freshet"}


def test_every_stage_has_a_blocking_contract(table, asset_definitions):
    from assets.stage_assets import asset_key

    checked = set()
    for definition in asset_definitions:
        for check in definition.check_specs:
            if check.name == "contract_holds" and check.blocking:
                checked.add(check.asset_key)

    assert checked == {asset_key(stage) for stage in table}


# Files that have no effect on the content of an output.
WITHOUT_EFFECT = ("model_code/checks/", "model_code/stages/stage.py")


@pytest.mark.parametrize("stage", stages.TABLE, ids=[stage.name for stage in stages.TABLE])
def test_imported_files_are_dependencies(stage):
    covered = stage.code_files

    for path in imported_files(stage.module):
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(WITHOUT_EFFECT):
            continue
        inside = any(name == code or name.startswith(code + "/") for code in covered)
        assert inside or name.endswith("/__init__.py"), (
            f"{stage.name} imports {name}, whose edits DVC would not see"
        )


@pytest.mark.parametrize("stage", stages.TABLE, ids=[stage.name for stage in stages.TABLE])
def test_contracts_are_no_dependencies(stage):
    """Checks decide whether an output is published, and not its content.

    So another rule runs no stage again. Neither does the class of the declarations.
    """
    assert not any(code.startswith(WITHOUT_EFFECT) for code in stage.code_files)


def imported_files(module: str) -> set[Path]:
    """Return every file of the project that `module` imports, directly or not, in functions too."""
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
    """Return the modules that a file imports, and for `from a import b` also `a.b`."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module)
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def module_path(module: str) -> Path | None:
    """Return the file of a module of the project, or None for a module of another package."""
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
    finished = subprocess.run(
        [sys.executable, "-c", SLOW_IMPORTS_CODE],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    assert finished.stdout.strip() == "[]"
