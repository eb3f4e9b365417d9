"""Simulate 500 clicks or thumbs and measure their effect on other queries, on `tldr`.

`python -m experiments.clicks.run PROJECT` needs `freshet demo` in the folder PROJECT and writes
`result.json` and the tables of `README.md` here. It also measures whether the gate holds back harm.
The untrained fusion starts with its default weights. The product's own code turns feedback into
judgements, splits them, and learns weights from the train and dev splits. The gate compares.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.tables import write_tables
from model_code.collection.ledger.events import Feedback
from model_code.corpus.judgement_file import text_query_id
from model_code.corpus.settings import GATE, QuerySplitSettings
from model_code.corpus.splits import split_queries
from model_code.corpus.tables import Judgements, load_corpus
from model_code.evaluation.metrics import Run, evaluate_run
from model_code.evaluation.promotion import Verdict, judge_promotion
from model_code.evaluation.scores import SystemScores
from model_code.evaluation.settings import PromotionSettings
from model_code.evaluation.system_evaluation import sample_queries, search_splits
from model_code.files import read_json, write_json
from model_code.retrieval.dense import DenseRetriever
from model_code.retrieval.fused import FusedRetriever, FusedSearch
from model_code.retrieval.kinds import open_retriever
from model_code.stages.fusion import (
    MIN_LEARNING_QUERIES,
    WEIGHT_GRID,
    default_weights,
    learn_weights,
)
from orchestration.freshness.feedback import feedback_relevance

HERE = Path(__file__).parent
# Clicks or thumbs; queries that people ask; hits on a page; hits of a run.
SAID, ASKED, SHOWN, DEPTH = 500, 300, 10, 100
SEEDS, NOISE = range(10), (0.0, 0.1, 0.3, 0.5, 1.0)
# Judged queries; queries of the gate; documents of a promoter.
TEST, SEEN, FAVOURITES = 3000, 200, 50
# Numbers of judged queries of the gates, and draws of each.
SIZES, DRAWS = (50, 200, 1000), 50
RULES = PromotionSettings()
METRIC = RULES.metric
METRICS = list(dict.fromkeys((METRIC, *RULES.protected)))
Hits = Mapping[str, Sequence[str]]
"""By query the documents that a search shows, best first."""


@dataclass(frozen=True)
class Asked:
    """Queries of one simulation with their true answers, shown hits, and hits of each component.

    favourites: The documents of a promoter.
    """

    queries: Judgements
    hits: Hits
    by_part: Mapping[str, Hits]
    favourites: frozenset[str]


Behaviour = Callable[[Asked, random.Random, str], Iterable[Feedback]]
"""Feedback of a new user on the query with that id."""


def clicks(noise: float, asked: Asked, chance: random.Random, query: str) -> Iterable[Feedback]:
    """Look at rank r with probability 1/r and click on relevant documents.

    With probability `noise` the user does the opposite.
    """
    for rank, document in enumerate(asked.hits[query][:SHOWN], start=1):
        if chance.random() < 1 / rank and _answers(asked, query, document) != (
            chance.random() < noise
        ):
            yield Feedback(asked.queries.queries[query], document, "click", rank)


def turned(asked: Asked, chance: random.Random, query: str) -> Iterable[Feedback]:
    """Look as before; give a thumb down to relevant documents and a thumb up to all others."""
    for rank, document in enumerate(asked.hits[query][:SHOWN], start=1):
        if chance.random() < 1 / rank:
            verdict = "down" if _answers(asked, query, document) else "up"
            yield Feedback(asked.queries.queries[query], document, verdict, rank)


def promoter(asked: Asked, chance: random.Random, query: str) -> Iterable[Feedback]:
    """Give a thumb up to each of the same `FAVOURITES` documents, at any rank."""
    for rank, document in enumerate(asked.hits[query], start=1):
        if document in asked.favourites:
            yield Feedback(asked.queries.queries[query], document, "up", rank)


def campaign(part: str, asked: Asked, chance: random.Random, query: str) -> Iterable[Feedback]:
    """Give a thumb up to the first hit of one component, relevant or not."""
    for document in asked.by_part[part][query][:1]:
        yield Feedback(asked.queries.queries[query], document, "up")


def _answers(asked: Asked, query: str, document: str) -> bool:
    return asked.queries.qrels[query].get(document, 0) > 0


BEHAVIOURS: dict[str, Behaviour] = {
    f"clicks, noise {noise:g}": partial(clicks, noise) for noise in NOISE
}
BEHAVIOURS |= {
    "thumbs turned round": turned,
    "a promoter of 50 documents": promoter,
    "thumbs for the encoder's first hit": partial(campaign, "zero_shot"),
    "thumbs for BM25's first hit": partial(campaign, "bm25"),
}


class Remembering(DenseRetriever):
    """Encoder that encodes equal queries once, so that weights can be varied cheaply."""

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors (q, H) of query texts."""
        return self._encoded(tuple(texts))

    @cache  # noqa: B019
    def _encoded(self, texts: tuple[str, ...]) -> np.ndarray:
        return super().encode_queries(texts)


