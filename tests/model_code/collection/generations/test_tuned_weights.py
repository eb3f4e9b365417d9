"""Weights that a retune gives to a live fusion."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from model_code.collection.generations.generation import TUNED_WEIGHTS
from model_code.collection.generations.generation_builder import GenerationBuilder
from model_code.collection.generations.generation_store import GenerationStore
from model_code.collection.generations.searcher import Searcher
from model_code.collection.ledger.events import LedgerCursor
from model_code.errors import Damaged, FreshetError
from tests.model_code.collection.laws import NEW, OLD, make_encoder, open_build, put, up_to

WORDS_ONLY = {"encoder": 0.0, "bm25": 1.0}
NO_EVENTS = LedgerCursor()


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tuned")
    make_encoder("dense", root / "encoder")
    return open_build("bm25_fusion", root / "opened", root / "encoder", OLD)


@pytest.fixture
def live(opened: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(opened, tmp_path / "live"))


def weights(live: Path) -> dict[str, float]:
    return dict(Searcher.open(live, "r").retriever.fusion.weights)


def other_weights(live: Path) -> dict[str, float]:
    return {name: weight + 1.5 for name, weight in weights(live).items()}


def test_new_weights_are_searched(live: Path) -> None:
    chosen = other_weights(live)
    before = Searcher.open(live, "r").retriever.search(["word3 word9"], 5)

    GenerationBuilder(live, "r").tune(chosen, NO_EVENTS, {})

    assert weights(live) == chosen
    assert Searcher.open(live, "r").retriever.search(["word3 word9"], 5) != before


def test_later_generations_keep_the_weights(live: Path) -> None:
    chosen = other_weights(live)
    builder = GenerationBuilder(live, "r")
    tuned = builder.tune(chosen, NO_EVENTS, {})

    builder.apply([put("d01x", NEW)], up_to(1), {})
    compacted = builder.compact()

    assert weights(live) == chosen
    assert compacted.tuned == tuned.number
    assert tuned.number in compacted.needs


def test_older_generation_brings_back_its_weights(live: Path) -> None:
    built = weights(live)
    store = GenerationStore(live, "r")
    before = store.current()
    GenerationBuilder(live, "r").tune(other_weights(live), NO_EVENTS, {})

    store.publish_again(before, before.cursor, {"rewound_to": before.number})

    assert weights(live) == built


def test_documents_stay_as_they_were(live: Path) -> None:
    before = GenerationStore(live, "r").current()

    tuned = GenerationBuilder(live, "r").tune(other_weights(live), NO_EVENTS, {})

    assert tuned.manifest["documents"] == before.manifest["documents"]
    assert tuned.segments == before.segments
    assert tuned.fingerprint == before.fingerprint


def test_damaged_weights_are_named(live: Path) -> None:
    tuned = GenerationBuilder(live, "r").tune(other_weights(live), NO_EVENTS, {})
    (tuned.folder / TUNED_WEIGHTS).write_text("[", encoding="utf-8")

    with pytest.raises(Damaged, match=TUNED_WEIGHTS):
        Searcher.open(live, "r")


def test_only_fusions_have_weights(tmp_path: Path) -> None:
    make_encoder("dense", tmp_path / "encoder")
    live = open_build("dense", tmp_path / "opened", tmp_path / "encoder", OLD)

    with pytest.raises(FreshetError, match="only a fusion"):
        GenerationBuilder(live, "r").tune(WORDS_ONLY, NO_EVENTS, {})
