"""Everything that Dagster sees. Slow libraries are imported inside functions, so that this loads in
a moment.
"""

from __future__ import annotations

import dagster as dg

from assets.corpus import corpus_assets
from assets.evaluation import evaluation_assets
from assets.live import live_assets
from assets.registry import follow_alias, registry_assets
from assets.retrievers import retriever_assets
from model_code.project import Project
from orchestration import parameters
from orchestration.pipeline import stages
from orchestration.sensors import JOBS, SENSORS, build_jobs, sync_schedule


def definitions(project: Project) -> dg.Definitions:
    """The definitions of the project, for the retrievers that its `params.yaml` names."""
    settings = parameters.load(project.params_file)
    table = stages.expand(settings.retrievers, settings.fusions)
    return dg.Definitions(
        assets=dg.map_asset_specs(
            lambda spec: spec.replace_attributes(owners=["team:freshet"]),
            [
                *corpus_assets(table),
                *retriever_assets(table),
                *evaluation_assets(table),
                *registry_assets(table),
                *live_assets(settings.live.sync),
            ],
        ),
        jobs=[*build_jobs(table), *JOBS.values(), follow_alias],
        schedules=sync_schedule(project, settings.live.sync),
        sensors=SENSORS,
        resources={"project": project},
        executor=dg.in_process_executor,
    )


defs = definitions(Project.find())
