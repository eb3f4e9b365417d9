"""What else one build can do, evaluated without another training: its kind's other searches, and hybrids with BM25.

`rrf` fuses its run with BM25's by reciprocal ranks, `bm25_rerank` sorts BM25's first documents by its own scores. A
variant of the system R is the system `R.NAME`, and its evaluation folder is `variants/NAME/` in that of R.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from model_code.corpus.tables import Judgements
from model_code.evaluation.gains import Run
from model_code.evaluation.settings import EvaluationSettings
from model_code.evaluation.system_evaluation import search_splits
from model_code.retrievers.fusion import reciprocal_rank_fusion
from model_code.retrievers.retriever import Retriever

RRF, RERANK = "rrf", "bm25_rerank"
Runs = Mapping[str, Run]  # split -> run


def variant_runs(
    retriever: Retriever, runs: Runs, bm25: Runs, judgements: Mapping[str, Judgements], settings: EvaluationSettings
) -> Iterator[tuple[str, Runs]]:
    """The name and the runs of each variant of a retriever whose own `runs` are on the queries of `judgements`."""
    for name, search in retriever.variants().items():
        yield name, search_splits(search, judgements, settings.depth)
    yield RRF, {split: fused(runs[split], bm25[split], settings) for split in judgements}
    yield RERANK, {split: reranked(retriever, bm25[split], judgements[split], settings) for split in judgements}


def fused(run: Run, bm25: Run, settings: EvaluationSettings) -> Run:
    """Two runs on the same queries as one."""
    return {
        query: reciprocal_rank_fusion([list(ranking), list(bm25[query])], settings.depth, settings.fusion_constant)
        for query, ranking in run.items()
    }


def reranked(retriever: Retriever, bm25: Run, judged: Judgements, settings: EvaluationSettings) -> Run:
    """BM25's first `settings.rerank_depth` documents of each judged query, in the retriever's order."""
    query_ids = list(judged.queries)
    candidates = [[document for document, _ in bm25[query][: settings.rerank_depth]] for query in query_ids]
    rankings = retriever.rerank([judged.queries[query] for query in query_ids], candidates) if query_ids else []
    return dict(zip(query_ids, rankings, strict=True))
