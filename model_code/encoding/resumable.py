"""Encoding that survives a kill: finished shards lie in a folder and are not computed again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from model_code.encoding.document_side import DocumentSide
from model_code.encoding.encoder import Encoder
from model_code.files import replacing
from model_code.progress import Progress, silent
from model_code.scale.encoding import encode_shards

SHARD = 2048  # texts per shard: what a kill can cost


def encode_resumably(
    encoder: Encoder | DocumentSide, texts: Sequence[str], folder: Path, progress: Progress = silent
) -> np.ndarray:
    """`encoder.encode(texts)`, float32, shard by shard, each kept in `folder` once it is done.

    (n, H), or (n * v, H) from the documents' side of an encoder that gives v vectors per text. The folder must belong
    to this encoder and these texts alone. Resumed or not, the result has the same bytes.
    """
    files = keep_shards(encoder, texts, folder, ".npy", np.save, progress)
    return np.concatenate([np.empty((0, encoder.dimension), dtype=np.float32), *map(np.load, files)])


def keep_shards(
    encoder: Any,
    texts: Sequence[str],
    folder: Path,
    suffix: str,
    write: Callable[[BinaryIO, Any], None],
    progress: Progress,
) -> list[Path]:
    """One file in `folder` per shard of `texts`, in their order; those that are missing are encoded and written.

    write: stores what `encoder.encode` gives for a shard.
    """
    starts = range(0, len(texts), SHARD)
    files = {start: folder / f"{start:012d}{suffix}" for start in starts}
    missing = [start for start in starts if not files[start].exists()]
    done = sum(min(SHARD, len(texts) - start) for start in starts if start not in set(missing))
    for start, found in encode_shards(encoder, ((start, texts[start : start + SHARD]) for start in missing)):
        with replacing(files[start]) as aside, aside.open("wb") as stream:
            write(stream, found)
        done += min(SHARD, len(texts) - start)
        progress(done, len(texts), "passages")
    return list(files.values())
