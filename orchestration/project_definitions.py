"""The Dagster definitions of a project: assets, jobs, schedules and sensors.

`orchestration/definitions.py` loads them for the project of the working directory.
`freshet/dagster.py` includes them in another Dagster project. Slow libraries are imported inside
functions, so that this module loads quickly.
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
from orchestration.jobs import EXECUTOR, TASK_JOBS, build_jobs, sync_schedules
from orchestration.pipeline import stages
from orchestration.sensors import SENSORS

ASSET_OWNERS = ["team:freshet"]


def definitions(project: Project) -> dg.Definitions:
    """Return the Dagster definitions of a project.

    They depend on the retrievers and fusions in its `params.yaml`.
    """
    settings = parameters.load(project.params_file)
    table = stages.expand(settings.retrievers, settings.fusions)

    assets = [
        *corpus_assets(table),
        *retriever_assets(table),
        *evaluation_assets(table),
        *registry_assets(table),
        *live_assets(settings.live.sync),
    ]
    return dg.Definitions(
        assets=dg.map_asset_specs(_set_owners, assets),
        jobs=[*build_jobs(table, _asset_keys(assets)), *TASK_JOBS.values(), follow_alias],
        schedules=sync_schedules(project, settings.live.sync),
        sensors=SENSORS,
        resources={"project": project},
        executor=EXECUTOR,
    )


def _set_owners(spec: dg.AssetSpec) -> dg.AssetSpec:
    return spec.replace_attributes(owners=ASSET_OWNERS)


def _asset_keys(assets: list[dg.AssetsDefinition | dg.AssetSpec]) -> list[dg.AssetKey]:
    """Return the keys of all assets that a job can materialize."""
    keys: list[dg.AssetKey] = []
    for definition in assets:
        if isinstance(definition, dg.AssetsDefinition):
            keys.extend(definition.keys)
    return keys
