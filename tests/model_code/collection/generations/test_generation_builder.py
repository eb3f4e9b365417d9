"""Guards the writer: what counts as a change, what a generation's folder holds and shares, readers,
and garbage.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from model_code.collection.generations.generation import added_since_training, trained_documents
from model_code.collection.generations.generation_builder import GenerationBuilder
from model_code.collection.generations.generation_store import GenerationStore
from model_code.collection.generations.searcher import Searcher
from model_code.collection.segments.folder_lock import exclusive_lock_if_unused
from model_code.collection.segments.placements import Placements
from model_code.errors import FingerprintMismatch, FreshetError, SettingsError
from model_code.files import read_json, write_manifest
from model_code.retrieval.dense_index import DenseIndex
from model_code.text.documents import Document, Remove
from tests.model_code.collection.laws import (
    NEW,
    OLD,
    RULES,
    go_back,
    open_build,
    put,
    rankings,
    up_to,
)

pytestmark = pytest.mark.usefixtures("no_waiting_for_the_disk")


@pytest.fixture
def encoder(dense: Path) -> Path:
    """That of the live collection."""
    return dense / "encoder"


@pytest.fixture
def writer(live: Path) -> GenerationBuilder:
    """The collection's writer."""
    return GenerationBuilder(live, "r")


def names_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_batch_applies_net_effect_per_document(writer: GenerationBuilder) -> None:
    changed = Document("d03", "word1", "word2 word3")
    first = [
        put("d00x", NEW),
        Remove("d00x"),
        put("d01x", NEW),
        Remove("d05"),
        put("d05", OLD),
        Remove("d06"),
    ]
    applied = writer.apply(
        [*first, put("d03", OLD), changed, Remove("nobody")], up_to(9), {"by": "test"}
    )
    assert applied.added == ("d01x",)
    assert applied.updated == ("d03",)
    assert applied.deleted == ("d06",)
    assert applied.unchanged == ("d00x", "d05", "nobody")
    manifest = applied.generation.manifest
    assert manifest["parent"] == 0
    assert manifest["base"] == 0
    assert manifest["segments"] == [1]
    assert manifest["removed"] == 1
    assert applied.generation.cursor == up_to(9)
    assert manifest["provenance"] == {"by": "test"}
    assert manifest["documents"] == len(OLD)
    assert GenerationStore(writer.collection.live, "r").current() == applied.generation


def test_the_same_changes_again_change_nothing(writer: GenerationBuilder) -> None:
    changes = [
        put("d00x", NEW, ("word1 word2",)),
        Remove("d06"),
        Document("d03", "word1", "word2 word3", {"a": [1]}),
    ]
    first = writer.apply(changes, up_to(3), {})
    again = writer.apply(changes, up_to(3), {})
    assert again.generation == first.generation
    assert again.unchanged == ("d00x", "d03", "d06")
    moved = writer.apply(changes, up_to(4), {})
    assert moved.generation.number == 2
    assert names_below(moved.generation.folder) == {"manifest.json"}
    assert moved.generation.segments == first.generation.segments
    assert moved.generation.watermark == 4
    fields, title = (
        Document("d03", "word1", "word2 word3", {"a": [2]}),
        Document("d03", "", "word2 word3"),
    )
    for other in (put("d00x", NEW, ("word1",)), fields, title):
        assert writer.apply([other], up_to(4), {}).updated == (other.document_id,)


@pytest.mark.parametrize("batches_after", [0, 3])
def test_field_of_deleted_documents_stays_known(live: Path, batches_after: int) -> None:
    writer = GenerationBuilder(live, "r", max_segments=2)
    coloured = Document("d00x", "word1", "word2", {"colour": {"name": "red"}})
    writer.apply([coloured], up_to(1), {})
    assert writer.searcher.search("word1", 3, {"colour.name": "red"})

    writer.apply([Remove("d00x")], up_to(2), {})
    for i in range(batches_after):
        writer.apply([Document(f"d01x{i}", "word1", "word2")], up_to(3 + i), {})

    assert writer.searcher.search("word1", 3, {"colour.name": "red"}) == []
    assert writer.searcher.search("word1", 3, ["colour.name=red"]) == []
    with pytest.raises(FreshetError, match="no document has a field 'color.name'"):
        writer.searcher.search("word1", 3, {"color.name": "red"})


