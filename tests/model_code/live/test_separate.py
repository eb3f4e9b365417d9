"""Guards live collections of separate encoders: added documents are encoded by the documents' side and found by queries
of the queries' side, added = built, and refined additions make their representative queries by the queries' side."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from model_code.additions.constraints import constraint_texts, query_vectors
from model_code.additions.settings import AdditionSettings
from model_code.additions.store import load_state
from model_code.additions.writer import RefiningWriter
from model_code.documents import Document
from model_code.encoding.encoder import Encoder
from model_code.encoding.sides import QUERY_ENCODER
from model_code.errors import FingerprintMismatch
from model_code.lexical.layout import load_encoder, save_encoder
from model_code.live.searcher import Searcher
from model_code.live.writer import LiveWriter
from tests.model_code.live.laws import LEXICAL, NEW, OLD, QUERIES, make_encoder, open_build, put, rankings, up_to

KINDS = ("dense", "multi_vector", "lexical", "on_the_fly")
SHORT = {name: (title, " ".join(text.split()[:5])) for name, (title, text) in OLD.items()}  # one passage each
OPTIONS = {"precision": "float32", "device": "cpu"}


@pytest.fixture(scope="module", autouse=True)
def one_by_one() -> Iterator[None]:
    """Texts are encoded alone, so that added and built vectors are equal; nobody waits for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("model_code.encoding.encoder.CPU_BATCH_TOKENS", 2)
        patch.setattr("model_code.lexical.encoder.CPU_BATCH_TOKENS", 2)
        patch.setattr("model_code.lexical.embedding_index.CACHE", 9)
        patch.setattr("os.fsync", lambda handle: None)
        yield


def load(kind: str, folder: Path):
    """As a live collection does."""
    if kind in LEXICAL:
        return load_encoder(folder, device="cpu")
    return Encoder.load(folder, device="cpu", for_search=True)


def make_two(kind: str, folder: Path) -> Path:
    """The encoder of a kind with a query side that is far from the documents'."""
    make_encoder(kind, folder.with_name("one"))
    one = folder.with_name("one")
    encoder = load_encoder(one, **OPTIONS) if kind in LEXICAL else Encoder.load(one, **OPTIONS)
    encoder.separate()
    encoder.query_encoder.layers = ()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in encoder.query_encoder.backbone.parameters():
            weight.add_(0.2 * torch.randn(weight.shape, generator=generator))
    save_encoder(encoder, folder) if kind in LEXICAL else encoder.save(folder)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_added_is_built_and_queries_go_to_their_side(tmp_path: Path, kind: str) -> None:
    folder = make_two(kind, tmp_path / "encoder")
    writer = LiveWriter(open_build(kind, tmp_path / "added", folder, OLD), "r")
    writer.apply([put(name, NEW) for name in NEW], up_to(1), {})
    found = rankings(writer)
    assert found == rankings(open_build(kind, tmp_path / "built", folder, {**OLD, **NEW}))
    one_sided = open_build(kind, tmp_path / "shared", tmp_path / "one", {**OLD, **NEW})
    assert found != rankings(one_sided)
    if kind == "dense":  # scores are those of the two sides
        encoder = load(kind, folder)
        sides = encoder.query_encoder.encode(QUERIES), load(kind, tmp_path / "one")
        titles = {**OLD, **NEW}
        for query, ranking in zip(sides[0], found, strict=True):
            for name, score in ranking[:3]:
                vectors = sides[1].encode(writer.searcher.generation.text.passages(*titles[name]))
                assert score == pytest.approx(float((vectors @ query).max()), abs=1e-6)


def test_representative_queries_are_of_the_query_side(tmp_path: Path) -> None:
    folder = make_two("dense", tmp_path / "encoder")
    live = open_build("dense", tmp_path / "opened", folder, SHORT)
    settings = AdditionSettings(refine=True, gamma1=2.0, gamma2=0.1, on_conflict="keep", lambda2=1e-3)
    writer = RefiningWriter(live, "r", settings, tmp_path / "additions")
    writer.apply([Document("n1", "word1", "word2 word3. word4 word5", {}, ("word1 word9",))], up_to(1), {})
    state, loose = load_state(Searcher.open(live, "r"), writer.store, settings.spans)
    queries = load("dense", folder / QUERY_ENCODER)
    assert not loose
    for name, texts in SHORT.items():
        asked = constraint_texts(*texts, settings.spans)
        np.testing.assert_allclose(state.queries.view[state.row(name)], queries.encode(asked).mean(axis=0), atol=1e-6)
    both = load("dense", folder)
    found = query_vectors(both, [("word1", "word2 word3. word4 word5")], settings.spans)[0]
    own = queries.encode(constraint_texts("word1", "word2 word3. word4 word5", settings.spans))
    np.testing.assert_array_equal(found, own)


def test_a_generation_without_its_query_side_is_refused(tmp_path: Path) -> None:
    folder = make_two("dense", tmp_path / "encoder")
    live = open_build("dense", tmp_path / "opened", folder, OLD)
    (lost,) = live.rglob(QUERY_ENCODER)
    shutil.rmtree(lost)
    with pytest.raises(FingerprintMismatch, match="the folder was changed"):
        Searcher.open(live, "r")
