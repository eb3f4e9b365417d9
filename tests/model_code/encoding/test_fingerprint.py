"""Guards the fingerprint: it changes with everything that changes vectors, and with nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from model_code.encoding.encoder import Encoder
from model_code.files import read_json, write_json


def load(folder: Path, max_tokens: int = 32, pooling: str = "mean") -> Encoder:
    """The tiny encoder, freshly loaded."""
    return Encoder.load(folder, max_tokens, pooling, precision="float32", device="cpu")  # type: ignore[arg-type]


def test_it_changes_with_what_decides_the_vectors(tiny_folder: Path, tmp_path: Path) -> None:
    nudged = load(tiny_folder)
    with torch.no_grad():
        nudged.backbone.embeddings.word_embeddings.weight[7, 3] += 1e-6
    folder = Path(shutil.copytree(tiny_folder, tmp_path / "cased"))
    tokenizer = read_json(folder / "tokenizer.json")
    tokenizer["normalizer"]["lowercase"] = False
    write_json(folder / "tokenizer.json", tokenizer)
    encoders = [load(tiny_folder), nudged, load(folder), load(tiny_folder, 31), load(tiny_folder, pooling="cls")]
    assert len({encoder.fingerprint() for encoder in encoders}) == len(encoders)


def test_it_does_not_change_with_use_precision_or_folder(tiny_folder: Path, texts: list[str], tmp_path: Path) -> None:
    encoder = load(tiny_folder)
    before = encoder.fingerprint()
    encoder.tokenizer(texts, padding=True, truncation=True, max_length=5)
    encoder.encode(texts)
    encoder.save(tmp_path / "elsewhere")
    assert encoder.fingerprint() == before == load(tmp_path / "elsewhere").fingerprint()
    assert Encoder.load(tiny_folder, 32, precision="bfloat16").fingerprint() == before
