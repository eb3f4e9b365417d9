"""Qrels and splits: judgements checked and redirected to the documents that are kept, one split for each query.

Splits depend on an id and a seed only, so that documents that come or go never move another one's split.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any

from model_code.corpus.cleaning import identifier
from model_code.corpus.rows import Malformed, Quarantine, Row, Unfit
from model_code.corpus.settings import QuerySplitSettings


def position(identifier: str, seed: int, purpose: str) -> float:
    """A number in [0, 1), uniform over ids, fixed by its arguments; different purposes are independent.

    >>> round(position("numpy.sort", seed=0, purpose="queries"), 4)
    0.293
    """
    digest = hashlib.sha256(f"{purpose}\0{seed}\0{identifier}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def split_queries(given: Mapping[str, str | None], settings: QuerySplitSettings) -> dict[str, str]:
    """The split of every query: the given one, else by shares; a dev split is carved out of train if there is none.

    >>> split_queries({"q1": "test", "q2": "dev", "q3": "train"}, QuerySplitSettings())
    {'q1': 'test', 'q2': 'dev', 'q3': 'train'}
    """
    splits = {query: split or _split_by_share(query, settings) for query, split in given.items()}
    if "dev" in splits.values():
        return splits

    def carved(query: str, split: str) -> bool:
        return split == "train" and position(query, settings.seed, "dev") < settings.dev_share

    return {query: "dev" if carved(query, split) else split for query, split in splits.items()}


def _split_by_share(query: str, settings: QuerySplitSettings) -> str:
    place = position(query, settings.seed, "queries")
    if place < settings.test_share:
        return "test"
    return "dev" if place < settings.test_share + settings.dev_share else "train"


SPLITS = ("test", "dev", "train")  # the earlier one wins: what is tested must not be trained on
MOST_RELEVANCE = 2**53  # what a file's floating-point numbers hold exactly, and a 64-bit integer, too


@dataclass(frozen=True, slots=True)
class Judgement:
    """A sound row of qrels: `relevance` may be 0 or less (not relevant); `split` is None where the source has none."""

    row: Row
    query_id: str
    document_id: str
    relevance: int
    split: str | None


@dataclass(frozen=True)
class Qrels:
    """The relevant pairs, each query's split, and how many sound rows are no pair of their own."""

    pairs: dict[tuple[str, str], int]
    splits: dict[str, str]
    not_relevant: int
    repeated: int
    outside_limit: int


@dataclass(frozen=True)
class Known:
    """What a judgement may point at: queries, documents, {merged id: kept id}. `limited`: documents were cut off."""

    queries: Set[str]
    documents: Set[str]
    merged: Mapping[str, str]
    limited: bool = False


def take_qrels(
    rows: Iterable[Row | Malformed], known: Known, settings: QuerySplitSettings, quarantine: Quarantine
) -> Qrels:
    """Check every row of qrels against `known`; refuse rows that dangle, or that put a query into a second split."""
    sound = list(quarantine.admit(rows, lambda row: _judgement(row, known)))
    inside = [judgement for judgement in sound if judgement.document_id in known.documents]
    relevant = [judgement for judgement in inside if judgement.relevance > 0]
    agreed = _one_split_each(relevant, quarantine)
    pairs: dict[tuple[str, str], int] = {}
    for judgement in agreed:
        pair = (judgement.query_id, judgement.document_id)
        pairs[pair] = max(judgement.relevance, pairs.get(pair, 0))
    splits = split_queries({judgement.query_id: judgement.split for judgement in agreed}, settings)
    return Qrels(pairs, splits, len(inside) - len(relevant), len(agreed) - len(pairs), len(sound) - len(inside))


def _judgement(row: Row, known: Known) -> Judgement:
    query_id, document_id = (identifier(row.values, name) for name in ("query_id", "document_id"))
    document_id = known.merged.get(document_id, document_id)
    if query_id not in known.queries:
        raise Unfit("dangling qrel", f"there is no query {query_id!r}")
    if document_id not in known.documents and not known.limited:
        raise Unfit("dangling qrel", f"there is no document {document_id!r}")
    relevance, split = _relevance(row.values.get("relevance", 1)), row.values.get("split")
    if split is not None and split not in SPLITS:
        raise Unfit("bad split", f"split is {split!r}, not one of {', '.join(SPLITS)}")
    return Judgement(row, query_id, document_id, relevance, split)


def _relevance(value: Any) -> int:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not number.is_integer() or abs(number) > MOST_RELEVANCE:
        raise Unfit("bad relevance", f"relevance is {value!r}, not a whole number of at most {MOST_RELEVANCE:,}")
    return int(number)


def _one_split_each(judgements: list[Judgement], quarantine: Quarantine) -> list[Judgement]:
    rank = {split: place for place, split in enumerate((*SPLITS, None))}
    best: dict[str, str | None] = {}
    for judgement in judgements:
        known = best.setdefault(judgement.query_id, judgement.split)
        best[judgement.query_id] = min(known, judgement.split, key=rank.__getitem__)
    for judgement in judgements:
        if judgement.split != best[judgement.query_id]:
            detail = f"its query is in {best[judgement.query_id]}, so it may not be in {judgement.split} as well"
            quarantine.refuse(judgement.row, Unfit("conflicting split", detail))
    return [judgement for judgement in judgements if judgement.split == best[judgement.query_id]]
