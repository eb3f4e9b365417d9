"""The state of additions of a generation: V is what is searched, Z what was kept when documents were added."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from model_code.additions.representatives import base_representatives, query_vectors, read_texts
from model_code.additions.store import Store
from model_code.files import canonical_json, hash_text
from model_code.incdsi.state import IncDsiState
from model_code.index.dense_index import DenseIndex
from model_code.live.generation import Generation
from model_code.live.part import Part, View
from model_code.live.searcher import Searcher
from model_code.settings import require

TOKEN = "additions"  # in a generation's provenance


def store_of(folder: Path, generation: Generation, spans: int) -> Store:
    """The store of a generation's base below `folder`."""
    facts = {"base": generation.base, "fingerprint": generation.fingerprint, "spans": spans}
    return Store(folder / f"{generation.retriever}-{hash_text(canonical_json(facts))[:16]}")


def token_of(generation: Generation) -> str | None:
    """The newest part that a generation stands on; None: nothing was kept for it."""
    return generation.manifest["provenance"].get(TOKEN)


def require_one_vector(base: Part) -> None:
    """SettingsError unless documents have one vector, at least every other one; the others are left as they are."""
    require(
        base.kind in ("dense", "dsi"),
        f"additions cannot be refined for a retriever of kind {base.kind!r}: IncDSI needs one dense vector per "
        "document; set additions.refine to false",
    )
    ids = index_of(base).document_ids
    require(
        2 * sum(has_one(ids)) >= len(set(ids)),
        "additions cannot be refined where most documents have several passages or vectors: set additions.refine to "
        "false, or passages.words to 0 and build again",
    )


def has_one(document_ids: Sequence[str]) -> list[bool]:
    """Whether each row is the only one of its document.

    >>> has_one(["a", "b", "b"])
    [True, False, False]
    """
    rows = Counter(document_ids)
    return [rows[one] == 1 for one in document_ids]


def index_of(part: Part) -> DenseIndex:
    """The dense index of a part whose kind has one."""
    retriever: Any = part.retriever
    return retriever.index


def load_state(searcher: Searcher, store: Store, spans: int) -> tuple[IncDsiState, list[str]]:
    """The state of the searcher's generation, and the documents whose Z was not kept: they come last, ascending.

    It holds documents of one vector; others are left as they are. Those without Z were added while nothing was
    refined; it is made from their texts, without queries that they came with.
    """
    if not store.has_base:
        index, encoding = index_of(searcher.base), store.folder / "encoding"
        queries, one = base_representatives(searcher.base, spans, encoding), has_one(index.document_ids)
        ids = [document for document, alone in zip(index.document_ids, one, strict=True) if alone]
        store.keep_base(IncDsiState(index.vectors[one], queries[one], ids))
        shutil.rmtree(encoding, ignore_errors=True)
    vectors = _searched(searcher)
    owners = {key: view for view in searcher.views for key in view.document_ids() if key in vectors}
    state = store.read(token_of(searcher.generation), owners.keys())
    loose = sorted(
        key
        for key in owners
        if key not in state or not np.array_equal(state.vectors.view[state.row(key)], vectors[key])
    )
    state.delete(np.array([state.row(key) for key in loose if key in state], np.int64))
    for key, queries in zip(loose, _made(searcher, owners, loose, spans), strict=True):
        state.append(key, vectors[key], queries.mean(axis=0, dtype=np.float64))
    return state, loose


def _searched(searcher: Searcher) -> dict[str, np.ndarray]:
    """The vector (H) that is searched for each document that has one."""
    found: dict[str, np.ndarray] = {}
    for view in searcher.views:
        index = index_of(view.part)
        rows = zip(index.document_ids, index.vectors, has_one(index.document_ids), strict=True)
        found |= {key: row for key, row, alone in rows if alone and key in view}
    return found


def _made(searcher: Searcher, owners: dict[str, View], ids: list[str], spans: int) -> list[np.ndarray]:
    texts = {part: read_texts(part) for part in {owners[key].part for key in ids}}
    known = [texts[owners[key].part][key] for key in ids]
    return query_vectors(searcher.base.retriever.encoder, known, spans)
