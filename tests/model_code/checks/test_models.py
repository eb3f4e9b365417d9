"""Guards the contracts of the hierarchy, the learning curve and the model: each rule is broken
once.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from model_code.context import StageContext
from model_code.dsi.vectors import add_representatives
from model_code.encoding.encoder import Encoder
from model_code.encoding.settings import EncoderSettings
from model_code.errors import FreshetError
from model_code.files import MANIFEST, write_json
from model_code.hierarchy.tree import Hierarchy
from model_code.lexical.layout import save_encoder, start_encoder
from model_code.queries.sequence_to_sequence import load_sequence_model, save_sequence_model
from model_code.retrieval.dense_index import DenseIndex
from model_code.stages import hierarchy, hierarchy_plot
from model_code.stages.contract import check_contract
from tests.model_code.checks.damage import (
    assert_refused,
    copied,
    each,
    folder_removed,
    json_item_removed,
    json_item_with,
    json_list_reversed,
    json_with,
    removed,
    text_replaced,
    written,
)
from tests.model_code.lexical.example import SETTINGS
from tests.model_code.queries.toy import make_tiny_t5
from tests.model_code.stages.test_hierarchy import context
from tests.tiny_encoder import make_tiny_encoder

WORDS = [f"word{i}" for i in range(40)]
HISTORY = [
    {"step": 0, "nDCG@10": 0.5},
    {"step": 5, "loss": 1.5},
    {"step": 9, "loss": 1.25, "nDCG@10": 0.75},
]
KINDS = ("dense", "layers", "lexical", "dsi")
STAGES = {**dict.fromkeys(KINDS, "train"), "hierarchy": "hierarchy", "generator": "query_generator"}


def clustered(root):
    place = context(root, 60, 60)
    # Drawing takes longer than everything else.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            hierarchy_plot,
            "draw_hierarchy",
            lambda tree, unit, path, topics: path.write_bytes(b"png"),
        )
        hierarchy.run(place)
    return place


def trained(root, encoder, name):
    """What training leaves, without training."""
    for folder in ("corpus", "output"):
        (root / folder).mkdir(parents=True)
    pd.DataFrame({"document_id": ["a", "a", "b"]}).to_parquet(root / "corpus" / "passages.parquet")
    write_json(root / "output" / "history.json", HISTORY)
    save(root / "output", encoder, name)
    kind = name if name in ("lexical", "dsi") else "dense"
    settings = {"retriever": SimpleNamespace(kind=kind)}
    return StageContext(root, {"corpus": root / "corpus"}, root / "output", settings, root, name)


def save(output, encoder, name):
    if name == "lexical":
        base = EncoderSettings(base=str(encoder), max_tokens=16, device="cpu", precision="float32")
        save_encoder(start_encoder(base, SETTINGS, WORDS, 0), output / "encoder")
        return
    loaded = Encoder.load(encoder, precision="float32", device="cpu")
    if name == "layers":
        loaded.layers = (1, 2)
    loaded.save(output / "encoder")
    if name == "dsi":
        vectors = np.eye(4, dtype=np.float32)[:2]
        DenseIndex.build(vectors, ["b", "a"], "f").save(output / "document_vectors")
        add_representatives(output / "document_vectors", vectors, 1.0)


def generator(root):
    (root / "output").mkdir(parents=True)
    save_sequence_model(
        *load_sequence_model(make_tiny_t5(root / "t5", WORDS)), root / "output" / "model", 8
    )
    write_json(
        root / "output" / "history.json",
        [{"step": 0, "log_likelihood": -4.5}, {"step": 5, "loss": 1.5}],
    )
    settings = {"pseudo_queries.training": SimpleNamespace(base="some-t5")}
    return StageContext(root, {}, root / "output", settings, root)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    root = tmp_path_factory.mktemp("places")
    encoder = make_tiny_encoder(root / "base" / "encoder", WORDS)
    made = {name: trained(root / name, encoder, name) for name in KINDS}
    return {
        **made,
        "hierarchy": clustered(root / "hierarchy"),
        "generator": generator(root / "generator"),
    }


@pytest.mark.parametrize("name", STAGES)
def test_what_a_stage_leaves_passes(places, name):
    check_contract(STAGES[name], places[name])


def test_a_tree_over_another_corpus_is_refused(places, tmp_path):
    pd.DataFrame({"document_id": ["d0"] * 61}).to_parquet(tmp_path / "passages.parquet")

    with pytest.raises(FreshetError, match="places 60 passages; the corpus has 61"):
        check_contract("hierarchy", replace(places["hierarchy"], inputs={"corpus": tmp_path}))


def test_untrained_generator_must_have_no_files(places, tmp_path):
    none = replace(
        places["generator"], settings={"pseudo_queries.training": SimpleNamespace(base=None)}
    )

    check_contract("query_generator", replace(none, output=tmp_path))
    with pytest.raises(FreshetError, match="no generator is trained, so model/ must not be there"):
        check_contract("query_generator", none)


def with_centroids(factor):
    """The tree with its first centroid scaled."""

    def damage(folder):
        tree = Hierarchy.load(folder)
        first = tree.centroids[0].copy()
        first[0] *= factor
        Hierarchy((first, *tree.centroids[1:]), tree.parents, tree.leaves).save(folder)

    return damage


def without_a_leaf(folder):
    tree = Hierarchy.load(folder)
    Hierarchy(tree.centroids, tree.parents, tree.leaves[:-1]).save(folder)


def history_row_with(number, **changes):
    """Set values of a row of the history."""
    return json_item_with("history.json", [number], **changes)


def test_perfect_dev_metric_may_round_above_one(places, tmp_path):
    place = copied(places["dense"], tmp_path)
    history_row_with(2, **{"nDCG@10": 1.0000000000000002})(place.output)

    check_contract("train", place)


def with_tensor(value):
    def damage(folder):
        from safetensors.numpy import load_file, save_file

        path = folder / "encoder" / "model.safetensors"
        weights = load_file(path)
        name = sorted(weights)[0]
        weights[name] = np.full_like(weights[name], value)
        save_file(weights, path)

    return damage


BROKEN = {
    "hierarchy": [
        (removed("hierarchy.png"), "must hold hierarchy.png"),
        (
            json_item_removed("topics.json", -1, -1),
            "topics.json must name each node of each level",
        ),
        (written("hierarchy.safetensors", "no tensors"), "cannot be read|safetensors"),
        (json_with("hierarchy.json", format=0), "format 0"),
        (
            json_list_reversed("document_ids.json"),
            "document_ids.json must name the document",
        ),
        (with_centroids(1.5), "centroids.1 must have unit norm.* off by 0.5"),
        (with_centroids(np.nan), "centroids.1 must have unit norm.* off by nan"),
        (without_a_leaf, "places 59 passages; the corpus has 60"),
        (
            json_item_removed("statistics.json", "levels", -1),
            "statistics.json must have every level",
        ),
    ],
    "dense": [
        (removed("history.json"), "must hold history.json"),
        (
            written("history.json", "[]"),
            "history.json has no rows: it must have at least one with `step` and `loss`",
        ),
        (history_row_with(1, step=0), "history.json .* step breaks steps that rise.*row 1: 0"),
        (history_row_with(0, step=-1), "step breaks greater_than_or_equal_to"),
        (history_row_with(1, step=2.5), "step|int64"),
        (json_item_removed("history.json", 1, "step"), "step"),
        (history_row_with(1, loss=None), "history.json: loss must be a number where it is given"),
        (history_row_with(2, **{"nDCG@10": 1.5}), "nDCG@10 breaks in_range"),
        (text_replaced("history.json", "1.5", "NaN"), "loss must be a number where it is given"),
        (text_replaced("history.json", "1.5", "Infinity"), "loss breaks finite numbers.*inf"),
        (text_replaced("history.json", "1.5", '"low"'), "loss"),
        (written("history.json", '[{"step": 0, "nDCG@10": 0.5}]'), "'loss'"),
        (folder_removed("encoder"), "encoder/ must hold config.json"),
        *(
            (removed(f"encoder/{name}"), f"encoder/ must hold {name}")
            for name in ("config.json", "model.safetensors", "tokenizer.json", "modules.json")
        ),
        (removed("encoder/1_Pooling/config.json"), "1_Pooling/ must hold config.json"),
        (with_tensor(np.nan), r"encoder/model.safetensors: \S+ must be finite numbers"),
        (written("encoder/model.safetensors", "cut"), "encoder/model.safetensors cannot be read"),
    ],
    "lexical": [
        (removed("encoder/lexical.json"), "encoder/ must hold lexical.json"),
        (
            removed("encoder/1_LexicalHead/model.safetensors"),
            "1_LexicalHead/ must hold model.safetensors",
        ),
    ],
    "dsi": [
        (
            folder_removed("document_vectors"),
            "document_vectors/ must hold manifest.json",
        ),
        (written("document_vectors/more", "x"), "more was added since manifest.json"),
        (
            text_replaced(
                f"document_vectors/{MANIFEST}", '"encoding_scale": 1.0', '"encoding_scale": 0.0'
            ),
            "document_vectors/manifest.json must state an encoding_scale above 0",
        ),
    ],
    "generator": [
        (removed("history.json"), "must hold history.json"),
        (folder_removed("model"), "model/ must hold config.json"),
        (removed("model/generation_config.json"), "model/ must hold generation_config.json"),
    ],
}


@each(BROKEN)
def test_each_broken_rule_is_named(places, tmp_path, name, damage, message):
    assert_refused(STAGES[name], places[name], tmp_path, damage, message)
