"""Evaluate a search of a reduced corpus."""

from __future__ import annotations

import numpy as np

from model_code.corpus.tables import Corpus
from model_code.evaluation.metrics import evaluate_run
from model_code.retrieval.protocol import Search

METRICS = ("nDCG@10", "hit@1", "R@100")
DEPTH = 100
DECIMALS = 4


def evaluate(corpus: Corpus, search: Search) -> dict[str, dict[str, float]]:
    """Return the mean metrics of a search, by split (dev and test) and metric."""
    means = {}
    for split in ("dev", "test"):
        judgements = corpus.judgements(split)
        rankings = search(list(judgements.queries.values()), DEPTH)
        run = dict(zip(judgements.queries, rankings, strict=True))
        by_query = evaluate_run(run, judgements.qrels, METRICS)
        means[split] = {}
        for metric in METRICS:
            values = [by_query[metric][query] for query in judgements.queries]
            means[split][metric] = round(float(np.mean(values)), DECIMALS)
    return means
