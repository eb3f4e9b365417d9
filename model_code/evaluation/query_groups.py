"""Parts of the test queries that are worth reporting apart."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

SMALLEST = 20  # queries; below, an interval says nothing


def query_groups(qrels: pd.DataFrame, split: str, query_ids: Sequence[str]) -> dict[str, list[str]]:
    """Split queries by whether any of their relevant documents also answers a query of another split.

    Supervised training can only raise the "unseen" ones by generalising, the "seen" ones also by remembering (SciFact:
    64 % of the test judgements point at documents of training queries). Both groups, or none if either is too small.
    """
    others = qrels[qrels["split"].isin({"train", "dev", "test"} - {split})]
    own = qrels[(qrels["split"] == split) & qrels["query_id"].isin(list(query_ids))]
    touched = set(own.loc[own["document_id"].isin(others["document_id"]), "query_id"])
    seen = sorted(touched)
    unseen = sorted(set(query_ids) - touched)
    return {"unseen": unseen, "seen": seen} if min(len(seen), len(unseen)) >= SMALLEST else {}
