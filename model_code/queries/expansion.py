"""Documents with the queries written for them, as docT5query indexes them (Nogueira and Lin, 2019): BM25 +QG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def generated_queries(pseudo_queries: pd.DataFrame) -> dict[str, list[str]]:
    """Document id -> the queries that a model wrote for it, of the split "train" only: others evaluate.

    Spans cut out of a document are left out: they would only count some of its words twice.
    """
    chosen = (pseudo_queries["split"] == "train") & (pseudo_queries["kind"] == "sequence_to_sequence")
    queries: dict[str, list[str]] = {}
    for document, text in pseudo_queries.loc[chosen, ["document_id", "text"]].itertuples(index=False):
        queries.setdefault(document, []).append(text)
    return queries


def expanded_texts(
    texts: Sequence[str], document_ids: Sequence[str], queries: Mapping[str, Sequence[str]]
) -> list[str]:
    """Each passage's text with all queries of its document behind it.

    >>> expanded_texts(["sort a list", "open a file"], ["a", "b"], {"a": ["ordering", "rank items"]})
    ['sort a list ordering rank items', 'open a file']
    """
    return [" ".join([text, *queries.get(i, ())]) for text, i in zip(texts, document_ids, strict=True)]
