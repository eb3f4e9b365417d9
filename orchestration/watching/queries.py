"""The queries that the service logged, and those that the live retriever was made for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from model_code.corpus.tables import Judgements
from model_code.errors import FreshetError
from model_code.live.generation import Generation
from model_code.live.part import Part
from model_code.live.trained import trained_documents
from orchestration.ledgers import existing_ledger
from orchestration.project import Project
from orchestration.watching.vectors import unit

PSEUDO_QUERIES = "pseudo_queries/pseudo_queries.parquet"  # in the folder of artifacts
NO_LOG = "there is no query log; freshet serve --query-log keeps one, on this machine"


def query_vectors(base: Part, texts: Sequence[str]) -> np.ndarray:
    """The unit vectors (n, H) of query texts; FreshetError if the retriever makes no vectors of them."""
    if not has_vectors(base):
        raise FreshetError(f"a {base.kind} retriever makes no vectors of queries")
    return unit(np.asarray(base.retriever.encode_queries(list(texts)), np.float32))


def has_vectors(base: Part) -> bool:
    """Whether the retriever makes a vector of a query."""
    return base.kind != "lexical"


def some(texts: Iterable[str], most: int, seed: int) -> list[str]:
    """At most `most` different texts, drawn evenly whatever their order: one that comes a hundred times counts once.

    >>> some(["b", "a", "b", "a"], 9, 0)
    ['a', 'b']
    """
    found = sorted(set(texts))
    if len(found) <= most:
        return found
    chosen = np.random.default_rng([seed, len(found)]).permutation(len(found))[:most]
    return [found[i] for i in sorted(chosen.tolist())]


def queries_of_build(project: Project, generation: Generation, least: int) -> list[str]:
    """Queries that ask for a document that the retriever was trained with.

    Those that it was not trained on, of the splits dev and test, as training moves queries; where these are fewer than
    `least`, all of them. Queries that documents arrived with count once a retrain took the documents in.
    """
    trained = trained_documents(generation)
    given = _given(project, generation, trained)
    held_out = given + _judged(project.artifacts, ("dev", "test"), trained)
    if len(set(held_out)) >= least:
        return held_out
    return held_out + _judged(project.artifacts, ("train",), trained)


def judged_queries(artifacts: Path, split: str) -> Judgements | None:
    """The corpus's judged queries of a split; None where the project has no corpus."""
    import pandas as pd

    from model_code.corpus.tables import judged, load_corpus

    if not has_queries(artifacts):
        return None
    return judged(load_corpus(artifacts / "corpus"), pd.read_parquet(artifacts / PSEUDO_QUERIES), split)


def has_queries(artifacts: Path) -> bool:
    """Whether `judged_queries` can say anything now: the stages up to pseudo_queries ran, or were checked out."""
    return (artifacts / PSEUDO_QUERIES).is_file()


def _judged(artifacts: Path, splits: Sequence[str], documents: set[str]) -> list[str]:
    """The corpus's judged queries for `documents`."""
    found = [judgements for split in splits if (judgements := judged_queries(artifacts, split))]
    return [text for each in found for one, text in each.queries.items() if documents & each.qrels[one].keys()]


def _given(project: Project, generation: Generation, documents: set[str]) -> list[str]:
    ledger = existing_ledger(project, generation.retriever)
    if ledger is None:
        return []
    return [
        text for one in ledger.snapshot(generation.watermark) if one.document_id in documents for text in one.queries
    ]
