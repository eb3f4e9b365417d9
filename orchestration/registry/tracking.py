"""What is remembered of each stage that ran, behind an interface so small that another tracker than MLflow fits it."""

from __future__ import annotations

import os
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from model_code.settings import require
from orchestration.project import Project
from orchestration.registry.stage_record import StageRecord


class Tracker(Protocol):
    """Remembers stages that ran and finds them again."""

    def record_stage(self, record: StageRecord) -> str:
        """Keep `record`; returns the id of its run. The same stage key and start again is the same run."""

    def find_run(self, key: str) -> str | None:
        """The newest finished run of the stage key `key`."""


class NoTracker:
    """Remembers nothing: what `FRESHET_TRACKING=off` asks for. Builds are the same, and each stage starts sooner."""

    def record_stage(self, record: StageRecord) -> str:
        """No run, so an empty id."""
        return ""

    def find_run(self, key: str) -> str | None:
        """There is none."""
        return None


def tracking_uri(project: Project) -> str:
    """MLFLOW_TRACKING_URI, or else the SQLite file in the project's state folder."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{store_folder(project) / 'mlflow.db'}"


def store_folder(project: Project) -> Path:
    """The folder of the project's own MLflow store: database, artifacts and locks."""
    return project.state.resolve() / "mlflow"


def tracker_for(project: Project) -> Tracker:
    """The project's tracker; one per process and store, as opening it takes seconds."""
    return _tracker(tracking_uri(project), store_folder(project)) if tracking_is_on() else NoTracker()


def tracking_is_on() -> bool:
    """Unless the environment says `FRESHET_TRACKING=off`; FreshetError for another value than on or off."""
    switch = os.environ.get("FRESHET_TRACKING", "on")
    require(switch in ("on", "off"), f"FRESHET_TRACKING is {switch!r}, but must be on or off")
    return switch == "on"


@lru_cache(maxsize=4)
def _tracker(uri: str, folder: Path) -> Tracker:
    from orchestration.registry.mlflow_tracker import MlflowTracker

    return MlflowTracker(uri, folder)


def git_state(root: Path) -> tuple[str | None, bool]:
    """The commit that is checked out, and whether files below `root` differ from it; (None, False) outside of git, or
    where git is not installed.

    `dvc.lock` does not count: each stage that runs rewrites it.
    """

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True)
        except FileNotFoundError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "--verify", "HEAD")
    return commit, bool(commit and git("status", "--porcelain", "--", ".", ":!dvc.lock"))
