"""Encoding that survives a kill: finished shards lie in a folder and are not computed again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from model_code.encoding.document_side import DocumentSide
from model_code.encoding.encoder import Encoder
from model_code.files import replacing
from model_code.progress import Progress, silent

SHARD = 2048  # texts per shard: what a kill can cost


def encode_resumably(
    encoder: Encoder | DocumentSide, texts: Sequence[str], folder: Path, progress: Progress = silent
) -> np.ndarray:
    """`encoder.encode(texts)`, float32, shard by shard, each kept in `folder` once it is done.

    (n, H), or (n * v, H) from the documents' side of an encoder that gives v vectors per text. The folder must belong
    to this encoder and these texts alone. Resumed or not, the result has the same bytes.
    """
    shards = [np.empty((0, encoder.dimension), dtype=np.float32)]
    for start in range(0, len(texts), SHARD):
        path = folder / f"{start:012d}.npy"
        if not path.exists():
            vectors = encoder.encode(texts[start : start + SHARD])
            with replacing(path) as aside, aside.open("wb") as stream:
                np.save(stream, vectors)
        shards.append(np.load(path))
        progress(min(start + SHARD, len(texts)), len(texts), "passages")
    return np.concatenate(shards)
