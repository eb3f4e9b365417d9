"""A token index as a folder: six arrays, memory-mapped when read, the document ids, and the manifest that seals them.

Nothing says where a list begins: the number of its postings decides its form, and with that its length.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from model_code.files import read_json, replacing, write_text
from model_code.manifest import read_manifest, seal, verify
from model_code.token_index.packing import BITMAP, BLOCK, PARTS, RAW, SPLIT, Packed, forms, high_bytes
from model_code.token_index.postings import Postings

FORMAT, KIND = 1, "token"
DOCUMENT_IDS = "document_ids.json"


def write(folder: Path, blocks: Sequence[Postings], document_ids: Sequence[str], facts: dict[str, Any]) -> None:
    """Write full blocks, of which only the last may be smaller, and seal the folder with `facts`."""
    folder.mkdir(parents=True, exist_ok=True)
    empty = Packed(0, *(np.empty(0, np.uint16) for _ in "123"), *(np.empty(0, np.uint8) for _ in "123"))
    packed = [block.packed for block in blocks] or [empty]
    for part in PARTS:
        with replacing(folder / f"{part}.npy") as aside, aside.open("wb") as stream:
            np.save(stream, np.concatenate([getattr(block, part) for block in packed]))
    write_text(folder / DOCUMENT_IDS, json.dumps(list(document_ids), ensure_ascii=False, separators=(",", ":")))
    tokens = [len(block.packed.tokens) for block in blocks]
    seal(folder, FORMAT, {**facts, "kind": KIND, "passages": len(document_ids), "tokens_per_block": tokens})


def read(folder: Path, check: bool) -> tuple[list[Postings], list[str], dict[str, Any]]:
    """Blocks, document ids and manifest of what `write` wrote; FreshetError if a file is not what the manifest says.

    check: compare checksums, which reads every file once.
    """
    manifest = read_manifest(folder, FORMAT)
    if check:
        verify(folder, manifest)
    arrays = {part: np.asarray(np.load(folder / f"{part}.npy", mmap_mode="r")) for part in PARTS}
    blocks, places = [], dict.fromkeys(PARTS, 0)
    for number, tokens in enumerate(manifest["tokens_per_block"]):
        passages = min(BLOCK, manifest["passages"] - number * BLOCK)
        counts = arrays["counts"][places["counts"] : places["counts"] + tokens].astype(np.int64) + 1
        ends = {part: places[part] + size for part, size in _sizes(counts, passages).items()}
        blocks.append(Postings(Packed(passages, *(arrays[part][places[part] : ends[part]] for part in PARTS))))
        places = ends
    return blocks, read_json(folder / DOCUMENT_IDS), manifest


def _sizes(counts: np.ndarray, passages: int) -> dict[str, int]:
    """The length of each array of a block whose tokens are in `counts` (u,) of its passages."""
    forms_of = forms(counts, passages)
    raw, split = counts[forms_of == RAW], counts[forms_of == SPLIT]
    bitmaps = int((forms_of == BITMAP).sum()) * -(-passages // 8)
    sizes = (len(counts), len(counts), raw.sum(), split.sum(), high_bytes(split, passages).sum(), bitmaps)
    return dict(zip(PARTS, map(int, sizes), strict=True))
