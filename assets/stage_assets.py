"""Turn the stages of a build into Dagster assets, which users run and watch in Dagster's UI.

An asset stands for the output of one stage, such as the tables of the corpus. It consists of:

- a description, with the assets that it depends on
- the function that runs the stage through DVC
- a check whether the output keeps the stage's contract, the conditions that it must meet
- a page with tables and pictures of the output
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
from orchestration.pipeline.stage_context import stage_context
from orchestration.pipeline.stages import upstream

# A failed step is tried once more, because some failures do not repeat, such as a killed process.
RETRY = dg.RetryPolicy(max_retries=1, delay=5)
# Name of Dagster's tag with the data version of a materialization, the hash of an output.
VERSION_TAG = "dagster/data_version"
CONTRACT = "contract_holds"
CONTRACT_DESCRIPTION = "The output that is in place keeps the contract of its stage."
# Resource with the project whose definitions Dagster has loaded.
ProjectResource = dg.ResourceParam[Project]
LOCK_KEY = dg.AssetKey("corpus_lock")
# The name of an asset, if it differs from the stage's name.
ASSET_NAMES = {
    "acceptance": "acceptance_verdict",
    "hierarchy": "document_hierarchy",
    "train": "encoder",
    "evaluate": "evaluation",
    "fuse": "evaluation",
}
# Characters of the code hash that Dagster shows as the code version.
CODE_VERSION_LENGTH = 12


@dataclass(frozen=True)
class AssetPage:
    """The place of a stage's asset in Dagster's UI, and the content of its page.

    Attributes:
        group: Asset group. Each retriever has a separate group, such as `retriever_hce`.
        kinds: Labels of the asset.
        preview: Returns tables and pictures by name, from the folder of a finished output.
        priority: If several stages can run, the one with the highest priority runs first.
    """

    group: str
    kinds: frozenset[str]
    preview: Callable[[Path], Preview]
    priority: int = 0


def asset_key(stage: Stage) -> dg.AssetKey:
    """Return the key of a stage's asset, such as `corpus` or `hce/encoder`."""
    name = ASSET_NAMES.get(stage.name, stage.name)
    if stage.retriever is None:
        return dg.AssetKey([name])
    return dg.AssetKey([stage.retriever, name])


def stage_assets(
    table: Sequence[Stage], pages: Mapping[str, AssetPage]
) -> list[dg.AssetsDefinition]:
    """Return the asset of each stage that has a page. Each asset is a separate step of a run.

    Args:
        table: All expanded stages of the project.
        pages: Pages by the name of their stage.
    """
    return [_stage_asset(table, stage, pages[stage.name]) for stage in table if stage.name in pages]


