"""Tests of the generation builder.

They cover the changes that count, the files of a generation and the folders that it shares, readers,
and garbage collection.
"""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest

from model_code.collection.generations.generation import added_since_training, trained_documents
from model_code.collection.generations.generation_builder import GenerationBuilder
from model_code.collection.generations.generation_store import MAKING, GenerationStore
from model_code.collection.generations.searcher import Searcher
from model_code.collection.segments.documents import DocumentFile
from model_code.collection.segments.folder_lock import exclusive_lock_if_unused
from model_code.collection.segments.placements import Placements
from model_code.encoding.encoder import Encoder
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
    """The folder of the live collection's encoder."""
    return dense / "encoder"


@pytest.fixture
def builder(live: Path) -> GenerationBuilder:
    """The builder of the live collection."""
    return GenerationBuilder(live, "r")


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that are hashed from now on. A file is repeated if it is hashed again."""
    files: list[Path] = []
    file_digest = hashlib.file_digest

    def note(stream: BinaryIO, algorithm: str) -> Any:
        files.append(Path(stream.name))
        return file_digest(stream, algorithm)

    monkeypatch.setattr(hashlib, "file_digest", note)
    return files


def names_below(folder: Path) -> set[str]:
    """Return the relative path of every file below a folder."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def documents_found(builder: GenerationBuilder | Searcher) -> set[str]:
    """Return the documents that any query finds."""
    found = set()
    for ranking in rankings(builder):
        found.update(document for document, _ in ranking)
    return found


# The net effect of these changes is one addition, one update and one deletion.
BATCH = [
    put("d00x", NEW),
    Remove("d00x"),
    put("d01x", NEW),
    Remove("d05"),
    put("d05", OLD),
    Remove("d06"),
    put("d03", OLD),
    Document("d03", "word1", "word2 word3"),
    Remove("nobody"),
]


def test_batch_applies_net_effect_per_document(builder: GenerationBuilder) -> None:
    result = builder.apply(BATCH, up_to(9), {})

    assert result.added == ("d01x",)
    assert result.updated == ("d03",)
    assert result.deleted == ("d06",)
    assert result.unchanged == ("d00x", "d05", "nobody")


def test_applying_reads_the_changed_documents_only(
    builder: GenerationBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: DocumentFile, columns: Sequence[str]) -> list[list[str]]:
        raise AssertionError(f"reads {columns} of all {len(file)} documents")

    monkeypatch.setattr(DocumentFile, "read_columns", refuse)

    result = builder.apply(BATCH, up_to(9), {})

    assert result.updated == ("d03",)


def test_addition_hashes_its_own_files_only(builder: GenerationBuilder, hashed: list[Path]) -> None:
    builder.apply([put("d00x", NEW)], up_to(1), {})
    hashed.clear()

    generation = builder.apply([put("d01x", NEW)], up_to(2), {}).generation

    # The folder of the generation had another name when its files were hashed.
    folders = {path.relative_to(generation.folder.parent).parts[0] for path in hashed}
    assert len(folders) == 1
    assert folders.pop().startswith(MAKING)
    # Files of the index are in two manifests, and are compared when the index is opened.
    assert max(Counter(hashed).values()) <= 3


def test_new_generation_is_opened_by_hashing_its_own_files_once(
    builder: GenerationBuilder, hashed: list[Path]
) -> None:
    builder.apply([put("d00x", NEW)], up_to(1), {})
    searcher = Searcher.open(builder.collection.live, "r")
    generation = builder.apply([put("d01x", NEW)], up_to(2), {}).generation
    hashed.clear()

    searcher.renewed()

    assert hashed
    assert all(path.is_relative_to(generation.folder) for path in hashed)
    assert max(Counter(hashed).values()) == 1


def test_manifest_describes_the_generation(builder: GenerationBuilder) -> None:
    generation = builder.apply(BATCH, up_to(9), {"by": "test"}).generation

    manifest = generation.manifest
    assert manifest["parent"] == 0
    assert manifest["base"] == 0
    assert manifest["segments"] == [1]
    assert manifest["removed"] == 1
    assert manifest["provenance"] == {"by": "test"}
    assert manifest["documents"] == len(OLD)
    assert generation.cursor == up_to(9)


