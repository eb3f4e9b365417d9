"""Stages as Dagster assets, each a step of its own: key, spec, checks, what DVC does for it, and
its page.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import dagster as dg

from assets.pages import Preview
from model_code.context import left_out_reason
from model_code.errors import FreshetError
from model_code.files import read_json
from model_code.project import Project
from model_code.stages.stage import Stage
from orchestration import parameters
from orchestration.pipeline import dvc, runs, stage_key
from orchestration.pipeline.code_lock import code_hash
from orchestration.pipeline.repro import PlannedBuild, StageRefused, print_to_stderr
from orchestration.pipeline.run_stage import stage_context
from orchestration.pipeline.stages import upstream

# of what may pass by itself, such as a killed process
RETRY = dg.RetryPolicy(max_retries=1, delay=5)
VERSION_TAG = "dagster/data_version"  # Dagster's own tag of a materialization
CONTRACT, PROMISE = "contract_holds", "What lies in place keeps the contract of its stage."
Served = dg.ResourceParam[Project]  # the project that the code location is loaded for
LOCK_KEY = dg.AssetKey("corpus_lock")
NOUNS = {  # what exists after a stage, where it is not called as the stage is
    "acceptance": "acceptance_verdict",
    "hierarchy": "document_hierarchy",
    "train": "encoder",
    "evaluate": "evaluation",
    "fuse": "evaluation",
}


@dataclass(frozen=True)
class Page:
    """Where a stage's asset stands in the UI, and what it shows.

    `preview(folder)` returns the metadata of a finished artifact: tables and pictures under names.
    Of stages that can run, the one with the highest `priority` does.
    """

    group: str
    kinds: frozenset[str]
    preview: Callable[[Path], Preview]
    priority: int = 0


def asset_key(stage: Stage) -> dg.AssetKey:
    """`corpus`, or `hce/encoder` for a stage that runs once per retriever."""
    noun = NOUNS.get(stage.name, stage.name)
    return dg.AssetKey([stage.retriever, noun] if stage.retriever else [noun])


@lru_cache(maxsize=1)
def _build(project: Project, run_id: str) -> PlannedBuild:
    """What a run of Dagster builds, planned at its first stage: whatever is edited meanwhile, it is
    one build.
    """
    with ThreadPoolExecutor(1) as beside:
        # it takes as long as asking DVC, and every build needs it
        imported = beside.submit(import_module, "mlflow")
        build = PlannedBuild(project, dagster_run=run_id)
        imported.result()
    return build


def stage_assets(table: Sequence[Stage], pages: Mapping[str, Page]) -> list[dg.AssetsDefinition]:
    """The assets of those stages that `pages` names, each a step of its own."""
    return [_stage_asset(table, stage, pages[stage.name]) for stage in table if stage.name in pages]


def _stage_asset(table: Sequence[Stage], stage: Stage, page: Page) -> dg.AssetsDefinition:
    """A stage as a step; each retriever has a group of its own, such as `retriever_hce`."""
    # Dagster takes no hyphens
    suffix = f"_{stage.retriever.replace('-', '_')}" if stage.retriever else ""
    spec = dg.AssetSpec(
        asset_key(stage),
        deps=[asset_key(dependency) for dependency in upstream(stage, table)] or [LOCK_KEY],
        description=stage.description,
        group_name=page.group + suffix,
        kinds=set(page.kinds),
        code_version=code_hash(stage)[:12],
        metadata={"stage": stage.address},
    )

    @dg.multi_asset(
        name=asset_key(stage).to_python_identifier(),
        specs=[spec],
        check_specs=[
            dg.AssetCheckSpec(CONTRACT, asset=asset_key(stage), description=PROMISE, blocking=True)
        ],
        pool=stage.pool,
        op_tags={"dagster/priority": str(page.priority)},
        retry_policy=RETRY,
    )
    def step(context: dg.AssetExecutionContext, project: Served) -> dg.MaterializeResult:
        try:
            ran = list(
                _build(project, context.run_id).bring_up_to_date(
                    stage.address, partial(tell, context)
                )
            )
        except StageRefused as error:
            raise dg.Failure(str(error), allow_retries=False) from error
        before = context.instance.get_latest_materialization_event(asset_key(stage))
        return materialized(project, stage, page, stage.address in ran, before)

    return step


def tell(context: dg.AssetExecutionContext, text: str) -> None:
    """Say it in the run's events, and to the terminal that the run was started from."""
    context.log.info(text)
    print_to_stderr(text)


def materialized(
    project: Project, stage: Stage, page: Page, ran: bool, before: dg.EventLogEntry | None
) -> dg.MaterializeResult:
    """A finished asset, with its page and the answer of its check. What has not changed keeps the
    page of `before`: to draw it again would open MLflow and matplotlib, the most of a build that
    has nothing to do.
    """
    version, key = (
        dvc.output_version(project.root, stage),
        stage_key.read_stage_inputs(stage, project.root).key,
    )
    drawn = None if ran or before is None else before.asset_materialization
    shown = (
        drawn.metadata
        if drawn is not None and (drawn.tags or {}).get(VERSION_TAG) == version
        else {}
    )
    same = "stage key" in shown and shown["stage key"].value == key
    page_of_now = dict(shown) if same else _metadata(project, stage, page, key)
    return dg.MaterializeResult(
        asset_key=asset_key(stage),
        data_version=dg.DataVersion(version),
        metadata=page_of_now | {"what happened": "ran" if ran else "unchanged: taken from DVC"},
        check_results=[check_result(project, stage)],
    )


def check_result(project: Project, stage: Stage) -> dg.AssetCheckResult:
    """The stage's contract as a check: the very function that the runner asked before the artifact
    was in place.

    To DVC a broken one is up to date: a stage runs only if its own code or inputs changed, and
    contracts are neither.
    """
    from model_code.stages.contract import check_contract

    output, settings = project.root / stage.output, parameters.load(project.params_file)
    facts, passed = {}, True
    try:
        check_contract(
            stage.name,
            stage_context(stage, project, settings, output, project.state / "checkpoints"),
        )
        if reason := left_out_reason(output):
            facts = {"left out": reason}
    except FreshetError as error:
        again = f"dvc repro --force --single-item {stage.address} makes it again, and nothing else."
        passed, facts = (
            False,
            {"violation": str(error), "what to do": f"Made before this rule, or damaged: {again}"},
        )
    return dg.AssetCheckResult(
        passed=passed, asset_key=asset_key(stage), check_name=CONTRACT, metadata=facts
    )


def _metadata(project: Project, stage: Stage, page: Page, key: str) -> dict[str, Any]:
    folder = project.root / stage.output
    reported = parameters.flatten(read_json(folder / "report.json")).items()
    report = {name: value for name, value in reported if isinstance(value, (int, float, str))}
    run = runs.find_run(project, key)
    return {
        "what happened": "",  # first
        **({} if left_out_reason(folder) else page.preview(folder)),
        "stage output": stage.output,
        "MLflow run": run or "none (restored from a cache that was filled elsewhere)",
        **({"MLflow page": dg.MetadataValue.url(runs.run_page(project, run))} if run else {}),
        "stage key": key,
        **report,
    }
