"""Run a retrain: train on all live documents, ask the gate, and promote the result if it passes.

A retrain has three steps, and each can be run alone:

1. `train_challenger` exports the live documents, runs every stage in a workspace, and registers the
   best retriever.
2. `gate_verdict` asks the gate. It changes nothing.
3. `promote_or_reject` makes the challenger champion, or records that the gate rejected it.

The challenger is the registered version that asks to be promoted. The champion is the version that
is searched by default.

The user's settings, artifacts and `dvc.lock` are not changed. All files of a retrain are in a
folder that is named by the key of the retrain. An interrupted retrain continues if it is started
with the same key. A failed retrain can be tried again with another key.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Set
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from model_code.collection.generations.generation_store import GenerationStore
from model_code.collection.index import retrain_plan
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.index.project_ledger import open_ledger, open_ledger_if_exists
from model_code.collection.index.retrain_plan import OUTCOME_FILE, RetrainPlan
from model_code.collection.ledger.ledger import Ledger
from model_code.collection.ledger.tasks import TaskKind, TaskState
from model_code.errors import FreshetError
from model_code.evaluation.gate_power import deviation_details
from model_code.evaluation.promotion import Verdict
from model_code.files import read_json, write_json
from model_code.project import Project
from orchestration import parameters
from orchestration.freshness.judged_pairs import retrain_obstacle
from orchestration.freshness.snapshot import export_snapshot, gate_queries_for
from orchestration.freshness.workspace import make_workspace
from orchestration.pipeline import ingest, repro, runs
from orchestration.registry import release, versions
from orchestration.registry.gate import GateRules

Show = Callable[[str], Any]
"""Prints a line of progress."""

# Name of the file with the number of the registered version, in the folder of a retrain.
CHALLENGER_FILE = "challenger.json"
# Number of retrain tasks that are read from the ledger, newest first, to find the outcome of a
# retrain.
MAX_PAST_RETRAINS = 20


@dataclass(frozen=True)
class TrainedChallenger:
    """A challenger that is trained and registered, and that the gate has not judged yet.

    Attributes:
        project: The project that is retrained.
        workspace: The temporary copy of the project that the challenger was built in.
        plan: The plan, which names the generation that the challenger was trained on.
        version: The registered version.
    """

    project: Project
    workspace: Project
    plan: RetrainPlan
    version: versions.Version


@dataclass(frozen=True)
class RetrainResult:
    """The outcome of a retrain.

    Attributes:
        plan: The plan, which names the generation that the version was trained on.
        version: The registered version.
        promoted: Whether the version is champion now.
        summary: The outcome in one line.
        generation: The number of the generation that the promotion made current. None if the gate
            rejected the version.
    """

    plan: RetrainPlan
    version: versions.Version
    promoted: bool
    summary: str
    generation: int | None


def retrain(project: Project, key: str, show: Show = print) -> RetrainResult:
    """Train every retriever on the live documents, and promote the best if it passes the gate.

    Waiting changes are made searchable first. Documents that arrive during the training are added
    to the new generation before it is searched.

    Args:
        project: The project.
        key: The name of the retrain. An interrupted retrain with this name is continued.
        show: Receives lines of progress.

    Raises:
        FreshetError: If there are no judged queries (before anything is trained), or if a stage
            fails. Nothing that is live is changed then.
    """
    return promote_or_reject(train_challenger(project, key, show))


def train_challenger(
    project: Project, key: str, show: Show = print, dagster_run: str | None = None
) -> TrainedChallenger:
    """Export the live documents, run every stage in a workspace, and register the best retriever.

    The registered version is the challenger: it asks to be promoted. A workspace is a project with
    its own copies of code and settings, so that the user's artifacts are not changed.

    Steps that an earlier call with this key completed are not repeated.

    Args:
        project: The project.
        key: The name of the retrain.
        show: Receives lines of progress.
        dagster_run: The id of the Dagster run. It is recorded with the MLflow runs of the stages.

    Raises:
        FreshetError: If there are no judged queries for the gate, or if a stage fails.
    """
    plan = _load_or_begin_plan(project, key, show)
    show(
        f"retrain {key}: {plan.documents:,} documents, "
        f"{len(plan.new):,} of them new since the last training"
    )

    workspace = retrain_plan.retrain_workspace(project, key)
    # The documents are copied to the workspace, so garbage collection may delete the generation
    # afterwards.
    make_workspace(workspace, partial(_export_planned_documents, project, plan))
    ingest.ingest(workspace)
    for address in repro.repro(workspace, dagster_run=dagster_run, name=_build_name(key)):
        show(f"stage {address} ran")

    version = release.register(workspace, snapshot=plan.snapshot)
    folder = retrain_plan.retrain_folder(project, key)
    write_json(folder / CHALLENGER_FILE, {"version": version.version})
    return TrainedChallenger(project, workspace, plan, version)


def load_challenger(project: Project, key: str) -> TrainedChallenger:
    """Load the challenger of an earlier `train_challenger`, without building anything.

    Raises:
        FreshetError: If the training did not end, or the registered version was deleted.
    """
    plan = retrain_plan.read_plan(project, key)
    version = _read_registered_version(project, key)
    if plan is None or version is None:
        raise FreshetError(
            f"retrain {key} has no challenger: train it first with `freshet retrain --key {key}`"
        )
    workspace = retrain_plan.retrain_workspace(project, key)
    return TrainedChallenger(project, workspace, plan, version)


def gate_verdict(challenger: TrainedChallenger) -> Verdict:
    """Ask the gate whether the challenger may be promoted; change nothing."""
    return release.judge(challenger.workspace, _gate_rules(challenger), challenger.version)


def promote_or_reject(
    challenger: TrainedChallenger, verdict: Verdict | None = None, run_id: str | None = None
) -> RetrainResult:
    """Make the challenger champion if it passes the gate, and record the outcome.

    A promoted challenger is live with all documents that arrived since its training. The version of
    this retrain is judged, even if another version was registered meanwhile.

    Args:
        challenger: The trained challenger.
        verdict: The result of `gate_verdict`. None: the gate is asked now.
        run_id: The id of the Dagster run, which is recorded with the task.
    """
    promotion = release.promote(
        challenger.workspace, _gate_rules(challenger), challenger.version, verdict
    )

    generation = None
    if promotion.passed:
        # The promotion has made a generation of the challenger current.
        live = GenerationStore(challenger.project.live, challenger.version.retriever)
        generation = live.current_number()
    _record_outcome(challenger, promotion, generation, run_id)
    build = _build_name(challenger.plan.key)
    runs.record_verdict(challenger.project, build, promotion.passed, promotion.summary)
    if not promotion.passed:
        # The registered version has its own copies, so nothing reads the workspace any more.
        shutil.rmtree(challenger.workspace.root, ignore_errors=True)
    return RetrainResult(
        challenger.plan, challenger.version, promotion.passed, promotion.summary, generation
    )


def _build_name(key: str) -> str:
    return f"retrain {key}"


def next_key(project: Project, plan: RetrainPlan) -> str:
    """Return the key of the interrupted retrain of this generation; a new key if there is none.

    A key names a retrain and its folder. It is made of the retriever's name and the generation's
    number, as in `hce-000007`. A second retrain of the generation has the key `hce-000007-2`.
    """
    retrains = []
    ledger = open_ledger_if_exists(project)
    if ledger is not None:
        with ledger:
            retrains = ledger.tasks.last(plan.retriever, MAX_PAST_RETRAINS, TaskKind.RETRAIN)
    ended_versions = {task.details.get("version") for task in retrains}

    base_key = f"{plan.retriever}-{plan.generation:06d}"
    key = base_key
    number = 1
    while _has_ended(retrain_plan.retrain_folder(project, key), ended_versions):
        number += 1
        key = f"{base_key}-{number}"
    return key


def _has_ended(folder: Path, ended_versions: Set[str | None]) -> bool:
    """Return whether the retrain of a folder has ended.

    The outcome is written to the ledger and then to a file. If the retrain was killed in between,
    only the ledger tells that it has ended.

    Args:
        folder: Folder of the retrain.
        ended_versions: Numbers of the versions whose retrains have ended, as the ledger records.
    """
    if (folder / OUTCOME_FILE).is_file():
        return True
    challenger_file = folder / CHALLENGER_FILE
    if not challenger_file.is_file():
        return False
    return read_json(challenger_file)["version"] in ended_versions


def _read_registered_version(project: Project, key: str) -> versions.Version | None:
    """Return the version that a retrain has registered.

    None if the retrain did not come so far, or if the version was deleted from the registry.
    """
    file = retrain_plan.retrain_folder(project, key) / CHALLENGER_FILE
    if not file.is_file():
        return None
    number = read_json(file)["version"]
    for version in versions.list_versions(project):
        if version.version == number:
            return version
    return None


def _load_or_begin_plan(project: Project, key: str, show: Show) -> RetrainPlan:
    """Return the plan of an interrupted retrain, or plan a new one.

    A plan that was made for another ledger or live collection is replaced. Its event ids and
    generation numbers do not apply to the present ones.
    """
    retrain_plan.require_key(key)
    plan = retrain_plan.read_plan(project, key)
    if plan is None:
        return _begin_retrain(project, key)

    has_ended = (retrain_plan.retrain_folder(project, key) / OUTCOME_FILE).is_file()
    if has_ended and not retrain_plan.retrain_workspace(project, key).root.is_dir():
        show(f"retrain {key} was refused and its files are deleted: it starts again")
        return _begin_retrain(project, key)

    if retrain_plan.is_from_another_collection(project, plan):
        new_plan = _begin_retrain(project, key)
        show(f"retrain {key} belongs to another ledger or live collection: it starts again")
        return new_plan

    show(
        f"retrain {key} continues with the code and settings that it began with; "
        "another --key uses the current ones"
    )
    return plan


def _begin_retrain(project: Project, key: str) -> RetrainPlan:
    """Make waiting changes searchable, and save a plan to train on the live documents.

    Files that a retrain of another collection left under this key are deleted. They are deleted
    only after `apply`, which raises an error if the ledger does not belong to the collection.
    """
    LiveIndex(project).apply()
    plan = retrain_plan.plan_retrain(project, key)
    obstacle = retrain_obstacle(project, retrain_plan.read_planned_generation(project, plan))
    if obstacle is not None:
        raise FreshetError(f"no retrain is possible yet: {obstacle}")

    folder = retrain_plan.retrain_folder(project, key)
    if folder.is_dir():
        shutil.rmtree(folder)
    retrain_plan.save_plan(project, plan)
    return plan


def _export_planned_documents(project: Project, plan: RetrainPlan, folder: Path) -> None:
    """Write the documents of the planned generation to `folder`, with their judged queries."""
    export_snapshot(project, retrain_plan.read_planned_generation(project, plan), folder)


def _gate_rules(challenger: TrainedChallenger) -> GateRules:
    """Return gate rules that judge queries for new documents apart from queries for old ones.

    The judged queries are those of the corpus that the retrain has built.
    """
    new_queries = gate_queries_for(challenger.workspace, challenger.plan.new)
    return GateRules.load(challenger.workspace, new_queries)


def _record_outcome(
    challenger: TrainedChallenger,
    promotion: release.PromotionResult,
    generation: int | None,
    run_id: str | None,
) -> None:
    """Record the outcome in the ledger and in the retrain's folder.

    The ledger keeps tasks for each retriever. The outcome is recorded for the retriever that was
    live when the retrain began. Another retriever may have been the best on dev and promoted. The
    outcome is then recorded for this retriever as well, because it too was trained now.

    Args:
        challenger: The trained challenger.
        promotion: The result of the promotion.
        generation: Number of the generation that the promotion made current; None if it was
            refused.
        run_id: Id of the Dagster run, which is recorded with the task.
    """
    version = challenger.version
    details = challenger.plan.summary()
    details["version"] = version.version
    details["retriever"] = version.retriever
    details["generation"] = generation
    settings = parameters.load(challenger.project.params_file).promotion
    details.update(deviation_details(promotion.verdict, settings))
    state = TaskState.DONE if promotion.passed else TaskState.REFUSED

    retrievers = [challenger.plan.retriever]
    if promotion.passed and version.retriever != challenger.plan.retriever:
        retrievers.append(version.retriever)

    for retriever in retrievers:
        with open_ledger(challenger.project, retriever) as ledger:
            # An earlier call may have promoted the version and recorded only some entries.
            if promotion.already_champion and _is_recorded(ledger, retriever, version):
                continue
            ledger.tasks.close_retrains(retriever, state, promotion.summary, details, run_id)

    folder = retrain_plan.retrain_folder(challenger.project, challenger.plan.key)
    write_json(folder / OUTCOME_FILE, {"outcome": promotion.summary})


def _is_recorded(ledger: Ledger, retriever: str, version: versions.Version) -> bool:
    """Return whether the last successful retrain in the ledger promoted this version."""
    for task in ledger.tasks.last(retriever, MAX_PAST_RETRAINS, TaskKind.RETRAIN):
        if task.state == TaskState.DONE:
            return task.details.get("version") == version.version
    return False
