"""Which pseudo-queries are kept: one that fits other documents, or not its own, would call right answers wrong.

A round trip asks whether a search for a query finds the document that it was made from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from model_code.corpus.tables import Corpus, passage_texts
from model_code.encoding.settings import EncoderSettings
from model_code.progress import Progress, silent
from model_code.queries.pseudo_queries import PseudoQuery
from model_code.retriever import Ranking
from model_code.words import words

EMPTY = "empty"
REPEATED = "repeated"
AMBIGUOUS = "several_documents"
LOST = "not_found"
REASONS = {
    EMPTY: "no letter or digit",
    REPEATED: "the same document has the same query already",
    AMBIGUOUS: "another document contains it word for word, or has the same query",
    LOST: "a search for it does not find its document among the first `consistency_filter.depth`",
}


def normalised(text: str) -> str:
    """Letters and digits in lower case, joined by single spaces: texts that differ in nothing else are the same query.

    >>> normalised("  Sort an *Array*, in-place!")
    'sort an array in place'
    """
    return " ".join(words(text.casefold()))


def reasons_to_drop(queries: Sequence[PseudoQuery], documents: Mapping[str, str]) -> list[str | None]:
    """For each query one of `REASONS` to drop it, or None to keep it.

    `documents` maps ids to the texts that are searched.

    >>> queries = [PseudoQuery("d1", "Returns self.", "cloze"), PseudoQuery("d2", "fits a tree", "cloze")]
    >>> reasons_to_drop(queries, {"d1": "Learns. Returns self.", "d2": "Fits a tree and returns self."})
    ['several_documents', None]
    """
    texts = {i: f" {normalised(text)} " for i, text in documents.items()}
    frequency = Counter(term for text in texts.values() for term in set(text.split()))
    normal = [(query.document_id, normalised(query.text)) for query in queries]
    fitting = _found_word_for_word({text for _, text in normal}, texts, frequency)
    for document_id, text in normal:
        fitting[text].add(document_id)

    seen: set[tuple[str, str]] = set()
    reasons: list[str | None] = []
    for document_id, text in normal:
        if not text:
            reasons.append(EMPTY)
        elif len(fitting[text]) > 1:
            reasons.append(AMBIGUOUS)
        elif (document_id, text) in seen:
            reasons.append(REPEATED)
        else:
            reasons.append(None)
        seen.add((document_id, text))
    return reasons


def drop_lost(reasons: Sequence[str | None], ranks: Mapping[int, int | None], depth: int) -> list[str | None]:
    """The same reasons, with `LOST` for queries kept so far that a search ranked their document for, but too low.

    ranks: query number -> its document's rank (1, 2, ...), or None if it was not found (see `round_trip.py`).

    >>> drop_lost([None, None, None, EMPTY], {0: 3, 1: None, 3: None}, depth=5)
    [None, 'not_found', None, 'empty']
    """
    lost = {query for query, rank in ranks.items() if rank is None or rank > depth}
    return [LOST if reason is None and query in lost else reason for query, reason in enumerate(reasons)]


def _rarest(text: str, frequency: Mapping[str, int]) -> tuple[int, str]:
    """The lowest document frequency among the terms of a normalised text, and the term that has it."""
    return min((frequency.get(term, 0), term) for term in text.split())


def _found_word_for_word(
    queries: Iterable[str], texts: Mapping[str, str], frequency: Mapping[str, int]
) -> dict[str, set[str]]:
    """For each normalised query the documents whose text contains it; only those with its rarest term are searched."""
    by_term: dict[str, list[str]] = {}
    containing: dict[str, set[str]] = {query: set() for query in queries}
    for query in containing:
        if query:
            by_term.setdefault(_rarest(query, frequency)[1], []).append(query)
    for document_id, text in texts.items():
        for term in by_term.keys() & set(text.split()):
            for query in by_term[term]:
                if f" {query} " in text:
                    containing[query].add(document_id)
    return containing


Search = Callable[[Sequence[str], int], list[Ranking]]
"""(query texts, k) -> the k best documents of each, best first."""


def source_ranks(queries: Sequence[PseudoQuery], search: Search, depth: int) -> list[int | None]:
    """The rank (1, 2, ...) of each query's document in its search; None if it is not among the first `depth`.

    >>> queries = [PseudoQuery("b", "?", "kind"), PseudoQuery("c", "?", "kind")]
    >>> source_ranks(queries, lambda texts, k: [[("a", 2.0), ("b", 1.0)][:k] for _ in texts], depth=2)
    [2, None]
    """
    if not queries:
        return []
    ranks: list[int | None] = []
    for query, ranking in zip(queries, search([query.text for query in queries], depth), strict=True):
        documents = [document for document, _ in ranking]
        ranks.append(documents.index(query.document_id) + 1 if query.document_id in documents else None)
    return ranks


def shares_found(ranks: Sequence[int | None], depth: int) -> dict[str, float | None]:
    """The share of queries whose document is first, and among the first `depth`; None without a query.

    >>> shares_found([1, 4, None, 1], depth=10)
    {'first': 0.5, 'first_10': 0.75}
    """
    hits = {"first": [rank == 1 for rank in ranks], f"first_{depth}": [rank is not None for rank in ranks]}
    return {name: sum(hit) / len(hit) if hit else None for name, hit in hits.items()}


def make_search(
    by: str, corpus: Corpus, encoder: EncoderSettings, checkpoints: Path, progress: Progress = silent
) -> Search:
    """Search of the corpus's passages by "bm25" or by the untrained "base" encoder, over the texts that it encodes.

    checkpoints: a folder for finished parts of the encoding, which belongs to this corpus and this encoder.
    """
    texts, ids = passage_texts(corpus.passages, encoder.include_title), corpus.passages["document_id"].tolist()
    if by == "bm25":
        from model_code.index.bm25 import Bm25

        return Bm25.build(texts, ids).search
    from model_code.encoding.encoder import DocumentSide, Encoder
    from model_code.index.dense_index import DenseIndex
    from model_code.scale.encoding import encode_resumably

    base = Encoder.from_settings(encoder)
    fingerprint = base.fingerprint()
    index = DenseIndex.build(encode_resumably(DocumentSide(base), texts, checkpoints, progress), ids, fingerprint)
    return lambda queries, k: index.search(base.encode(queries), k, fingerprint)
