"""The live collection in Dagster: a generation, a batch and its drift, a pilot, a retrain with gate
and promotion.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import dagster as dg
from dagster._utils.schedules import get_smallest_cron_interval

from assets.stage_assets import ProjectResource
from orchestration.running_service import find_running_service

BATCHES = dg.DynamicPartitionsDefinition(name="batches")
PILOTS = dg.DynamicPartitionsDefinition(name="pilots")
RETRAINS = dg.DynamicPartitionsDefinition(name="retrains")
# Dagster's own tag of the runs of a backfill, such as "Materialize all" starts
BACKFILL = "dagster/backfill"
WRITER_POOL = "live_writer"
TRAINING_POOL = "gpu"  # a pilot is not in the writer's pool: documents arrive while it trains
SEARCHABLE, MEASURED, SYNCED = map(
    dg.AssetKey, ("searchable_documents", "measured_drift", "synced_source")
)
GUARDED = "before the switch, each added document and 20 older ones were found by their own vectors"
Result = dg.MaterializeResult | dg.AssetCheckResult


def _check(name: str, asset: str, description: str, blocking: bool = False) -> dg.AssetCheckSpec:
    return dg.AssetCheckSpec(name=name, asset=asset, description=description, blocking=blocking)


@dg.asset(group_name="live", kinds={"faiss"}, deps=["champion"])
def live_generation(project: ProjectResource) -> dg.MaterializeResult:
    """The champion's build as an immutable generation that searchers read."""
    from orchestration.registry import release

    generation = release.open_champion(project)
    return dg.MaterializeResult(
        data_version=dg.DataVersion(f"{generation.retriever}/{generation.number}"),
        metadata={"retriever": generation.retriever, "generation": generation.number},
    )


@dg.asset(
    group_name="live",
    kinds={"faiss"},
    partitions_def=BATCHES,
    pool=WRITER_POOL,
    check_specs=[
        _check("every_document_is_found", "added_documents", "Each added document is in the index.")
    ],
)
def added_documents(project: ProjectResource) -> Iterator[Result]:
    """A batch of changes of the ledger, applied to the live collection as one new generation."""
    from model_code.collection.generations.generation import document_rows
    from model_code.collection.index.live_index import LiveIndex
    from model_code.collection.index.maintenance import BackgroundMaintenance
    from model_code.collection.index.status import probe_newest_document

    collection = LiveIndex(project)
    applied = collection.apply()
    newest = (
        probe_newest_document(project, collection.writer.searcher, collection.ledger_view)
        if applied
        else None
    )
    behind = BackgroundMaintenance(project, {collection.retriever: collection}.get).run_all(
        except_retriever=collection.retriever
    )
    generation = applied.generation if applied else collection.generation
    facts: dict[str, Any] = {
        "generation": generation.number,
        "documents": generation.manifest["documents"],
    }
    facts |= (
        {name: len(getattr(applied, name)) for name in ("added", "updated", "deleted")}
        if applied
        else {}
    )
    facts |= canary_facts(newest)
    facts |= {f"{name} is behind": why for name, why in behind.items()}
    yield dg.MaterializeResult(
        data_version=dg.DataVersion(f"{generation.retriever}/{generation.number}"), metadata=facts
    )
    changed = {*applied.added, *applied.updated} if applied else set()
    missing = sorted(changed - document_rows(generation, changed, ()).keys())
    yield dg.AssetCheckResult(
        passed=not missing,
        check_name="every_document_is_found",
        metadata={"missing": missing[:20], "guard": GUARDED},
    )


def canary_facts(canary: dict[str, Any] | None) -> dict[str, Any]:
    """How a document of the newest batch fared, for a page; rank 0: a search for its title does not
    find it.
    """
    return (
        {}
        if canary is None
        else {
            "newest": canary["document"],
            "newest_lag": canary["lag"],
            "newest_rank": canary["rank"] or 0,
        }
    )


@dg.asset(
    group_name="live",
    partitions_def=BATCHES,
    deps=["added_documents"],
    check_specs=[
        _check(
            "within_thresholds", "drift_report", "No measure of drift lies beyond its threshold."
        )
    ],
)
def drift_report(project: ProjectResource) -> Iterator[Result]:
    """Drift of what was added since the last report from what the retriever was trained on."""
    from orchestration.freshness.drift import check_drift

    watched = check_drift(project)
    facts: dict[str, Any] = {
        "decision": "add",
        "why": "fewer than drift.minimum_batch documents since the last report",
    }
    if watched is not None:
        facts = {"decision": watched.decision.action, "why": "; ".join(watched.decision.reasons)}
        facts["report"] = dg.MetadataValue.md(f"```\n{watched.text}```")
    yield dg.MaterializeResult(metadata=facts)
    exceeded = list(watched.exceeded) if watched else []
    yield dg.AssetCheckResult(
        passed=not exceeded,
        check_name="within_thresholds",
        severity=dg.AssetCheckSeverity.WARN,
        metadata={"tripped": exceeded},
    )


