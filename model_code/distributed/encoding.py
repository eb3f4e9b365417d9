"""Encoding that can be interrupted and resumed.

Texts are encoded in shards. A finished shard is written to a folder and is not computed again.
Shards are encoded in this process, or by a pool of Ray actors, each with a copy of the encoder.
"""

from __future__ import annotations

import copy
import importlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from model_code.distributed import engine
from model_code.distributed.engine import ScaleSettings
from model_code.encoding.encoder import Encoder, VectorsWithSigns
from model_code.encoding.hardware import uses_bfloat16
from model_code.encoding.token_signs import TokenSigns
from model_code.files import atomic_write
from model_code.progress import Progress, no_progress

# Number of texts per shard. An interruption loses the work on unfinished shards only.
SHARD_TEXTS = 2048

Shard = tuple[int, Sequence[str]]
"""The number of a shard's first text, and its texts."""
Arrays = dict[str, np.ndarray]


def encode_resumably(
    encoder: Encoder,
    texts: Sequence[str],
    folder: Path,
    progress: Progress = no_progress,
    method: str = "encode_queries",
) -> np.ndarray:
    """Encode texts shard by shard, and resume from finished shards of an interrupted call.

    The result of a resumed call has the same bytes.

    Args:
        encoder: The encoder.
        texts: The texts.
        folder: Folder of finished shards. No other encoder or texts may use it.
        progress: Called after each shard.
        method: Method of the encoder, such as "encode_documents", which makes v vectors per text.

    Returns:
        Vectors, (n, H) or (n * v, H) float32.
    """

    def to_arrays(vectors: np.ndarray) -> Arrays:
        return {"vectors": vectors}

    def read_shards() -> Iterator[Arrays]:
        return keep_shards(encoder, texts, folder, to_arrays, progress, method)

    if not len(texts):
        return np.empty((0, encoder.dimension), dtype=np.float32)
    return _join_shards(read_shards)["vectors"]


def encode_with_signs_resumably(
    encoder: Encoder, texts: Sequence[str], folder: Path, progress: Progress = no_progress
) -> VectorsWithSigns:
    """Encode texts with their token signs shard by shard, so that an interrupted call resumes.

    The result equals that of `encoder.encode_documents_with_signs`. See `encode_resumably` for the
    arguments.
    """
    method = "encode_documents_with_signs"

    def to_arrays(encoded: VectorsWithSigns) -> Arrays:
        vectors, signs = encoded
        return {"vectors": vectors, "bits": signs.bits, "starts": signs.starts}

    def read_shards() -> Iterator[Arrays]:
        """Yield the arrays of each shard, with the number of each text's tokens."""
        for shard in keep_shards(encoder, texts, folder, to_arrays, progress, method):
            shard["token_counts"] = np.diff(shard.pop("starts"))
            yield shard

    if not len(texts):
        return encoder.encode_documents_with_signs([])
    joined = _join_shards(read_shards)
    starts = np.concatenate([[0], np.cumsum(joined["token_counts"])])
    return joined["vectors"], TokenSigns(joined["bits"], starts)


def _join_shards(read_shards: Callable[[], Iterator[Arrays]]) -> Arrays:
    """Concatenate the arrays of all shards.

    The shards are read twice: first to learn the sizes, and then to copy them. So only one shard is
    in memory besides the result, which takes gigabytes for a million texts.

    Args:
        read_shards: Function that yields the arrays of each shard. There is at least one shard.
    """
    lengths: Counter[str] = Counter()
    for shard in read_shards():
        for name, array in shard.items():
            lengths[name] += len(array)

    joined: Arrays = {}
    ends: Counter[str] = Counter()
    for shard in read_shards():
        for name, array in shard.items():
            if name not in joined:
                joined[name] = np.empty((lengths[name], *array.shape[1:]), array.dtype)
            start = ends[name]
            ends[name] += len(array)
            joined[name][start : ends[name]] = array
    return joined


