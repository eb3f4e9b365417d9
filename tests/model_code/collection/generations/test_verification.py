"""Guards the guard: sound additions pass whatever their kind, each fault is refused and named, and
leaves nothing.
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from model_code.collection.generations.generation_builder import GenerationBuilder
from model_code.collection.generations.searcher import Searcher
from model_code.collection.generations.verification import first_vectors, verify_searchable
from model_code.collection.segments.segment import SegmentView
from model_code.errors import FreshetError
from model_code.retrieval.dense import DenseRetriever
from model_code.text.documents import Document, Remove
from tests.model_code.collection.laws import (
    KINDS,
    NEW,
    OLD,
    make_encoder,
    open_build,
    put,
    rankings,
    up_to,
)

pytestmark = pytest.mark.usefixtures("no_waiting_for_the_disk")


@pytest.fixture(scope="module", params=KINDS)
def opened(request, tmp_path_factory) -> Path:
    """A live collection of each kind."""
    root = tmp_path_factory.mktemp(request.param)
    make_encoder(request.param, root / "encoder")
    return open_build(request.param, root, root / "encoder", OLD)


@pytest.fixture
def writer(opened, tmp_path) -> GenerationBuilder:
    """A writer of a copy."""
    return GenerationBuilder(Path(shutil.copytree(opened, tmp_path / "live")), "r")


CHANGES = [
    *(put(one, NEW) for one in sorted(NEW)),
    Document("d03", "word1", "word9"),
    Remove("d05"),
]


def test_sound_changes_pass_and_are_made(writer):
    # Of two documents with equal vectors, either may come first.
    twin = Document("twin", *NEW["d00x"])
    applied = writer.apply([*CHANGES, twin], up_to(1), {}, verify_searchable)
    assert writer.collection.current() == applied.generation
    assert applied.updated == ("d03",)
    assert applied.deleted == ("d05",)
    assert len(applied.added) == len(NEW) + 1
    assert writer.apply([Remove("twin")], up_to(2), {}, verify_searchable).deleted == ("twin",)


def test_guard_sees_the_new_generation(writer):
    seen = []

    def record(searcher, applied):
        seen.append((searcher.generation, applied.generation, writer.collection.current_number()))

    writer.apply(CHANGES, up_to(1), {}, record)

    ((searched, applied, current_number),) = seen
    assert searched == applied
    assert current_number == 0


def test_refused_generation_leaves_nothing(writer):
    def refuse(searcher, applied):
        raise FreshetError("no")

    rankings_before = rankings(writer)
    files_before = sorted(writer.collection.folder.rglob("*"))

    with pytest.raises(FreshetError, match="^no$"):
        writer.apply(CHANGES, up_to(1), {}, refuse)

    assert sorted(writer.collection.folder.rglob("*")) == files_before
    assert writer.collection.current_number() == 0
    assert rankings(writer) == rankings_before


def test_changes_can_be_applied_after_a_refusal(writer):
    def refuse(searcher, applied):
        raise FreshetError("no")

    with pytest.raises(FreshetError, match="^no$"):
        writer.apply(CHANGES, up_to(1), {}, refuse)

    result = writer.apply(CHANGES, up_to(1), {}, verify_searchable)

    assert result.generation.number == 1


def dense(opened):
    if not opened.parent.name.startswith("dense"):
        pytest.skip("a fault of vectors")


def faulty(writer, fault, event=1):
    """What the guard says of a generation that `fault` was done to."""
    said = []

    def guard(searcher, applied):
        fault(searcher)
        said.append(
            pytest.raises(
                FreshetError, verify_searchable, searcher, applied, sample=200
            ).value.args[0]
        )

    writer.apply(CHANGES, up_to(event), {}, guard)
    return said[0].removeprefix("the new generation is refused: document ")


def test_vectors_that_are_no_numbers_are_refused(opened, writer):
    dense(opened)

    def fault(searcher):
        index = searcher.views[1].segment.retriever.index
        index.vectors = np.full_like(index.vectors, np.nan)

    assert faulty(writer, fault) == f"'d00x' is not finite ({len(NEW) + 1} such in all)"


MISPLACED = {
    "'d05' is deleted, but still there": lambda base, new: (
        SegmentView(base.segment, base.removed - {"d05"}),
        new,
    ),
    "'d02x' is added, but in no part": lambda base, new: (
        base,
        SegmentView(new.segment, frozenset({"d02x"})),
    ),
    "'d03' is in two parts": lambda base, new: (SegmentView(base.segment, frozenset({"d05"})), new),
}


@pytest.mark.parametrize("told", MISPLACED)
def test_misplaced_document_fails_verification(writer, told):
    def fault(searcher):
        searcher.views = MISPLACED[told](*searcher.views)

    assert faulty(writer, fault) == told


def test_a_document_that_the_search_misses_is_refused(opened, writer, monkeypatch):
    dense(opened)

    real = DenseRetriever.search_encoded

    def missing(self, queries, k, allowed=None):
        return [
            [hit for hit in hits if hit[0] != "d04x"][:k]
            for hits in real(self, queries, 50, allowed)
        ]

    monkeypatch.setattr(DenseRetriever, "search_encoded", missing)
    assert faulty(writer, lambda searcher: None) == "'d04x' is not found by its own vector"


def find_new_document(queries, k, fingerprint):
    """Stand in for the search of an index that finds one document only."""
    return [[("d00x", 2.0)]] * len(queries)


def test_older_document_no_longer_found_fails_verification(opened, writer):
    dense(opened)

    def guard(searcher, applied):
        index = searcher.views[-1].segment.retriever.index
        index.search = find_new_document
        with pytest.raises(FreshetError, match="older, and no longer found by its own vector"):
            verify_searchable(searcher, applied)

    writer.apply([put("d00x", NEW)], up_to(1), {}, guard)


def lose(searcher):
    base, *others = searcher.views
    searcher.views = (SegmentView(base.segment, base.removed | {"d07"}), *others)


def find_again(searcher):
    base, *others = searcher.views
    searcher.views = (SegmentView(base.segment, base.removed - {"d06"}), *others)


@pytest.mark.parametrize(("fault", "sign"), [(lose, -1), (find_again, 1)])
def test_wrong_document_count_fails_verification(writer, fault, sign):
    first = writer.apply([Remove("d06")], up_to(1), {}, verify_searchable).generation
    before = first.manifest["documents"]
    # The changes add all new documents and delete d05.
    added = len(NEW) - 1
    found = before + added + sign

    message = faulty(writer, fault, event=2)

    assert message.endswith(f"it holds {found} documents in place of {before} and +{added}")


def test_a_shared_part_is_not_searched(opened, writer):
    dense(opened)

    def guard(searcher, applied):
        searcher.base.retriever.index.search = None
        verify_searchable(searcher, applied)

    assert writer.apply(CHANGES, up_to(1), {}, guard).generation.number == 1


def test_only_longer_vectors_may_rank_above(opened, tmp_path):
    """Vectors that were learned for a document need not have unit norm: longer ones may well be
    found by others'.
    """
    dense(opened)

    def grow(ids, vectors, queries):
        return np.ascontiguousarray(vectors * np.where(np.array(ids) == "d00x", 9, 1)[:, None])

    writer = GenerationBuilder(Path(shutil.copytree(opened, tmp_path / "live")), "r", refine=grow)
    assert writer.apply(CHANGES, up_to(1), {}, verify_searchable).generation.number == 1
    searcher = writer.searcher
    long, short = first_vectors(dict.fromkeys(("d00x", "d01x"), searcher.views[1])).values()
    ((winner, best),) = searcher.retriever.search_encoded(short[None], 1)[0]
    assert winner == "d00x"
    assert best > 1
    assert np.linalg.norm(long) > np.linalg.norm(short)


def test_equal_copy_ranked_first_passes_verification(opened, tmp_path):
    dense(opened)
    own = first_vectors({"d00": SegmentView(Searcher.open(opened, "r").base)})["d00"]

    def copied(ids, vectors, queries):
        return np.array([own * np.float32(1 + 3e-7) for _ in ids])

    writer = GenerationBuilder(Path(shutil.copytree(opened, tmp_path / "live")), "r", refine=copied)
    # The sample holds all of the older documents.
    guard = partial(verify_searchable, sample=500)
    assert writer.apply([put("d00x", NEW)], up_to(1), {}, guard).generation.number == 1
