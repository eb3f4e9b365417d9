"""The judged test queries of a workspace, by which a retrain's gain is told, and which ask for given documents."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from orchestration.project import Project

if TYPE_CHECKING:
    from model_code.corpus.tables import Judgements


def queries_for(workspace: Project, documents: Iterable[str]) -> frozenset[str]:
    """The judged test queries that ask for one of `documents`."""
    wanted = set(documents)
    return frozenset(query for query, relevant in judged_test(workspace).qrels.items() if wanted & relevant.keys())


def judged_test(workspace: Project) -> Judgements:
    """The test queries with their judgements; stages `corpus` and `pseudo_queries` must have run."""
    import pandas as pd

    from model_code.corpus.tables import judged, load_corpus

    pseudo_queries = pd.read_parquet(workspace.artifacts / "pseudo_queries" / "pseudo_queries.parquet")
    return judged(load_corpus(workspace.artifacts / "corpus"), pseudo_queries, "test")
