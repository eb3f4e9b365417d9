"""Run a pilot: a short training on a sample that shows whether a retrain would help.

A drift report only compares how well new and old documents are found. It cannot tell how much
better a retrained retriever would find them. A pilot answers this by a short training. It uses the
settings of a retrain and runs in a workspace, a temporary copy of the project. Its sample is half
new and half old documents. The trained retriever and the live retriever are then compared on the
same queries. A pilot registers nothing and changes nothing that is live.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from model_code.collection.generations.evaluation_segments import judging_segments
from model_code.collection.generations.generation import Generation
from model_code.collection.generations.generation_store import default_retriever
from model_code.collection.generations.live_queries import documents_with_known_queries
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
from orchestration.registry.gate import evaluate_segments, judging_queries

Show = Callable[[str], Any]
"""Prints a line of progress."""

# Names of a folder and of a lock file in the project's state folder.
FOLDER = "pilot"
LOCK = "pilot.lock"
LOCK_MESSAGE = "waiting for another pilot of this project to end"

# Settings that turn off the smallest number of documents and of queries. A sample may have fewer.
SAMPLE_SETTINGS = ("acceptance.min_documents=1", "training.min_judged_queries=0")
# A pilot needs gate queries for at least `drift.minimum_batch` / `MIN_TARGETS_DIVISOR` new
# documents. With fewer, a confidence interval would never show a gain.
MIN_TARGETS_DIVISOR = 5
NOT_REQUESTED = "nothing to do: no drift report waits for this pilot"


class PilotNotPossible(FreshetError):
    """A pilot, a short training on a sample, cannot give an answer; the message says why."""


@dataclass(frozen=True)
class PilotResult:
    """The answer of a pilot.

    Attributes:
        plan: The plan of the retrain whose gain the pilot estimates.
        documents: Number of documents in the sample.
        new: Number of new documents in the sample.
        verdict: The comparison with the live retriever. It passes if a retrain would help.
    """

    plan: RetrainPlan
    documents: int
    new: int
    verdict: Verdict

    @property
    def summary(self) -> str:
        """Describe the answer, the sample and the reasons in one line."""
        answer = "no gain of a retrain is shown"
        if self.verdict.passed:
            answer = "a retrain is due"
        sample = (
            f"trained on {self.documents:,} documents, {self.new:,} of them new, "
            f"{self.verdict.queries:,} queries"
        )
        return f"{answer} ({sample}): {'; '.join(self.verdict.statements)}"

    @property
    def details(self) -> dict[str, Any]:
        """Return the plan and the sample sizes, which the ledger keeps with the summary."""
        details = self.plan.summary()
        details["documents"] = self.documents
        details["new"] = self.new
        return details


def run_pilot(project: Project, max_documents: int, show: Show = print) -> PilotResult:
    """Train on a sample of the live documents, and compare the result with the live retriever.

    One pilot of a project runs at a time. Its files are deleted when it ends, even if it fails.

    Args:
        project: The project.
        max_documents: The largest number of documents in the sample.
        show: Receives lines of progress.

    Raises:
        PilotNotPossible: If a pilot cannot give an answer. Nothing is trained then.
        FreshetError: If a stage fails.
    """
    with file_lock(project.state / LOCK, LOCK_MESSAGE, DAY):
        folder = project.state / FOLDER
        # A pilot that was killed may have left its files in the folder.
        shutil.rmtree(folder, ignore_errors=True)
        try:
            return _train_and_compare(project, folder, max_documents, show)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def run_manual_pilot(project: Project, max_documents: int, show: Show = print) -> PilotResult:
    """Run a pilot that a person asked for, and record its answer in the ledger.

    A pilot is a short training on a sample, which shows whether a retrain would help. No retrain is
    requested. Raises the errors of `run_pilot`.
    """
    result = run_pilot(project, max_documents, show)
    retriever = result.plan.retriever
    with open_ledger(project, retriever) as ledger:
        ledger.tasks.record_outcome(
            TaskKind.PILOT, retriever, TaskState.DONE, result.summary, result.details
        )
    return result


def run_requested_pilot(
    project: Project, run_key: str, show: Show = print, run_id: str | None = None
) -> str:
    """Run the pilot that a drift check requested, and request a retrain if it would help.

    Nothing is done if the task is not open any more.

    Args:
        project: The project.
        run_key: The run key of the task.
        show: Receives lines of progress.
        run_id: The id of the Dagster run, which is recorded with the task.

    Returns:
        The answer in words.

    Raises:
        FreshetError: If a stage fails.
    """
    with file_lock(project.state / LOCK, LOCK_MESSAGE, DAY), open_ledger(project) as ledger:
        task = ledger.tasks.find_by_run_key(run_key)
        if task is None:
            return NOT_REQUESTED

        try:
            max_documents = _requested_size(project, task.retriever)
            result = run_pilot(project, max_documents, show)
        except PilotNotPossible as error:
            outcome = f"no pilot: {error}"
            ledger.tasks.end(task, TaskState.REFUSED, outcome, run_id)
            return outcome

        ledger.tasks.end(
            task,
            TaskState.DONE,
            result.summary,
            run_id,
            result.details,
            retrain=result.verdict.passed,
        )
        return result.summary


def _requested_size(project: Project, retriever: str) -> int:
    """Return the largest number of documents in the sample of a pilot, from the settings.

    Raises:
        PilotNotPossible: If the settings switch pilots off, or another retriever is searched by
            default now.
    """
    max_documents = parameters.load(project.params_file).drift.pilot_documents
    if max_documents is None:
        raise PilotNotPossible("drift.pilot_documents is null")

    live_retriever = default_retriever(project.live)
    if retriever != live_retriever:
        raise PilotNotPossible(
            f"drift of {retriever} requested it, and {live_retriever} is searched by default now"
        )
    return max_documents


def _train_and_compare(
    project: Project, folder: Path, max_documents: int, show: Show
) -> PilotResult:
    """Train on a sample of the live documents, and compare the result with the live index.

    Args:
        project: The project.
        folder: Folder for the scores and for the workspace, a temporary copy of the project.
        max_documents: Largest number of documents in the sample.
        show: Receives lines of progress.

    Raises:
        PilotNotPossible: If too few new documents have queries of the gate split.
    """
    plan = plan_retrain(project, FOLDER)
    # This raises an error early if no part of the live retriever is trained.
    last_stage, _ = _stage_and_settings(project, plan.retriever)
    generation = read_planned_generation(project, plan)
    # The generation is opened before the training. While it is open, it is not deleted.
    live = Searcher(project.live, generation, {})

    live_ids = (row["id"] for row in live_documents(generation))
    sample = sample_documents(live_ids, _rank_new(project, plan), max_documents)
    new = sample & set(plan.new)
    show(
        f"pilot on {len(sample):,} of {plan.documents:,} documents, "
        f"{len(new):,} of them new since the last training"
    )
    # This check comes before anything is built. The gate's queries can ask for at most these
    # documents.
    _require_targets(project, targets=len(new), new=len(new))

    workspace = _make_sample_workspace(
        project, folder / WORKSPACE, generation, sample, plan.retriever
    )
    targets = _build_corpus_and_find_targets(workspace, new, show)
    _build(workspace, last_stage, show)
    # The live index answers the same queries, on the same documents, and with what a build knows.
    held_out = judging_queries(workspace)
    known_documents = documents_with_known_queries(generation, held_out, with_feedback=False)
    with TemporaryDirectory() as encodings:
        live_segments = judging_segments(live, held_out, Path(encodings), with_feedback=False)
        evaluate_segments(
            workspace, plan.retriever, live_segments, folder / "searched", known_documents
        )

    trained_scores = load_gate_scores(workspace.artifacts / "evaluate" / plan.retriever)
    live_scores = load_gate_scores(folder / "searched")
    settings = parameters.load(workspace.params_file)
    verdict = judge_pilot(
        trained_scores,
        live_scores,
        settings.promotion,
        targets,
        settings.drift.quality_margin,
        settings.seed,
    )
    return PilotResult(plan, len(sample), len(new), verdict)


def _make_sample_workspace(
    project: Project, root: Path, generation: Generation, sample: Set[str], retriever: str
) -> Project:
    """Create a workspace whose source is a sample of the live documents.

    A workspace is a temporary project with its own copies of the code and of the settings.

    Args:
        project: The project.
        root: Folder of the workspace.
        generation: Generation that contains the documents.
        sample: Ids of the documents in the sample.
        retriever: Name of the live retriever. Retrievers that it does not need are left out.
    """
    workspace = Project(root, home=project.root)
    write_sample = partial(export_snapshot, project, generation, only=sample)
    make_workspace(workspace, write_sample, share_cache=False)
    # In the settings of the project, model folders are relative to the project. Those of the
    # workspace, a copy in another folder, have absolute paths.
    _, retriever_settings = _stage_and_settings(workspace, retriever)
    parameters.write_overrides(workspace.params_file, [*SAMPLE_SETTINGS, *retriever_settings])
    return workspace


def _stage_and_settings(project: Project, retriever: str) -> tuple[str, list[str]]:
    """Return the stage and the settings that train the live retriever and no other.

    Returns:
        The last stage that a pilot runs, and `key=value` settings that leave out other retrievers.

    Raises:
        PilotNotPossible: If no component of the live retriever is trained.
    """
    fusion = parameters.load(project.params_file).fusions.get(retriever)
    components = [retriever] if fusion is None else fusion.of

    settings = parameters.read_mapping(project.params_file)
    retrievers = {
        name: group for name, group in settings["retrievers"].items() if name in components
    }
    if not retrievers:
        raise PilotNotPossible(
            f"{retriever} is searched by default, and no part of it is trained; "
            "`freshet retrain` trains the retrievers of params.yaml"
        )

    if fusion is None:
        fusions = {}
        last_stage = f"evaluate@{retriever}"
    else:
        fusions = {retriever: settings["fusions"][retriever]}
        last_stage = f"fuse@{retriever}"
    assignments = [
        f"retrievers={json.dumps(retrievers)}",
        f"fusions={json.dumps(fusions)}",
    ]
    return last_stage, assignments


def _require_targets(project: Project, targets: int, new: int) -> None:
    """Raise `PilotNotPossible` if the gate's queries ask for too few new documents.

    A pilot compares retrievers on these queries. A confidence interval over so few documents would
    never show a gain.

    Args:
        project: The project or workspace whose settings apply.
        targets: Number of new documents that the gate's queries ask for, or an upper bound of it.
        new: Number of new documents in the sample.
    """
    minimum_batch = parameters.load(project.params_file).drift.minimum_batch
    min_targets = max(minimum_batch // MIN_TARGETS_DIVISOR, 1)
    if targets < min_targets:
        raise PilotNotPossible(
            f"the gate's queries ask for at most {targets} of {new} new documents, and a pilot "
            f"needs {min_targets} (drift.minimum_batch / {MIN_TARGETS_DIVISOR}): add documents "
            "that arrive with `queries`"
        )


def sample_documents(
    document_ids: Iterable[str], new_ids: Sequence[str], size: int
) -> frozenset[str]:
    """Select the documents of a pilot, half of them new if there are enough of both kinds.

    New documents are taken in the order of `new_ids`. Old ones are taken in the order of a hash of
    their ids, so that the sample does not depend on the order of `document_ids`.

    Args:
        document_ids: All live documents.
        new_ids: The new ones among them.
        size: The largest size of the sample.

    >>> old_of_half = sample_documents("abcdef", ["e", "f"], 2) - {"e"}
    >>> old_of_half == sample_documents("abcd", [], 1)
    True
    """
    new = set(new_ids)
    old_ids = [document_id for document_id in document_ids if document_id not in new]
    old_ids.sort(key=hash_text)

    wanted_new = min(len(new_ids), size // 2)
    old_sample = old_ids[: size - wanted_new]
    # If there are too few old documents, more new ones fill the sample.
    new_sample = new_ids[: size - len(old_sample)]
    return frozenset([*old_sample, *new_sample])


def _rank_new(project: Project, plan: RetrainPlan) -> list[str]:
    """Rank the ids of the new documents, from which a pilot takes the first ones.

    A pilot is a short training on a sample. Documents that arrived with queries come before others,
    because the gate's queries may ask for them. Within each group, the latest document comes first.
    """
    new = set(plan.new)
    with open_ledger(project, plan.retriever) as ledger:
        ledger_view = ledger.view_at(read_planned_generation(project, plan).cursor)
        arrivals = ledger_view.arrivals(1, plan.watermark)

    with_queries = []
    without_queries = []
    for event in reversed(arrivals):
        if event.document_id not in new:
            continue
        if event.document and event.document.queries:
            with_queries.append(event.document_id)
        else:
            without_queries.append(event.document_id)

    ranked = list(dict.fromkeys([*with_queries, *without_queries]))
    # A new document may have no arrival in the ledger. It is ranked last.
    without_arrival = sorted(new.difference(ranked))
    return [*ranked, *without_arrival]


def _build(workspace: Project, target: str, show: Show) -> None:
    """Build a stage of a pilot's workspace, and the stages that it depends on."""
    content_hash = ingest.ingest(workspace)["content_hash"]
    for address in repro.repro(workspace, [target], name=f"pilot {content_hash[:8]}"):
        show(f"stage {address} ran")


def _build_corpus_and_find_targets(
    workspace: Project, new: Set[str], show: Show
) -> Mapping[str, str]:
    """Build the corpus, and find the new documents that the gate's queries ask for.

    Returns:
        For each query of the gate that asks for a new document, this document.

    Raises:
        PilotNotPossible: If there are too few such documents. Nothing is trained then.
    """
    _build(workspace, "corpus", show)
    max_queries = parameters.load(workspace.params_file).evaluation.max_queries
    judgements = sample_queries(gate_judgements(workspace.artifacts), max_queries)

    targets = {}
    for query_id, relevant in judgements.qrels.items():
        new_answers = new & relevant.keys()
        if new_answers:
            targets[query_id] = min(new_answers)

    _require_targets(workspace, targets=len(set(targets.values())), new=len(new))
    return targets
