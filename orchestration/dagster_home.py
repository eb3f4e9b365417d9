"""The project's own Dagster home: made once, with telemetry off and one slot per pool."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from model_code.files import write_text
from orchestration.project import Project

if TYPE_CHECKING:
    import dagster as dg

CONFIG = """\
telemetry: {enabled: false}
nux: {enabled: false}
concurrency: {pools: {default_limit: 1, granularity: op}}
"""


def dagster_home(project: Project) -> Path:
    """The folder, with its `dagster.yaml`; made and initialised at the first call, under the project's lock.

    Two processes that initialise a fresh home at once leave its database with two schema heads.
    """
    home = project.state / "dagster"
    if not (home / "dagster.yaml").exists():
        with project.lock():
            home.mkdir(parents=True, exist_ok=True)
            _initialise_databases(home)
    os.environ["DAGSTER_HOME"] = str(home)
    return home


def _initialise_databases(home: Path) -> None:
    import dagster as dg

    write_text(home / "dagster.yaml", CONFIG)
    with dg.DagsterInstance.from_config(str(home)) as instance:
        instance.get_runs(limit=1)
        instance.fetch_materializations(dg.AssetKey("any"), limit=1)


def open_instance(project: Project) -> dg.DagsterInstance:
    """The project's persistent instance, to run jobs in."""
    import dagster as dg

    return dg.DagsterInstance.from_config(str(dagster_home(project)))