def test_built_segment_stays_open_and_locked(writer: GenerationBuilder, monkeypatch) -> None:
    assert writer.searcher
    read, load = [], DenseIndex.load
    monkeypatch.setattr(DenseIndex, "load", lambda folder: read.append(folder) or load(folder))
    made = writer.apply([put("d00x", NEW)], up_to(1), {}).generation
    part = writer.searcher.views[-1].segment
    assert part.folder == made.folder
    assert part.number == made.number
    assert len(read) == 1
    assert part.lock.is_valid()
    assert rankings(writer) == rankings(Searcher.open(writer.collection.live, "r"))
    with exclusive_lock_if_unused(made.folder) as free:
        assert not free
    shutil.rmtree(made.folder)
    assert not part.lock.is_valid()


def test_generation_stores_only_its_additions(
    writer: GenerationBuilder,
) -> None:
    added = writer.apply([put("d00x", NEW)], up_to(1), {}).generation
    assert trained_documents(added) == OLD.keys()
    assert added_since_training(added) == {"d00x"}
    assert names_below(added.folder) == {
        "documents.safetensors",
        "fields.safetensors",
        "hierarchy/document_ids.json",
        "placements.safetensors",
        "manifest.json",
        "index/vectors.npy",
        "index/document_ids.json",
        "index/manifest.json",
    }
    deleted = writer.apply([Remove("d02")], up_to(2), {}).generation
    assert names_below(deleted.folder) == {"manifest.json", "removed.json"}
    later = writer.apply([put("d01x", NEW)], up_to(3), {}).generation
    assert later.base == 0
    assert later.segments == (1, 3)
    assert later.removed == 2
    assert later.needs == {0, 1, 2, 3}


def test_added_passages_are_placed_in_hierarchy(
    writer: GenerationBuilder,
) -> None:
    writer.apply([put("d00x", NEW), put("d01x", NEW)], up_to(1), {})
    base, segment = (view.segment for view in writer.searcher.views)
    tree, vectors = writer.searcher.base.tree, segment.retriever.index.vectors
    for leaf in range(4):
        mean = base.retriever.index.vectors[tree.leaves == leaf].astype(np.float64).mean(axis=0)
        np.testing.assert_allclose(tree.centroids[-1][leaf], mean / np.linalg.norm(mean), atol=1e-6)
    for row, vector in enumerate(vectors):
        cosines = [
            float(np.dot(vector.astype(np.float64), centroid)) for centroid in tree.centroids[-1]
        ]
        assert tuple(segment.placements.paths[row]) in {
            tree.path(p) for p in np.flatnonzero(tree.leaves == np.argmax(cosines))
        }
        assert segment.placements.cosines[row] == pytest.approx(max(cosines), abs=1e-6)
    assert len(Placements.load(base.folder).cosines) == len(tree.leaves)
    title, text = NEW["d00x"]
    hit = writer.searcher.search(RULES.passages(title, text)[0], 1)[0]
    assert hit.document_id == "d00x"
    assert hit.title == title
    assert hit.path == tuple(segment.placements.paths[segment.rows.rows_of(["d00x"])[0]].tolist())


