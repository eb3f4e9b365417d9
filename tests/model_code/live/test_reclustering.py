"""Guards a hierarchy clustered anew: rankings and training documents stay, removed ones go, additions go on as ever."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from model_code.errors import FreshetError
from model_code.files import read_json
from model_code.hierarchy.settings import HierarchySettings
from model_code.index.dense_index import DenseIndex
from model_code.index.settings import IndexSettings
from model_code.live.changes import Put, Remove
from model_code.live.collection import Collection
from model_code.live.searcher import Searcher
from model_code.live.trained import added_since_training, trained_documents
from model_code.live.writer import LiveWriter
from model_code.manifest import add_facts
from model_code.retrievers.segments import segments
from tests.model_code.live.laws import KINDS, NEW, OLD, make_encoder, open_build, put, rankings

SETTINGS = HierarchySettings(branching=3, device="cpu")


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    """Nothing here pulls the plug."""
    monkeypatch.setattr("os.fsync", lambda handle: None)


@pytest.fixture(scope="module", params=KINDS)
def changed(request, tmp_path_factory) -> Path:
    """A live collection of each kind, after additions, an update and a removal."""
    root = tmp_path_factory.mktemp(request.param)
    make_encoder(request.param, root / "encoder")
    live = open_build(request.param, root, root / "encoder", OLD)
    writer = LiveWriter(live, "r")
    writer.apply([put(one, NEW) for one in sorted(NEW)], 1, {})
    writer.apply([Put("d03", "word1", "word9"), Remove("d05")], 2, {})
    return live


@pytest.fixture
def writer(changed, tmp_path) -> LiveWriter:
    """A writer of a copy."""
    return LiveWriter(Path(shutil.copytree(changed, tmp_path / "live")), "r")


def test_rankings_stay_and_the_tree_is_of_all_that_is_live(writer):
    before, old = rankings(writer), writer.searcher
    generation = writer.recluster(SETTINGS, 0)
    assert rankings(writer) == before == rankings(Searcher.open(writer.collection.live, "r"))
    assert (generation.base, generation.segments, generation.removed, generation.watermark) == (3, (), None, 2)
    assert generation.manifest["documents"] == len(OLD) + len(NEW) - 1
    (view,) = writer.searcher.views
    assert set(view.document_ids()) == (OLD.keys() | NEW.keys()) - {"d05"}
    tree, base = view.part.tree, view.part
    assert len(tree.leaves) == len(base.rows) == generation.manifest["passages"] > len(old.hierarchy.leaves)
    assert np.array_equal(base.placements.paths, tree.paths())
    vectors = segments(base.kind).passage_vectors(base.retriever, base.rows.document_ids)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    mean = unit[tree.leaves == 0].mean(axis=0)
    assert mean @ tree.centroids[-1][0] / np.linalg.norm(mean) == pytest.approx(1, abs=1e-5)


def test_what_was_trained_on_is_remembered_through_it_and_after_it(writer):
    added = NEW.keys()
    assert added_since_training(writer.collection.current()) == added
    writer.recluster(SETTINGS, 0)
    again = writer.recluster(SETTINGS, 0)
    assert (trained_documents(again), added_since_training(again), again.build) == (OLD.keys(), added, 0)
    after = writer.apply([Put("later", "word1", "word2"), Remove("d00x")], 3, {}).generation
    assert (after.base, after.build, after.segments) == (again.number, 0, (after.number,))
    assert added_since_training(after) == {*added, "later"} - {"d00x"}
    freed = writer.collect_garbage(1)
    assert freed.generations == (0, 1, 2, 3)
    assert added_since_training(Collection(writer.collection.live, "r").current()) == {*added, "later"} - {"d00x"}


def test_the_same_seed_gives_the_same_base(writer):
    first, second = (writer.recluster(SETTINGS, 7) for _ in range(2))
    assert first.manifest["checksums"].keys() == second.manifest["checksums"].keys()
    same = {name for name, sum_ in first.manifest["checksums"].items() if second.manifest["checksums"][name] == sum_}
    assert {"hierarchy/hierarchy.safetensors", "documents.parquet", "placements.safetensors"} <= same


def test_a_crash_on_the_way_leaves_the_old_generation(writer, monkeypatch):
    before, found = writer.collection.current(), rankings(writer)
    with monkeypatch.context() as patch:
        patch.setattr("model_code.live.writer.everything_is_found", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            writer.recluster(SETTINGS, 0)
    assert (writer.collection.current(), rankings(writer)) == (before, found)
    assert writer.recluster(SETTINGS, 0).number == before.number + 1


def test_going_back_finds_the_old_paths(writer):
    before = writer.searcher.search("word1 word2", 5)
    writer.recluster(SETTINGS, 0)
    Collection(writer.collection.live, "r").rollback()
    assert writer.searcher.search("word1 word2", 5) == before


def test_an_approximate_base_stays_one(changed, writer):
    if not changed.parent.name.startswith("dense"):
        pytest.skip("only dense indexes can be approximate")
    retriever = writer.searcher.base.retriever
    exact, settings = retriever.index, IndexSettings(factory="IVF2,Flat", nprobe=2)
    retriever.index = DenseIndex.build(exact.vectors, exact.document_ids, exact.fingerprint, settings)
    add_facts(writer.searcher.base.folder / "index", {"precision": "float32"})
    found = [[document for document, _ in ranking] for ranking in rankings(writer, 5)]
    writer.recluster(SETTINGS, 0)
    index = writer.searcher.base.retriever.index
    assert (index.factory, index.settings, len(index.ids) > len(exact.ids)) == ("IVF2,Flat", settings, True)
    assert [[document for document, _ in ranking] for ranking in rankings(writer, 5)] == found
    assert read_json(writer.searcher.base.folder / "index" / "manifest.json")["precision"] == "float32"


def test_where_every_document_was_deleted_there_is_nothing_to_cluster(writer):
    before = writer.apply([Remove(one) for one in sorted({*OLD, *NEW})], 3, {}).generation
    with pytest.raises(FreshetError, match="every document was deleted"):
        writer.recluster(SETTINGS, 0)
    assert writer.collection.current().number == before.number
