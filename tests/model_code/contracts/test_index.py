"""Guards the contracts of the indexes, for each kind of retriever: each rule is broken once under a true manifest."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from model_code.context import StageContext
from model_code.contracts.registry import check
from model_code.dsi.vectors import Representatives
from model_code.errors import FreshetError
from model_code.files import read_json, write_json
from model_code.index.dense_index import DenseIndex
from model_code.index.id_map import IdMap
from model_code.lexical.index import EmbeddingIndex, PassagesOnTheFly
from model_code.manifest import MANIFEST, seal
from model_code.token_index.index import TokenIndex
from tests.model_code.contracts.damage import (
    array_cut,
    array_with,
    copied,
    json_edited,
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


def dense(root, each=1):
    place = context(root, "dense")
    ids = [name for name in PASSAGES for _ in range(each)]
    rows = np.resize(UNIT, (len(ids), 6))
    DenseIndex.build(rows, ids, "f", vectors_per_passage=each).save(place.output / "index")
    return place


def dsi(root):
    place = context(root, "dsi")
    DenseIndex.build(2 * UNIT[:3], ["c", "a", "b"], "f").save(place.output / "index")
    Representatives(UNIT[:3], np.arange(3)).complete(place.output / "index", 1.5)
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
    seal(folder, 1, {"kind": "lexical", "fingerprint": "f", "passages": 5, "documents": 3, "search": search})
    return place


def sealed_again(folder):
    """A manifest that names the files as they are now: the contract, not the checksum, must find what is wrong."""
    facts = read_json(folder / MANIFEST)
    seal(folder, facts.pop("format"), {key: value for key, value in facts.items() if key != "checksums"})


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    root = tmp_path_factory.mktemp("indexes")
    return {make.__name__: make(root / make.__name__) for make in (dense, dsi, lexical)}


def test_whole_indexes_pass(places, tmp_path):
    others = [lexical(tmp_path / search, search) for search in ("beta_own", "beta_rerank")]
    for place in (*places.values(), dense(tmp_path / "several", each=3), *others):
        check("index", place)
    check("base_index", places["dense"])


def assert_refused(place, tmp_path, damage, message, stage="index"):
    broken = copied(place, tmp_path)
    damage(broken.output / "index")
    sealed_again(broken.output / "index")
    with pytest.raises(FreshetError, match=message):
        check(stage, broken)


@pytest.mark.parametrize("stage", ["index", "base_index"])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (json_with(MANIFEST, kind="lexical"), "states the kind 'lexical'; the settings say 'dense'"),
        (json_with(MANIFEST, passages=6), "must state the corpus's 5 passages, not 6"),
        (json_with(MANIFEST, documents=2), "must state the corpus's 3 documents, not 2"),
        (json_with(MANIFEST, dimension=7), r"index/vectors.npy must have the shape \(5, 7\), not \(5, 6\)"),
        (json_with(MANIFEST, vectors_per_passage=2), "document_ids.json must name the document of each row"),
        (text_replaced("document_ids.json", '"b"', '"x"'), "document_ids.json must name the document of each row"),
        (json_edited("document_ids.json", lambda ids: ids.reverse()), "in the order of the corpus's passages"),
        (array_cut("vectors.npy"), r"must have the shape \(5, 6\), not \(4, 6\)"),
        (array_with("vectors.npy", (2, 0), np.nan), "vectors.npy must be finite numbers"),
        (array_with("vectors.npy", 3, 0.0), "vectors.npy must have unit norm.* off by 1"),
        (removed("vectors.npy"), "index/ must hold vectors.npy"),
        (
            lambda folder: np.save(folder / "vectors.npy", np.eye(6)[:5]),
            "vectors.npy must be float32, not float64",
        ),
    ],
)
def test_each_broken_rule_of_a_dense_index_is_named(places, tmp_path, damage, message, stage):
    assert_refused(places["dense"], tmp_path, damage, message, stage)


@pytest.mark.parametrize("kind", ["dense", "dsi", "lexical"])
def test_files_that_the_manifest_does_not_name_are_refused(places, tmp_path, kind):
    for number, damage in enumerate((written("more.txt", "x"), text_replaced(MANIFEST, '"', ' "'), removed(MANIFEST))):
        broken = copied(places[kind], tmp_path / str(number))
        damage(broken.output / "index")
        if number == 1:
            check("index", broken)  # a manifest is no part of what it seals
            continue
        with pytest.raises(FreshetError, match="more.txt was added|must hold manifest.json"):
            check("index", broken)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (json_with(MANIFEST, passages=5), "must state the corpus's 3 passages, not 5"),
        (text_replaced("document_ids.json", '"b"', '"x"'), "each document: 1 missing, such as 'b'"),
        (text_replaced("document_ids.json", '["c"', '["c","c"'), "names a document twice"),
        (array_with("vectors.npy", (2, 0), np.inf), "vectors.npy must be finite"),
        (array_cut("representatives.npy"), r"representatives.npy must have the shape \(3, 6\)"),
        (array_with("representatives.npy", (0, 0), np.nan), "representatives.npy must be finite"),
        (array_cut("query_counts.npy"), r"query_counts.npy must have the shape \(3,\)"),
        (array_with("query_counts.npy", 0, -1), "query_counts.npy must not be negative"),
        (removed("query_counts.npy"), "must hold query_counts.npy"),
        (json_with(MANIFEST, encoding_scale=-1.0), "must state an encoding_scale above 0"),
    ],
)
def test_each_broken_rule_of_learned_vectors_is_named(places, tmp_path, damage, message):
    assert_refused(places["dsi"], tmp_path, damage, message)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (json_with(MANIFEST, search="beta"), "index/embeddings/ must not be there, as search is beta"),
        (
            json_with(MANIFEST, search="beta_rerank"),
            "index/embeddings/ must not be there, as search is beta_re",
        ),
        (lambda folder: shutil.rmtree(folder / "tokens"), "index/tokens/ must be there"),
        (lambda folder: shutil.rmtree(folder / "embeddings"), "index/embeddings/ must be there"),
        (removed("tokens/document_ids.json"), "tokens/ must hold document_ids.json"),
        (json_with(f"tokens/{MANIFEST}", passages=4), "index/tokens/manifest.json must state 5 passages"),
        (json_edited("tokens/document_ids.json", lambda ids: ids.reverse()), "index/tokens/document_ids.json must"),
        (json_edited("embeddings/document_ids.json", lambda ids: ids.pop()), "index/embeddings/document_ids.json"),
        (array_cut("embeddings/weights.npy"), "weights.npy must have the shape"),
        (array_with("embeddings/weights.npy", 0, np.inf), "weights.npy must be finite"),
        (array_with("embeddings/starts.npy", -1, 3), "starts.npy must rise from 0"),
        (array_with("embeddings/passages.npy", 0, 5), "passages.npy must number passages from 0 to 4"),
    ],
)
def test_each_broken_rule_of_a_lexical_index_is_named(places, tmp_path, damage, message):
    assert_refused(places["lexical"], tmp_path, damage, message)


def test_a_document_that_is_not_in_the_corpus_is_refused_in_texts_too(tmp_path):
    place = lexical(tmp_path / "texts", "beta_rerank")
    write_json(place.output / "index" / "passages" / MANIFEST, {"passages": 4})
    sealed_again(place.output / "index")
    with pytest.raises(FreshetError, match="index/passages/manifest.json must state 5 passages"):
        check("index", place)
