"""Tiny real encoders for the tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from model_code.encoding.encoder import Encoder
from tests.tiny_encoder import make_tiny_encoder

TEXTS = [
    "sort a list of numbers",
    "read a table from a file",
    "",
    "numbers",
    "sort " * 40,
    "the table of numbers " * 9,
    "Return a sorted COPY of an array!",
    "zebra",
]


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny encoder on disk that knows the words of `TEXTS`."""
    return make_tiny_encoder(tmp_path_factory.mktemp("tiny") / "encoder", TEXTS)


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> Encoder:
    """The same, loaded, in float32 on the CPU."""
    return Encoder.load(tiny_folder, 32, precision="float32", device="cpu")


@pytest.fixture
def texts() -> list[str]:
    """Texts of very different lengths, an empty one and one beyond 32 tokens included."""
    return list(TEXTS)
