"""What one build finds: by its own search, and without another training by its kind's others and hybrids with BM25.

`rrf` fuses its run with BM25's by reciprocal ranks, `bm25_rerank` sorts BM25's first documents by its own scores. A
variant of the system R is the system `R.NAME`, and its evaluation folder is `variants/NAME/` in that of R.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from model_code.corpus.tables import Judgements
from model_code.evaluation.gains import Run
from model_code.evaluation.settings import EvaluationSettings
from model_code.evaluation.system_evaluation import search_splits
from model_code.fusion import reciprocal_rank_fusion
from model_code.retriever import Ranking, Retriever

RRF, RERANK = "rrf", "bm25_rerank"
Runs = Mapping[str, Run]  # split -> run


def retriever_runs(
    retriever: Retriever, bm25: Runs, judgements: Mapping[str, Judgements], settings: EvaluationSettings
) -> Iterator[tuple[str | None, Runs]]:
    """A retriever's runs on the queries of `judgements`, under None; then, unless `settings` say no, its variants'.

    bm25: BM25's runs on the same queries. Queries are encoded once, for the search and the re-ranking.
    """
    texts = {split: list(judged.queries.values()) for split, judged in judgements.items()}
    encoded = {split: retriever.encode_queries(asked) for split, asked in texts.items() if asked}
    runs = _answered(judgements, lambda split: retriever.find(encoded[split], settings.depth))
    yield None, runs
    if not settings.variants:
        return
    for name, search in retriever.variants().items():
        yield name, search_splits(search, judgements, settings.depth)
    yield RRF, {split: fused(runs[split], bm25[split], settings) for split in judgements}
    first = {split: [_ids(bm25[split][query][: settings.rerank_depth]) for query in runs[split]] for split in runs}
    yield RERANK, _answered(judgements, lambda split: retriever.rerank_encoded(encoded[split], first[split]))


def fused(run: Run, bm25: Run, settings: EvaluationSettings) -> Run:
    """Two runs on the same queries as one."""
    return {
        query: reciprocal_rank_fusion([list(ranking), list(bm25[query])], settings.depth, settings.fusion_constant)
        for query, ranking in run.items()
    }


def _answered(judgements: Mapping[str, Judgements], search: Callable[[str], Sequence[Ranking]]) -> dict[str, Run]:
    """A run per split, of the rankings that `search` has for its queries; a split without any is not searched."""
    return {
        split: dict(zip(judged.queries, search(split) if judged.queries else [], strict=True))
        for split, judged in judgements.items()
    }


def _ids(ranking: Ranking) -> list[str]:
    return [document for document, _ in ranking]
