"""Stages as Dagster assets: keys, specs, checks, and one `dvc repro` for those of a family that a run asks for."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg

from assets.pages import report_of
from model_code.context import StageContext
from model_code.errors import FreshetError
from model_code.files import hash_path, hash_text
from orchestration.pipeline.stages import Stage, upstream
from orchestration.project import Project

Result = dg.MaterializeResult | dg.AssetCheckResult
Answer = tuple[bool, Mapping[str, Any]]

LOCK_KEY = dg.AssetKey("corpus_lock")
NOUNS = {  # what exists after a stage, where it is not called as the stage is
    "acceptance": "acceptance_verdict",
    "hierarchy": "document_hierarchy",
    "train": "encoder",
    "evaluate": "evaluation",
    "fuse": "evaluation",
}


@dataclass(frozen=True)
class Check:
    """A question about a finished artifact: `ask(context)` returns whether it holds and what was seen.

    `context.output` is the artifact, the rest what its stage was given.
    """

    name: str
    description: str
    ask: Callable[[StageContext], Answer]


@dataclass(frozen=True)
class Page:
    """Where a stage's asset stands in the UI, and what it shows.

    `preview(folder)` returns the metadata of a finished artifact: Markdown texts under names. `checks` are asked beside
    the stage's contract, which every asset has.
    """

    group: str
    kinds: frozenset[str]
    preview: Callable[[Path], Mapping[str, str]]
    checks: tuple[Check, ...] = ()


def asset_key(stage: Stage) -> dg.AssetKey:
    """`corpus`, or `hce/encoder` for a stage that runs once per retriever."""
    noun = NOUNS.get(stage.name, stage.name)
    return dg.AssetKey([stage.retriever, noun] if stage.retriever else [noun])


def code_version(stage: Stage, root: Path) -> str:
    """Hash of the stage's command and code, as short as a git commit."""
    return hash_text("".join([stage.command, *(hash_path(root / path) for path in stage.code_files)]))[:12]


def contract_check(stage: str) -> Check:
    """The stage's contract as a check: the very function that the runner asked before the artifact was in place."""

    def ask(context: StageContext) -> Answer:
        from model_code.contracts import registry

        try:
            registry.check(stage, context)
        except FreshetError as error:
            return False, {"violation": str(error), "what to do": _remedy(stage, context.name)}
        return True, {}

    return Check("contract_holds", "What lies in place keeps the contract of its stage.", ask)


def _remedy(stage: str, retriever: str | None) -> str:
    """DVC takes it for up to date, as a stage runs only if its own code or inputs changed, and contracts are neither.

    >>> _remedy("train", "hce")
    'Made before this rule, or damaged: dvc repro --force --single-item train@hce makes it again, and nothing else.'
    """
    address = f"{stage}@{retriever}" if retriever else stage
    again = f"dvc repro --force --single-item {address} makes it again, and nothing else."
    return f"Made before this rule, or damaged: {again}"


