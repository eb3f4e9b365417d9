"""Guards the laws of live collections, for every kind: N additions = one batch = a rebuild,
whatever the order; adding then deleting is nothing; an update is a deletion and an addition;
compaction and reopening change no ranking.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from model_code.collection.generations.generation_builder import GenerationBuilder
from model_code.collection.generations.generation_store import GenerationStore
from model_code.collection.generations.searcher import Searcher
from model_code.text.documents import Document, Remove
from tests.disk import skip_fsync
from tests.model_code.collection.laws import (
    KINDS,
    NEW,
    OLD,
    corpus,
    make_encoder,
    open_build,
    put,
    rankings,
    reranked,
    up_to,
)

ALL = {**OLD, **NEW}
# `beta_rerank` embeds passages in every search, which is slow.
INDEXED = [kind for kind in KINDS if kind != "beta_rerank"]
CHANGED = {
    "d03": ("word9", "word1 word2 word3 word4 word5 word6"),
    "d05x": ("word2", "word8 word7"),
}


@pytest.fixture(scope="module", autouse=True)
def one_by_one() -> Iterator[None]:
    """Texts are encoded alone: a batch's padding moves the last bits of vectors, and the laws are
    of equal vectors.

    Nor does anybody wait for the disk.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("model_code.encoding.encoder.CPU_BATCH_TOKENS", 2)
        patch.setattr("model_code.lexical.encoder.CPU_BATCH_TOKENS", 2)
        patch.setattr("model_code.lexical.index.MAX_CACHED_EMBEDDINGS", 9)
        skip_fsync(patch)
        yield


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """A kind of retriever."""
    return request.param


