"""A pilot: a retrain on a sample of what is live, which tells in minutes whether a whole one would help new documents.

A drift report asks how new documents are found beside old ones, as knowing what training gives takes a training. This
one trains: by the settings of a retrain, in a workspace of its own, on new documents and as many old ones at least,
beside the retriever that is searched, on the same queries. Nothing is registered, and nothing that is live changes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from model_code.errors import FreshetError
from model_code.evaluation.promotion import Verdict, judge_pilot
from model_code.evaluation.scores import SystemScores, load_scores
from model_code.files import hash_text
from model_code.live.searcher import Searcher
from orchestration import parameters
from orchestration.file_lock import file_lock
from orchestration.freshness_steps import PILOTED, REMEMBERED, RETRAIN
from orchestration.project import Project
from orchestration.rescore import score, search_within
from orchestration.retraining.plan import Plan, folder_of, generation_of, keep_plan, make_plan, snapshot_of
from orchestration.retraining.queries import queries_for
from orchestration.retraining.snapshot import export, live_documents
from orchestration.retraining.start import START, keep_start
from orchestration.retraining.workspace import WORKSPACE, make_workspace

if TYPE_CHECKING:
    from model_code.ledger.ledger import Ledger

Decision = dict[str, Any]
"""As the ledger lists them: id, kind, reason, details."""
Show = Callable[[str], Any]
KEY = ".pilot"  # in place of a retrain's
LOCK = "pilot.lock"  # in the project's state


@dataclass(frozen=True)
class PilotResult:
    """What a pilot came to. documents: of the sample, and how many of those are new."""

    plan: Plan
    documents: int
    new: int
    verdict: Verdict

    @property
    def summary(self) -> str:
        """The answer, and what it rests on."""
        due = "a retrain is due" if self.verdict.passed else "no gain of a retrain is shown"
        sample = f"trained on {self.documents:,} documents, {self.new:,} of them new, {self.verdict.queries:,} queries"
        return f"{due} ({sample}): {'; '.join(self.verdict.reasons)}"


class NobodyAsks(FreshetError):
    """No judged test query asks for a new document, so that nothing tells what training would do for them."""


def pilot(project: Project, documents: int, show: Show = print) -> PilotResult:
    """Train on a sample of at most `documents`, judge, and note the answer in the ledger.

    NobodyAsks before anything is trained; FreshetError if a stage fails. One pilot runs at a time.
    """
    return _pilot(project, documents, show, report=None)


def pilot_for_drift(project: Project, key: str, show: Show = print) -> str:
    """The pilot that a drift report asked for, on `drift.pilot_documents`: if it says so, a retrain is asked for in the
    ledger, as if the report had. The answer in words.

    key: of the step, which begins with the number of the report's decision. FreshetError if a stage fails.
    """
    ledger, asked = _ledger(project), int(key.partition("-")[0])
    report = next((one for one in ledger.last_decisions(REMEMBERED) if one["id"] == asked), None)
    documents = parameters.load(project.params_file).drift.pilot_documents
    if report is None or documents is None:
        why = "no pilot: drift.pilot_documents is null" if documents is None else f"no pilot: no decision {asked}"
        ledger.record_decision(PILOTED, why, {})
        return why
    try:
        return _pilot(project, documents, show, report=report).summary
    except NobodyAsks as why:
        ledger.record_decision(PILOTED, f"no pilot: {why}", {})
        return f"no pilot: {why}"


def _pilot(project: Project, documents: int, show: Show, report: Decision | None) -> PilotResult:
    with file_lock(project.state / LOCK):
        plan, chosen = _begin(project, documents)
        new = chosen & set(plan.new)
        show(f"pilot on {len(chosen):,} of {plan.documents:,} documents, {len(new):,} of them new since training")
        result = PilotResult(plan, len(chosen), len(new), _judged(project, plan, chosen, new, show))
        _record(project, result, report)
        shutil.rmtree(folder_of(project, plan.key))
        return result


def _judged(project: Project, plan: Plan, chosen: Set[str], new: Set[str], show: Show) -> Verdict:
    workspace = _workspace(project, plan, chosen)
    asked = _asked(workspace, new, show)
    trained, searched = _train(workspace, plan.retriever, show), _searched(project, workspace, plan)
    settings = parameters.load(workspace.params_file)
    return judge_pilot(trained, searched, settings.promotion, asked, settings.seed)


def sample(documents: Iterable[str], new: Set[str], size: int) -> frozenset[str]:
    """At most `size` documents, half of them new where there are as many of both; which, hangs on the ids alone.

    >>> sorted(sample("abcdef", {"e"}, 4) - {"e"}) == sorted(sample("abcdef", set(), 3))
    True
    """
    ordered = sorted(documents, key=hash_text)
    late, early = [one for one in ordered if one in new], [one for one in ordered if one not in new]
    early = early[: size - min(len(late), size // 2)]
    return frozenset([*early, *late[: size - len(early)]])


def _begin(project: Project, documents: int) -> tuple[Plan, frozenset[str]]:
    """Apply what waits, so that it is among the new; what a pilot that was cut off left is deleted."""
    from orchestration.freshening import Freshener

    Freshener(project).apply_pending()
    plan = make_plan(project, KEY)
    shutil.rmtree(folder_of(project, plan.key), ignore_errors=True)
    keep_plan(project, plan)
    live = (row["id"] for row in live_documents(generation_of(project, plan)))
    return plan, sample(live, set(plan.new), documents)


def _workspace(project: Project, plan: Plan, chosen: Set[str]) -> Project:
    folder, snapshot = folder_of(project, plan.key), snapshot_of(project, plan.key)
    generation = generation_of(project, plan)
    keep_start(project, generation, folder / START)
    export(project, generation, snapshot, chosen)
    start = folder / START if (folder / START).is_dir() else None
    return make_workspace(project, folder / WORKSPACE, snapshot, start)


def _asked(workspace: Project, new: Set[str], show: Show) -> Set[str]:
    """The test queries for new documents, before anything is trained; FreshetError if there is none."""
    _build(workspace, "pseudo_queries", show)
    asked = queries_for(workspace, new)
    if not asked:
        raise NobodyAsks(
            f"no judged test query asks for one of the {len(new)} new documents, so that a pilot would tell nothing: "
            "it needs documents that arrive with `queries`"
        )
    return asked


def _train(workspace: Project, retriever: str, show: Show) -> SystemScores:
    _build(workspace, f"evaluate@{retriever}", show)
    return load_scores(workspace.artifacts / "evaluate" / retriever, "test")


def _build(workspace: Project, target: str, show: Show) -> None:
    from orchestration.ingest import ingest
    from orchestration.repro import repro

    ingest(workspace)
    for ended in repro(workspace, [target]):
        show(f"stage {ended.address} ran")


def _searched(project: Project, workspace: Project, plan: Plan) -> SystemScores:
    live = Searcher.open(project.live, plan.retriever)
    return load_scores(score(workspace, plan.retriever, search_within(workspace, live), plan.key), "test")


def _record(project: Project, result: PilotResult, report: Decision | None) -> None:
    """The answer; before it, so that a kill in between loses none, the retrain that drift asks for by it."""
    ledger = _ledger(project, result.plan.retriever)
    if report is not None and result.verdict.passed:
        ledger.record_decision(RETRAIN, result.summary, {"batch": report["details"]["batch"]})
    sampled = {"documents": result.documents, "new": result.new, "due": result.verdict.passed}
    ledger.record_decision(PILOTED, result.summary, result.plan.summary() | sampled)


def _ledger(project: Project, retriever: str | None = None) -> Ledger:
    from model_code.live.collection import default_retriever
    from orchestration.ledgers import open_ledger

    return open_ledger(project, retriever or default_retriever(project.live))
