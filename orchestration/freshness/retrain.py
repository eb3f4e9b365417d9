"""A full retrain: everything that is live, through the same stages, before a gate that asks old and
new documents.

The user's settings, artifacts and `dvc.lock` stay as they are. What a retrain makes lies under its
key: one that was cut off goes on where it stopped, and a failed one can be tried again under
another.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Set
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from model_code.collection.generations.generation_store import GenerationStore
from model_code.collection.index import retrain_plan
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.index.project_ledger import open_ledger, open_ledger_if_exists
from model_code.collection.ledger.ledger import Ledger
from model_code.collection.ledger.tasks import TaskKind, TaskState
from model_code.errors import FreshetError
from model_code.evaluation.promotion import Verdict
from model_code.files import read_json, write_json
from model_code.project import Project
from orchestration.freshness.snapshot import export_snapshot, gate_has_no_queries, queries_for
from orchestration.freshness.workspace import make_workspace
from orchestration.pipeline import ingest, repro
from orchestration.registry import release, versions
from orchestration.registry.gate import NO_JUDGED_QUERIES, GateRules

Show = Callable[[str], Any]
CHALLENGER, ENDED = "challenger.json", "ended.json"  # beside the plan
NOTED = 20  # retrains that are looked back at for how one ended


@dataclass(frozen=True)
class TrainedChallenger:
    """A retrain whose challenger is built and registered, waiting for the gate."""

    project: Project
    workspace: Project
    plan: retrain_plan.RetrainPlan
    challenger: versions.Version


@dataclass(frozen=True)
class RetrainResult:
    """What came of a retrain: the challenger, whether it is champion now, the gate's words, the
    generation opened.
    """

    plan: retrain_plan.RetrainPlan
    challenger: versions.Version
    promoted: bool
    summary: str
    generation: int | None


def next_key(project: Project, plan: retrain_plan.RetrainPlan) -> str:
    """A name for a retrain on what is live: that of one that was cut off, or a new one behind those
    that ended.
    """
    name, ledger = f"{plan.retriever}-{plan.generation:06d}", open_ledger_if_exists(project)
    noted = ledger.tasks.last(plan.retriever, NOTED, TaskKind.RETRAIN) if ledger else []
    concluded = {work.details.get("version") for work in noted}
    names = (f"{name}-{number}" if number > 1 else name for number in count(1))
    return next(
        each
        for each in names
        if not _has_ended(retrain_plan.retrain_folder(project, each), concluded)
    )


def _has_ended(folder: Path, concluded: Set[str | None]) -> bool:
    """Whether the retrain of a folder came to its end; before `ENDED` was written the ledger alone
    knew.
    """
    challenger = folder / CHALLENGER
    return (folder / ENDED).is_file() or (
        challenger.is_file() and read_json(challenger)["version"] in concluded
    )


def retrain(project: Project, key: str, show: Show = print) -> RetrainResult:
    """Train, index and evaluate every retriever on what is live; promote the best if the gate
    passes it, and open it.

    key: names the retrain. What waits in the ledger is applied first, and what arrives meanwhile is
    added to the new generation before it is searched. Raises `FreshetError` at once where nobody
    judged, and if a stage fails; then nothing is changed.
    """
    return promote_or_reject(train_challenger(project, key, show))


def train_challenger(
    project: Project, key: str, show: Show = print, dagster_run: str | None = None
) -> TrainedChallenger:
    """Snapshot, workspace, every stage, registration; what was done before under this key is not
    done again.
    """
    plan = _plan(project, key, show)
    show(
        f"retrain {key}: {plan.documents:,} documents, {len(plan.new):,} of them new since the last training"
    )
    workspace = retrain_plan.retrain_workspace(project, key)
    # the generation may be deleted once the workspace is there
    make_workspace(
        workspace,
        lambda folder: export_snapshot(
            project, retrain_plan.read_planned_generation(project, plan), folder
        ),
    )
    ingest.ingest(workspace)
    for address in repro.repro(workspace, dagster_run=dagster_run, name=f"retrain {key}"):
        show(f"stage {address} ran")
    challenger = release.register(workspace, snapshot=plan.snapshot)
    write_json(
        retrain_plan.retrain_folder(project, key) / CHALLENGER, {"version": challenger.version}
    )
    return TrainedChallenger(project, workspace, plan, challenger)


def load_challenger(project: Project, key: str) -> TrainedChallenger:
    """The retrain as `train_challenger` left it; nothing is built. FreshetError if it did not end, or its
    challenger is gone.
    """
    plan, file = (
        retrain_plan.read_plan(project, key),
        retrain_plan.retrain_folder(project, key) / CHALLENGER,
    )
    number = read_json(file)["version"] if file.is_file() else None
    challenger = next(
        (version for version in versions.list_versions(project) if version.version == number), None
    )
    if plan is None or challenger is None:
        raise FreshetError(
            f"retrain {key} has no challenger: train it first, by `freshet retrain --key {key}`"
        )
    return TrainedChallenger(
        project, retrain_plan.retrain_workspace(project, key), plan, challenger
    )


def gate_verdict(ready: TrainedChallenger) -> Verdict:
    """What the gate will say; moves nothing."""
    return release.judge(ready.workspace, _rules(ready), ready.challenger)


def promote_or_reject(
    ready: TrainedChallenger, verdict: Verdict | None = None, run_id: str | None = None
) -> RetrainResult:
    """The gate; behind it the challenger is live, from its first moment with all that arrived
    since, and champion.

    Whatever else was registered meanwhile, it is the retrain's own version that is judged and
    opened. verdict: what `judge` found, if it was asked.
    """
    move = release.promote(ready.workspace, _rules(ready), ready.challenger, verdict)
    live = GenerationStore(ready.project.live, ready.challenger.retriever)
    opened = live.current_number() if move.passed else None
    _record(ready, move, opened, run_id)
    return RetrainResult(ready.plan, ready.challenger, move.passed, move.summary, opened)


def _record(
    ready: TrainedChallenger, move: release.PromotionResult, opened: int | None, run_id: str | None
) -> None:
    """What came of it, for the retriever that was retrained; and for the one that took its place,
    if dev chose another: that one begins with a training, and the documents of the other are as
    they were.

    A promotion that was cut off while it was noted is noted to its end, and nothing of it twice.
    """
    state, details = (TaskState.DONE if move.passed else TaskState.REFUSED), ready.plan.summary()
    details |= {
        "version": ready.challenger.version,
        "retriever": ready.challenger.retriever,
        "generation": opened,
    }
    chosen = ready.challenger.retriever if move.passed else None
    for name in dict.fromkeys(filter(None, (ready.plan.retriever, chosen))):
        with open_ledger(ready.project, name) as ledger:
            if not (move.already_champion and _is_noted(ledger, name, ready.challenger)):
                ledger.tasks.close_retrains(name, state, move.summary, details, run_id)
    write_json(
        retrain_plan.retrain_folder(ready.project, ready.plan.key) / ENDED,
        {"outcome": move.summary},
    )


def _is_noted(ledger: Ledger, retriever: str, challenger: versions.Version) -> bool:
    """Whether the last promotion that the ledger knows of is this version's."""
    promoted = [
        work
        for work in ledger.tasks.last(retriever, NOTED, TaskKind.RETRAIN)
        if work.state == TaskState.DONE
    ]
    return any(work.details.get("version") == challenger.version for work in promoted[:1])


