"""Guards the contracts of the indexes, for each kind of retriever: each rule is broken once under a
true manifest.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from model_code.context import StageContext
from model_code.dsi.vectors import add_representatives
from model_code.encoding.token_signs import TokenSigns, pack_signs
from model_code.files import MANIFEST, read_json, write_manifest
from model_code.lexical.index import EmbeddingIndex, PassagesOnTheFly
from model_code.lexical.token_index.index import TokenIndex
from model_code.retrieval.dense_index import DenseIndex
from model_code.retrieval.id_map import IdMap
from model_code.stages.contract import check_contract
from tests.model_code.checks.damage import (
    array_cut,
    array_with,
    assert_refused,
    each,
    folder_removed,
    json_item_removed,
    json_list_reversed,
    json_with,
    removed,
    text_replaced,
    written,
)

PASSAGES = ["a", "a", "b", "c", "c"]
UNIT = np.eye(6, dtype=np.float32)


def context(root, kind):
    for name in ("corpus", "output"):
        (root / name).mkdir(parents=True)
    pd.DataFrame({"document_id": PASSAGES}).to_parquet(root / "corpus" / "passages.parquet")
    settings = {"retriever": SimpleNamespace(kind=kind)}
    return StageContext(root, {"corpus": root / "corpus"}, root / "output", settings, root)


def dense(root, vectors=1):
    """Make a dense index with a number of vectors per passage; one vector comes with tokens."""
    place = context(root, "dense")
    ids = []
    for name in PASSAGES:
        ids += [name] * vectors
    rows = np.resize(UNIT, (len(ids), 6))
    tokens = None
    if vectors == 1:
        tokens = TokenSigns.of([pack_signs(np.ones((2, 6)))] * len(PASSAGES))
    index = DenseIndex.build(rows, ids, "f", vectors_per_passage=vectors, token_signs=tokens)
    index.save(place.output / "index")
    return place


def dsi(root):
    place = context(root, "dsi")
    DenseIndex.build(2 * UNIT[:3], ["c", "a", "b"], "f").save(place.output / "index")
    add_representatives(place.output / "index", UNIT[:3], 1.5)
    return place


def lexical(root, search="full"):
    place = context(root, "lexical")
    folder = place.output / "index"
    bags = [np.array([i, i + 1]) for i in range(len(PASSAGES))]
    TokenIndex.build(bags, PASSAGES).save(folder / "tokens")
    if search == "full":
        weights = [(bag, np.array([1.0, 2.0], np.float32)) for bag in bags]
        EmbeddingIndex.build(weights, PASSAGES, 9).save(folder / "embeddings")
    elif search == "beta_rerank":
        PassagesOnTheFly(["text"] * 5, IdMap(PASSAGES), None).save(folder / "passages")
    write_manifest(
        folder,
        1,
        {"kind": "lexical", "fingerprint": "f", "passages": 5, "documents": 3, "search": search},
    )
    return place


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    root = tmp_path_factory.mktemp("indexes")
    made = {make.__name__: make(root / make.__name__) for make in (dense, dsi, lexical)}
    return made | {search: lexical(root / search, search) for search in ("beta_own", "beta_rerank")}


def test_whole_indexes_pass(places, tmp_path):
    for place in (*places.values(), dense(tmp_path / "several", vectors=3)):
        check_contract("index", place)
    check_contract("base_index", places["dense"])


def save_float64_vectors(folder):
    """Save vectors of another type."""
    np.save(folder / "vectors.npy", np.eye(6)[:5])


BROKEN = {
    "dense": [
        (
            json_with(MANIFEST, kind="lexical"),
            "states the kind 'lexical', but the retriever has kind: dense",
        ),
        (json_with(MANIFEST, passages=6), "must state the corpus's 5 passages, not 6"),
        (json_with(MANIFEST, documents=2), "must state the corpus's 3 documents, not 2"),
        (
            json_with(MANIFEST, dimension=7),
            r"index/vectors.npy must be \(5, 7\) float32, not \(5, 6\)",
        ),
        (
            json_with(MANIFEST, vectors_per_passage=2),
            "document_ids.json must name the document of each row",
        ),
        (
            json_list_reversed("document_ids.json"),
            "in the order of the corpus's passages",
        ),
        (array_cut("vectors.npy"), r"must be \(5, 6\) float32, not \(4, 6\)"),
        (array_with("vectors.npy", (2, 0), np.nan), "vectors.npy must have unit norm.* off by nan"),
        (array_with("vectors.npy", 3, 0.0), "vectors.npy must have unit norm.* off by 1"),
        (removed("vectors.npy"), "index/ must hold vectors.npy"),
        (array_cut("token_signs.npy"), "must say where in token_signs.npy the tokens of each"),
        (array_cut("token_starts.npy"), "of each of 5 passages are"),
        (array_with("token_starts.npy", 2, 0), "of each of 5 passages are"),
        (save_float64_vectors, "float32, not .* float64"),
    ],
    "dsi": [
        (json_with(MANIFEST, passages=5), "must state the corpus's 3 passages, not 5"),
        (text_replaced("document_ids.json", '"b"', '"x"'), "must name each document once"),
        (text_replaced("document_ids.json", '["c"', '["c","c"'), "must name each document once"),
        (array_with("vectors.npy", (2, 0), np.inf), "vectors.npy must be finite"),
        (array_cut("representatives.npy"), "representatives.npy must have 3 rows, not 2"),
        (array_with("representatives.npy", (0, 0), np.nan), "representatives.npy must be finite"),
        (removed("representatives.npy"), "must hold representatives.npy"),
        (json_with(MANIFEST, encoding_scale=-1.0), "must state an encoding_scale above 0"),
    ],
    "lexical": [
        (
            json_with(MANIFEST, search="beta"),
            "index/embeddings/ must not be there, as search is beta",
        ),
        (folder_removed("tokens"), "index/tokens/ must be there"),
        (folder_removed("embeddings"), "index/embeddings/ must be there"),
        (removed("tokens/document_ids.json"), "tokens/ must hold document_ids.json"),
        (
            json_list_reversed("tokens/document_ids.json"),
            "tokens/document_ids.json must",
        ),
        (
            json_item_removed("embeddings/document_ids.json", -1),
            "embeddings/document_ids.json",
        ),
        (array_with("embeddings/weights.npy", 0, np.inf), "weights.npy must be finite"),
    ],
    "beta_rerank": [
        (
            json_with(f"passages/{MANIFEST}", passages=4),
            "passages/manifest.json must state 5 passages",
        ),
    ],
}


@each(BROKEN)
def test_each_broken_rule_is_named(places, tmp_path, name, damage, message):
    def damage_and_seal(output):
        """Write new checksums, so that the contract has to find the damage."""
        damage(output / "index")
        facts = read_json(output / "index" / MANIFEST)
        facts.pop("checksums", None)
        write_manifest(output / "index", facts.pop("format"), facts)

    stages = ["index"]
    if name == "dense":
        stages.append("base_index")
    for stage in stages:
        assert_refused(stage, places[name], tmp_path / stage, damage_and_seal, message)


@pytest.mark.parametrize("kind", ["dense", "dsi", "lexical"])
def test_unlisted_index_files_are_refused(places, tmp_path, kind):
    assert_refused(
        "index",
        places[kind],
        tmp_path / "more",
        written("index/more.txt", "x"),
        "more.txt was added",
    )
    assert_refused(
        "index",
        places[kind],
        tmp_path / "none",
        removed(f"index/{MANIFEST}"),
        "must hold manifest.json",
    )
