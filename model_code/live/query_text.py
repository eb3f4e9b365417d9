"""What a text must be like for a search to make sense, however it is asked: command, service or registered model."""

from __future__ import annotations

from collections.abc import Iterable

from model_code.corpus.cleaning import is_whole
from model_code.settings import require


def require_queries(texts: Iterable[str]) -> None:
    """SettingsError if a text is empty, whose vector would be near to arbitrary documents, or holds broken bytes.

    >>> require_queries(["sort an array", " "])
    Traceback (most recent call last):
    model_code.errors.SettingsError: text is empty; say what you are looking for
    """
    for text in texts:
        require(text.strip() != "", "text is empty; say what you are looking for")
        require(is_whole(text), f"the query {text[:40]!r} holds bytes that are no UTF-8")
