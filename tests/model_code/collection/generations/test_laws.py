"""Guards the laws of live collections, for every kind: N additions = one batch = a rebuild,
whatever the order; adding then deleting is nothing; an update is a deletion and an addition;
compaction and reopening change no ranking.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
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
# which embeds passages in every search: slow
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
def rebuilt(kind: str, encoder: Path, tmp_path: Path):
    """A searcher of a build of other documents."""
    return lambda texts: Searcher.open(open_build(kind, tmp_path / "rebuilt", encoder, texts), "r")


def singles(live: Path, changes: list, **settings: int) -> GenerationBuilder:
    writer = GenerationBuilder(live, "r", **settings)
    for event, change in enumerate(changes, start=writer.searcher.generation.watermark + 1):
        writer.apply([change], up_to(event), {})
    return writer


@pytest.mark.parametrize("kind", INDEXED, indirect=True, scope="module")
def test_additions_equal_batch_and_rebuild_in_any_order(
    live: Path, rebuilt, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(live, tmp_path / "other"))
    shuffled = [put(name, NEW) for name in NEW]
    random.Random(0).shuffle(shuffled)
    one = singles(live, shuffled, max_segments=3)
    batch = GenerationBuilder(other, "r")
    applied = batch.apply([put(name, NEW) for name in NEW], up_to(1), {})
    whole = rebuilt(ALL)
    for k in (1, 3, 50):
        assert rankings(one, k) == rankings(batch, k) == rankings(whole, k)
    assert rankings(live) == rankings(whole), "opened anew"
    assert applied.added == tuple(sorted(NEW))
    assert applied.generation.manifest["documents"] == len(ALL)
    assert len(one.searcher.views) <= 4


def test_changes_equal_rebuild_before_and_after_compaction(live: Path, rebuilt) -> None:
    gone = ("d01", "d02", "d02x", "d07")
    writer = singles(
        live, [*(put(name, NEW) for name in NEW), *(put(name, CHANGED) for name in CHANGED)]
    )
    applied = writer.apply([Remove(name) for name in gone], up_to(20), {})
    assert applied.deleted == gone
    left = {name: own for name, own in (ALL | CHANGED).items() if name not in gone}
    whole = rebuilt(left)
    for k in (1, 2, 5, 50):
        assert rankings(writer, k) == rankings(whole, k)
    counts = {key: writer.searcher.generation.manifest[key] for key in ("documents", "passages")}
    assert counts["documents"] == len(left)
    compacted = writer.compact()
    assert len(compacted.segments) == 1
    assert {key: compacted.manifest[key] for key in counts} == counts
    assert rankings(writer) == rankings(live) == rankings(whole)
    assert writer.compact() == compacted


@pytest.mark.parametrize("kind", INDEXED, indirect=True, scope="module")
def test_adding_then_deleting_is_nothing(live: Path) -> None:
    before = rankings(live)
    writer = singles(live, [put(name, NEW) for name in NEW])
    assert rankings(writer) != before
    writer.apply([Remove(name) for name in NEW], up_to(30), {})
    assert rankings(writer) == rankings(live) == before
    assert writer.searcher.generation.segments == ()
    assert writer.searcher.generation.removed is None


@pytest.mark.parametrize("kind", INDEXED, indirect=True, scope="module")
def test_an_update_is_a_deletion_and_an_addition(live: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(live, tmp_path / "other"))
    updated = singles(live, [put("d03", CHANGED)])
    replaced = singles(other, [Remove("d03"), put("d03", CHANGED)])
    assert rankings(updated) == rankings(replaced)
    back = singles(live, [put("d03", OLD)])
    assert rankings(back) == rankings(Searcher(live, GenerationStore(live, "r").read(0), {}))


@pytest.mark.parametrize("kind", INDEXED, indirect=True, scope="module")
def test_filters_and_hits_see_all_parts(live: Path, rebuilt) -> None:
    writer = singles(live, [*(put(name, NEW) for name in NEW), Remove("d04"), put("d03", CHANGED)])
    left = {name: own for name, own in ({**ALL, "d03": CHANGED["d03"]}).items() if name != "d04"}
    whole = rebuilt(left)
    for filters in ([], ["even=true"], ["arrived=later"], ["even=false", "arrived=later"]):
        batches = (
            one.search_batch(["word1 word2", "word7 word9"], 6, filters)
            for one in (writer.searcher, whole)
        )
        found, expected = (
            [
                [(hit.document_id, hit.score, hit.title, hit.snippet) for hit in hits]
                for hits in batch
            ]
            for batch in batches
        )
        assert found == expected
    tree = writer.searcher.base.tree
    paths = {tuple(tree.path(row)) for row in range(len(tree.leaves))}
    hits = writer.searcher.search("word1 word2", 30)
    assert hits
    assert {hit.path for hit in hits} <= paths
    candidates = [[hit.document_id for hit in hits]]
    again, expected = (
        reranked(one.retriever, ["word1 word2"], candidates) for one in (writer.searcher, whole)
    )
    assert again == expected


@pytest.mark.parametrize(
    "kind", ["dense", "inverted_file", "dsi", "lexical", "fused"], indirect=True, scope="module"
)
@pytest.mark.parametrize("events", [12, pytest.param(170, marks=pytest.mark.long)])
def test_many_random_changes_end_like_a_rebuild(live: Path, rebuilt, events: int) -> None:
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
