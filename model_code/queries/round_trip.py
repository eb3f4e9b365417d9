"""Round trip: does a search for a query find the document that the query was made from?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from model_code.corpus.tables import Corpus, passage_texts
from model_code.encoding.settings import EncoderSettings
from model_code.progress import Progress, silent
from model_code.queries.pseudo_query import PseudoQuery
from model_code.retriever import Ranking

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
        found = [document for document, _ in ranking]
        ranks.append(found.index(query.document_id) + 1 if query.document_id in found else None)
    return ranks


def shares_found(ranks: Sequence[int | None], depth: int) -> dict[str, float | None]:
    """The share of queries whose document is first, and among the first `depth`; None without a query.

    >>> shares_found([1, 4, None, 1], depth=10)
    {'first': 0.5, 'first_10': 0.75}
    """
    hits = {"first": [rank == 1 for rank in ranks], f"first_{depth}": [rank is not None for rank in ranks]}
    return {name: sum(found) / len(found) if found else None for name, found in hits.items()}


def make_search(
    by: str, corpus: Corpus, encoder: EncoderSettings, checkpoints: Path, progress: Progress = silent
) -> Search:
    """Search of the corpus's passages by "bm25" or by the untrained "base" encoder, over the texts that it encodes.

    checkpoints: a folder for finished parts of the encoding, which belongs to this corpus and this encoder.
    """
    texts, ids = passage_texts(corpus.passages, encoder.include_title), corpus.passages["document_id"].tolist()
    if by == "bm25":
        from model_code.index.bm25 import Bm25

        return Bm25(texts, ids).search
    from model_code.encoding.encoder import Encoder
    from model_code.index.dense_index import DenseIndex
    from model_code.scale.encoding import encode_resumably

    base = Encoder.from_settings(encoder)
    fingerprint = base.fingerprint()
    index = DenseIndex.build(encode_resumably(base, texts, checkpoints, progress), ids, fingerprint)
    return lambda queries, k: index.search(base.encode(queries), k, fingerprint)