def test_applied_generation_becomes_current(builder: GenerationBuilder) -> None:
    generation = builder.apply(BATCH, up_to(9), {}).generation

    assert GenerationStore(builder.collection.live, "r").current() == generation


# Changes whose repetition changes nothing.
REPEATED = [
    put("d00x", NEW, ("word1 word2",)),
    Remove("d06"),
    Document("d03", "word1", "word2 word3", {"a": [1]}),
]


def test_repeated_changes_make_no_generation(builder: GenerationBuilder) -> None:
    first = builder.apply(REPEATED, up_to(3), {})

    again = builder.apply(REPEATED, up_to(3), {})

    assert again.generation == first.generation
    assert again.unchanged == ("d00x", "d03", "d06")


def test_repeated_changes_can_move_the_cursor(builder: GenerationBuilder) -> None:
    first = builder.apply(REPEATED, up_to(3), {}).generation

    moved = builder.apply(REPEATED, up_to(4), {}).generation

    assert moved.number == 2
    assert names_below(moved.folder) == {"manifest.json"}
    assert moved.segments == first.segments
    assert moved.watermark == 4


@pytest.mark.parametrize(
    "change",
    [
        put("d00x", NEW, ("word1",)),
        Document("d03", "word1", "word2 word3", {"a": [2]}),
        Document("d03", "", "word2 word3"),
    ],
    ids=["queries", "fields", "title"],
)
def test_any_other_property_is_an_update(builder: GenerationBuilder, change: Document) -> None:
    builder.apply(REPEATED, up_to(3), {})

    assert builder.apply([change], up_to(4), {}).updated == (change.document_id,)


@pytest.mark.parametrize("batches_after", [0, 3])
def test_field_of_deleted_documents_stays_known(live: Path, batches_after: int) -> None:
    builder = GenerationBuilder(live, "r", max_segments=2)
    coloured = Document("d00x", "word1", "word2", {"colour": {"name": "red"}})
    builder.apply([coloured], up_to(1), {})
    hits_before = builder.searcher.search("word1", 3, {"colour.name": "red"})

    builder.apply([Remove("d00x")], up_to(2), {})
    for i in range(batches_after):
        builder.apply([Document(f"d01x{i}", "word1", "word2")], up_to(3 + i), {})

    assert hits_before
    assert builder.searcher.search("word1", 3, {"colour.name": "red"}) == []
    assert builder.searcher.search("word1", 3, ["colour.name=red"]) == []
    with pytest.raises(FreshetError, match="no document has a field 'color.name'"):
        builder.searcher.search("word1", 3, {"color.name": "red"})


def test_built_segment_is_opened_once(builder: GenerationBuilder, monkeypatch) -> None:
    assert builder.searcher
    load = DenseIndex.load
    loaded = []

    def record_and_load(folder: Path) -> DenseIndex:
        loaded.append(folder)
        return load(folder)

    monkeypatch.setattr(DenseIndex, "load", record_and_load)
    generation = builder.apply([put("d00x", NEW)], up_to(1), {}).generation
    segment = builder.searcher.views[-1].segment

    assert segment.folder == generation.folder
    assert segment.number == generation.number
    assert len(loaded) == 1
    assert rankings(builder) == rankings(Searcher.open(builder.collection.live, "r"))


def test_built_segment_stays_locked(builder: GenerationBuilder) -> None:
    generation = builder.apply([put("d00x", NEW)], up_to(1), {}).generation
    segment = builder.searcher.views[-1].segment

    with exclusive_lock_if_unused(generation.folder) as unused:
        assert not unused
    assert segment.lock.is_valid()


def test_lock_of_a_deleted_segment_is_invalid(builder: GenerationBuilder) -> None:
    generation = builder.apply([put("d00x", NEW)], up_to(1), {}).generation
    segment = builder.searcher.views[-1].segment

    shutil.rmtree(generation.folder)

    assert not segment.lock.is_valid()


def test_added_documents_are_no_trained_documents(builder: GenerationBuilder) -> None:
    generation = builder.apply([put("d00x", NEW)], up_to(1), {}).generation

    assert trained_documents(generation) == OLD.keys()
    assert added_since_training(generation) == {"d00x"}


def test_addition_stores_its_segment(builder: GenerationBuilder) -> None:
    generation = builder.apply([put("d00x", NEW)], up_to(1), {}).generation

    assert names_below(generation.folder) == {
        "documents.safetensors",
        "fields.safetensors",
        "hierarchy/document_ids.json",
        "placements.safetensors",
        "manifest.json",
        "index/vectors.npy",
        "index/document_ids.json",
        "index/manifest.json",
    }