def _stage_asset(table: Sequence[Stage], stage: Stage, page: AssetPage) -> dg.AssetsDefinition:
    """Return the asset of a stage, with a check of the stage's contract.

    Args:
        table: All expanded stages of the project, which tell the assets that it depends on.
        stage: The stage.
        page: Group, labels and content of the asset's page.
    """
    key = asset_key(stage)
    group = page.group
    if stage.retriever is not None:
        # Dagster does not allow hyphens in the name of a group.
        group += f"_{stage.retriever.replace('-', '_')}"
    # A stage that reads no other stage reads the source of the corpus. The lock of the source is an
    # asset as well.
    dependencies = [asset_key(earlier) for earlier in upstream(stage, table)]

    spec = dg.AssetSpec(
        key,
        deps=dependencies or [LOCK_KEY],
        description=stage.description,
        group_name=group,
        kinds=set(page.kinds),
        code_version=code_hash(stage)[:CODE_VERSION_LENGTH],
        metadata={"stage": stage.address},
    )
    check_spec = dg.AssetCheckSpec(
        CONTRACT, asset=key, description=CONTRACT_DESCRIPTION, blocking=True
    )

    @dg.multi_asset(
        name=key.to_python_identifier(),
        specs=[spec],
        check_specs=[check_spec],
        pool=stage.pool,
        op_tags={"dagster/priority": str(page.priority)},
        retry_policy=RETRY,
    )
    def step(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
        """Bring the stage up to date through DVC, and return the content of its page."""
        build = _planned_build(project, context.run_id)
        print_line = partial(log_line, context)
        try:
            stages_that_ran = list(build.bring_up_to_date(stage.address, print_line))
        except StageRefused as error:
            # A retry would fail for the same reason.
            raise dg.Failure(str(error), allow_retries=False) from error

        last = context.instance.get_latest_materialization_event(key)
        ran = stage.address in stages_that_ran
        return materialize_result(project, stage, page, ran, last)

    return step


@lru_cache(maxsize=1)
def _planned_build(project: Project, run_id: str) -> PlannedBuild:
    """Return the build of a Dagster run.

    The first stage of the run plans the build, and the other stages use the same plan. Edits of
    settings or code during the run therefore do not change the plan.
    """
    # Every build needs MLflow. Its import takes as long as planning, so both run at the same time.
    with ThreadPoolExecutor(1) as importer:
        imported = importer.submit(import_module, "mlflow")
        build = PlannedBuild(project, dagster_run=run_id)
        imported.result()
    return build


def log_line(context: dg.AssetExecutionContext, text: str) -> None:
    """Log a line in the run's events and print it to the terminal that started the run."""
    context.log.info(text)
    print_to_stderr(text)


def materialize_result(
    project: Project, stage: Stage, page: AssetPage, ran: bool, last: dg.EventLogEntry | None
) -> dg.MaterializeResult:
    """Return the materialization of a finished stage, with its page and the result of its check.

    An unchanged output keeps the page of its last materialization. Drawing it again would open
    MLflow and matplotlib, which takes most of the time of a build that has nothing to do.

    Args:
        project: The project.
        stage: The stage.
        page: The page of the stage's asset.
        ran: True if the stage ran; False if DVC skipped it or restored its output.
        last: The last materialization of the asset.
    """
    version = dvc.output_version(project.root, stage)
    key = stage_key.read_stage_inputs(stage, project.root).key

    metadata = None
    if not ran:
        metadata = _unchanged_metadata(last, version, key)
    if metadata is None:
        metadata = _metadata(project, stage, page, key)
    metadata["what happened"] = "ran" if ran else "unchanged: taken from DVC"
    return dg.MaterializeResult(
        asset_key=asset_key(stage),
        data_version=dg.DataVersion(version),
        metadata=metadata,
        check_results=[check_result(project, stage, ran)],
    )


def _unchanged_metadata(
    last: dg.EventLogEntry | None, version: str, key: str
) -> dict[str, Any] | None:
    """Return the metadata of the last materialization if it is still valid; None otherwise.

    Args:
        last: The last materialization of the asset; None if there is none.
        version: Hash of the present output. The metadata is valid if it describes this output.
        key: Present stage key. The page shows it, so it must be the same as well.
    """
    if last is None or last.asset_materialization is None:
        return None
    materialization = last.asset_materialization
    tags = materialization.tags or {}
    if tags.get(VERSION_TAG) != version:
        return None

    metadata = dict(materialization.metadata)
    last_key = metadata.get("stage key")
    if last_key is None or last_key.value != key:
        return None
    return metadata


def check_result(project: Project, stage: Stage, ran: bool = False) -> dg.AssetCheckResult:
    """Check that the present output of a stage fulfils the stage's contract.

    The runner checked the contract when the stage ran. The output may violate it now, for example
    because the contract has a new rule. DVC does not notice that: it runs a stage only if the
    stage's code or inputs have changed.

    Args:
        project: The project.
        stage: The stage.
        ran: Whether this build ran the stage, so that the runner has just checked the contract.
    """
    from model_code.stages.contract import check_contract

    output = project.root / stage.output
    settings = parameters.load(project.params_file)
    context = stage_context(stage, project, settings, output, project.state / "checkpoints")

    metadata = {}
    try:
        if not ran:
            check_contract(stage.name, context)
        passed = True
        reason = left_out_reason(output)
        if reason:
            metadata["left out"] = reason
    except FreshetError as error:
        passed = False
        metadata["violation"] = str(error)
        metadata["what to do"] = (
            "The output was made before this rule, or is damaged: "
            f"dvc repro --force --single-item {stage.address} makes it again, and nothing else."
        )
    return dg.AssetCheckResult(
        passed=passed, asset_key=asset_key(stage), check_name=CONTRACT, metadata=metadata
    )


def _metadata(project: Project, stage: Stage, page: AssetPage, key: str) -> dict[str, Any]:
    """Return the content of the asset's page, in the order in which the page shows it."""
    folder = project.root / stage.output
    run = runs.find_run(project, key)

    # This entry comes first on the page. The caller sets its value.
    metadata: dict[str, Any] = {"what happened": ""}
    if not left_out_reason(folder):
        metadata.update(page.preview(folder))
    metadata["stage output"] = stage.output
    metadata["MLflow run"] = run or "none (restored from a cache that was filled elsewhere)"
    if run:
        metadata["MLflow page"] = dg.MetadataValue.url(runs.run_page(project, run))
    metadata["stage key"] = key

    report = parameters.flatten(read_json(folder / "report.json"))
    for name, value in report.items():
        if isinstance(value, (int, float, str)):
            metadata[name] = value
    return metadata