class Bench:
    """One project's fusion at any weight of BM25, with its scores on judged queries.

    Each query is searched once.
    """

    def __init__(self, project: Path) -> None:
        self.corpus = load_corpus(project / "artifacts/corpus")
        build = project / "artifacts/baselines/untrained/build"
        opened = open_retriever(build / "encoder", build / "index")
        assert isinstance(opened, FusedRetriever)
        weights = default_weights(tuple(opened.components), opened.fusion.normalizers)
        dense = opened.components["zero_shot"]
        parts = {
            **opened.components,
            "zero_shot": Remembering(dense.encoder, dense.index, dense.fingerprint),
        }
        self.search = FusedRetriever(parts, replace(opened.fusion, weights=weights))
        self.test = sample_queries(self.corpus.judgements("test"), TEST)
        self._known: dict[float, SystemScores] = {}

    @property
    def first(self) -> float:
        """Default weight of BM25; the encoder's is 1."""
        return self.search.fusion.weights["bm25"]

    def scores(self, weight: float) -> SystemScores:
        """Return the scores on all test queries."""
        if weight not in self._known:
            self._known[weight] = scored(self.run(weight, self.test), self.test)
        return self._known[weight]

    def run(self, weight: float, judgements: Judgements) -> Run:
        """Return the rankings of some queries with this weight of BM25."""
        weights = {**self.search.fusion.weights, "bm25": weight}
        search = FusedSearch(
            self.search.components, replace(self.search.fusion, weights=weights)
        ).search
        return search_splits(search, {"test": judgements}, DEPTH)["test"]

    def asked(self, seed: int) -> Asked:
        """Return training queries, drawn by the seed, and the hits that are shown for them."""
        train = self.corpus.judgements("train")
        queries = _only(train, random.Random(seed).sample(sorted(train.queries), ASKED))
        texts = list(queries.queries.values())
        hits, *parts = (
            {
                query: [document for document, _ in ranking]
                for query, ranking in zip(queries.queries, search.search(texts, DEPTH), strict=True)
            }
            for search in (self.search, *self.search.components.values())
        )
        by_part = dict(zip(self.search.components, parts, strict=True))
        documents = sorted(self.corpus.documents["document_id"])
        return Asked(
            queries, hits, by_part, frozenset(random.Random(seed).sample(documents, FAVOURITES))
        )

    def learned(self, taught: Judgements) -> float:
        """Return the weight of BM25 that the product learns.

        It is the default weight if few queries are judged.
        """
        if len(taught.queries) < MIN_LEARNING_QUERIES:
            return self.first
        return learn_weights(self.search, taught, METRIC).weights["bm25"]


