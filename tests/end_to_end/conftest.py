"""Two builds of one tiny project, one by each driver, shared by all end-to-end tests."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.end_to_end import tiny_project


@pytest.fixture(scope="session")
def built_by_dvc(tmp_path_factory) -> Path:
    """A project that bare DVC has built. Tests do not change it."""
    folder = tiny_project.make_project(tmp_path_factory.mktemp("dvc") / "first")
    tiny_project.freshet(folder, "ingest")
    tiny_project.dvc(folder, "repro")
    return folder


@pytest.fixture(scope="session")
def built_by_dagster(tmp_path_factory) -> Path:
    """The same project in another folder, built, registered, promoted and opened by the Dagster
    job.
    """
    folder = tiny_project.make_project(tmp_path_factory.mktemp("dagster") / "second")
    done = tiny_project.freshet(folder, "demo")
    (folder / ".freshet" / "demo.txt").write_text(done.stdout)
    return folder


@pytest.fixture
def copy_of_build(built_by_dvc, tmp_path) -> Path:
    """A copy of the DVC build that a test may break."""
    return shutil.copytree(built_by_dvc, tmp_path / "copy")
