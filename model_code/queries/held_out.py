"""Which documents' pseudo-queries are held out for dev and test."""

from __future__ import annotations

from model_code.queries.pseudo_query import seed_of


def split_of(document_id: str, dev_share: float, test_share: float, seed: int) -> str:
    """The split that a document's pseudo-queries belong to, by a hash of its id: other documents do not change it.

    >>> splits = [split_of(f"d{i}", dev_share=0.1, test_share=0.2, seed=1) for i in range(1000)]
    >>> splits.count("dev"), splits.count("test")
    (112, 176)
    """
    chance = seed_of(seed, "held out", document_id) / 2**63
    if chance < dev_share:
        return "dev"
    return "test" if chance < dev_share + test_share else "train"
