"""Read the packed input. This module imports only what the machine with the GPU has."""

from __future__ import annotations

import json
import lzma
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

CORPUS_FILE = "squad.json.xz"
CANDIDATES_FILE = "bm25_candidates.xz"
BM25_FILE = "bm25.json"
ENCODER_FOLDER = "encoder"
WEIGHTS_FILE = "model.safetensors"
WHEELS_FOLDER = "wheels"

JudgedQuery = tuple[str, int, list[str]]
"""Text of a query, number of its relevant document, and strings that answer it."""


@dataclass(frozen=True)
class SquadInput:
    """Documents and judged queries.

    Attributes:
        texts: Text of each document, with its title.
        splits: Judged queries of "train", "dev" and "test".
    """

    texts: list[str]
    splits: dict[str, list[JudgedQuery]]

    def to_json(self) -> dict[str, Any]:
        """Return the content as JSON."""
        return {"texts": self.texts, "splits": self.splits}

    @classmethod
    def load(cls, folder: Path) -> SquadInput:
        """Read a packed folder."""
        content = json.loads(lzma.decompress((folder / CORPUS_FILE).read_bytes()))
        splits = {}
        for split, queries in content["splits"].items():
            splits[split] = [(text, document, answers) for text, document, answers in queries]
        return cls(content["texts"], splits)


def load_candidates(folder: Path, queries: int) -> np.ndarray:
    """Return BM25's candidates of each training query, (queries, depth) uint16."""
    content = lzma.decompress((folder / CANDIDATES_FILE).read_bytes())
    return np.frombuffer(content, dtype=np.uint16).reshape(queries, -1)


def unpack_encoder(folder: Path) -> Path:
    """Return the folder of the base encoder, after its weights were decompressed to float32."""
    from safetensors.torch import load, save_file

    encoder = folder / ENCODER_FOLDER
    file = encoder / WEIGHTS_FILE
    if not file.is_file():
        packed = load(lzma.decompress((encoder / f"{WEIGHTS_FILE}.xz").read_bytes()))
        weights = {}
        for name, weight in packed.items():
            weights[name] = weight.float() if weight.is_floating_point() else weight
        # transformers reads this mark, without which it refuses the file.
        save_file(weights, file, metadata={"format": "pt"})
    return encoder
