"""Guards what the pages of live assets say, and what an addition does if a retriever fails."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from assets.live import added_documents, addition_metadata, refinement_metadata
from model_code.collection.generations.generation import Generation
from model_code.collection.generations.generation_builder import ApplyResult
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.segments.solved import SolvedDocument, SolvedDocuments, SolvedQuery
from model_code.errors import FreshetError
from tests.live_example import BASE, add, collection_of, make_project, open_build, row


def solved(document_id: str, *ranks: tuple[int, int]) -> SolvedDocument:
    """Return the record of a document whose queries have these ranks before and after."""
    queries = []
    for number, (before, after) in enumerate(ranks):
        queries.append(SolvedQuery(f"query {number}", 1.0, 1.0, before, after, 2.0))
    vectors = np.ones((len(queries), 2), np.float32)
    return SolvedDocument(
        document_id,
        "FITS",
        tuple(queries),
        vectors,
        old_outranked_before=3,
        old_outranked_after=1,
    )


@pytest.fixture
def generation(tmp_path: Path) -> Generation:
    """A generation with three added documents, two of which IncDSI solved."""
    applied = add(collection_of(make_project(tmp_path)), row("a"), row("b"), row("c"))
    assert applied is not None
    records = {"a": solved("a", (30, 1), (40, 20)), "b": solved("b", (2, 1))}
    SolvedDocuments(records).save(applied.generation.folder)
    return applied.generation


def test_page_shows_effect_of_incdsi(generation: Generation) -> None:
    metadata = refinement_metadata(generation, None)

    assert metadata.pop("IncDSI").startswith(
        "IncDSI refined 2 documents. Queries that find their document: 2 of 3"
    )
    assert metadata == {
        "refined": 2,
        "queries": 3,
        "queries_answered_before": 1,
        "queries_answered_after": 2,
        "old_queries_outranked_before": 6,
        "old_queries_outranked_after": 2,
    }


def test_page_counts_only_given_documents(generation: Generation) -> None:
    assert refinement_metadata(generation, {"a", "c"})["queries"] == 2
    assert refinement_metadata(generation, {"c"})["refined"] == 0


def test_documents_solved_again_count(generation: Generation) -> None:
    applied = ApplyResult(generation, ("c",), (), (), (), solved_again=("b",))

    metadata = addition_metadata(applied)

    assert metadata["added"] == 1
    assert metadata["solved again"] == 1
    assert metadata["refined"] == 1
    assert metadata["queries_answered_after"] == 1


def test_other_retrievers_do_not_wait_for_the_default_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = make_project(tmp_path)
    open_build(project, BASE, retriever="contrastive")
    applied_to = []

    def apply(index: LiveIndex, limit: int | None = None) -> None:
        if index.retriever == "hce":
            raise FreshetError("hce is damaged")
        applied_to.append(index.retriever)

    monkeypatch.setattr(LiveIndex, "apply", apply)

    with pytest.raises(FreshetError, match="hce is damaged"):
        list(added_documents(project))

    assert applied_to == ["contrastive"]