class StageAssets:
    """The stages of `table` that `pages` names, by name: what their multi-asset is made of, and its work."""

    def __init__(self, project: Project, table: Sequence[Stage], pages: Mapping[str, Page]) -> None:
        self.project, self.table, self.pages = project, table, pages
        self.stages = [stage for stage in table if stage.name in pages]

    def options(self) -> dict[str, Any]:
        """The arguments of `dagster.multi_asset`; a run may ask for some of the assets only."""
        (pool,) = {stage.pool for stage in self.stages}
        return {
            "specs": [self.spec(stage) for stage in self.stages],
            "check_specs": [
                dg.AssetCheckSpec(check.name, asset=asset_key(stage), description=check.description, blocking=True)
                for stage in self.stages
                for check in self.checks(stage)
            ],
            "can_subset": True,
            "pool": pool,
            "retry_policy": dg.RetryPolicy(max_retries=1, delay=5),
        }

    def spec(self, stage: Stage) -> dg.AssetSpec:
        """The asset of one stage; each retriever has a group of its own, such as `retriever_hce`."""
        page = self.pages[stage.name]
        suffix = f"_{stage.retriever.replace('-', '_')}" if stage.retriever else ""  # Dagster takes no hyphens
        return dg.AssetSpec(
            asset_key(stage),
            deps=[asset_key(other) for other in upstream(stage, self.table)] or [LOCK_KEY],
            description=stage.description,
            group_name=page.group + suffix,
            kinds=set(page.kinds),
            code_version=code_version(stage, self.project.root),
            skippable=True,
            metadata={"stage": stage.address},
        )

    def checks(self, stage: Stage) -> tuple[Check, ...]:
        """What is asked of a stage's finished output: its contract first."""
        return contract_check(stage.name), *self.pages[stage.name].checks

    def materialize(self, context: dg.AssetExecutionContext) -> Iterator[Result]:
        """Run DVC for what is selected; yield each asset once, in topological order, those that DVC skipped too."""
        from orchestration.pipeline.repro import repro

        waiting = [stage for stage in self.stages if asset_key(stage) in context.selected_asset_keys]
        for ended in repro(self.project, [stage.address for stage in waiting], dagster_run=context.run_id):
            current = next((stage for stage in self.table if stage.address == ended.address), None)
            context.log.info(f"stage {ended.address} ran (key {ended.key[:12]})")
            if current not in waiting:
                continue  # a stage before the selected ones that had to run again: its own asset is not selected here
            for stage in [stage for stage in waiting if stage in (current, *_ancestors(current, self.table))]:
                yield self.result(context, stage, ran=stage == current)
                waiting.remove(stage)
        for stage in waiting:
            yield self.result(context, stage, ran=False)

    def result(self, context: dg.AssetExecutionContext, stage: Stage, ran: bool) -> dg.MaterializeResult:
        """A finished asset, with its page and the answers of its selected checks."""
        from orchestration.pipeline import dvc_lock

        return dg.MaterializeResult(
            asset_key=asset_key(stage),
            data_version=dg.DataVersion(dvc_lock.output_version(self.project.root, stage)),
            metadata=self._metadata(stage, ran),
            check_results=list(self.check_results(context, stage)),
        )

    def check_results(self, context: dg.AssetExecutionContext, stage: Stage) -> Iterator[dg.AssetCheckResult]:
        """The answers of those checks that the run asks for."""
        finished = finished_context(self.project, stage)
        for check in self.checks(stage):
            if dg.AssetCheckKey(asset_key(stage), check.name) in context.selected_asset_check_keys:
                passed, seen = check.ask(finished)
                yield dg.AssetCheckResult(
                    passed=bool(passed), asset_key=asset_key(stage), check_name=check.name, metadata=dict(seen)
                )

    def _metadata(self, stage: Stage, ran: bool) -> dict[str, Any]:
        from orchestration.parameters import flatten
        from orchestration.pipeline import stage_key
        from orchestration.pipeline.runs import find_run

        folder = self.project.root / stage.output
        key = stage_key.read(stage, self.project.root).key
        report = {
            name: value for name, value in flatten(report_of(folder)).items() if isinstance(value, (int, float, str))
        }
        previews = {name: dg.MetadataValue.md(text) for name, text in self.pages[stage.name].preview(folder).items()}
        return {
            "what happened": "ran" if ran else "unchanged: taken from DVC",
            **previews,
            "stage output": stage.output,
            "MLflow run": find_run(self.project, key) or "none (restored from a cache that was filled elsewhere)",
            "stage key": key,
            **report,
        }


def _ancestors(stage: Stage, table: Sequence[Stage]) -> list[Stage]:
    ancestors: list[Stage] = []
    front = [stage]
    while front:
        front = [before for each in front for before in upstream(each, table) if before not in ancestors]
        ancestors += front
    return ancestors


def finished_context(project: Project, stage: Stage) -> StageContext:
    """What a finished artifact was made from, and where it lies."""
    from orchestration import parameters
    from orchestration.pipeline.run_stage import stage_context

    output = project.root / stage.output
    return stage_context(stage, project, parameters.load(project.params_file), output, project.state / "checkpoints")