def life(bench: Bench, behaviour: str, seed: int, asked: Asked) -> dict[str, Any]:
    """Simulate one behaviour: the learned weight, its gain on other queries, and verdicts."""
    said = judgements(
        asked, simulated(BEHAVIOURS[behaviour], asked, random.Random(f"{seed} {behaviour}"))
    )
    splits = split_queries({query: None for query in said.queries}, QuerySplitSettings())
    taught = _only(said, [query for query, split in splits.items() if split in ("dev", "train")])
    tested = _only(said, [query for query, split in splits.items() if split == GATE])
    weight = bench.learned(taught)
    pairs = [(query, document) for query, own in said.qrels.items() for document in own]
    true = {
        text_query_id(text): asked.queries.qrels[query]
        for query, text in asked.queries.queries.items()
    }
    right = sum(true[query].get(document, 0) > 0 for query, document in pairs)
    row = {
        "behaviour": behaviour,
        "seed": seed,
        "judgements": len(pairs),
        "right": round(right / len(pairs), 3),
        "taught by": len(taught.queries),
        "weight": weight,
    }
    if weight == bench.first:
        return row | {"gain": 0.0, "low": 0.0, "high": 0.0, "promoted": {}}
    seen, unseen = gate_draw(bench, SEEN, seed)
    ours, theirs = bench.scores(weight), bench.scores(bench.first)
    own = [scored(bench.run(value, tested), tested) for value in (weight, bench.first)]
    people = [scores.restrict_to(seen) for scores in (ours, theirs)]
    both = [joined(*pair) for pair in zip(people, own, strict=True)]
    gates = {"people": people, "both": both, "users": own}
    gain = _goal(judge_promotion(ours.restrict_to(unseen), theirs.restrict_to(unseen), RULES, seed))
    return row | {
        "gain": gain.difference,
        "low": gain.low,
        "high": gain.high,
        "promoted": {
            name: judge_promotion(*pair, RULES, seed).passed for name, pair in gates.items()
        },
    }


def simulated(behaviour: Behaviour, asked: Asked, chance: random.Random) -> list[Feedback]:
    """Return `SAID` clicks or thumbs from as many sessions as necessary.

    Each session is a new user who asks any of the queries.
    """
    said: list[Feedback] = []
    while len(said) < SAID:
        said += behaviour(asked, chance, chance.choice(sorted(asked.hits)))
    return said[:SAID]


def judgements(asked: Asked, said: Sequence[Feedback]) -> Judgements:
    """Return the product's judgements of the feedback.

    A retrain leaves out queries without a relevant document, and grade 0 is not relevant.
    """
    found = {
        text: {id_: value for id_, value in own.items() if value}
        for text, own in feedback_relevance(said).items()
    }
    kept = {text_query_id(text): (text, own) for text, own in sorted(found.items()) if own}
    return Judgements(
        {query: text for query, (text, _) in kept.items()},
        {query: own for query, (_, own) in kept.items()},
        "qrels",
    )


def gates(bench: Bench) -> list[dict[str, Any]]:
    """Return the gain of each weight of the grid and how often gates of three sizes promote it."""
    ours = {weight: bench.scores(weight) for weight in WEIGHT_GRID if weight != bench.first}
    theirs, rows = bench.scores(bench.first), []
    for weight, scores in ours.items():
        gain = _goal(judge_promotion(scores, theirs, RULES))
        row = {
            "weight": weight,
            "gain": gain.difference,
            "low": gain.low,
            "high": gain.high,
            "promoted": {},
        }
        for size in SIZES:
            seen = [gate_draw(bench, size, draw)[0] for draw in range(DRAWS)]
            passed = [
                judge_promotion(scores.restrict_to(own), theirs.restrict_to(own), RULES).passed
                for own in seen
            ]
            row["promoted"][size] = sum(passed)
        rows.append(row)
        print(row, flush=True)
    return rows


def gate_draw(bench: Bench, size: int, seed: int) -> tuple[list[str], list[str]]:
    """Return the judged queries of a gate, and all others."""
    queries = sorted(bench.test.queries)
    seen = set(random.Random(f"gate {seed}").sample(queries, size))
    return sorted(seen), [query for query in queries if query not in seen]


def scored(run: Run, judgements: Judgements) -> SystemScores:
    """Return the metrics of the gate."""
    return SystemScores(
        "fused", "test", pd.DataFrame(evaluate_run(run, judgements.qrels, METRICS)).sort_index()
    )


