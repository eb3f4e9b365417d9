"""A full retrain: everything that is live, through the same stages, before a gate that asks old and new documents.

The user's settings, artifacts and `dvc.lock` stay as they are. What a retrain makes lies under its key: one that was
cut off goes on where it stopped, and a failed one can be tried again under another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from model_code.evaluation.promotion import Verdict, judge_retrain
from model_code.evaluation.scores import SystemScores
from model_code.evaluation.settings import PromotionSettings
from orchestration import parameters, registry, release
from orchestration.freshness_steps import PROMOTED, REFUSED
from orchestration.gate import Gate
from orchestration.project import Project
from orchestration.rescore import rescore
from orchestration.retraining.plan import Plan, folder_of, generation_of, keep_plan, make_plan, read_plan, snapshot_of
from orchestration.retraining.snapshot import export
from orchestration.retraining.start import START, keep_start
from orchestration.retraining.workspace import make_workspace

if TYPE_CHECKING:
    from model_code.ledger.ledger import Ledger

Show = Callable[[str], Any]


@dataclass(frozen=True)
class Ready:
    """A retrain whose challenger is built and registered, waiting for the gate."""

    project: Project
    workspace: Project
    plan: Plan
    challenger: registry.Version


@dataclass(frozen=True)
class Retrained:
    """What came of a retrain: the challenger, whether it is champion now, the gate's words, the generation opened."""

    plan: Plan
    challenger: registry.Version
    promoted: bool
    summary: str
    generation: int | None


def retrain(project: Project, key: str, show: Show = print) -> Retrained:
    """Train, index and evaluate every retriever on what is live; promote the best if the gate passes it, and open it.

    key: names the retrain. What waits in the ledger is applied first, and what arrives meanwhile is added to the new
    generation before it is searched. Raises `FreshetError` if a stage fails; then nothing is changed.
    """
    return finish(prepare(project, key, show))


def prepare(project: Project, key: str, show: Show = print, dagster_run: str | None = None) -> Ready:
    """Snapshot, workspace, every stage, registration; what was done before under this key is not done again."""
    from orchestration.ingest import ingest
    from orchestration.repro import repro

    plan = read_plan(project, key) or _begin(project, key)
    show(f"retrain {key}: {plan.documents:,} documents, {len(plan.new):,} of them new since the last training")
    workspace = _workspace(project, plan)
    ingest(workspace)
    for ended in repro(workspace, dagster_run=dagster_run):
        show(f"stage {ended.address} ran")
    return Ready(project, workspace, plan, release.register(workspace))


def judge(ready: Ready) -> Verdict:
    """What the gate will say; moves nothing."""
    return registry.verdict(ready.workspace, _gate(ready))


def finish(ready: Ready) -> Retrained:
    """The gate; behind it the challenger is champion and live, from its first moment with all that arrived since."""
    move = registry.promote(ready.workspace, _gate(ready))
    opened = release.open_live(ready.workspace, ready.plan.watermark).number if move.passed else None
    kind = PROMOTED if move.passed else REFUSED
    ledger = _ledger(ready.project, ready.plan.retriever)
    ledger.record_decision(kind, move.summary, _details(ready) | {"generation": opened})
    if move.passed:
        ledger.absorb(f"version {ready.challenger.version}", ready.plan.watermark)
    return Retrained(ready.plan, ready.challenger, move.passed, move.summary, opened)


def record_refusal(ready: Ready, run: str, verdict: Verdict) -> None:
    """Note in the history and in the ledger that the gate refused; `finish` does so itself."""
    registry.refuse(ready.workspace, verdict)
    _ledger(ready.project, ready.plan.retriever).record_decision(
        REFUSED, "; ".join(verdict.reasons), _details(ready) | {"run": run}
    )


def queries_for(workspace: Project, documents: Iterable[str]) -> frozenset[str]:
    """The judged test queries that ask for one of `documents`."""
    import pandas as pd

    from model_code.corpus.tables import judged, load_corpus

    pseudo_queries = pd.read_parquet(workspace.artifacts / "pseudo_queries" / "pseudo_queries.parquet")
    judgements, wanted = judged(load_corpus(workspace.artifacts / "corpus"), pseudo_queries, "test"), set(documents)
    return frozenset(query for query, relevant in judgements.qrels.items() if wanted & relevant.keys())


def _begin(project: Project, key: str) -> Plan:
    """Apply what waits, so that it is trained on, and fix what is live then."""
    from orchestration.freshening import Freshener

    Freshener(project).apply_pending()
    plan = make_plan(project, key)
    keep_plan(project, plan)
    return plan


def _workspace(project: Project, plan: Plan) -> Project:
    folder = folder_of(project, plan.key) / "project"
    snapshot = snapshot_of(project, plan.key)
    start = folder_of(project, plan.key) / START
    if not snapshot.is_dir():
        keep_start(project, generation_of(project, plan), start)
        export(project, generation_of(project, plan), snapshot)
    return make_workspace(project, folder, snapshot, start if start.is_dir() else None)


def _gate(ready: Ready) -> Gate:
    """Old and new documents apart, by the workspace's queries; the champion as it is searched now."""
    settings, new = parameters.load(ready.workspace.params_file), queries_for(ready.workspace, ready.plan.new)

    def judged(
        challenger: SystemScores, champion: SystemScores | None, promotion: PromotionSettings, seed: int
    ) -> Verdict:
        return judge_retrain(challenger, champion, promotion, new, seed)

    return Gate(settings.promotion, settings.seed, partial(rescore, ready.workspace), judged)


def _details(ready: Ready) -> dict[str, Any]:
    return {**ready.plan.summary(), "version": ready.challenger.version, "retriever": ready.challenger.retriever}


def _ledger(project: Project, retriever: str) -> Ledger:
    from orchestration.ledgers import open_ledger

    return open_ledger(project, retriever)