@pytest.fixture(scope="module")
def encoder(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its encoder."""
    folder = tmp_path_factory.mktemp(kind) / "encoder"
    make_encoder(kind, folder)
    return folder


@pytest.fixture(scope="module")
def opened(kind: str, encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A live collection of the old documents."""
    return open_build(kind, tmp_path_factory.mktemp("opened"), encoder, OLD)


@pytest.fixture
def live(opened: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(opened, tmp_path / "live"))


@pytest.fixture
def rebuilt(kind: str, encoder: Path, tmp_path: Path) -> Callable[[dict], Searcher]:
    """A function that returns a searcher of a build of other documents."""

    def build_and_open(texts: dict) -> Searcher:
        return Searcher.open(open_build(kind, tmp_path / "rebuilt", encoder, texts), "r")

    return build_and_open


def apply_one_by_one(live: Path, changes: list, **settings: int) -> GenerationBuilder:
    """Apply each change as a generation of its own; return the writer."""
    writer = GenerationBuilder(live, "r", **settings)
    for event, change in enumerate(changes, start=writer.searcher.generation.watermark + 1):
        writer.apply([change], up_to(event), {})
    return writer


def additions() -> list[Document]:
    """Return the new documents."""
    return [put(name, NEW) for name in NEW]


def describe(hits: list) -> list[tuple]:
    """Return what must be equal in two searches, to the bit."""
    return [(hit.document_id, hit.score, hit.title, hit.snippet) for hit in hits]


@pytest.mark.parametrize("kind", INDEXED, indirect=True, scope="module")
def test_additions_equal_batch_and_rebuild_in_any_order(
    live: Path, rebuilt: Callable[[dict], Searcher], tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(live, tmp_path / "other"))
    shuffled = additions()
    random.Random(0).shuffle(shuffled)

    one_by_one = apply_one_by_one(live, shuffled, max_segments=3)
    batch = GenerationBuilder(copy, "r")
    applied = batch.apply(additions(), up_to(1), {})

    whole = rebuilt(ALL)
    for k in (1, 3, 50):
        expected = rankings(whole, k)
        assert rankings(one_by_one, k) == expected
        assert rankings(batch, k) == expected
    # A searcher that opens the collection anew finds the same.
    assert rankings(live) == rankings(whole)
    assert applied.added == tuple(sorted(NEW))
    assert applied.generation.manifest["documents"] == len(ALL)
    assert len(one_by_one.searcher.views) <= 4


def test_changes_equal_rebuild_before_and_after_compaction(
    live: Path, rebuilt: Callable[[dict], Searcher]
) -> None:
    deleted = ("d01", "d02", "d02x", "d07")
    updates = [put(name, CHANGED) for name in CHANGED]
    writer = apply_one_by_one(live, additions() + updates)

    applied = writer.apply([Remove(name) for name in deleted], up_to(20), {})

    left = {**ALL, **CHANGED}
    for name in deleted:
        left.pop(name)
    whole = rebuilt(left)
    assert applied.deleted == deleted
    for k in (1, 2, 5, 50):
        assert rankings(writer, k) == rankings(whole, k)
    manifest = writer.searcher.generation.manifest
    assert manifest["documents"] == len(left)

    compacted = writer.compact()

    assert len(compacted.segments) == 1
    assert compacted.manifest["documents"] == manifest["documents"]
    assert compacted.manifest["passages"] == manifest["passages"]
    expected = rankings(whole)
    assert rankings(writer) == expected
    assert rankings(live) == expected
    # Nothing is left to compact.
    assert writer.compact() == compacted


@pytest.mark.parametrize("kind", INDEXED, indirect=True, scope="module")
def test_adding_then_deleting_is_nothing(live: Path) -> None:
    rankings_before = rankings(live)
    writer = apply_one_by_one(live, additions())
    rankings_between = rankings(writer)

    writer.apply([Remove(name) for name in NEW], up_to(30), {})

    assert rankings_between != rankings_before
    assert rankings(writer) == rankings_before
    assert rankings(live) == rankings_before
    assert writer.searcher.generation.segments == ()
    assert writer.searcher.generation.removed is None


@pytest.mark.parametrize("kind", INDEXED, indirect=True, scope="module")
def test_an_update_is_a_deletion_and_an_addition(live: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(live, tmp_path / "other"))

    updated = apply_one_by_one(live, [put("d03", CHANGED)])
    replaced = apply_one_by_one(copy, [Remove("d03"), put("d03", CHANGED)])

    assert rankings(updated) == rankings(replaced)


@pytest.mark.parametrize("kind", INDEXED, indirect=True, scope="module")
def test_update_can_be_undone_by_an_update(live: Path) -> None:
    apply_one_by_one(live, [put("d03", CHANGED)])

    restored = apply_one_by_one(live, [put("d03", OLD)])

    first = Searcher(live, GenerationStore(live, "r").read(0), {})
    assert rankings(restored) == rankings(first)


@pytest.fixture
def changed(live: Path) -> Searcher:
    """A searcher after all new documents were added, one was deleted and one was updated."""
    return apply_one_by_one(live, [*additions(), Remove("d04"), put("d03", CHANGED)]).searcher


@pytest.fixture
def rebuilt_after_changes(rebuilt: Callable[[dict], Searcher]) -> Searcher:
    """A searcher of a build of the documents of `changed`."""
    left = {**ALL, "d03": CHANGED["d03"]}
    left.pop("d04")
    return rebuilt(left)


@pytest.mark.parametrize("kind", INDEXED, indirect=True, scope="module")
def test_filters_and_hits_see_all_parts(changed: Searcher, rebuilt_after_changes: Searcher) -> None:
    queries = ["word1 word2", "word7 word9"]

    for filters in ([], ["even=true"], ["arrived=later"], ["even=false", "arrived=later"]):
        rankings_of_changed = changed.search_batch(queries, 6, filters)
        rankings_of_rebuilt = rebuilt_after_changes.search_batch(queries, 6, filters)
        pairs = zip(rankings_of_changed, rankings_of_rebuilt, strict=True)
        for hits, expected in pairs:
            assert describe(hits) == describe(expected)


@pytest.mark.parametrize("kind", INDEXED, indirect=True, scope="module")
def test_paths_of_hits_are_paths_of_the_tree(changed: Searcher) -> None:
    tree = changed.base.tree
    paths = {tuple(tree.path(row)) for row in range(len(tree.leaves))}

    hits = changed.search("word1 word2", 30)

    assert hits
    assert {hit.path for hit in hits} <= paths


@pytest.mark.parametrize("kind", INDEXED, indirect=True, scope="module")
def test_reranking_sees_all_parts(changed: Searcher, rebuilt_after_changes: Searcher) -> None:
    candidates = [[hit.document_id for hit in changed.search("word1 word2", 30)]]

    reranking = reranked(changed.retriever, ["word1 word2"], candidates)

    assert reranking == reranked(rebuilt_after_changes.retriever, ["word1 word2"], candidates)


@pytest.mark.parametrize(
    "kind", ["dense", "inverted_file", "dsi", "lexical", "fused"], indirect=True, scope="module"
)
@pytest.mark.parametrize("events", [12, pytest.param(170, marks=pytest.mark.long)])
def test_many_random_changes_end_like_a_rebuild(
    live: Path, rebuilt: Callable[[dict], Searcher], events: int
) -> None:
    """Three changes an event, so more than 500 in the long form; scores are compared to the bit."""
    rng = random.Random(3)
    writer = GenerationBuilder(live, "r", max_segments=2)
    texts = dict(OLD)
    for event in range(1, events + 1):
        changes: list[Document | Remove] = []
        for number, name in enumerate(rng.choices(sorted(ALL), k=3)):
            if name in texts and rng.random() < 0.5:
                texts.pop(name)
                changes.append(Remove(name))
            else:
                texts.update(corpus([name], seed=10 * event + number))
                changes.append(put(name, texts))
        writer.apply(changes, up_to(event), {})

    expected = rankings(rebuilt(texts))
    assert rankings(writer) == expected
    assert rankings(live) == expected
    assert writer.searcher.generation.manifest["documents"] == len(texts)
