"""Splits that depend on an id and a seed only, so that documents that come or go never move another one's split."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from model_code.corpus.cleaning import parse_date
from model_code.corpus.rows import Unfit
from model_code.corpus.settings import PartSettings, QuerySplitSettings
from model_code.documents import Document


def position(identifier: str, seed: int, purpose: str) -> float:
    """A number in [0, 1), uniform over ids, fixed by its arguments; different purposes are independent.

    >>> round(position("numpy.sort", seed=0, purpose="queries"), 4)
    0.293
    """
    digest = hashlib.sha256(f"{purpose}\0{seed}\0{identifier}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def part_of(document: Document, settings: PartSettings) -> str:
    """The part of a document: "initial", "new" or "tuning". Raises `Unfit` if the split is by a date that it lacks."""
    if settings.by == "date":
        return _part_by_date(document, settings)
    place = position(document.document_id, settings.seed, "parts") if settings.by == "share" else 1.0
    if place < settings.new_share:
        return "new"
    return "tuning" if place < settings.new_share + settings.tuning_share else "initial"


def _part_by_date(document: Document, settings: PartSettings) -> str:
    written, new_from = parse_date(document.date), parse_date(settings.new_from)
    tuning_from = parse_date(settings.tuning_from or settings.new_from)
    if written is None or new_from is None or tuning_from is None:
        raise Unfit("bad date", "no ISO date, which corpus.parts.by = 'date' needs")
    if written >= new_from:
        return "new"
    return "tuning" if written >= tuning_from else "initial"


def split_queries(given: Mapping[str, str | None], settings: QuerySplitSettings) -> dict[str, str]:
    """The split of every query: the given one, else by shares; a dev split is carved out of train if there is none.

    >>> split_queries({"q1": "test", "q2": "dev", "q3": "train"}, QuerySplitSettings())
    {'q1': 'test', 'q2': 'dev', 'q3': 'train'}
    """
    splits = {query: split or _split_by_share(query, settings) for query, split in given.items()}
    if "dev" in splits.values():
        return splits
    carved = {
        query for query, split in splits.items()
        if split == "train" and position(query, settings.seed, "dev") < settings.dev_share
    }  # fmt: skip
    return {query: "dev" if query in carved else split for query, split in splits.items()}


def _split_by_share(query: str, settings: QuerySplitSettings) -> str:
    place = position(query, settings.seed, "queries")
    if place < settings.test_share:
        return "test"
    return "dev" if place < settings.test_share + settings.dev_share else "train"
