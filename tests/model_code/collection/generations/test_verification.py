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


def test_sound_changes_pass_verification(writer):
    # Of two documents with equal vectors, either may come first.
    twin = Document("twin", *NEW["d00x"])

    applied = writer.apply([*CHANGES, twin], up_to(1), {}, verify_searchable)

    assert writer.collection.current() == applied.generation
    assert applied.updated == ("d03",)
    assert applied.deleted == ("d05",)
    assert len(applied.added) == len(NEW) + 1


def test_deletion_of_an_equal_document_passes_verification(writer):
    twin = Document("twin", *NEW["d00x"])
    writer.apply([*CHANGES, twin], up_to(1), {}, verify_searchable)

    applied = writer.apply([Remove("twin")], up_to(2), {}, verify_searchable)

    assert applied.deleted == ("twin",)


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


def skip_unless_dense(opened):
    """Skip a test of vectors for a kind of retriever that has none."""
    if not opened.parent.name.startswith("dense"):
        pytest.skip("a fault of vectors")


def refusal_after(writer, fault, event=1):
    """Return why the verification refuses a generation that a fault was done to."""
    messages = []

    def guard(searcher, applied):
        fault(searcher)
        with pytest.raises(FreshetError) as raised:
            verify_searchable(searcher, applied, sample=200)
        messages.append(raised.value.args[0])

    writer.apply(CHANGES, up_to(event), {}, guard)
    return messages[0].removeprefix("the new generation is refused: document ")


def test_vectors_that_are_no_numbers_fail_verification(opened, writer):
    skip_unless_dense(opened)

    def fault(searcher):
        index = searcher.views[1].segment.retriever.index
        index.vectors = np.full_like(index.vectors, np.nan)

    assert refusal_after(writer, fault) == f"'d00x' is not finite ({len(NEW) + 1} such in all)"


def restore_deleted(base, new):
    """Forget that `d05` was deleted."""
    return SegmentView(base.segment, base.removed - {"d05"}), new


def hide_added(base, new):
    """Remove the added `d02x`."""
    return base, SegmentView(new.segment, frozenset({"d02x"}))


def repeat_updated(base, new):
    """Forget that the first segment holds an old `d03`."""
    return SegmentView(base.segment, frozenset({"d05"})), new


@pytest.mark.parametrize(
    ("misplace", "message"),
    [
        (restore_deleted, "'d05' is deleted, but still there"),
        (hide_added, "'d02x' is added, but in no part"),
        (repeat_updated, "'d03' is in two parts"),
    ],
)
def test_misplaced_document_fails_verification(writer, misplace, message):
    def fault(searcher):
        searcher.views = misplace(*searcher.views)

    assert refusal_after(writer, fault) == message


def do_nothing(searcher):
    pass


def test_document_missed_by_the_search_fails_verification(opened, writer, monkeypatch):
    skip_unless_dense(opened)
    search_encoded = DenseRetriever.search_encoded

    def search_without_one(self, queries, k, allowed=None):
        rankings = []
        for hits in search_encoded(self, queries, 50, allowed):
            others = [hit for hit in hits if hit[0] != "d04x"]
            rankings.append(others[:k])
        return rankings

    monkeypatch.setattr(DenseRetriever, "search_encoded", search_without_one)

    assert refusal_after(writer, do_nothing) == "'d04x' is not found by its own vector"


def find_new_document(queries, k, fingerprint):
    """Stand in for the search of an index that finds one document only."""
    return [[("d00x", 2.0)]] * len(queries)


def test_older_document_no_longer_found_fails_verification(opened, writer):
    skip_unless_dense(opened)

    def guard(searcher, applied):
        index = searcher.views[-1].segment.retriever.index
        index.search = find_new_document
        with pytest.raises(FreshetError, match="older, and no longer found by its own vector"):
            verify_searchable(searcher, applied)

    writer.apply([put("d00x", NEW)], up_to(1), {}, guard)


def lose(searcher):
    """Remove the old `d07`, which no change deletes."""
    base, *others = searcher.views
    searcher.views = (SegmentView(base.segment, base.removed | {"d07"}), *others)


def find_again(searcher):
    """Forget that `d06` was deleted."""
    base, *others = searcher.views
    searcher.views = (SegmentView(base.segment, base.removed - {"d06"}), *others)


@pytest.mark.parametrize(("fault", "sign"), [(lose, -1), (find_again, 1)])
def test_wrong_document_count_fails_verification(writer, fault, sign):
    first = writer.apply([Remove("d06")], up_to(1), {}, verify_searchable).generation
    before = first.manifest["documents"]
    # The changes add all new documents and delete d05.
    added = len(NEW) - 1
    found = before + added + sign

    message = refusal_after(writer, fault, event=2)

    assert message.endswith(f"it holds {found} documents in place of {before} and +{added}")


def test_segment_of_the_generation_before_is_not_searched(opened, writer):
    skip_unless_dense(opened)

    def guard(searcher, applied):
        searcher.base.retriever.index.search = None
        verify_searchable(searcher, applied)

    applied = writer.apply(CHANGES, up_to(1), {}, guard)

    assert applied.generation.number == 1


def test_only_longer_vectors_may_rank_above(opened, tmp_path):
    """Vectors that were learned for a document need not have unit norm: longer ones may well be
    found by others'.
    """
    skip_unless_dense(opened)

    def lengthen_first(ids, vectors, queries):
        lengths = np.where(np.array(ids) == "d00x", 9, 1)
        return np.ascontiguousarray(vectors * lengths[:, None])

    live = Path(shutil.copytree(opened, tmp_path / "live"))
    writer = GenerationBuilder(live, "r", refine=lengthen_first)

    applied = writer.apply(CHANGES, up_to(1), {}, verify_searchable)

    assert applied.generation.number == 1
    searcher = writer.searcher
    views = {"d00x": searcher.views[1], "d01x": searcher.views[1]}
    long, short = first_vectors(views).values()
    ((winner, best),) = searcher.retriever.search_encoded(short[None], 1)[0]
    assert winner == "d00x"
    assert best > 1
    assert np.linalg.norm(long) > np.linalg.norm(short)


def test_equal_copy_ranked_first_passes_verification(opened, tmp_path):
    skip_unless_dense(opened)
    view = SegmentView(Searcher.open(opened, "r").base)
    own_vector = first_vectors({"d00": view})["d00"]

    def copy_vector(ids, vectors, queries):
        return np.array([own_vector * np.float32(1 + 3e-7) for _ in ids])

    live = Path(shutil.copytree(opened, tmp_path / "live"))
    writer = GenerationBuilder(live, "r", refine=copy_vector)
    # The sample holds all of the older documents.
    guard = partial(verify_searchable, sample=500)

    applied = writer.apply([put("d00x", NEW)], up_to(1), {}, guard)

    assert applied.generation.number == 1
