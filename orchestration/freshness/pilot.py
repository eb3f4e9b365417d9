"""A pilot: a retrain on a sample of what is live, which tells in minutes whether a whole one would
help new documents.

A drift report asks how new documents are found beside old ones, as knowing what training gives
takes a training. This one trains: by the settings of a retrain, in a workspace of its own, on new
and old documents in equal parts, beside the retriever that is searched, on the same queries.
Nothing is registered, and nothing that is live changes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from model_code.collection.generations.generation_store import default_retriever
from model_code.collection.generations.searcher import Searcher
from model_code.collection.index.project_ledger import open_ledger
from model_code.collection.index.retrain_plan import (
    WORKSPACE,
    RetrainPlan,
    plan_retrain,
    read_planned_generation,
)
from model_code.collection.ledger.tasks import TaskKind, TaskState
from model_code.errors import FreshetError
from model_code.evaluation.promotion import Verdict, judge_pilot
from model_code.evaluation.scores import load_gate_scores
from model_code.evaluation.system_evaluation import sample_queries
from model_code.files import hash_text
from model_code.project import DAY, Project, file_lock
from orchestration import parameters
from orchestration.freshness.probes import gate_judgements
from orchestration.freshness.snapshot import export_snapshot, live_documents
from orchestration.freshness.workspace import make_workspace
from orchestration.pipeline import ingest, repro
from orchestration.registry.gate import evaluate_segments

Show = Callable[[str], Any]
FOLDER, LOCK = "pilot", "pilot.lock"  # in the project's state
WAITING = "waiting for another pilot of this project, which runs now"
ANY_SIZE = ("acceptance.min_documents=1", "training.min_judged_queries=0")  # a sample
ASKED_SHARE = 5  # of drift.minimum_batch, documents that the gate's queries must ask for
NOT_REQUESTED = "nothing: no report waits for the answer"


class PilotNotPossible(FreshetError):
    """A pilot would tell nothing; why."""


@dataclass(frozen=True)
class PilotResult:
    """What a pilot came to. documents: of the sample, and how many of those are new."""

    plan: RetrainPlan
    documents: int
    new: int
    verdict: Verdict

    @property
    def summary(self) -> str:
        """The answer, and what it rests on."""
        due = "a retrain is due" if self.verdict.passed else "no gain of a retrain is shown"
        sample = f"trained on {self.documents:,} documents, {self.new:,} of them new, {self.verdict.queries:,} queries"
        return f"{due} ({sample}): {'; '.join(self.verdict.reasons)}"

    @property
    def details(self) -> dict[str, Any]:
        """What the ledger keeps beside the summary."""
        return self.plan.summary() | {"documents": self.documents, "new": self.new}


def run_pilot(project: Project, documents: int, show: Show = print) -> PilotResult:
    """Train on a sample of at most `documents` of what is live, and judge. One pilot of a project
    runs at a time.

    PilotNotPossible, before anything is trained, where it would tell nothing; FreshetError if a stage fails.
    What it built is deleted either way.
    """
    with file_lock(project.state / LOCK, WAITING, DAY):
        folder = project.state / FOLDER
        shutil.rmtree(folder, ignore_errors=True)  # of one that was killed
        try:
            return _pilot(project, folder, documents, show)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _pilot(project: Project, folder: Path, documents: int, show: Show) -> PilotResult:
    plan = plan_retrain(project, FOLDER)
    address, _ = _training(project, plan.retriever)
    generation = read_planned_generation(project, plan)
    # as it is now, and not deleted before it is asked
    live = Searcher(project.live, generation, {})
    chosen = sample_documents(
        (row["id"] for row in live_documents(generation)), _ranked(project, plan), documents
    )
    new = chosen & set(plan.new)
    show(
        f"pilot on {len(chosen):,} of {plan.documents:,} documents, {len(new):,} of them new since the last training"
    )
    _require_new(project, len(new), len(new))
    workspace = Project(folder / WORKSPACE, home=project.root)
    make_workspace(
        workspace, partial(export_snapshot, project, generation, only=chosen), share_cache=False
    )
    # where the workspace names folders in full
    own_settings = _training(workspace, plan.retriever)[1]
    parameters.write_overrides(workspace.params_file, [*ANY_SIZE, *own_settings])
    targets, settings = _targets(workspace, new, show), parameters.load(workspace.params_file)
    _build(workspace, address, show)
    evaluate_segments(
        workspace, plan.retriever, [view.searchable for view in live.views], folder / "searched"
    )
    trained = load_gate_scores(workspace.artifacts / "evaluate" / plan.retriever)
    searched = load_gate_scores(folder / "searched")
    margin = settings.drift.quality_margin
    verdict = judge_pilot(trained, searched, settings.promotion, targets, margin, settings.seed)
    return PilotResult(plan, len(chosen), len(new), verdict)


def _training(project: Project, searched: str) -> tuple[str, list[str]]:
    """The stage that a pilot of what is searched ends with, and settings by which nothing else is
    trained.
    """
    stated = parameters.read_mapping(project.params_file)
    fusion = parameters.load(project.params_file).fusions.get(searched)
    parts = fusion.of if fusion else (searched,)
    trained = {name: own for name, own in stated["retrievers"].items() if name in parts}
    if not trained:
        raise PilotNotPossible(
            f"{searched} is searched, for which params.yaml trains nothing; freshet retrain trains the rest"
        )
    groups = {
        "retrievers": trained,
        "fusions": {searched: stated["fusions"][searched]} if fusion else {},
    }
    address = f"{'fuse' if fusion else 'evaluate'}@{searched}"
    return address, [f"{name}={json.dumps(group)}" for name, group in groups.items()]


def _require_new(project: Project, targets: int, new: int) -> None:
    """PilotNotPossible where so few new documents can be asked for that no interval tells."""
    minimum = parameters.load(project.params_file).drift.minimum_batch
    if targets < (least := max(minimum // ASKED_SHARE, 1)):
        raise PilotNotPossible(
            f"the gate's queries ask for {targets} of the {new} new documents at most, fewer than {least} "
            f"(drift.minimum_batch / {ASKED_SHARE}): a pilot needs documents that arrive with `queries`"
        )


def sample_documents(documents: Iterable[str], new: Sequence[str], size: int) -> frozenset[str]:
    """At most `size` documents, half of them new where there are as many of both.

    new: the first are taken first. Which of the others, hangs on their ids alone.

    >>> sorted(sample_documents("abcdef", ["e", "f"], 2) - {"e"}) == sorted(sample_documents("abcd", [], 1))
    True
    """
    late = set(new)
    early = sorted(
        (document_id for document_id in documents if document_id not in late), key=hash_text
    )
    early = early[: size - min(len(new), size // 2)]
    return frozenset([*early, *new[: size - len(early)]])


def _ranked(project: Project, plan: RetrainPlan) -> list[str]:
    """The new documents: those that came with queries first, and of them what came last."""
    new = set(plan.new)
    with open_ledger(project, plan.retriever) as ledger:
        ledger_view = ledger.view_at(read_planned_generation(project, plan).cursor)
        events = [
            event
            for event in reversed(ledger_view.arrivals(1, plan.watermark))
            if event.document_id in new
        ]
    ranked = sorted(events, key=lambda event: not (event.document and event.document.queries))
    ids = list(dict.fromkeys(event.document_id for event in ranked))
    return ids + sorted(new.difference(ids))


def _build(workspace: Project, target: str, show: Show) -> None:
    name = f"pilot {ingest.ingest(workspace)['content_hash'][:8]}"
    for address in repro.repro(workspace, [target], name=name):
        show(f"stage {address} ran")


def _targets(workspace: Project, new: Set[str], show: Show) -> Mapping[str, str]:
    """By query of the gate the new document that it asks for, before anything is trained; PilotNotPossible
    if too few.
    """
    _build(workspace, "corpus", show)
    most = parameters.load(workspace.params_file).evaluation.max_queries
    judged = sample_queries(gate_judgements(workspace.artifacts), most)
    targets = {
        query: min(new & relevant.keys())
        for query, relevant in judged.qrels.items()
        if new & relevant.keys()
    }
    _require_new(workspace, len(set(targets.values())), len(new))
    return targets


def run_manual_pilot(project: Project, documents: int, show: Show = print) -> PilotResult:
    """A pilot whose answer is noted in the ledger and asks for nothing; raises as `pilot` does."""
    result = run_pilot(project, documents, show)
    with open_ledger(project, result.plan.retriever) as ledger:
        ledger.tasks.record_outcome(
            TaskKind.PILOT, result.plan.retriever, TaskState.DONE, result.summary, result.details
        )
    return result


def run_requested_pilot(
    project: Project, run_key: str, show: Show = print, run_id: str | None = None
) -> str:
    """The pilot that a drift report called for, on `drift.pilot_documents`: if a retrain is due by
    it, that is asked for as if the report had. The answer in words.

    FreshetError if a stage fails. Nothing is done where no report waits for the answer any more.
    """
    with file_lock(project.state / LOCK, WAITING, DAY), open_ledger(project) as ledger:
        work = ledger.tasks.find_by_run_key(run_key)
        if work is None:
            return NOT_REQUESTED
        try:
            result = run_pilot(project, _documents(project, work.retriever), show)
        except PilotNotPossible as why:
            ledger.tasks.end(work, TaskState.REFUSED, f"no pilot: {why}", run_id)
            return f"no pilot: {why}"
        ledger.tasks.end(
            work,
            TaskState.DONE,
            result.summary,
            run_id,
            result.details,
            retrain=result.verdict.passed,
        )
        return result.summary


def _documents(project: Project, asker: str) -> int:
    """How many to train on; PilotNotPossible where none is wanted."""
    documents = parameters.load(project.params_file).drift.pilot_documents
    if documents is None:
        raise PilotNotPossible("drift.pilot_documents is null")
    if asker != (searched := default_retriever(project.live)):
        raise PilotNotPossible(f"{searched} is searched now, and drift of {asker} called for it")
    return documents
