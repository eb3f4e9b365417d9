"""Which judged test queries ask for given documents: those by which a retrain's gain is told."""

from __future__ import annotations

from collections.abc import Iterable

from orchestration.project import Project


def queries_for(workspace: Project, documents: Iterable[str]) -> frozenset[str]:
    """The judged test queries that ask for one of `documents`."""
    import pandas as pd

    from model_code.corpus.tables import judged, load_corpus

    pseudo_queries = pd.read_parquet(workspace.artifacts / "pseudo_queries" / "pseudo_queries.parquet")
    judgements, wanted = judged(load_corpus(workspace.artifacts / "corpus"), pseudo_queries, "test"), set(documents)
    return frozenset(query for query, relevant in judgements.qrels.items() if wanted & relevant.keys())
