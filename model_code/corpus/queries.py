"""The checks that a query's row must pass: an id and a text. The strings that answer it are read where they can be."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from model_code.corpus.cleaning import clean_line, identifier, is_whole, text_in
from model_code.corpus.rows import Row, Unfit


@dataclass(frozen=True, slots=True)
class Query:
    """A clean query. `answers` are strings that answer it, as data sets of questions name them; others have none.

    `unread` says that the row names answers of a shape that is not known.
    """

    query_id: str
    text: str
    answers: tuple[str, ...] = ()
    unread: bool = False


def query_of(row: Row, max_characters: int) -> Query:
    """The clean query in a row; raises `Unfit` as `document_of` does, but never for its answers.

    Answers only filter what training draws as negatives, so they must not decide which queries there are.
    """
    query_id = identifier(row.values, "id")
    text = clean_line(text_in(row.values, "text"))
    if len(text) > max_characters:
        raise Unfit("huge text", f"{len(text):,} characters, corpus.max_characters is {max_characters:,}")
    if not text:
        raise Unfit("empty text", "no text")
    answers = _answers(row.values.get("answers"), max_characters)
    return Query(query_id, text, answers or (), unread=answers is None)


def _answers(given: Any, max_characters: int) -> tuple[str, ...] | None:
    """The answers, cleaned, none of them empty or twice; None if they cannot be read, or are too long together."""
    listed = _listed(given)
    if not isinstance(listed, list) or not all(map(_is_answer, listed)):
        return None
    answers = tuple(dict.fromkeys(filter(None, (clean_line(str(one)) for one in listed))))
    return answers if sum(map(len, answers)) <= max_characters else None


def _listed(given: Any) -> Any:
    """The list in what is given: itself, that of SQuAD's {"text": list}, or one of a single answer; empty for None."""
    if isinstance(given, str):
        given = _from_json(given)
    if isinstance(given, Mapping):
        given = given.get("text", given)
    if given is None:
        return []
    return given if isinstance(given, list) else [given]


def _from_json(text: str) -> Any:
    """The list (or null) that a text is as JSON, since CSV and TSV have no lists; the text itself if it is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return found if found is None or isinstance(found, list) else text


def _is_answer(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return is_whole(value) if isinstance(value, str) else isinstance(value, int) and not isinstance(value, bool)
