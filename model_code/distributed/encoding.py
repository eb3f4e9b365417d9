"""Encoding that survives a kill: finished shards lie in a folder and are not computed again.

Shards are encoded here, or by a pool of Ray Data's actors that each hold the encoder.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from model_code.distributed import engine
from model_code.distributed.engine import ScaleSettings
from model_code.encoding.encoder import Encoder, WithTokens
from model_code.encoding.hardware import uses_bfloat16
from model_code.encoding.token_signs import TokenSigns
from model_code.files import atomic_write
from model_code.progress import Progress, no_progress

SHARD = 2048  # texts per shard: what a kill can cost

Shard = tuple[int, Sequence[str]]  # the number of its first text, and the texts
Arrays = dict[str, np.ndarray]


def encode_resumably(
    encoder: Encoder,
    texts: Sequence[str],
    folder: Path,
    progress: Progress = no_progress,
    method: str = "encode",
) -> np.ndarray:
    """`encoder.encode(texts)`, float32, shard by shard, each kept in `folder` once it is done.

    (n, H), or by the method "encode_documents" (n * v, H) of an encoder that gives v vectors per
    text. The folder must belong to this encoder and these texts alone. Resumed or not, the result
    has the same bytes.
    """
    shards = keep_shards(
        encoder, texts, folder, lambda vectors: {"vectors": vectors}, progress, method
    )
    vectors = [shard["vectors"] for shard in shards]
    return np.concatenate([np.empty((0, encoder.dimension), dtype=np.float32), *vectors])


def encode_tokens_resumably(
    encoder: Encoder, texts: Sequence[str], folder: Path, progress: Progress = no_progress
) -> WithTokens:
    """`encoder.encode_passages_with_tokens(texts)`, otherwise as `encode_resumably`."""
    method = "encode_passages_with_tokens"
    shards = [
        *keep_shards(
            encoder, texts, folder, lambda it: {"vectors": it[0], **vars(it[1])}, progress, method
        )
    ]
    if not shards:
        return encoder.encode_passages_with_tokens([])
    tokens = TokenSigns.concatenate(
        [TokenSigns(shard["bits"], shard["starts"]) for shard in shards]
    )
    return np.concatenate([shard["vectors"] for shard in shards]), tokens


def keep_shards(
    encoder: Any,
    texts: Sequence[str],
    folder: Path,
    arrays: Callable[[Any], Arrays],
    progress: Progress,
    method: str = "encode",
) -> Iterator[Arrays]:
    """The arrays of each shard of `texts`, in their order, from a file in `folder`; missing ones
    are encoded first.

    arrays: of what the encoder's method gives for a shard, by name.
    """
    starts = range(0, len(texts), SHARD)
    files = {start: folder / f"{start:012d}.npz" for start in starts}
    missing = [start for start in starts if not files[start].exists()]
    done = sum(min(SHARD, len(texts) - start) for start in starts if start not in set(missing))
    shards = ((start, texts[start : start + SHARD]) for start in missing)
    for start, encoded in encode_shards(encoder, shards, method):
        with atomic_write(files[start]) as aside, aside.open("wb") as stream:
            np.savez(stream, **arrays(encoded))
        done += min(SHARD, len(texts) - start)
        progress(done, len(texts), "passages")
    for file in files.values():
        with np.load(file) as archive:
            yield dict(archive)


def encode_shards(
    encoder: Any, shards: Iterable[Shard], method: str = "encode"
) -> Iterator[tuple[int, Any]]:
    """Each shard's number with what the encoder's `method` gives for it, as soon as it is there; on
    Ray in any order.

    encoder: a torch module. A shard's batches are the same wherever it is encoded, and so are its
    bits on equal hardware with equally many threads.
    """
    settings = engine.current()
    if settings.engine == "local":
        yield from ((start, getattr(encoder, method)(texts)) for start, texts in shards)
    else:
        yield from _on_ray(encoder, list(shards), method, settings)


def _on_ray(
    encoder: Any, shards: list[Shard], method: str, settings: ScaleSettings
) -> Iterator[tuple[int, Any]]:
    if not shards:
        return
    ray = engine.ray()
    data = importlib.import_module("ray.data")
    data.DataContext.get_current().enable_progress_bars = False
    rows = [{"start": start, "texts": list(texts)} for start, texts in shards]
    encoded = data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        Worker,
        batch_size=1,
        compute=data.ActorPoolStrategy(size=min(settings.workers, len(rows))),
        num_cpus=settings.cpus_per_worker,
        num_gpus=settings.gpus_per_worker,
        fn_constructor_args=(ray.put(_portable(encoder, settings)), method, settings.device),
    )
    for block in encoded.iter_batches(batch_size=None):
        yield from zip(block["start"].tolist(), block["vectors"], strict=True)


class Worker:
    """One actor of the pool; Ray makes a dead one again and repeats what it was doing."""

    def __init__(self, encoder: Any, method: str, device: str) -> None:
        self.encode = getattr(engine.ray().get(encoder).to(device), method)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Encode the shards of `batch`."""
        vectors = np.empty(len(batch["start"]), dtype=object)
        for row, texts in enumerate(batch["texts"]):
            vectors[row] = self.encode(list(texts))
        return {"start": batch["start"], "vectors": vectors}


def _portable(encoder: Any, settings: ScaleSettings) -> Any:
    """A copy in main memory. Its precision is decided here, not by each worker's own hardware."""
    copied = copy.deepcopy(encoder).to("cpu")
    if settings.device == "cpu":
        copied.precision = (
            "bfloat16" if uses_bfloat16(copied.precision, torch.device("cpu")) else "float32"
        )
    return copied