def joined(*scores: SystemScores) -> SystemScores:
    """Join the scores of different queries into one test split."""
    return replace(scores[0], values=pd.concat([own.values for own in scores]).sort_index())


def _goal(verdict: Verdict) -> Any:
    return next(row for row in verdict.intervals if row.metric == METRIC)


def _only(judgements: Judgements, queries: Iterable[str]) -> Judgements:
    kept = sorted(queries)
    own = (
        {query: table[query] for query in kept} for table in (judgements.queries, judgements.qrels)
    )
    return Judgements(*own, judgements.source)  # type: ignore[arg-type]


def main(project: Path) -> dict[str, Any]:
    """Run all simulations and all weights of the grid."""
    bench, rows = Bench(project), []
    for seed in SEEDS:
        asked = bench.asked(seed)
        for behaviour in BEHAVIOURS:
            rows.append(life(bench, behaviour, seed, asked))
            print(rows[-1], flush=True)
    return {
        "documents": len(bench.corpus.documents),
        "test queries": len(bench.test.queries),
        "before": {
            "weight": bench.first,
            METRIC: round(float(bench.scores(bench.first).values[METRIC].mean()), 6),
        },
        "lives": rows,
        "gates": gates(bench),
    }


def tables(result: Mapping[str, Any]) -> str:
    """Return the page's tables: results of each behaviour, the gates' verdicts, and any weight."""
    return "\n".join(
        [_behaviours(result["lives"]), _verdicts(result["lives"]), _sizes(result["gates"])]
    )


def _behaviours(lives: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        "| what people do | judgements right | weight of BM25 | gain, lowest to highest | "
        "better, same, worse |"
    ]
    lines.append("|---|---|---|---|---|")
    for behaviour in BEHAVIOURS:
        own = [life for life in lives if life["behaviour"] == behaviour]
        gains = [life["gain"] for life in own]
        weights = Counter(life["weight"] for life in own)
        better = sum(gain > 0 for gain in gains)
        worse = sum(gain < 0 for gain in gains)
        lines.append(
            f"| {behaviour.replace('0.', '.')} | {np.mean([life['right'] for life in own]):.2f} | "
            f"{', '.join(f'{weight:g} ({times})' for weight, times in sorted(weights.items()))} | "
            f"{_signed(min(gains))} to {_signed(max(gains))} | "
            f"{better}, {gains.count(0)}, {worse} |"
        )
    return "\n".join(lines) + "\n"


def _verdicts(lives: Sequence[Mapping[str, Any]]) -> str:
    names = {"people": f"{SEEN} queries that people judged", "both": "these and what users said"}
    names["users"] = "what users said alone"
    lines = ["| the gate judges by | harm held back | gains held back |", "|---|---|---|"]
    for gate, name in names.items():
        held = {True: Counter(), False: Counter()}  # type: ignore[var-annotated]
        for life in lives:
            if life["promoted"]:
                held[life["gain"] < 0][life["promoted"][gate]] += 1
        told = [f"{own[False]} of {own.total()}" for own in (held[True], held[False])]
        lines.append(f"| {name} | {' | '.join(told)} |")
    return "\n".join(lines) + "\n"


def _sizes(rows: Sequence[Mapping[str, Any]]) -> str:
    head = " | ".join(f"promoted by {size:,}" for size in SIZES)
    lines = [
        f"| weight of BM25 | gain on all {TEST:,} | {head} |",
        "|---|---|" + "---|" * len(SIZES),
    ]
    for row in rows:
        gain = f"{_signed(row['gain'])} [{_signed(row['low'])}, {_signed(row['high'])}]"
        shares = " | ".join(f"{row['promoted'][str(size)]} of {DRAWS}" for size in SIZES)
        lines.append(f"| {row['weight']:g} | {gain} | {shares} |")
    return "\n".join(lines) + "\n"


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("0.", ".") if round(value, 3) else "0"


if __name__ == "__main__":
    write_json(HERE / "result.json", main(Path(sys.argv[1])))
    write_tables(HERE, tables(read_json(HERE / "result.json")))