def test_renewed_searcher_shares_segments_with_old(
    writer: GenerationBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.apply([put("d00x", NEW)], up_to(1), {})
    old = Searcher.open(writer.collection.live, "r")
    before, hits = rankings(old), old.search("word1 word2", 4)
    assert old.renewed() is old
    writer.apply([put("d01x", NEW), Remove("d00x"), Remove("d03")], up_to(2), {})
    monkeypatch.setattr(
        "model_code.collection.segments.segment.BaseSegment.open",
        lambda folder, fingerprint: pytest.fail("read the base again"),
    )
    new = old.renewed()
    assert new.generation.number == 2
    assert new.base is old.base
    assert new.retriever.encoder is old.retriever.encoder
    assert rankings(new) == rankings(writer) != before
    assert writer.collect_garbage(keep=2) == ()
    assert rankings(old) == before
    assert old.search("word1 word2", 4) == hits
    go_back(writer.collection.live, 1)
    assert rankings(new.renewed()) == before


def test_recreated_collection_has_other_generations(
    writer: GenerationBuilder, encoder: Path, tmp_path: Path
) -> None:
    old = Searcher.open(writer.collection.live, "r")
    shutil.rmtree(writer.collection.live)
    open_build("dense", tmp_path, encoder, NEW)
    new = old.renewed()
    assert old.generation.number == new.generation.number
    assert new.generation == writer.collection.current()
    assert {name for ranking in rankings(new) for name, _ in ranking} == NEW.keys()


def test_garbage_is_what_no_kept_generation_needs(writer: GenerationBuilder) -> None:
    for event, name in enumerate(NEW, start=1):
        writer.apply([put(name, NEW)], up_to(event), {})
    writer.apply([Remove("d02")], up_to(9), {"by": "test", "model_version": 3})
    assert writer.compact().manifest["provenance"] == {"by": "test", "compacted": 9}, (
        "a build alone is of a version"
    )
    expected = rankings(writer)
    assert writer.collect_garbage(keep=1, registered=[3]) == (4, 5, 6, 7, 8)
    numbers = [generation.number for generation in writer.collection.generations()]
    assert numbers == [0, 1, 2, 3, 9, 10], "9 has the removals of 10; 3 shares 1 and 2"
    assert rankings(writer) == rankings(writer.collection.live) == expected
    go_back(writer.collection.live, 3)
    go_back(writer.collection.live, 10)
    assert rankings(writer) == expected
    assert (
        writer.apply(
            [put("d03", NEW | {"d03": ("word1", "word2")})], up_to(20), {}
        ).generation.number
        == 13
    )
    with pytest.raises(SettingsError, match="keep is 0"):
        writer.collect_garbage(keep=0)


def test_there_are_never_more_segments_than_asked_for(live: Path) -> None:
    writer, most = GenerationBuilder(live, "r", max_segments=3), []
    for event, name in enumerate(NEW, start=1):
        generation = writer.apply([put(name, NEW)], up_to(event), {}).generation
        most.append(len(generation.segments))
        assert not (generation.folder / "fresh").exists()
    assert max(most) == 3


def test_refine_makes_the_vectors_that_are_indexed(live: Path) -> None:
    seen = []

    def refine(ids: list[str], vectors: np.ndarray, queries: list[np.ndarray]) -> np.ndarray:
        seen.append((list(ids), [own.shape for own in queries]))
        return np.stack(
            [own.mean(axis=0) if len(own) else v for v, own in zip(vectors, queries, strict=True)]
        )

    writer = GenerationBuilder(live, "r", refine=refine)
    asked = Document("a", "word1", "word2", {}, ("word5 word6", "word6 word5"))
    writer.apply([asked, Document("b", "word1", "word3")], up_to(1), {})
    assert seen == [(["a", "b"], [(2, 32), (0, 32)])]
    encoder = writer.searcher.retriever.encoder
    index = writer.searcher.views[1].segment.retriever.index
    np.testing.assert_allclose(
        index.vectors[0], encoder.encode(["word5 word6", "word6 word5"]).mean(axis=0), atol=1e-6
    )
    np.testing.assert_allclose(index.vectors[1], encoder.encode(["word1 word3"])[0], atol=1e-6)
    left = {hit for ranking in rankings(writer) for hit in ranking if hit[0] != "d01"}
    writer.apply([Remove("d01")], up_to(2), {})
    writer.compact()
    assert {hit for ranking in rankings(writer) for hit in ranking} == left
    bad = GenerationBuilder(live, "r", refine=lambda ids, vectors, queries: vectors[:, :3])
    with pytest.raises(FreshetError, match="refine gave vectors of shape"):
        bad.apply([Document("c", "word1", "word2")], up_to(3), {})


def test_refused_batch_changes_nothing(encoder: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="has neither title nor text"):
        Document("a", "", "")
    unknown = open_build("dense", tmp_path / "unknown", encoder, OLD, rules=None)
    with pytest.raises(FreshetError, match="does not say how its documents were cut"):
        GenerationBuilder(unknown, "r").apply([put("d00x", NEW)], up_to(1), {})
    assert GenerationBuilder(unknown, "r").apply([Remove("d03")], up_to(1), {}).deleted == ("d03",)


def test_a_segment_of_another_encoder_is_refused(writer: GenerationBuilder) -> None:
    folder = writer.apply([put("d00x", NEW)], up_to(1), {}).generation.folder
    facts = read_json(folder / "index" / "manifest.json") | {"fingerprint": "f" * 64}
    facts.pop("checksums")
    write_manifest(folder / "index", facts.pop("format"), facts)
    with pytest.raises(FingerprintMismatch, match="the index was built with encoder ffffffffffff"):
        rankings(writer.collection.live)


def test_reopening_build_keeps_additions(
    writer: GenerationBuilder, encoder: Path, tmp_path: Path
) -> None:
    added = writer.apply([put("d00x", NEW)], up_to(1), {}).generation
    open_build("dense", tmp_path, encoder, OLD)
    assert writer.collection.current() == added
    open_build("dense", tmp_path, encoder, {**OLD, "d99": ("word1", "word2")})
    assert writer.collection.current().base == 2
    assert writer.apply([put("d01x", NEW)], up_to(1), {}).generation.base == 2
    open_build("dense", tmp_path, encoder, OLD)
    again = writer.collection.current()
    assert again.number == 4
    assert again.needs - {again.number} == added.needs
    before = Searcher(writer.collection.live, added, {}).search("word1", 99)
    now = Searcher.open(writer.collection.live, "r").search("word1", 99)
    assert now == [replace(hit, generation=4) for hit in before]


def test_rewind_detects_damaged_shared_folder(writer: GenerationBuilder) -> None:
    first = writer.apply([put("d00x", NEW)], up_to(1), {}).generation
    writer.apply([put("d01x", NEW)], up_to(2), {})
    (first.folder / "documents.safetensors").write_bytes(b"nonsense")
    third = writer.apply([put("d02x", NEW)], up_to(3), {}).generation
    assert third.number == 3, "shared folders are not read on every switch"
    with pytest.raises(FreshetError, match="documents.safetensors was changed"):
        writer.collection.read(2).verify_all()
    shutil.rmtree(first.folder)
    with pytest.raises(FreshetError, match="generation 2 of 'r' needs .*000001, which is gone"):
        writer.collection.read(2).verify_all()


def test_rewind_to_removed_generation_is_refused(
    live: Path,
) -> None:
    writer = GenerationBuilder(live, "r")
    changes = [
        Document("n1", "word1", "word2"),
        Remove("d03"),
        Document("n2", "word1", "word3"),
        Remove("d04"),
    ]
    for event, change in enumerate(changes, start=1):
        writer.apply([change], up_to(event), {})
    assert writer.collect_garbage(keep=1) == (2,)
    assert {one.number: one.complete for one in GenerationStore(live, "r").generations()} == {
        0: True,
        1: True,
        3: False,
        4: True,
    }
    with pytest.raises(FreshetError, match="generation 3 of 'r' needs .*000002, which is gone"):
        GenerationStore(live, "r").read(3).verify_all()
    with pytest.raises(FreshetError, match="has no generation 2; there are: 0, 1, 4"):
        GenerationStore(live, "r").read(2)
