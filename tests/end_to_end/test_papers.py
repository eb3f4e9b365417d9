"""Guards each paper's method from end to end: trained, indexed, evaluated, promoted, and a document
added and deleted; and all of them composed in one fusion.

Each test also asserts what only its method leaves behind, so that it fails if the method is removed
or replaced by another one. Stages run in this process, on the tiny project.

Run: python -m pytest tests/end_to_end/test_papers.py
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from freshet import Project as OpenProject
from model_code.evaluation.promotion import Verdict
from model_code.files import read_json
from model_code.project import Project
from orchestration import parameters
from orchestration.pipeline import stages
from orchestration.pipeline.ingest import ingest
from orchestration.pipeline.run_stage import run_stage
from orchestration.registry import built_retriever, release, versions
from tests.end_to_end import tiny_project
from tests.tiny_encoder import make_tiny_model

PLAIN = "hierarchy_weight: 0.0, batches: random"
RETRIEVERS = (
    "hce: {hierarchy_weight: 0.2, batches: siblings}",
    f"mlr: {{{PLAIN}, layers: {{numbers: [1], pooling: multi_vector}}}}",
    "hce_mlr: {hierarchy_weight: 0.2, batches: siblings, layers: {numbers: [1]}}",
    f"svdr: {{{PLAIN}, kind: lexical, lexical: {{search: full}}}}",
    f"dsi: {{{PLAIN}, kind: dsi}}",
)
SETTINGS = (
    f"retrievers={{{', '.join(RETRIEVERS)}}}",
    "fusions={composed: {of: [hce_mlr, svdr, bm25]}}",
)
SHARED_STAGES = (
    "corpus",
    "query_generator",
    "pseudo_queries",
    "acceptance",
    "base_index",
    "hierarchy",
    "baselines",
)
DOCUMENTS_IN_CORPUS = 60
NEW_DOCUMENT = {
    "id": "new",
    "title": "sea comet",
    "text": "comet anchor violin galaxy whisk under the reef",
    "queries": ["comet anchor violin"],
}
ACCEPTED = Verdict(True, ("the test accepts it",), queries=0, intervals=())


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with the output of every stage that retrievers share. Tests work on copies."""
    folder = tiny_project.make_project(tmp_path_factory.mktemp("papers") / "project")
    parameters.write_overrides(folder / "params.yaml", SETTINGS)
    # Relative paths, such as the base encoder's and MLflow's, refer to the project.
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        ingest(Project(folder))
        run_stages(folder, *SHARED_STAGES)
    return folder


