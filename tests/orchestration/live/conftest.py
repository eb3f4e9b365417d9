"""A project with a small live collection of the real kind."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from orchestration.project import Project
from tests.model_code.live.laws import WORDS, make_encoder, open_build

PARAMS = "retrievers: {r: {}}\n"


def texts() -> dict[str, tuple[str, str]]:
    """Documents of one passage, five words long."""
    random = np.random.default_rng(0)
    return {f"d{i:02d}": (WORDS[i], " ".join(random.choice(WORDS, 5))) for i in range(24)}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A project with a live collection."""
    root = tmp_path_factory.mktemp("project")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda handle: None)
        patch.delenv("FRESHET_STATE", raising=False)
        make_encoder("dense", root / "encoder")
        open_build("dense", root, root / "encoder", texts())
        (root / "params.yaml").write_text(PARAMS)
        (root / "dvc.yaml").touch()
        yield Project(root)


@pytest.fixture
def own(project: Project, tmp_path: Path) -> Project:
    """A copy of it in which nothing was tuned or arrived."""
    ignored = shutil.ignore_patterns(".freshet", "ledger*")
    return Project(Path(shutil.copytree(project.root, tmp_path / "own", ignore=ignored)))