def test_deletion_stores_its_removals(builder: GenerationBuilder) -> None:
    generation = builder.apply([Remove("d02")], up_to(1), {}).generation

    assert names_below(generation.folder) == {"manifest.json", "removed.json"}


def test_generation_shares_earlier_folders(builder: GenerationBuilder) -> None:
    builder.apply([put("d00x", NEW)], up_to(1), {})
    builder.apply([Remove("d02")], up_to(2), {})

    generation = builder.apply([put("d01x", NEW)], up_to(3), {}).generation

    assert generation.base == 0
    assert generation.segments == (1, 3)
    assert generation.removed == 2
    assert generation.needs == {0, 1, 2, 3}


def leaf_centroid(builder: GenerationBuilder, leaf: int) -> np.ndarray:
    """Return the mean of the base vectors below a leaf, at unit norm."""
    base = builder.searcher.base
    vectors = base.retriever.index.vectors[base.tree.leaves == leaf].astype(np.float64)
    mean = vectors.mean(axis=0)
    return mean / np.linalg.norm(mean)


def test_centroids_are_means_of_base_vectors(builder: GenerationBuilder) -> None:
    centroids = builder.searcher.base.tree.centroids[-1]

    for leaf in range(4):
        np.testing.assert_allclose(centroids[leaf], leaf_centroid(builder, leaf), atol=1e-6)


def test_added_passages_are_placed_in_hierarchy(builder: GenerationBuilder) -> None:
    builder.apply([put("d00x", NEW), put("d01x", NEW)], up_to(1), {})
    _, view = builder.searcher.views
    segment = view.segment
    tree = builder.searcher.base.tree

    for row, vector in enumerate(segment.retriever.index.vectors):
        cosines = tree.centroids[-1].astype(np.float64) @ vector.astype(np.float64)
        passages_of_leaf = np.flatnonzero(tree.leaves == np.argmax(cosines))
        paths_of_leaf = {tree.path(passage) for passage in passages_of_leaf}
        assert tuple(segment.placements.paths[row]) in paths_of_leaf
        assert segment.placements.cosines[row] == pytest.approx(cosines.max(), abs=1e-6)


def test_every_base_passage_has_a_placement(builder: GenerationBuilder) -> None:
    base = builder.searcher.base

    assert len(Placements.load(base.folder).cosines) == len(base.tree.leaves)


def test_hit_has_title_and_path(builder: GenerationBuilder) -> None:
    builder.apply([put("d00x", NEW), put("d01x", NEW)], up_to(1), {})
    title, text = NEW["d00x"]
    first_passage = RULES.passages(title, text)[0]

    (hit,) = builder.searcher.search(first_passage, 1)

    segment = builder.searcher.views[1].segment
    first_row = segment.rows.rows_of(["d00x"])[0]
    assert hit.document_id == "d00x"
    assert hit.title == title
    assert hit.path == tuple(segment.placements.paths[first_row].tolist())


def test_current_searcher_is_not_renewed(builder: GenerationBuilder) -> None:
    searcher = Searcher.open(builder.collection.live, "r")

    assert searcher.renewed() is searcher


def test_renewed_searcher_shares_the_base(builder: GenerationBuilder, monkeypatch) -> None:
    old = Searcher.open(builder.collection.live, "r")
    builder.apply([put("d01x", NEW), Remove("d03")], up_to(1), {})

    def fail_to_open(folder: Path, fingerprint: str) -> None:
        pytest.fail("read the base again")

    monkeypatch.setattr("model_code.collection.segments.segment.BaseSegment.open", fail_to_open)
    new = old.renewed()

    assert new.generation.number == 1
    assert new.base is old.base
    assert new.retriever.encoder is old.retriever.encoder
    assert rankings(new) == rankings(builder)


def test_old_searcher_finds_its_generation(builder: GenerationBuilder) -> None:
    builder.apply([put("d00x", NEW)], up_to(1), {})
    old = Searcher.open(builder.collection.live, "r")
    old_rankings = rankings(old)
    old_hits = old.search("word1 word2", 4)

    builder.apply([put("d01x", NEW), Remove("d00x"), Remove("d03")], up_to(2), {})
    deleted = builder.collect_garbage(keep=2)

    assert rankings(builder) != old_rankings
    assert deleted == ()
    assert rankings(old) == old_rankings
    assert old.search("word1 word2", 4) == old_hits