@dg.asset(group_name="live", kinds={"pytorch"}, partitions_def=PILOTS, pool=TRAINING_POOL)
def retrain_pilot(
    context: dg.AssetExecutionContext, project: ProjectResource
) -> dg.MaterializeResult[None]:
    """A retrain on a sample of what is live, judged by the queries that new documents came with."""
    from orchestration.freshness.pilot import run_requested_pilot

    answer = run_requested_pilot(project, context.partition_key, context.log.info, context.run_id)
    return dg.MaterializeResult(metadata={"what happened": answer})


RETRAINED = dg.AssetSpec(
    "retrained_retriever",
    group_name="live",
    kinds={"pytorch", "mlflow"},
    skippable=True,
    description="Everything that is live, trained and evaluated anew in a temporary workspace; registered as "
    "challenger. A backfill trains nothing, as what a partition trained on is no longer what is live.",
)
GATE = _check(
    "gate",
    "retrained_retriever",
    "Old documents found as well as before, new ones better.",
    blocking=True,
)


@dg.multi_asset(
    specs=[RETRAINED],
    can_subset=True,
    partitions_def=RETRAINS,
    pool=TRAINING_POOL,
    check_specs=[GATE],
)
def retrained_retriever(
    context: dg.AssetExecutionContext, project: ProjectResource
) -> Iterator[Result]:
    """Make what `RETRAINED` describes, and answer its gate."""
    from orchestration.freshness.retrain import gate_verdict, promote_or_reject, train_challenger

    if BACKFILL in context.run.tags:
        return
    ready = train_challenger(project, context.partition_key, context.log.info, context.run_id)
    verdict = gate_verdict(ready)
    if not verdict.passed:
        promote_or_reject(ready, verdict, context.run_id)
    yield dg.MaterializeResult(
        data_version=dg.DataVersion(ready.challenger.key),
        metadata={**ready.plan.summary(), "version": ready.challenger.version},
    )
    yield dg.AssetCheckResult(
        passed=verdict.passed,
        check_name="gate",
        metadata={"what happened": "; ".join(verdict.reasons)},
    )


@dg.asset(
    group_name="live",
    kinds={"mlflow"},
    partitions_def=RETRAINS,
    deps=["retrained_retriever"],
    pool=WRITER_POOL,
)
def retrained_champion(
    context: dg.AssetExecutionContext, project: ProjectResource
) -> dg.MaterializeResult:
    """The challenger that passed the gate: champion, live with all that arrived meanwhile, and in
    the ledger.
    """
    from orchestration.freshness.retrain import load_challenger, promote_or_reject

    # trains nothing: it holds the one writer's place
    outcome = promote_or_reject(load_challenger(project, context.partition_key))
    return dg.MaterializeResult(
        data_version=dg.DataVersion(outcome.challenger.key),
        metadata={
            "what happened": outcome.summary,
            "generation": outcome.generation or "unchanged",
        },
    )


@dg.asset(key=SYNCED, group_name="live", deps=["live_generation"], pool=WRITER_POOL)
def synced_source(project: ProjectResource) -> dg.MaterializeResult:
    """The index made equal to its source, as `freshet sync` does."""
    from model_code.collection.index.changes import CHANGES
    from model_code.collection.index.live_index import LiveIndex
    from model_code.collection.sync.sync import sync

    outcome = sync(LiveIndex(project, find_service=find_running_service))
    counts = {name: len(getattr(outcome, name)) for name in (*CHANGES, "rejected")}
    return dg.MaterializeResult(
        metadata=counts | {"unchanged": outcome.unchanged, "kept": outcome.kept}
    )


def _reported(key: dg.AssetKey, after: str, warn: int, fail: int, description: str) -> dg.AssetSpec:
    """What the sensor `freshness` reports while all is well: where it does not, or is dead, the
    policy fails.
    """
    policy = dg.FreshnessPolicy.time_window(timedelta(minutes=fail), timedelta(minutes=warn))
    return dg.AssetSpec(
        key, deps=[after], group_name="live", freshness_policy=policy, description=description
    )


REPORTED = (
    _reported(
        SEARCHABLE,
        "added_documents",
        7,
        10,
        "Reported while every document is found within two minutes of its arrival.",
    ),
    _reported(
        MEASURED,
        "drift_report",
        45,
        60,
        "Reported while fewer than `drift.minimum_batch` changes wait for a look at their drift.",
    ),
)


def live_assets(cron: str | None) -> list[dg.AssetsDefinition | dg.AssetSpec]:
    """All of these; cron: when the source is synced, None: when a person asks."""
    in_time = dg.FreshnessPolicy.cron(cron, get_smallest_cron_interval(cron)) if cron else None
    synced = synced_source.map_asset_specs(
        lambda spec: spec.replace_attributes(freshness_policy=in_time)
    )
    adding = live_generation, added_documents, drift_report, synced
    return [*adding, retrain_pilot, retrained_retriever, retrained_champion, *REPORTED]
