"""A tuning split out of a live collection itself: some of its documents are taken out, and added on trial.

They are chosen by the hash of their id. What looks for them, and for the old ones, are queries that the caller made
from their texts; these share words with the parts that constrain an addition, so the trials flatter the mean query a
little. Where real queries are known, `experiments/incdsi_frontier` is the stricter judge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from model_code.additions.constraints import query_vectors, read_texts
from model_code.additions.store import Store, load_state, require_one_vector
from model_code.dsi.vectors import document_means
from model_code.encoding.encoder import DocumentSide
from model_code.files import hash_text
from model_code.incdsi.documents import NewDocument
from model_code.incdsi.state import IncDsiState
from model_code.incdsi.tuning import Split
from model_code.live.searcher import Searcher
from model_code.settings import require


def live_texts(searcher: Searcher) -> dict[str, tuple[str, str]]:
    """Title and text of every document that can be found."""
    known = ((view, read_texts(view.part)) for view in searcher.views)
    return {key: own for view, texts in known for key, own in texts.items() if key in view}


def chosen(document_ids: Sequence[str], count: int, purpose: str) -> list[str]:
    """`count` of the documents by the hash of their id and `purpose`, ascending; at most half of them.

    >>> len(chosen(["a", "b", "c"], 5, "tune"))
    1
    """
    shuffled = sorted(document_ids, key=lambda key: hash_text(f"{purpose}\0{key}"))
    return sorted(shuffled[: min(count, len(shuffled) // 2)])


def leave_out(
    searcher: Searcher, store: Store, spans: int, held: Sequence[str], asked: Mapping[str, Sequence[str]]
) -> tuple[IncDsiState, Split]:
    """The state without the documents `held`, and the split that adds them again.

    asked: queries by document, of those held and of some others. Those of several vectors are left out of both.
    SettingsError if the collection cannot be refined.
    """
    require_one_vector(searcher.base)
    state, _ = load_state(searcher, store, spans)
    held = [key for key in held if key in state]
    asked = {key: queries for key, queries in asked.items() if key in state}
    require(any(key in asked for key in held), "no held-out document has a query: give documents of longer texts")
    state.delete(np.array([state.row(key) for key in held], np.int64))
    new, old = ([key for key in asked if (key in set(held)) is wanted] for wanted in (True, False))
    new_queries, new_targets = _asked(searcher, asked, new)
    old_queries, old_targets = _asked(searcher, asked, old)
    return state, Split(_documents(searcher, spans, held), old_queries, old_targets, new_queries, new_targets)


def _asked(searcher: Searcher, asked: Mapping[str, Sequence[str]], ids: Sequence[str]) -> tuple[np.ndarray, list[str]]:
    pairs = [(text, key) for key in ids for text in asked[key]]
    return searcher.base.dense.encoder.encode([text for text, _ in pairs]), [key for _, key in pairs]


def _documents(searcher: Searcher, spans: int, ids: Sequence[str]) -> list[NewDocument]:
    """Documents as the writer would add them, their encodings made anew."""
    texts, retriever = live_texts(searcher), searcher.base.dense
    encoder = retriever.encoder
    passages = [(row, one) for row, key in enumerate(ids) for one in searcher.generation.text.passages(*texts[key])]
    owners = np.array([row for row, _ in passages])
    encoded = document_means(DocumentSide(encoder).encode([one for _, one in passages]), owners, len(ids))
    encoded *= np.float32(retriever.encoding_scale)
    queries = query_vectors(encoder, [texts[key] for key in ids], spans)
    return [NewDocument(*one) for one in zip(ids, queries, encoded, strict=True)]
