"""The offline build in Dagster: multi-assets around one `dvc repro`, each stage reported as it ends."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import dagster as dg

from assets.asset_graph import asset_key, asset_spec, check_specs, checks_of
from assets.catalogue import FAMILIES
from assets.family import report_of
from model_code.context import StageContext
from orchestration.pipeline.stages import Stage, upstream
from orchestration.project import Project

Result = dg.MaterializeResult | dg.AssetCheckResult


def build_assets(project: Project, table: Sequence[Stage]) -> list[dg.AssetsDefinition]:
    """One multi-asset per pool: training waits for the one slot of its pool, the rest for nothing."""
    pools = sorted({stage.pool for stage in table}, key=str)
    return [_multi_asset(project, table, [s for s in table if s.pool == pool], pool) for pool in pools]


def _multi_asset(project: Project, table: Sequence[Stage], rows: list[Stage], pool: str | None) -> dg.AssetsDefinition:
    @dg.multi_asset(
        name="training" if pool else "build",
        specs=[asset_spec(stage, table, project.root) for stage in rows],
        check_specs=check_specs(rows),
        can_subset=True,
        pool=pool,
        retry_policy=dg.RetryPolicy(max_retries=1, delay=5),
    )
    def build(context: dg.AssetExecutionContext) -> Iterator[Result]:
        selected = [stage for stage in rows if asset_key(stage) in context.selected_asset_keys]
        yield from materialize(context, project, table, selected)

    return build


def materialize(
    context: dg.AssetExecutionContext, project: Project, table: Sequence[Stage], selected: Sequence[Stage]
) -> Iterator[Result]:
    """Run DVC for `selected`; yield each asset once, in topological order, those that DVC skipped included."""
    from orchestration.pipeline.repro import repro

    waiting = list(selected)
    for ended in repro(project, [stage.address for stage in selected], dagster_run=context.run_id):
        current = next((stage for stage in table if stage.address == ended.address), None)
        context.log.info(f"stage {ended.address} ran (key {ended.key[:12]})")
        if current not in waiting:
            continue  # a stage before the selected ones that had to run again: its own asset is not selected here
        done = [stage for stage in waiting if stage == current or stage in _ancestors(current, table)]
        for stage in done:
            yield from _results(context, project, stage, ran=stage == current)
            waiting.remove(stage)
    for stage in waiting:
        yield from _results(context, project, stage, ran=False)


def _ancestors(stage: Stage, table: Sequence[Stage]) -> list[Stage]:
    found: list[Stage] = []
    front = [stage]
    while front:
        front = [other for one in front for other in upstream(one, table) if other not in found]
        found += front
    return found


def _results(context: dg.AssetExecutionContext, project: Project, stage: Stage, ran: bool) -> Iterator[Result]:
    from orchestration.pipeline import dvc_lock

    yield dg.MaterializeResult(
        asset_key=asset_key(stage),
        data_version=dg.DataVersion(dvc_lock.output_version(project.root, stage)),
        metadata=_metadata(project, stage, ran),
        check_results=list(_check_results(context, project, stage)),
    )


def _check_results(context: dg.AssetExecutionContext, project: Project, stage: Stage) -> Iterable[dg.AssetCheckResult]:
    finished = finished_context(project, stage)
    for check in checks_of(stage):
        if dg.AssetCheckKey(asset_key(stage), check.name) in context.selected_asset_check_keys:
            passed, seen = check.ask(finished)
            yield dg.AssetCheckResult(
                passed=bool(passed), asset_key=asset_key(stage), check_name=check.name, metadata=dict(seen)
            )


def finished_context(project: Project, stage: Stage) -> StageContext:
    """What a finished artifact was made from, and where it lies."""
    from orchestration import parameters
    from orchestration.pipeline.run_stage import stage_context

    output = project.root / stage.output
    return stage_context(stage, project, parameters.load(project.params_file), output, project.state / "checkpoints")


def _metadata(project: Project, stage: Stage, ran: bool) -> dict[str, Any]:
    from orchestration.parameters import flatten
    from orchestration.pipeline import stage_key
    from orchestration.registry.runs import find_run

    folder = project.root / stage.output
    key = stage_key.read(stage, project.root).key
    report = {name: value for name, value in flatten(report_of(folder)).items() if isinstance(value, (int, float, str))}
    previews = {name: dg.MetadataValue.md(text) for name, text in FAMILIES[stage.name].preview(folder).items()}
    run = find_run(project, key)
    return {
        "what happened": "ran" if ran else "unchanged: taken from DVC",
        **previews,
        "stage output": stage.output,
        "MLflow run": run or "none (restored from a cache that was filled elsewhere)",
        "stage key": key,
        **report,
    }