def test_searcher_follows_a_rewind(builder: GenerationBuilder) -> None:
    builder.apply([put("d00x", NEW)], up_to(1), {})
    rankings_of_first = rankings(builder)
    builder.apply([put("d01x", NEW), Remove("d00x"), Remove("d03")], up_to(2), {})
    searcher = Searcher.open(builder.collection.live, "r")

    go_back(builder.collection.live, 1)

    assert rankings(searcher.renewed()) == rankings_of_first


def test_recreated_collection_has_other_generations(
    builder: GenerationBuilder, encoder: Path, tmp_path: Path
) -> None:
    old = Searcher.open(builder.collection.live, "r")

    shutil.rmtree(builder.collection.live)
    open_build("dense", tmp_path, encoder, NEW)
    new = old.renewed()

    assert new.generation.number == old.generation.number
    assert new.generation == builder.collection.current()
    assert documents_found(new) == NEW.keys()


@pytest.fixture
def compacted(builder: GenerationBuilder) -> GenerationBuilder:
    """A builder after eight additions, a deletion and a compaction: generations 0 to 10."""
    for event, name in enumerate(NEW, start=1):
        builder.apply([put(name, NEW)], up_to(event), {})
    builder.apply([Remove("d02")], up_to(9), {"by": "test", "model_version": 3})
    builder.compact()
    return builder


def test_compaction_is_in_the_provenance(compacted: GenerationBuilder) -> None:
    """The model version is not copied, because only a build has one."""
    manifest = compacted.searcher.generation.manifest

    assert manifest["provenance"] == {"by": "test", "compacted": 9}


def test_generations_that_others_need_are_kept(compacted: GenerationBuilder) -> None:
    expected_rankings = rankings(compacted)

    deleted = compacted.collect_garbage(keep=1, registered=[3])

    assert deleted == (4, 5, 6, 7, 8)
    # Generation 10 needs the removals of 9, and generation 3 shares 1 and 2.
    numbers = [generation.number for generation in compacted.collection.generations()]
    assert numbers == [0, 1, 2, 3, 9, 10]
    assert rankings(compacted) == expected_rankings
    assert rankings(compacted.collection.live) == expected_rankings


def test_kept_generations_can_be_searched_again(compacted: GenerationBuilder) -> None:
    expected_rankings = rankings(compacted)
    compacted.collect_garbage(keep=1, registered=[3])

    go_back(compacted.collection.live, 3)
    go_back(compacted.collection.live, 10)

    assert rankings(compacted) == expected_rankings


def test_numbers_continue_after_garbage_collection(compacted: GenerationBuilder) -> None:
    compacted.collect_garbage(keep=1, registered=[3])
    go_back(compacted.collection.live, 3)
    go_back(compacted.collection.live, 10)

    result = compacted.apply([Document("d03", "word1", "word2")], up_to(20), {})

    assert result.generation.number == 13


def test_keeping_no_generation_is_refused(builder: GenerationBuilder) -> None:
    with pytest.raises(SettingsError, match="keep is 0"):
        builder.collect_garbage(keep=0)


def test_number_of_segments_is_limited(live: Path) -> None:
    builder = GenerationBuilder(live, "r", max_segments=3)

    segment_counts = []
    for event, name in enumerate(NEW, start=1):
        generation = builder.apply([put(name, NEW)], up_to(event), {}).generation
        segment_counts.append(len(generation.segments))
        assert not (generation.folder / "fresh").exists()

    assert max(segment_counts) == 3


class MeanOfQueries:
    """Replace the encoding of a document by the mean of its known queries, if it has any."""

    def __init__(self) -> None:
        self.ids: list[list[str]] = []
        self.query_shapes: list[list[tuple[int, ...]]] = []

    def __call__(
        self, ids: list[str], vectors: np.ndarray, queries: list[np.ndarray]
    ) -> np.ndarray:
        self.ids.append(list(ids))
        self.query_shapes.append([own_queries.shape for own_queries in queries])
        refined = []
        for vector, own_queries in zip(vectors, queries, strict=True):
            if len(own_queries):
                refined.append(own_queries.mean(axis=0))
            else:
                refined.append(vector)
        return np.stack(refined)


