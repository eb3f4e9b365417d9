"""The checks that a query's row must pass: an id, a text and, where the source has them, the strings that answer it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from model_code.corpus.cleaning import clean_line, identifier, require_whole, text_in
from model_code.corpus.rows import Row, Unfit


@dataclass(frozen=True, slots=True)
class Query:
    """A clean query. `answers` are strings that answer it, as data sets of questions name them; others have none."""

    query_id: str
    text: str
    answers: tuple[str, ...] = ()


def query_of(row: Row, max_characters: int) -> Query:
    """The clean query in a row; raises `Unfit` as `document_of` does, and if `answers` is no list of texts."""
    query_id = identifier(row.values, "id")
    text = clean_line(text_in(row.values, "text"))
    if len(text) > max_characters:
        raise Unfit("huge text", f"{len(text):,} characters, corpus.max_characters is {max_characters:,}")
    if not text:
        raise Unfit("empty text", "no text")
    return Query(query_id, text, _answers(row.values, max_characters))


def _answers(values: Mapping[str, Any], max_characters: int) -> tuple[str, ...]:
    answers = tuple(dict.fromkeys(clean_line(require_whole(one, "answers")) for one in _listed(values.get("answers"))))
    characters = sum(map(len, answers))
    if characters > max_characters:
        raise Unfit("huge text", f"answers of {characters:,} characters, corpus.max_characters is {max_characters:,}")
    if not all(answers):
        raise Unfit("empty text", "one of the answers is empty")
    return answers


def _listed(given: Any) -> list[str]:
    """The list itself, or the one that a text holds as JSON: CSV and TSV have no lists. Without any: empty."""
    found = _from_json(given) if isinstance(given, str) else given
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise Unfit(
            "wrong type",
            f"answers is {type(given).__name__}, and must be a list of texts, or JSON of one in CSV and TSV; "
            "corpus.columns.answers: null reads none",
        )
    return found


def _from_json(text: str) -> Any:
    try:
        return json.loads(text) if text.strip() else None
    except (ValueError, RecursionError):
        return text