@pytest.fixture
def project(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = shutil.copytree(prepared, tmp_path / "project")
    # A copy needs an identity of its own in the store of versions.
    (folder / ".freshet" / "identity").unlink(missing_ok=True)
    monkeypatch.chdir(folder)
    return folder


def run_stages(folder: Path, *addresses: str) -> None:
    project = Project(folder)
    settings = parameters.load(project.params_file)
    table = stages.expand(settings.retrievers, settings.fusions)
    for address in addresses:
        (stage,) = stages.find(address, table)
        run_stage(stage, project)


def build(folder: Path, *retrievers: str) -> None:
    for name in retrievers:
        run_stages(folder, f"train@{name}", f"index@{name}", f"evaluate@{name}")


def promote(folder: Path, name: str) -> None:
    """Register a build and make it champion and live, without asking DVC or the gate."""
    project = Project(folder)
    challenger = versions.register(project, built_retriever.find_build(project, name))
    result = release.promote(project, challenger=challenger, verdict=ACCEPTED)
    assert result.passed


@contextmanager
def opened(folder: Path) -> Iterator[Any]:
    project = OpenProject.open(folder)
    try:
        yield project
    finally:
        project.close()


def assert_lives(folder: Path) -> None:
    """The champion answers, finds a document that is added, and no longer one that is deleted."""
    query = NEW_DOCUMENT["queries"][0]
    with opened(folder) as client:
        assert len(client.search("wave tide harbour", k=5).hits) == 5

        added = client.add([NEW_DOCUMENT])
        assert added.searchable
        assert added.rejected == []
        ids = [hit.document_id for hit in client.search(query, k=10).hits]
        assert "new" in ids

        deleted = client.delete(["new"])
        assert deleted.searchable
        ids = [hit.document_id for hit in client.search(query, k=DOCUMENTS_IN_CORPUS + 1).hits]
        assert "new" not in ids


def training_report(folder: Path, name: str) -> dict[str, Any]:
    return read_json(folder / "artifacts" / "train" / name / "report.json")


def index_manifest(folder: Path, name: str) -> dict[str, Any]:
    return read_json(folder / "artifacts" / "index" / name / "index" / "manifest.json")


def training_curve(folder: Path, name: str) -> list[dict[str, float]]:
    return read_json(folder / "artifacts" / "train" / name / "history.json")


def test_scores(folder: Path, name: str) -> dict[str, Any]:
    return read_json(folder / "artifacts" / "evaluate" / name / "metrics.json")["test"]


def addition_statuses(folder: Path) -> dict[str, str]:
    """What IncDSI wrote about the documents it placed, in all generations."""
    statuses: dict[str, str] = {}
    for path in sorted((folder / "live").rglob("refined.json")):
        statuses.update(json.loads(path.read_text())["statuses"])
    for path in sorted((folder / "live").rglob("solved.json")):
        for document in json.loads(path.read_text()):
            statuses[document["document_id"]] = document["status"]
    return statuses


test_scores.__test__ = False  # type: ignore[attr-defined]  # a helper


def names_of_curve(project: Path, retriever: str) -> set[str]:
    """Return the names of all values of a training curve."""
    names: set[str] = set()
    for row in training_curve(project, retriever):
        names.update(row)
    return names


def test_hce_from_training_to_deletion(project: Path) -> None:
    build(project, "hce")

    logged = names_of_curve(project, "hce")
    assert {"contrastive", "hierarchy_1"} <= logged
    assert test_scores(project, "hce")["queries"] > 0

    promote(project, "hce")
    assert_lives(project)


def test_mlr_from_training_to_deletion(project: Path) -> None:
    build(project, "mlr")

    report = training_report(project, "mlr")
    assert report["layers"] == [1, 2]
    assert report["layer_pooling"] == "multi_vector"
    manifest = index_manifest(project, "mlr")
    assert manifest["vectors_per_passage"] == 2
    vectors = np.load(project / "artifacts/index/mlr/index/vectors.npy")
    assert len(vectors) == 2 * DOCUMENTS_IN_CORPUS
    assert test_scores(project, "mlr")["queries"] > 0

    promote(project, "mlr")
    assert_lives(project)


def test_svdr_from_training_to_deletion(project: Path) -> None:
    build(project, "svdr")

    logged = names_of_curve(project, "svdr")
    assert {"full", "alpha", "beta"} <= logged
    index = project / "artifacts/index/svdr/index"
    assert (index / "tokens").is_dir()
    assert (index / "embeddings").is_dir()
    assert test_scores(project, "svdr")["queries"] > 0

    promote(project, "svdr")
    assert_lives(project)
    with opened(project) as client:
        (hit,) = client.search("wave tide harbour", k=1, explain=True).hits
        assert hit.tokens


def test_incdsi_from_training_to_deletion(project: Path) -> None:
    build(project, "dsi")

    index = project / "artifacts/index/dsi/index"
    representatives = np.load(index / "representatives.npy")
    assert len(representatives) == DOCUMENTS_IN_CORPUS
    assert test_scores(project, "dsi")["queries"] > 0

    promote(project, "dsi")
    assert_lives(project)
    assert set(addition_statuses(project)) == {"new"}
    assert addition_statuses(project)["new"] != "NOT_REFINED"


def test_all_methods_composed_in_one_fusion(project: Path) -> None:
    build(project, "hce_mlr", "svdr")
    run_stages(project, "fuse@composed")

    encoders = project / "artifacts/evaluate/composed/build/encoder"
    components = {path.name for path in encoders.iterdir() if path.is_dir()}
    assert components == {"hce_mlr", "svdr", "bm25_known"}
    assert training_report(project, "hce_mlr")["layer_pooling"] == "self_contrastive"
    assert test_scores(project, "composed")["queries"] > 0

    promote(project, "composed")
    assert_lives(project)
    assert addition_statuses(project)["new"] != "NOT_REFINED"


def test_retrievers_of_different_bases_share_a_fusion(project: Path) -> None:
    text = (project / "data" / "documents.jsonl").read_text()
    make_tiny_model(project / "masked_base", "bert", [text], masked=True)
    retrievers = (
        "hce: {hierarchy_weight: 0.2, batches: siblings}",
        f"svdr: {{{PLAIN}, kind: lexical, base: masked_base, lexical: {{search: full}}}}",
    )
    settings = (
        f"retrievers={{{', '.join(retrievers)}}}",
        "fusions={both: {of: [hce, svdr, bm25]}}",
    )
    parameters.write_overrides(project / "params.yaml", settings)

    build(project, "hce", "svdr")
    run_stages(project, "fuse@both")

    assert training_report(project, "svdr")["head"] == "mlm"
    card = (project / "artifacts/train/svdr/encoder/README.md").read_text()
    assert "**Base**: masked_base" in card
    assert (
        "**Base**: base_encoder" in (project / "artifacts/train/hce/encoder/README.md").read_text()
    )
    assert test_scores(project, "both")["queries"] > 0
