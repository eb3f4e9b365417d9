"""Encodings are reused where a changed document reads as before, and nowhere else."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_code.collection.generations.generation_builder import GenerationBuilder
from model_code.collection.generations.searcher import Searcher
from model_code.encoding.encoder import Encoder
from model_code.incdsi.fused_builder import FusedIncDsiBuilder
from model_code.incdsi.settings import AdditionSettings
from model_code.text.documents import Document
from tests.model_code.collection.laws import OLD, make_encoder, open_build, put, up_to

pytestmark = pytest.mark.usefixtures("no_waiting_for_the_disk")

# A document of several passages of five words.
LONG = max(OLD, key=lambda name: len(OLD[name][1].split()))
# Each document has one passage.
SHORT = {name: (title, " ".join(text.split()[:4])) for name, (title, text) in OLD.items()}


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A live collection of a dense retriever."""
    root = tmp_path_factory.mktemp("dense")
    make_encoder("dense", root / "encoder")
    return open_build("dense", root / "opened", root / "encoder", OLD)


@pytest.fixture
def builder(opened: Path, tmp_path: Path) -> GenerationBuilder:
    return GenerationBuilder(Path(shutil.copytree(opened, tmp_path / "live")), "r")


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Texts of documents that are encoded from now on."""
    texts: list[str] = []
    encode = Encoder.encode_documents

    def record(self: Encoder, batch: Sequence[str], *arguments: Any) -> np.ndarray:
        texts.extend(batch)
        return encode(self, batch, *arguments)

    monkeypatch.setattr(Encoder, "encode_documents", record)
    return texts


def vectors_of(live: Path, document_id: str) -> np.ndarray:
    """Return the vectors of the live version of a document."""
    for view in Searcher.open(live, "r").views:
        if document_id in view:
            index = view.segment.dense.index
            return np.array(index.vectors[index.ids.rows_of([document_id])])
    raise AssertionError(f"{document_id} is not live")


def test_changed_field_encodes_nothing(builder: GenerationBuilder, encoded: list[str]) -> None:
    before = vectors_of(builder.collection.live, LONG)
    changed = replace(put(LONG, OLD), fields={"year": 2024})

    result = builder.apply([changed], up_to(1), {})

    assert result.updated == (LONG,)
    assert encoded == []
    np.testing.assert_array_equal(vectors_of(builder.collection.live, LONG), before)


def test_changed_passage_is_encoded_alone(builder: GenerationBuilder, encoded: list[str]) -> None:
    title, text = OLD[LONG]
    words = text.split()
    changed = Document(LONG, title, " ".join([*words[:-1], "word0"]))
    passages = builder.searcher.generation.text.passages(title, changed.text)

    builder.apply([changed], up_to(1), {})

    assert len(passages) > 1
    assert encoded == [passages[-1]]


def test_text_behind_the_token_limit_is_not_encoded(
    builder: GenerationBuilder, encoded: list[str]
) -> None:
    encoder: Any = builder.searcher.base.retriever.dense
    encoder.encoder.max_tokens = 4
    title, text = OLD[LONG]
    words = text.split()
    changed = Document(LONG, title, " ".join([*words[:4], "word0"]))
    former = Document(LONG, title, " ".join(words[:4]))
    builder.apply([former], up_to(1), {})
    encoded.clear()

    builder.apply([changed], up_to(2), {})

    assert encoded == []


def test_encodings_made_ahead_are_reused_too(
    builder: GenerationBuilder, encoded: list[str]
) -> None:
    builder.prepare()
    changed = replace(put(LONG, OLD), fields={"year": 2024})

    builder.encode_ahead([changed])

    assert encoded == []


def test_solved_vector_is_no_encoding(tmp_path: Path) -> None:
    make_encoder("dense", tmp_path / "encoder")
    live = open_build("bm25_fusion", tmp_path / "opened", tmp_path / "encoder", SHORT)
    settings = AdditionSettings(gamma1=0.5, lambda2=3.0)
    builder = FusedIncDsiBuilder(live, "r", settings, tmp_path / "additions")
    plain = Document("new", "word1", "word2 word3")
    solved = replace(plain, queries=("word22 word23",))
    builder.apply([plain], up_to(1), {})
    encoding = vectors_of(live, "new")
    builder.apply([solved], up_to(2), {})
    moved = vectors_of(live, "new")

    builder.apply([plain], up_to(3), {})

    assert not np.array_equal(moved, encoding)
    np.testing.assert_allclose(vectors_of(live, "new"), encoding, atol=1e-6)
