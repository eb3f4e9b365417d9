"""A live project of Freshet in this process: stages, live index, drift check, pilot and retrain.

All functions call Freshet's own code. Only DVC, MLflow and Dagster are left out. They decide when a
stage runs, and record it. They would add the same number of seconds to every training.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import model_code
from experiments.time_machine.stream import StreamQuery, Text
from model_code.collection.generations.build import BuildArtifacts
from model_code.collection.generations.evaluation_segments import judging_segments
from model_code.collection.generations.generation_store import GenerationStore
from model_code.collection.generations.searcher import Searcher
from model_code.collection.index.builds import open_build
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.index.retrain_plan import plan_retrain, read_planned_generation
from model_code.collection.ledger.events import Position
from model_code.collection.ledger.tasks import TaskKind, TaskState
from model_code.corpus.corpus_queries import KNOWN_QUERIES
from model_code.corpus.judgement_file import text_query_id
from model_code.corpus.sources.files import write_snapshot
from model_code.evaluation.gate_power import deviation_details
from model_code.evaluation.promotion import Verdict, judge_pilot, judge_retrain
from model_code.evaluation.scores import load_gate_scores
from model_code.files import replace_folder
from model_code.project import Project
from model_code.text.passages import TextRules
from orchestration import parameters
from orchestration.freshness.pilot import SAMPLE_SETTINGS, sample_documents
from orchestration.freshness.retune import run_requested_retune
from orchestration.freshness.snapshot import (
    export_snapshot,
    gate_queries_for,
    live_documents,
)
from orchestration.freshness.workspace import SNAPSHOT, SNAPSHOT_SETTINGS
from orchestration.pipeline import ingest, stages
from orchestration.pipeline.stage_context import stage_context
from orchestration.registry.gate import evaluate_segments, judging_queries

# Name of the retriever that is searched.
FUSION = "fused"
# Stages that only write reports. They are not run, because the gate evaluates retrievers itself.
REPORTING_STAGES = {"evaluate", "comparison"}


def create_project(
    root: Path, overrides: Sequence[str], documents: Iterable[Mapping[str, Any]]
) -> Project:
    """Create a project with Freshet's default settings, whose source is a folder of documents.

    Args:
        root: Folder of the project, which is created.
        overrides: Assignments such as "seed=1".
        documents: Rows with id, title, text and queries. The queries become judged queries.
    """
    root.mkdir(parents=True)
    shipped = Path(model_code.__file__).parents[1] / "params.yaml"
    shutil.copyfile(shipped, root / "params.yaml")
    write_judged_snapshot(root / SNAPSHOT, documents)
    parameters.write_overrides(root / "params.yaml", [*SNAPSHOT_SETTINGS, *overrides])
    return Project(root)


def write_judged_snapshot(folder: Path, documents: Iterable[Mapping[str, Any]]) -> None:
    """Write documents, and the queries that they answer, to a folder that a project can read.

    The project divides the queries into the splits train, dev and gate by hashes of their texts.
    """
    rows: list[dict[str, Any]] = []
    queries: dict[str, str] = {}
    qrels: list[dict[str, Any]] = []
    for document in documents:
        row = {key: document[key] for key in ("id", "title", "text")}
        row["fields"] = "{}"
        rows.append(row)
        for text in document["queries"]:
            query_id = text_query_id(text)
            queries[query_id] = text
            qrels.append(
                {
                    "query_id": query_id,
                    "document_id": document["id"],
                    "relevance": 1,
                    "split": None,
                }
            )
    query_rows = [{"id": query_id, "text": text} for query_id, text in sorted(queries.items())]
    write_snapshot(folder, {"documents": rows, "queries": query_rows, "qrels": qrels})


def document_rows(
    documents: Mapping[str, Text], queries: Iterable[StreamQuery]
) -> list[dict[str, Any]]:
    """Return rows of documents with the queries that they answer.

    Args:
        documents: Documents by id.
        queries: Queries that the project gets to know.
    """
    texts_by_document: dict[str, list[str]] = {}
    for query in queries:
        for document_id in query.answers:
            texts_by_document.setdefault(document_id, []).append(query.text)

    rows: list[dict[str, Any]] = []
    for document_id, document in sorted(documents.items()):
        rows.append(
            {
                "id": document_id,
                "title": document.title,
                "text": document.text,
                "queries": sorted(set(texts_by_document.get(document_id, ()))),
            }
        )
    return rows


def build(project: Project) -> None:
    """Run all stages that the fusion needs, in this process."""
    ingest.ingest(project)
    settings = parameters.load(project.params_file)
    for stage in stages.expand(settings.retrievers, settings.fusions):
        if stage.name in REPORTING_STAGES:
            continue
        staging = project.state / "staging" / stage.address
        checkpoints = project.state / "checkpoints" / stage.address
        for folder in (staging, checkpoints):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        context = stage_context(stage, project, settings, staging, checkpoints)
        importlib.import_module(stage.module).run(context)
        replace_folder(staging, project.root / stage.output)
        shutil.rmtree(checkpoints)


def open_live(project: Project, built: Project, snapshot: Position | None = None) -> None:
    """Make the fusion of a build searchable.

    Args:
        project: The project that is searched.
        built: The project or workspace that was built.
        snapshot: Ledger position of the documents that the build was trained on. None: there is no
            ledger yet.
    """
    artifacts = built.artifacts
    fusion = artifacts / "evaluate" / FUSION / "build"
    build_artifacts = BuildArtifacts(
        encoder=fusion / "encoder",
        index=fusion / "index",
        documents=artifacts / "corpus" / "documents.parquet",
        hierarchy=artifacts / "hierarchy",
        known_queries=artifacts / "corpus" / KNOWN_QUERIES,
    )
    settings = parameters.load(built.params_file)
    rules = TextRules(settings.encoder.include_title, **dict(settings.passages))
    # The provenance makes two builds with equal files different builds.
    provenance = {"build": str(built.root)}
    open_build(project, FUSION, build_artifacts, provenance, rules, snapshot or Position())


def run_pilot(project: Project, folder: Path) -> Verdict | None:
    """Train on a sample, and compare the result with the live index, as Freshet's pilot does.

    Args:
        project: The project.
        folder: Folder of the workspace, which is deleted afterwards.

    Returns:
        The verdict; None if too few queries of the gate split ask for new documents.
    """
    plan = plan_retrain(project, "pilot")
    generation = read_planned_generation(project, plan)
    settings = parameters.load(project.params_file)
    # None turns pilots off.
    size = settings.drift.pilot_documents
    if size is None:
        return None
    live = Searcher(project.live, generation, {})
    all_ids = [row["id"] for row in live_documents(generation)]
    sample = sample_documents(all_ids, sorted(plan.new), size)

    workspace = _make_workspace(project, folder)
    export_snapshot(project, generation, workspace.root / SNAPSHOT, only=sample)
    parameters.write_overrides(workspace.params_file, SAMPLE_SETTINGS)
    build(workspace)
    targets = _targets(workspace, set(plan.new) & sample)
    judged_new_documents = set(targets.values())
    if len(judged_new_documents) < max(settings.drift.minimum_batch // 5, 1):
        shutil.rmtree(folder)
        return None

    _evaluate_live(workspace, live, folder / "searched")
    verdict = judge_pilot(
        load_gate_scores(workspace.artifacts / "evaluate" / FUSION),
        load_gate_scores(folder / "searched"),
        settings.promotion,
        targets,
        settings.drift.quality_margin,
        settings.seed,
    )
    shutil.rmtree(folder)
    return verdict


def retune(project: Project) -> str:
    """Carry out the retune that a drift check requested, and return its outcome."""
    ledger = LiveIndex(project, FUSION).ledger
    (task,) = ledger.tasks.open(FUSION, TaskKind.RETUNE)
    return run_requested_retune(project, task.run_key)


def retrain(project: Project, folder: Path) -> Verdict:
    """Train on all live documents, and make the build live if the gate accepts it.

    Args:
        project: The project.
        folder: Folder of the workspace.
    """
    plan = plan_retrain(project, folder.name)
    generation = read_planned_generation(project, plan)
    workspace = _make_workspace(project, folder)
    export_snapshot(project, generation, workspace.root / SNAPSHOT)
    build(workspace)

    live = Searcher(project.live, generation, {})
    _evaluate_live(workspace, live, folder / "searched")
    settings = parameters.load(project.params_file)
    verdict = judge_retrain(
        load_gate_scores(workspace.artifacts / "evaluate" / FUSION),
        load_gate_scores(folder / "searched"),
        settings.promotion,
        gate_queries_for(workspace, plan.new),
        settings.seed,
    )
    if verdict.passed:
        open_live(project, workspace, plan.snapshot)
    state = TaskState.DONE if verdict.passed else TaskState.REFUSED
    live_index = LiveIndex(project, FUSION)
    outcome = "; ".join(verdict.reasons)
    details = plan.summary()
    details.update(deviation_details(verdict, settings.promotion))
    live_index.ledger.tasks.close_retrains(FUSION, state, outcome, details, None)
    return verdict


def close_pilot(project: Project, verdict: Verdict | None) -> None:
    """Record the answer of the pilot that a drift check requested."""
    ledger = LiveIndex(project, FUSION).ledger
    for task in ledger.tasks.open(FUSION, TaskKind.PILOT):
        if verdict is None:
            ledger.tasks.end(task, TaskState.REFUSED, "too few new documents have judged queries")
            continue
        outcome = "; ".join(verdict.reasons)
        ledger.tasks.end(task, TaskState.DONE, outcome, None, {}, retrain=verdict.passed)


def live_texts(project: Project) -> dict[str, Text]:
    """Return title and text of every searchable document, by id."""
    generation = GenerationStore(project.live, FUSION).current()
    texts: dict[str, Text] = {}
    for row in live_documents(generation):
        texts[row["id"]] = Text(row["title"], row["text"])
    return texts


def _evaluate_live(workspace: Project, live: Searcher, folder: Path) -> None:
    """Evaluate the live index on the judged queries of a workspace, as the gate does.

    The live index may know some of these queries, as words of documents or by vectors that IncDSI
    solved with them. It is evaluated without that knowledge, which a new build does not have.
    """
    with TemporaryDirectory() as encodings:
        held_out = judging_queries(workspace)
        segments = judging_segments(live, held_out, Path(encodings), with_feedback=False)
        evaluate_segments(workspace, FUSION, segments, folder)


def _make_workspace(project: Project, folder: Path) -> Project:
    """Return a new project with the same settings, in which a build can run."""
    shutil.rmtree(folder, ignore_errors=True)
    workspace = Project(folder / "workspace", home=project.root)
    workspace.root.mkdir(parents=True)
    shutil.copyfile(project.params_file, workspace.params_file)
    return workspace


def _targets(workspace: Project, new: set[str]) -> dict[str, str]:
    """Return, for each query of the gate split that asks for a new document, one such document."""
    targets: dict[str, str] = {}
    for document_id in sorted(new):
        for query_id in gate_queries_for(workspace, [document_id]):
            targets.setdefault(query_id, document_id)
    return targets
