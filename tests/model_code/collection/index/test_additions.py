"""Guards how additions are wired: plain unless asked for, and in the ledger's order however they
are grouped.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from model_code.collection.erase import erase_documents
from model_code.collection.generations.generation_builder import GenerationBuilder
from model_code.collection.generations.generation_store import GenerationStore
from model_code.collection.generations.refinements import documents_solved_with, refinement_statuses
from model_code.collection.generations.searcher import Searcher
from model_code.collection.index.builder_factory import additions_folder
from model_code.collection.index.changes import ChangeReport, apply_changes
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.index.status import live_status, live_status_lines
from model_code.drift.statuses import Status
from model_code.incdsi.fused_builder import FusedIncDsiBuilder
from model_code.project import Project
from orchestration import parameters
from tests.live_example import row


def set_additions(project: Project, *assignments: str) -> None:
    parameters.write_overrides(project.params_file, [f"additions.{each}" for each in assignments])


def told(project: Project) -> dict[str, str]:
    """The statuses of what is live."""
    return refinement_statuses(GenerationStore(project.live, "r").current())


def test_new_documents_are_refined_with_status(
    own: Project,
) -> None:
    collection = LiveIndex(own)
    assert type(collection.builder) is FusedIncDsiBuilder
    collection.receive(
        [{"id": "n", "title": "word1", "text": "word2 word3", "queries": ["word4"]}], "test"
    )
    applied = collection.apply()
    assert applied.added == ("n",)
    assert applied.updated == ()
    assert applied.unchanged == ()
    assert told(own).keys() == {"n"}
    assert told(own)["n"] in Status.__members__
    collection.revert(0)
    assert told(own) == {}


def vectors(project: Project, retriever: str = "r") -> dict[str, list[float]]:
    found = {}
    for view in Searcher.open(project.live, retriever).views:
        index = view.segment.retriever.index
        found |= {
            key: row.tolist()
            for key, row in zip(index.document_ids, index.vectors, strict=True)
            if key in view
        }
    return found


def test_vectors_do_not_depend_on_crashes_or_batches(
    own: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # padding moves the last bits of encodings
    monkeypatch.setattr("model_code.encoding.encoder.CPU_BATCH_TOKENS", 2)
    set_additions(own, "gamma1=2.0")
    rows = []
    for name in ("z", "yy", "aaa", "mmmm", "b"):
        word = f"word{len(name)}"
        rows.append(row(name, f"word2 word3 {word}", queries=[word]))
    LiveIndex(own).receive(rows, "test")
    LiveIndex(own).remove(["yy"], "test")
    once = Project(Path(shutil.copytree(own.root, tmp_path / "once")))
    LiveIndex(once).apply()
    LiveIndex(own).apply(1)
    for step in ("commit", "set_current"):
        with monkeypatch.context() as patch:
            patch.setattr(GenerationStore, step, lambda *_, **__: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                LiveIndex(own).apply(2)
    while LiveIndex(own).apply(limit=2):
        pass
    assert vectors(own) == vectors(once)
    assert {"z", "aaa", "mmmm", "b"} <= vectors(own).keys()
    # Each group that adds documents has one.
    assert len(GenerationStore(own.live, "r").current().segments) == 3


def test_additions_can_keep_their_encodings(own: Project) -> None:
    set_additions(own, "refine=false")

    assert type(LiveIndex(own).builder) is GenerationBuilder


def test_warming_up_computes_the_constraints(own: Project) -> None:
    LiveIndex(own).warm()

    (cache,) = additions_folder(own).glob("r-known-*")
    assert (cache / "manifest.json").is_file()


def add_with_query(project: Project) -> ChangeReport:
    """Add a document that brings a query, and one that brings none."""
    index = LiveIndex(project)
    receipts = [
        index.receive([row("n", "word2 word3", queries=["word4"]), row("m", "word5")], "test")
    ]
    report = ChangeReport(added=["m", "n"])
    apply_changes(index, report, receipts)
    return report


def test_report_of_a_change_counts_refined_documents(own: Project) -> None:
    report = add_with_query(own)

    assert report.refined is not None
    assert report.refined.documents == 1
    assert report.refined.queries == 1
    assert "IncDSI refined 1 document." in str(report)


def test_report_is_silent_without_queries(own: Project) -> None:
    index = LiveIndex(own)
    report = ChangeReport(added=["m"])

    apply_changes(index, report, [index.receive([row("m", "word5")], "test")])

    assert report.refined is None
    assert "IncDSI" not in str(report)


def test_status_sums_up_refined_documents(own: Project) -> None:
    add_with_query(own)

    status = live_status(own, "r")

    assert status["refined"]["documents"] == 1
    lines = list(live_status_lines(status))
    assert [line for line in lines if line.startswith("refined     IncDSI refined 1 document")]


def test_refined_documents_are_forgotten_with_their_deletion(own: Project) -> None:
    add_with_query(own)
    index = LiveIndex(own)

    apply_changes(index, ChangeReport(deleted=["n"]), [index.remove(["n"], "test")])

    assert live_status(own, "r")["refined"] is None


def test_erasure_solves_dependent_documents_again(own: Project) -> None:
    set_additions(own, "gamma1=5.0", "lambda2=0.001")
    index = LiveIndex(own)
    for name, query in (("first", "word1 word2"), ("second", "word1 word2 word3")):
        index.receive([row(name, "word9", queries=[query])], "test")
        index.apply()
    assert documents_solved_with(index.generation, ["first"]) == ["second"]

    erase_documents(index, ["first"])

    assert documents_solved_with(index.generation, ["first"]) == []
    records = [path.read_text() for path in own.live.rglob("solved.json")]
    assert records
    assert not [record for record in records if "first" in record]
