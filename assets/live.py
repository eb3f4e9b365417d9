"""Dagster assets of the live collection, the documents that are searchable now.

They cover generations (snapshots of the index), drift reports, new weights of a fusion, retrains
and the sync. Descriptions are shown on Dagster's pages. They say what an asset is, when it runs,
and what it writes.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster._utils.schedules import get_smallest_cron_interval

from assets.pages import verdict_numbers
from assets.stage_assets import ProjectResource
from orchestration.running_service import find_running_service

if TYPE_CHECKING:
    from model_code.collection.generations.generation import Generation
    from model_code.collection.generations.generation_builder import ApplyResult

# A task is work that the ledger records as due. Each task is one partition of an asset.
BATCHES = dg.DynamicPartitionsDefinition(name="batches")
DRIFT_CHECKS = dg.DynamicPartitionsDefinition(name="drift_checks")
RETUNES = dg.DynamicPartitionsDefinition(name="retunes")
PILOTS = dg.DynamicPartitionsDefinition(name="pilots")
RETRAINS = dg.DynamicPartitionsDefinition(name="retrains")

# Name of the tag that Dagster gives to the runs of a backfill. "Materialize all" starts a backfill.
BACKFILL_TAG = "dagster/backfill"
# Names of Dagster pools. Only one step of a pool runs at a time. A pilot is not in the writer's
# pool, so documents can be added while it trains.
WRITER_POOL = "live_writer"
TRAINING_POOL = "gpu"

# Keys of the assets that the sensors also use.
SEARCHABLE = dg.AssetKey("searchable_documents")
MEASURED = dg.AssetKey("measured_drift")
SYNCED = dg.AssetKey("synced_source")

# A check lists at most this many documents by id.
MAX_LISTED_DOCUMENTS = 20
# Note on an asset's page. The generation builder makes this check of every new generation itself.
GUARD_NOTE = (
    "before the generation became current, each added document and 20 older ones were found by "
    "their own vectors"
)

EventResult = dg.MaterializeResult | dg.AssetCheckResult


@dg.asset(
    group_name="live",
    kinds={"faiss"},
    deps=["champion"],
    description="The champion's build as an immutable generation, which is searched. Runs in a "
    "full build after the promotion. Writes a new generation if another build is live.",
)
def live_generation(project: ProjectResource) -> dg.MaterializeResult:
    """Make the champion's build live, so that it is searched.

    The champion is the registered version that searches use by default. If its build is live
    already, nothing changes.
    """
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
        dg.AssetCheckSpec(
            name="every_document_is_found",
            asset="added_documents",
            description="Checks that each added document is in the new generation.",
        )
    ],
    description="The changes that were waiting in the ledger, made searchable. Runs when the "
    "sensor `freshness` finds waiting changes. Writes one new generation for each live retriever.",
)
def added_documents(project: ProjectResource) -> Iterator[EventResult]:
    """Make the waiting changes searchable, and check that each added document is in the index."""
    from model_code.collection.index.live_index import LiveIndex
    from model_code.collection.index.maintenance import BackgroundMaintenance
    from model_code.collection.index.status import probe_newest_document

    index = LiveIndex(project)
    try:
        applied = index.apply()
    except Exception:
        # The other retrievers do not wait for the default one.
        BackgroundMaintenance(project).run_all(except_retriever=index.retriever)
        raise
    generation = index.generation if applied is None else applied.generation

    metadata: dict[str, Any] = {}
    changed: set[str] = set()
    canary = None
    if applied is not None:
        canary = probe_newest_document(project, index.builder.searcher, index.ledger_view)
        changed = {*applied.added, *applied.updated}
        metadata.update(addition_metadata(applied))

    # Add the documents to the other live retrievers as well. If this fails for a retriever, the
    # next addition tries again.
    open_indexes = {index.retriever: index}
    maintenance = BackgroundMaintenance(project, open_indexes.get)
    failed_retrievers = maintenance.run_all(except_retriever=index.retriever)

    metadata["generation"] = generation.number
    metadata["documents"] = generation.manifest["documents"]
    metadata.update(canary_metadata(canary))
    for retriever, reason in failed_retrievers.items():
        metadata[f"{retriever} is behind"] = reason
    yield dg.MaterializeResult(
        data_version=dg.DataVersion(f"{generation.retriever}/{generation.number}"),
        metadata=metadata,
    )
    yield _check_documents_are_found(generation, changed)


def _check_documents_are_found(
    generation: "Generation", document_ids: set[str]
) -> dg.AssetCheckResult:
    """Return the result of the check that a generation contains some documents.

    A generation is a snapshot of the index, a list of segments with documents.
    """
    from model_code.collection.generations.generation import document_rows

    found_ids = document_rows(generation, document_ids, ()).keys()
    missing = sorted(document_ids - found_ids)
    return dg.AssetCheckResult(
        passed=not missing,
        check_name="every_document_is_found",
        metadata={
            "changed": len(document_ids),
            "not found": len(missing),
            "missing": missing[:MAX_LISTED_DOCUMENTS],
            "guard": GUARD_NOTE,
        },
    )


def addition_metadata(applied: "ApplyResult") -> dict[str, Any]:
    """Count the documents that an addition changed, and describe the effect of IncDSI on them.

    Args:
        applied: The result of the addition. Documents whose vectors were solved again, because
            thumbs changed their queries, count as well.
    """
    metadata: dict[str, Any] = {
        "added": len(applied.added),
        "updated": len(applied.updated),
        "deleted": len(applied.deleted),
        "solved again": len(applied.solved_again),
    }
    solved = {*applied.added, *applied.updated, *applied.solved_again}
    metadata.update(refinement_metadata(applied.generation, solved))
    return metadata


def refinement_metadata(generation: "Generation", document_ids: set[str] | None) -> dict[str, Any]:
    """Describe the effect of IncDSI on documents, for the Dagster page of an asset.

    IncDSI solves the vector of a new document, so that queries which it is known to answer find it.

    Args:
        generation: A generation that contains the documents.
        document_ids: Ids of the documents; None for all documents of the generation.
    """
    from model_code.collection.generations.refinements import summarize_refinements

    summary = summarize_refinements(generation, document_ids)
    if summary is None:
        return {"refined": 0, "IncDSI": "no document was placed by its queries"}
    return {
        "refined": summary.documents,
        "queries": summary.queries,
        "queries_answered_before": summary.answered_before,
        "queries_answered_after": summary.answered_after,
        "old_queries_outranked_before": summary.old_outranked_before,
        "old_queries_outranked_after": summary.old_outranked_after,
        "IncDSI": summary.sentence(),
    }


def canary_metadata(canary: dict[str, Any] | None) -> dict[str, Any]:
    """Describe whether a recently added document can be found, for the Dagster page of an asset.

    A document of the newest batch is searched for by its title, to check that additions become
    searchable. This document is called the canary.

    Args:
        canary: The document, its rank, and the seconds until it was searchable, as
            `probe_newest_document` returns them. None if no document was searched for.

    Returns:
        Values by their names on the page. The rank is shown as 0 if the document is not among
        the first hits.
    """
    if canary is None:
        return {}
    rank = canary["rank"]
    if rank is None:
        rank = 0
    return {
        "newest": canary["document"],
        "newest_lag": canary["lag"],
        "newest_rank": rank,
    }


@dg.asset(
    group_name="live",
    partitions_def=DRIFT_CHECKS,
    # A drift check measures the documents of several additions together.
    deps=[dg.AssetDep("added_documents", partition_mapping=dg.AllPartitionMapping())],
    check_specs=[
        dg.AssetCheckSpec(
            name="within_thresholds",
            asset="drift_report",
            description="Warns if a drift measure is beyond its threshold.",
        )
    ],
    description="The comparison of new documents with those that the retriever was trained on. "
    "Runs when `drift.minimum_batch` changes are unmeasured. Writes a drift report to the ledger, "
    "and requests a retune, a pilot or a retrain if the report calls for one.",
)
def drift_report(project: ProjectResource) -> Iterator[EventResult]:
    """Compare new documents with old ones, and show the drift report and the decision."""
    from model_code.collection.index.live_index import LiveIndex
    from model_code.collection.index.status import describe_unmeasured
    from orchestration.freshness.drift import check_drift

    check = check_drift(project)
    numbers: dict[str, float] = {}
    if check is None:
        exceeded = []
        metadata = {
            "decision": "no action",
            "why": "fewer than drift.minimum_batch documents since the last report",
        }
    else:
        exceeded = list(check.exceeded)
        for measure in check.report.measures:
            numbers[measure.label] = float(measure.value)
        metadata = {
            "decision": str(check.decision.action),
            "why": "; ".join(check.decision.reasons),
            "report": dg.MetadataValue.md(f"```\n{check.text}```"),
        }
        not_measured = describe_unmeasured(check.as_dict()["report"]["unmeasured"])
        if not_measured:
            metadata["not measured"] = not_measured
    metadata.update(_deciding_metadata(project))
    metadata.update(refinement_metadata(LiveIndex(project).generation, None))
    yield dg.MaterializeResult(metadata=metadata)
    check_metadata: dict[str, Any] = {"tripped": exceeded}
    check_metadata.update(numbers)
    yield dg.AssetCheckResult(
        passed=not exceeded,
        check_name="within_thresholds",
        severity=dg.AssetCheckSeverity.WARN,
        metadata=check_metadata,
    )


def _deciding_metadata(project: ProjectResource) -> dict[str, Any]:
    """Describe the last drift report that called for a retrain, for an asset's page.

    The report may have called for a pilot first, a short training on a sample. The page shows it
    beside the newest report. The newest report measures other documents. A running pilot or retrain
    was requested because of the report that is described here.
    """
    from model_code.collection.index.status import deciding_report

    deciding = deciding_report(project)
    if deciding is None:
        return {}
    metadata: dict[str, Any] = {
        "deciding report": dg.MetadataValue.md(f"```\n{deciding.text}```"),
        "deciding report of": deciding.recorded,
    }
    if deciding.run_id is not None:
        metadata["run that it called for"] = dg.MetadataValue.dagster_run(deciding.run_id)
    return metadata


@dg.asset(
    group_name="live",
    kinds={"faiss"},
    partitions_def=RETUNES,
    pool=WRITER_POOL,
    description="The weights of the live fusion, chosen again on queries that were judged since "
    "its build. Runs when a drift check requested it. Writes a new generation with these weights "
    "if the gate accepts them. No document is encoded.",
)
def tuned_weights(
    context: dg.AssetExecutionContext, project: ProjectResource
) -> dg.MaterializeResult[None]:
    """Choose the weights of the live fusion again.

    A fusion scores a document by a weighted sum of several retrievers. The partition names the task
    in the ledger that requested the new weights.
    """
    from orchestration.freshness.retune import run_requested_retune

    outcome = run_requested_retune(project, context.partition_key, context.run_id)
    return dg.MaterializeResult(metadata={"what happened": outcome})


@dg.asset(
    group_name="live",
    kinds={"pytorch"},
    partitions_def=PILOTS,
    pool=TRAINING_POOL,
    description="A short training on a sample of the live documents, judged by the queries that "
    "new documents arrived with. Runs when a drift check requested it. Records its answer in the "
    "ledger, and requests a retrain if that would help. Its files are deleted.",
)
def retrain_pilot(
    context: dg.AssetExecutionContext, project: ProjectResource
) -> dg.MaterializeResult[None]:
    """Train on a sample of the documents, to find out whether a retrain would help.

    The partition names the task in the ledger that requested this pilot.
    """
    from orchestration.freshness.pilot import run_requested_pilot

    answer = run_requested_pilot(project, context.partition_key, context.log.info, context.run_id)
    return dg.MaterializeResult(metadata={"what happened": answer})


RETRAINED_RETRIEVER = dg.AssetSpec(
    "retrained_retriever",
    group_name="live",
    kinds={"pytorch", "mlflow"},
    skippable=True,
    description="All retrievers, trained and evaluated on everything that is live. Runs when a "
    "drift check or a pilot requested a retrain. Builds in a temporary workspace, and registers "
    "the best retriever as challenger. A backfill trains nothing, because the documents of an "
    "old partition are not what is live now.",
)


@dg.multi_asset(
    specs=[RETRAINED_RETRIEVER],
    can_subset=True,
    partitions_def=RETRAINS,
    pool=TRAINING_POOL,
    check_specs=[
        dg.AssetCheckSpec(
            name="gate",
            asset="retrained_retriever",
            blocking=True,
            description="Asks the gate: new documents must be found better than by the champion, "
            "and old ones no worse. If it fails, the challenger is rejected.",
        )
    ],
)
def retrained_retriever(
    context: dg.AssetExecutionContext, project: ProjectResource
) -> Iterator[EventResult]:
    """Train a challenger on the live documents, and ask the gate whether it may be promoted.

    The challenger asks to replace the champion. The gate is a statistical test on judged queries.
    The partition names the retrain's task in the ledger.
    """
    from orchestration.freshness.retrain import gate_verdict, promote_or_reject, train_challenger

    # A backfill runs the partitions of past retrains. Nothing is trained for them, because other
    # documents are live now.
    if BACKFILL_TAG in context.run.tags:
        return

    challenger = train_challenger(project, context.partition_key, context.log.info, context.run_id)
    verdict = gate_verdict(challenger)
    # A rejection is recorded here, because the next step does not run after a failed check.
    if not verdict.passed:
        promote_or_reject(challenger, verdict, context.run_id)

    metadata = challenger.plan.summary()
    metadata["version"] = challenger.version.version
    yield dg.MaterializeResult(
        data_version=dg.DataVersion(challenger.version.key), metadata=metadata
    )
    check_metadata: dict[str, Any] = {"what happened": "; ".join(verdict.statements)}
    check_metadata.update(verdict_numbers(verdict))
    yield dg.AssetCheckResult(passed=verdict.passed, check_name="gate", metadata=check_metadata)


@dg.asset(
    group_name="live",
    kinds={"mlflow"},
    partitions_def=RETRAINS,
    deps=["retrained_retriever"],
    pool=WRITER_POOL,
    description="The challenger of a retrain that passed the gate, promoted. Runs after the check "
    "`gate` passed. Moves the alias `champion`, makes the new build live with everything that "
    "arrived during the training, and records the outcome in the ledger.",
)
def retrained_champion(
    context: dg.AssetExecutionContext, project: ProjectResource
) -> dg.MaterializeResult:
    """Promote the challenger that was trained for the partition, a retrain's task in the ledger.

    The challenger is loaded and never trained here, because this step blocks the one writer.
    """
    from orchestration.freshness.retrain import load_challenger, promote_or_reject

    result = promote_or_reject(load_challenger(project, context.partition_key))
    generation = "unchanged" if result.generation is None else result.generation
    return dg.MaterializeResult(
        data_version=dg.DataVersion(result.version.key),
        metadata={"what happened": result.summary, "generation": generation},
    )


@dg.asset(
    key=SYNCED,
    group_name="live",
    deps=["live_generation"],
    pool=WRITER_POOL,
    description="The index with exactly the documents of its sources, as after "
    "`freshet sync --all`. Runs at the times of the setting `live.sync`, or when a person starts "
    "it. Writes the differences to the ledger, and makes them searchable.",
)
def synced_source(project: ProjectResource) -> dg.MaterializeResult:
    """Make the index equal to each of its sources.

    If a source fails, the other sources are still synced. The run fails afterwards.
    """
    from model_code.collection.index.changes import CHANGES
    from model_code.collection.index.live_index import LiveIndex
    from model_code.collection.sync.sync import sync_all

    result = sync_all(LiveIndex(project, find_service=find_running_service))
    result.require_complete()
    metadata: dict[str, Any] = {}
    for name in (*CHANGES, "rejected"):
        metadata[name] = sum(len(getattr(report, name)) for report in result.reports)
    metadata["unchanged"] = sum(report.unchanged for report in result.reports)
    metadata["kept"] = sum(report.kept for report in result.reports)
    return dg.MaterializeResult(metadata=metadata)


def _asset_reported_by_sensor(
    key: dg.AssetKey, upstream: str, warn_minutes: int, fail_minutes: int, description: str
) -> dg.AssetSpec:
    """Return an asset that the sensor `freshness` reports while it is fresh.

    Dagster does not materialize it. Its freshness policy fails if the sensor does not report it, or
    does not run.

    Args:
        key: Key of the asset.
        upstream: Name of the asset that makes it fresh.
        warn_minutes: Minutes without a report after which Dagster warns.
        fail_minutes: Minutes without a report after which the policy fails.
        description: Description on Dagster's page.
    """
    policy = dg.FreshnessPolicy.time_window(
        fail_window=timedelta(minutes=fail_minutes), warn_window=timedelta(minutes=warn_minutes)
    )
    return dg.AssetSpec(
        key, deps=[upstream], group_name="live", freshness_policy=policy, description=description
    )


REPORTED_ASSETS = (
    _asset_reported_by_sensor(
        SEARCHABLE,
        "added_documents",
        warn_minutes=7,
        fail_minutes=10,
        description="Fresh while every document becomes searchable within two minutes of its "
        "arrival. Reported by the sensor `freshness` every five minutes while that holds.",
    ),
    _asset_reported_by_sensor(
        MEASURED,
        "drift_report",
        warn_minutes=45,
        fail_minutes=60,
        description="Fresh while fewer than `drift.minimum_batch` changes wait for a drift check. "
        "Reported by the sensor `freshness` every half hour while that holds.",
    ),
)


def live_assets(cron: str | None) -> list[dg.AssetsDefinition | dg.AssetSpec]:
    """Return all assets of the live collection.

    Args:
        cron: The schedule of `synced_source`; None if only a person starts it.
    """
    sync_policy = None
    if cron is not None:
        sync_policy = dg.FreshnessPolicy.cron(cron, get_smallest_cron_interval(cron))

    def set_sync_policy(spec: dg.AssetSpec) -> dg.AssetSpec:
        return spec.replace_attributes(freshness_policy=sync_policy)

    return [
        live_generation,
        added_documents,
        drift_report,
        synced_source.map_asset_specs(set_sync_policy),
        tuned_weights,
        retrain_pilot,
        retrained_retriever,
        retrained_champion,
        *REPORTED_ASSETS,
    ]