def _plan(project: Project, key: str, show: Show) -> retrain_plan.RetrainPlan:
    """That of this key, unless it was of another collection; else a new one."""
    plan = retrain_plan.read_plan(project, key)
    if plan is None:
        return _begin(project, key)
    if retrain_plan.is_from_another_collection(project, plan):
        anew = _begin(project, key)
        show(f"retrain {key} was begun with another ledger or live collection: it begins anew")
        return anew
    show(
        f"retrain {key} goes on with the code and settings that it began with; another --key takes those of now"
    )
    return plan


def _begin(project: Project, key: str) -> retrain_plan.RetrainPlan:
    """Apply what waits, so that it is trained on, and fix what is live then.

    Work of another collection is deleted only then: a ledger that is not the collection's own is an
    error before.
    """
    LiveIndex(project).apply()
    plan, folder = (
        retrain_plan.plan_retrain(project, key),
        retrain_plan.retrain_folder(project, key),
    )
    if gate_has_no_queries(project, retrain_plan.read_planned_generation(project, plan)):
        raise FreshetError(NO_JUDGED_QUERIES)
    if folder.is_dir():
        shutil.rmtree(folder)
    retrain_plan.save_plan(project, plan)
    return plan


def _rules(ready: TrainedChallenger) -> GateRules:
    """Old and new documents apart, by the workspace's queries; the champion as it is searched now."""
    return GateRules.of(ready.workspace, new=queries_for(ready.workspace, ready.plan.new))