WITH_QUERIES = Document("a", "word1", "word2", {}, ("word5 word6", "word6 word5"))
WITHOUT_QUERIES = Document("b", "word1", "word3")


def test_refine_receives_known_queries(live: Path) -> None:
    refine = MeanOfQueries()

    GenerationBuilder(live, "r", refine=refine).apply([WITH_QUERIES, WITHOUT_QUERIES], up_to(1), {})

    assert refine.ids == [["a", "b"]]
    assert refine.query_shapes == [[(2, 32), (0, 32)]]


def test_refined_vectors_are_indexed(live: Path) -> None:
    builder = GenerationBuilder(live, "r", refine=MeanOfQueries())

    builder.apply([WITH_QUERIES, WITHOUT_QUERIES], up_to(1), {})

    encode = builder.searcher.retriever.encoder.pytorch.encode_queries
    query_mean = encode(["word5 word6", "word6 word5"]).mean(axis=0)
    vectors = builder.searcher.views[1].segment.retriever.index.vectors
    np.testing.assert_allclose(vectors[0], query_mean, atol=1e-6)
    np.testing.assert_allclose(vectors[1], encode(["word1 word3"])[0], atol=1e-6)


def test_compaction_copies_refined_vectors(live: Path) -> None:
    builder = GenerationBuilder(live, "r", refine=MeanOfQueries())
    builder.apply([WITH_QUERIES, WITHOUT_QUERIES], up_to(1), {})
    expected = set()
    for ranking in rankings(builder):
        expected.update(hit for hit in ranking if hit[0] != "d01")

    builder.apply([Remove("d01")], up_to(2), {})
    builder.compact()

    found = set()
    for ranking in rankings(builder):
        found.update(ranking)
    assert found == expected


def test_refined_vectors_of_another_width_are_refused(live: Path) -> None:
    def cut_vectors(ids: list[str], vectors: np.ndarray, queries: list[np.ndarray]) -> np.ndarray:
        return vectors[:, :3]

    builder = GenerationBuilder(live, "r", refine=cut_vectors)

    with pytest.raises(FreshetError, match="refine gave vectors of shape"):
        builder.apply([Document("c", "word1", "word2")], up_to(1), {})


def test_document_without_text_is_refused() -> None:
    with pytest.raises(SettingsError, match="has neither title nor text"):
        Document("a", "", "")


@pytest.fixture
def without_rules(encoder: Path, tmp_path: Path) -> GenerationBuilder:
    """The builder of a collection that does not say how its documents were cut."""
    live = open_build("dense", tmp_path / "unknown", encoder, OLD, rules=None)
    return GenerationBuilder(live, "r")


def test_addition_without_text_rules_is_refused(without_rules: GenerationBuilder) -> None:
    with pytest.raises(FreshetError, match="does not say how its documents were cut"):
        without_rules.apply([put("d00x", NEW)], up_to(1), {})


def test_deletion_needs_no_text_rules(without_rules: GenerationBuilder) -> None:
    assert without_rules.apply([Remove("d03")], up_to(1), {}).deleted == ("d03",)


def test_segment_of_another_encoder_is_refused(builder: GenerationBuilder) -> None:
    folder = builder.apply([put("d00x", NEW)], up_to(1), {}).generation.folder
    manifest = read_json(folder / "index" / "manifest.json")
    manifest["fingerprint"] = "f" * 64
    manifest.pop("checksums")
    write_manifest(folder / "index", manifest.pop("format"), manifest)

    with pytest.raises(FingerprintMismatch, match="the index was built with encoder ffffffffffff"):
        rankings(builder.collection.live)


def test_reopening_the_same_build_keeps_additions(
    builder: GenerationBuilder, encoder: Path, tmp_path: Path
) -> None:
    added = builder.apply([put("d00x", NEW)], up_to(1), {}).generation

    open_build("dense", tmp_path, encoder, OLD)

    assert builder.collection.current() == added


def test_another_build_becomes_the_base(
    builder: GenerationBuilder, encoder: Path, tmp_path: Path
) -> None:
    builder.apply([put("d00x", NEW)], up_to(1), {})

    open_build("dense", tmp_path, encoder, {**OLD, "d99": ("word1", "word2")})
    base_of_build = builder.collection.current().base
    base_of_addition = builder.apply([put("d01x", NEW)], up_to(1), {}).generation.base

    assert base_of_build == 2
    assert base_of_addition == 2


