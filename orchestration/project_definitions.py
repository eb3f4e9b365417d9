"""The Dagster definitions of a project: assets, jobs, schedules and sensors.

`orchestration/definitions.py` loads them for the project of the working directory.
`freshet/dagster.py` includes them in another Dagster project. Slow libraries are imported inside
functions, so that this module loads quickly.
"""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg

from assets.corpus import corpus_assets
from assets.evaluation import evaluation_assets
from assets.live import live_assets
from assets.registry import follow_alias, registry_assets
from assets.retrievers import retriever_assets
from assets.stage_assets import asset_key
from model_code.errors import FreshetError
from model_code.project import Project
from model_code.stages.stage import Stage
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
    keys = _asset_keys(assets)
    _require_pages(table, keys)
    return dg.Definitions(
        assets=dg.map_asset_specs(_set_owners, assets),
        jobs=[*build_jobs(table, keys), *TASK_JOBS.values(), follow_alias],
        schedules=sync_schedules(project, settings.live.sync),
        sensors=SENSORS,
        resources={"project": project},
        executor=EXECUTOR,
    )


def _set_owners(spec: dg.AssetSpec) -> dg.AssetSpec:
    return spec.replace_attributes(owners=ASSET_OWNERS)


def _require_pages(table: Sequence[Stage], keys: Sequence[dg.AssetKey]) -> None:
    """Check that every stage has an asset. A stage without one would never run in a job.

    Raises:
        FreshetError: If a stage has no page, from which its asset is made.
    """
    missing = {stage.name for stage in table if asset_key(stage) not in keys}
    if missing:
        names = ", ".join(sorted(missing))
        raise FreshetError(
            f"no asset page for these stages: {names}; add one to PAGES in a file of assets/, such "
            "as assets/corpus.py"
        )


def _asset_keys(assets: list[dg.AssetsDefinition | dg.AssetSpec]) -> list[dg.AssetKey]:
    """Return the keys of all assets that a job can materialize."""
    keys: list[dg.AssetKey] = []
    for definition in assets:
        if isinstance(definition, dg.AssetsDefinition):
            keys.extend(definition.keys)
    return keys