def keep_shards(
    encoder: Any,
    texts: Sequence[str],
    folder: Path,
    to_arrays: Callable[[Any], Arrays],
    progress: Progress,
    method: str,
) -> Iterator[Arrays]:
    """Yield the arrays of each shard in the order of the texts, and encode missing shards first.

    Args:
        encoder: A torch module with the method.
        texts: The texts.
        folder: Folder with a file per finished shard.
        to_arrays: Converts the result of the method for a shard into named arrays.
        progress: Called after each shard.
        method: Name of the encoder's method.
    """
    # A shard is named by the number of its first text.
    starts = range(0, len(texts), SHARD_TEXTS)
    files = {start: folder / f"{start:012d}.npz" for start in starts}
    missing = [start for start in starts if not files[start].exists()]
    # Every missing shard has `SHARD_TEXTS` texts, except perhaps the last one.
    missing_texts = sum(min(SHARD_TEXTS, len(texts) - start) for start in missing)
    finished_texts = len(texts) - missing_texts

    shards = ((start, texts[start : start + SHARD_TEXTS]) for start in missing)
    for start, encoded in encode_shards(encoder, shards, method):
        with atomic_write(files[start]) as temporary_file, temporary_file.open("wb") as stream:
            np.savez(stream, **to_arrays(encoded))
        finished_texts += min(SHARD_TEXTS, len(texts) - start)
        progress(finished_texts, len(texts), "passages")

    for file in files.values():
        with np.load(file) as archive:
            yield dict(archive)


def encode_shards(encoder: Any, shards: Iterable[Shard], method: str) -> Iterator[tuple[int, Any]]:
    """Encode shards, and yield the number of each shard with the result of the encoder's method.

    A shard is divided into the same batches in every process. So its result has the same bits on
    equal hardware with the same number of threads. On Ray the order of shards is arbitrary.

    Args:
        encoder: A torch module with the method.
        shards: The shards to encode.
        method: Name of the encoder's method.
    """
    settings = engine.current()
    if settings.engine == "local":
        for start, texts in shards:
            yield start, getattr(encoder, method)(texts)
    else:
        yield from _encode_on_ray(encoder, list(shards), method, settings)


def _encode_on_ray(
    encoder: Any, shards: list[Shard], method: str, settings: ScaleSettings
) -> Iterator[tuple[int, Any]]:
    """Encode shards by a pool of Ray actors, and yield them as `encode_shards` does.

    Args:
        encoder: A torch module with the method.
        shards: The shards to encode.
        method: Name of the encoder's method.
        settings: Number and resources of the actors.
    """
    if not shards:
        return
    ray = engine.ray()
    # Imported by name, because Ray is an extra that need not be installed.
    data = importlib.import_module("ray.data")
    data.DataContext.get_current().enable_progress_bars = False

    rows = [{"start": start, "texts": list(texts)} for start, texts in shards]
    stored_encoder = ray.put(_make_portable(encoder, settings))
    encoded = data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        EncodingWorker,
        batch_size=1,
        compute=data.ActorPoolStrategy(size=min(settings.workers, len(rows))),
        num_cpus=settings.cpus_per_worker,
        num_gpus=settings.gpus_per_worker,
        fn_constructor_args=(stored_encoder, method, settings.device),
    )
    for block in encoded.iter_batches(batch_size=None):
        yield from zip(block["start"].tolist(), block["vectors"], strict=True)


class EncodingWorker:
    """A Ray actor that encodes shards. Ray replaces an actor that died and repeats its work."""

    def __init__(self, encoder: Any, method: str, device: str) -> None:
        """Load the encoder from Ray's memory.

        Args:
            encoder: Ray's reference to the encoder.
            method: Name of the encoder's method.
            device: Device to encode on.
        """
        loaded = engine.ray().get(encoder).to(device)
        self.encode = getattr(loaded, method)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Encode the shards of a batch."""
        results = np.empty(len(batch["start"]), dtype=object)
        for row, texts in enumerate(batch["texts"]):
            results[row] = self.encode(list(texts))
        return {"start": batch["start"], "vectors": results}


def _make_portable(encoder: Any, settings: ScaleSettings) -> Any:
    """Return a copy of an encoder in main memory, with a precision that suits all workers.

    Otherwise the setting "auto" would choose a precision by the hardware of each worker.
    """
    portable = copy.deepcopy(encoder).to("cpu")
    if settings.device == "cpu":
        bfloat16 = uses_bfloat16(portable.precision, torch.device("cpu"))
        portable.precision = "bfloat16" if bfloat16 else "float32"
    return portable
