"""What 500 simulated clicks are worth on other queries, and at which noise they harm: `tldr`, the untrained fusion.

`python -m experiments.clicks.run PROJECT` after `freshet demo` in the folder PROJECT; writes `result.json` here.
Nobody has judged anything at first, so that the fusion has its default weights. People then ask training queries again
and again: who looks at rank r, with chance 1/r, clicks on what answers, and with chance `noise` does the opposite.
The product's own code makes judgements of the clicks and learns weights from them, and the gate compares.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd

from model_code.corpus.tables import Judgements, judged, load_corpus
from model_code.evaluation.metrics import evaluate_run
from model_code.evaluation.promotion import judge_promotion
from model_code.evaluation.scores import SystemScores
from model_code.evaluation.settings import PromotionSettings
from model_code.evaluation.system_evaluation import sample_queries, search_splits
from model_code.files import write_json
from model_code.ledger.events import Feedback
from model_code.retriever import Ranking
from model_code.retrievers.fused import FusedRetriever, FusedSearch
from model_code.retrievers.kinds import open_retriever
from model_code.stages.fuse import LEAST, default_weights, learn_weights
from orchestration.freshness.queries import relevance

HERE = Path(__file__).parent
CLICKS, ASKED, SHOWN, TEST = 500, 300, 10, 1000  # clicks; queries that users ask; hits on a page; queries judged by
NOISE, SEEDS = (0.0, 0.1, 0.3, 0.5), (0, 1, 2)
METRIC, DEPTH = "nDCG@10", 100
RULES = PromotionSettings()
METRICS = list(dict.fromkeys((RULES.metric, *RULES.protected, METRIC)))


def main(project: Path) -> dict[str, Any]:
    """One row per noise and seed."""
    corpus = load_corpus(project / "artifacts/corpus")
    build = project / "artifacts/baselines/untrained/build"
    search = open_retriever(build / "encoder", build / "index")
    assert isinstance(search, FusedRetriever)
    first = replace(search.fusion, weights=default_weights(tuple(search.parts), search.fusion.scales))
    search = FusedRetriever(search.parts, first)
    train, test = judged(corpus, "train"), sample_queries(judged(corpus, "test"), TEST)

    def scores(name: str, weights: Mapping[str, float]) -> SystemScores:
        weighed = FusedSearch(search.parts, replace(first, weights=weights))
        run = search_splits(weighed.search, {"test": test}, DEPTH)["test"]
        return SystemScores(name, "test", pd.DataFrame(evaluate_run(run, test.qrels, METRICS)).sort_index())

    before, best = scores("before", first.weights), learn_weights(search, test, METRIC).weights
    rows = []
    for seed in SEEDS:
        asked = _sample(train, seed)
        rankings = dict(zip(asked.queries, search.search(list(asked.queries.values()), SHOWN), strict=True))
        for noise in NOISE:
            clicks = simulated(asked, rankings, noise, random.Random(f"{seed} {noise}"))
            learned = judgements(asked, clicks)
            weights = learn_weights(search, learned, METRIC).weights if len(learned.queries) >= LEAST else first.weights
            verdict = judge_promotion(scores("after", weights), before, RULES, seed)
            difference = next(row for row in verdict.intervals if row.metric == METRIC)
            right = [
                asked.qrels[query].get(document, 0) > 0 for query, own in learned.qrels.items() for document in own
            ]
            rows.append(
                {
                    "noise": noise,
                    "seed": seed,
                    "queries judged": len(learned.queries),
                    "judgements": len(right),
                    "right": round(sum(right) / max(1, len(right)), 3),
                    "weights": dict(weights),
                    "difference": asdict(difference),
                    "promoted": verdict.passed,
                }
            )
            print(rows[-1], flush=True)
    return {
        "documents": len(corpus.documents),
        "test queries": len(test.queries),
        "before": {"weights": dict(first.weights), METRIC: float(before.values[METRIC].mean())},
        "best of the grid on the test queries": {
            "weights": dict(best),
            METRIC: float(scores("best", best).values[METRIC].mean()),
        },
        "rows": rows,
    }


def _sample(train: Judgements, seed: int) -> Judgements:
    """The queries that people ask."""
    kept = random.Random(seed).sample(sorted(train.queries), ASKED)
    return Judgements(
        {query: train.queries[query] for query in kept}, {query: train.qrels[query] for query in kept}, "qrels"
    )


def simulated(
    asked: Judgements, rankings: Mapping[str, Ranking], noise: float, chance: random.Random
) -> list[Feedback]:
    """`CLICKS` clicks of as many sessions as it takes, each of somebody new who asks any of the queries."""
    clicks: list[Feedback] = []
    queries = sorted(asked.queries)
    while len(clicks) < CLICKS:
        query = chance.choice(queries)
        for rank, (document, _) in enumerate(rankings[query], start=1):
            answers = asked.qrels[query].get(document, 0) > 0
            if chance.random() < 1 / rank and answers != (chance.random() < noise):
                clicks.append(Feedback(asked.queries[query], document, "click", rank))
    return clicks[:CLICKS]


def judgements(asked: Judgements, clicks: Sequence[Feedback]) -> Judgements:
    """What the product makes of clicks."""
    found = relevance(clicks)
    kept = {query: found[text] for query, text in asked.queries.items() if text in found}
    return Judgements({query: asked.queries[query] for query in kept}, kept, "qrels")


if __name__ == "__main__":
    write_json(HERE / "result.json", main(Path(sys.argv[1])))
