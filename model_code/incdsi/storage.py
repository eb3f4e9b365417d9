"""The state of additions on disk: immutable parts, each with the rows that it brings, that add up to V and Z.

A part is a folder with `vectors.npy` (V) and `queries.npy` (Z), both (n, H) float32, `document_ids.json`, and a sealed
manifest with the deviation of scores that margins are measured in. The first part holds the collection as it was
trained or built; every generation that adds or updates documents writes one part of its own and no other.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from model_code.errors import FreshetError
from model_code.files import read_json, replacing, write_text
from model_code.incdsi.state import IncDsiState
from model_code.manifest import read_manifest, seal, verify

FORMAT, KIND = 1, "incdsi"
VECTORS, QUERIES, DOCUMENT_IDS = "vectors.npy", "queries.npy", "document_ids.json"


def write_part(folder: Path, state: IncDsiState, ids: Sequence[str] | None = None) -> dict[str, Any]:
    """Write the rows of `ids` (None: all) of `state` to the new folder `folder`; returns its manifest.

    Equal rows give equal bytes. Raises FreshetError if one of `ids` is not in the state.
    """
    chosen = state.ids if ids is None else list(ids)
    rows = np.array([state.row(key) for key in chosen], np.int64)
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in ((VECTORS, state.vectors), (QUERIES, state.queries)):
        with replacing(folder / name) as aside, aside.open("wb") as stream:
            np.save(stream, values.view[rows])
    write_text(folder / DOCUMENT_IDS, json.dumps(chosen, ensure_ascii=False, separators=(",", ":")))
    facts = {"kind": KIND, "dimension": state.width, "documents": len(rows), "score_deviation": state.score_deviation}
    return seal(folder, FORMAT, facts)


def read_state(folders: Sequence[Path], alive: Collection[str] | None = None) -> IncDsiState:
    """The state that the parts `folders`, oldest first, add up to.

    Of a document that several parts hold, the newest rows count, in the place of the newest. alive: the documents that
    were not deleted; None: all. Margins keep the unit of the first part. Each file is read once.

    Raises FreshetError if a part is damaged, or not as wide as the first one.
    """
    manifests = [read_manifest(folder, FORMAT) for folder in folders]
    for folder, manifest in zip(folders, manifests, strict=True):
        verify(folder, manifest)
        if manifest["dimension"] != manifests[0]["dimension"]:
            raise FreshetError(f"{folder} holds vectors of {manifest['dimension']} numbers, {folders[0]} of others")
    ids = [read_json(folder / DOCUMENT_IDS) for folder in folders]
    newest = {key: part for part, keys in enumerate(ids) for key in keys}
    stays = newest.keys() if alive is None else newest.keys() & set(alive)
    kept = [[newest[key] == part and key in stays for key in keys] for part, keys in enumerate(ids)]
    left = [key for keys, keep in zip(ids, kept, strict=True) for key in compress(keys, keep)]
    vectors, queries = (_rows(folders, name, kept) for name in (VECTORS, QUERIES))
    return IncDsiState(vectors, queries, left, manifests[0]["score_deviation"])


def _rows(folders: Sequence[Path], name: str, kept: Sequence[Sequence[bool]]) -> np.ndarray:
    parts = [np.load(folder / name, mmap_mode="r") for folder in folders]
    return np.concatenate([part[np.array(keep, bool)] for part, keep in zip(parts, kept, strict=True)])
