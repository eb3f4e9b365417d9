"""Everything that Dagster sees. Slow libraries are imported inside functions, so that this loads in a moment."""

from __future__ import annotations

import dagster as dg  # isort: skip

from assets.build import build_assets
from assets.release_assets import release_assets
from orchestration import parameters
from orchestration.freshness_assets import freshness_assets
from orchestration.freshness_sensor import sensors
from orchestration.jobs import jobs, live_jobs
from orchestration.pipeline import stages
from orchestration.project import Project


def definitions(project: Project) -> dg.Definitions:
    """The definitions of the project, for the retrievers that its `params.yaml` names."""
    table = stages.expand(parameters.load(project.params_file).retrievers)
    live = live_jobs()
    return dg.Definitions(
        assets=[*build_assets(project, table), *release_assets(project, table), *freshness_assets(project)],
        jobs=[*jobs(table), *live],
        sensors=sensors(project, live),
        executor=dg.in_process_executor,
    )


defs = definitions(Project.find())
