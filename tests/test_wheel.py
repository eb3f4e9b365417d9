"""Guards the wheel: it holds every file of the packages, and makes a project outside of any clone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOPS = ("assets", "freshet", "model_code", "orchestration")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built of the files that git knows, in a folder of its own: an older `build` beside them would be packed, too."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in tracked("pyproject.toml", "README.md", "LICENSE", *TOPS):
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / "source" / name)
    build = "from setuptools.build_meta import build_wheel; build_wheel('..')"
    done = subprocess.run([sys.executable, "-c", build], cwd=folder / "source", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


def tracked(*names: str) -> list[str]:
    listed = subprocess.run(["git", "ls-files", *names], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def test_every_file_of_the_packages_is_in_it(wheel):
    assert set(tracked(*TOPS)) <= set(zipfile.ZipFile(wheel).namelist())


def test_it_makes_a_project_of_a_folder(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    (tmp_path / "files").mkdir()
    (tmp_path / "files/moss.md").write_text("# Moss\n\nIt grows on stones.")
    done = subprocess.run(
        [sys.executable, "-m", "orchestration.cli", "init", "notes", "--from", "files"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "installed")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "source: a folder, 1 documents"
    assert {"params.yaml", "dvc.yaml", "code.lock.json", "inbox"} <= {
        path.name for path in (tmp_path / "notes").iterdir()
    }