def test_build_that_returns_brings_its_additions(
    builder: GenerationBuilder, encoder: Path, tmp_path: Path
) -> None:
    added = builder.apply([put("d00x", NEW)], up_to(1), {}).generation
    open_build("dense", tmp_path, encoder, {**OLD, "d99": ("word1", "word2")})
    builder.apply([put("d01x", NEW)], up_to(1), {})

    open_build("dense", tmp_path, encoder, OLD)

    current = builder.collection.current()
    live = builder.collection.live
    hits_before = Searcher(live, added, {}).search("word1", 99)
    hits = Searcher.open(live, "r").search("word1", 99)
    assert current.number == 4
    assert current.needs - {current.number} == added.needs
    assert hits == [replace(hit, generation=4) for hit in hits_before]


@pytest.fixture
def damaged(builder: GenerationBuilder) -> GenerationBuilder:
    """A builder after two additions, of which the first was damaged."""
    first = builder.apply([put("d00x", NEW)], up_to(1), {}).generation
    builder.apply([put("d01x", NEW)], up_to(2), {})
    (first.folder / "documents.safetensors").write_bytes(b"nonsense")
    return builder


def test_shared_folders_are_not_read_at_every_change(damaged: GenerationBuilder) -> None:
    generation = damaged.apply([put("d02x", NEW)], up_to(3), {}).generation

    assert generation.number == 3


def test_verification_detects_damaged_shared_folder(damaged: GenerationBuilder) -> None:
    with pytest.raises(FreshetError, match="documents.safetensors was changed"):
        damaged.collection.read(2).verify_all()


def test_verification_detects_missing_shared_folder(damaged: GenerationBuilder) -> None:
    shutil.rmtree(damaged.collection.read(1).folder)

    with pytest.raises(FreshetError, match="generation 2 of 'r' needs .*000001, which is gone"):
        damaged.collection.read(2).verify_all()


@pytest.fixture
def collected(builder: GenerationBuilder) -> GenerationStore:
    """Generations 0 to 4, of which garbage collection deleted number 2."""
    changes = [
        Document("n1", "word1", "word2"),
        Remove("d03"),
        Document("n2", "word1", "word3"),
        Remove("d04"),
    ]
    for event, change in enumerate(changes, start=1):
        builder.apply([change], up_to(event), {})
    assert builder.collect_garbage(keep=1) == (2,)
    return builder.collection


def test_generation_without_needed_folder_is_incomplete(collected: GenerationStore) -> None:
    complete = {generation.number: generation.complete for generation in collected.generations()}

    assert complete == {0: True, 1: True, 3: False, 4: True}


def test_rewind_to_incomplete_generation_is_refused(collected: GenerationStore) -> None:
    with pytest.raises(FreshetError, match="generation 3 of 'r' needs .*000002, which is gone"):
        collected.read(3).verify_all()


def test_rewind_to_removed_generation_is_refused(collected: GenerationStore) -> None:
    with pytest.raises(FreshetError, match="has no generation 2; there are: 0, 1, 4"):
        collected.read(2)


def test_documents_encoded_ahead_are_not_encoded_again(
    builder: GenerationBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = builder.apply([put("d00x", NEW)], up_to(1), {}).generation
    go_back(builder.collection.live, 0)
    builder.prepare()
    builder.encode_ahead([put("d00x", NEW)])

    def encode(self: Encoder, texts: list[str]) -> np.ndarray:
        pytest.fail(f"{texts} are encoded again")

    monkeypatch.setattr(Encoder, "encode_documents", encode)
    ahead = builder.apply([put("d00x", NEW)], up_to(2), {}).generation

    vectors = DenseIndex.load(plain.folder / "index").vectors
    np.testing.assert_array_equal(DenseIndex.load(ahead.folder / "index").vectors, vectors)


def test_builder_that_is_not_prepared_encodes_nothing_ahead(
    builder: GenerationBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(self: Encoder, texts: list[str]) -> np.ndarray:
        pytest.fail(f"{texts} are encoded")

    monkeypatch.setattr(Encoder, "encode_documents", encode)

    builder.encode_ahead([put("d00x", NEW)])
