"""What 500 simulated clicks and thumbs do to other queries, and whether the gate holds back what
harms: `tldr`.

`python -m experiments.clicks.run PROJECT` after `freshet demo` in the folder PROJECT; writes
`result.json` and the tables of `README.md` here. The untrained fusion begins with its default
weights. The product's own code makes judgements of what people said, splits them, and learns
weights from those of training and dev; the gate compares.
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
from orchestration.freshness.probes import feedback_relevance
from orchestration.freshness.snapshot import arrival_query_id

HERE = Path(__file__).parent
# clicks or thumbs; queries that people ask; hits on a page; of a run
SAID, ASKED, SHOWN, DEPTH = 500, 300, 10, 100
SEEDS, NOISE = range(10), (0.0, 0.1, 0.3, 0.5, 1.0)
# judged queries; those that the gate sees; documents of a promoter
TEST, SEEN, FAVOURITES = 3000, 200, 50
SIZES, DRAWS = (50, 200, 1000), 50  # gates of so many judged queries, each drawn so often
RULES = PromotionSettings()
METRIC = RULES.metric
METRICS = list(dict.fromkeys((METRIC, *RULES.protected)))
Hits = Mapping[str, Sequence[str]]
"""By query the documents that a search shows, best first."""


@dataclass(frozen=True)
class Asked:
    """What people ask in one life: queries with their true answers, the hits that are shown, and
    those of each part.

    favourites: the documents of a promoter.
    """

    queries: Judgements
    hits: Hits
    by_part: Mapping[str, Hits]
    favourites: frozenset[str]


Behaviour = Callable[[Asked, random.Random, str], Iterable[Feedback]]
"""What somebody new says who asks a query of that id."""


def clicks(noise: float, asked: Asked, chance: random.Random, query: str) -> Iterable[Feedback]:
    """Look at rank r with chance 1/r, and click on what answers; with chance `noise` do the
    opposite.
    """
    for rank, document in enumerate(asked.hits[query][:SHOWN], start=1):
        if chance.random() < 1 / rank and _answers(asked, query, document) != (
            chance.random() < noise
        ):
            yield Feedback(asked.queries.queries[query], document, "click", rank)


def turned(asked: Asked, chance: random.Random, query: str) -> Iterable[Feedback]:
    """Look as before; a thumb down for what answers, and up for all else."""
    for rank, document in enumerate(asked.hits[query][:SHOWN], start=1):
        if chance.random() < 1 / rank:
            verdict = "down" if _answers(asked, query, document) else "up"
            yield Feedback(asked.queries.queries[query], document, verdict, rank)


def promoter(asked: Asked, chance: random.Random, query: str) -> Iterable[Feedback]:
    """A thumb up for each of the same `FAVOURITES` documents, however deep it is found."""
    for rank, document in enumerate(asked.hits[query], start=1):
        if document in asked.favourites:
            yield Feedback(asked.queries.queries[query], document, "up", rank)


def campaign(part: str, asked: Asked, chance: random.Random, query: str) -> Iterable[Feedback]:
    """A thumb up for what one part alone ranks first, whatever it answers."""
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
    """Encodes the same queries once, whatever they are weighed by."""

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        """The vectors (q, H) of query texts."""
        return self._encoded(tuple(texts))

    @cache  # noqa: B019
    def _encoded(self, texts: tuple[str, ...]) -> np.ndarray:
        return super().encode_queries(texts)


class Bench:
    """One project's fusion at any weight of BM25, and its scores on judged queries, each of them
    searched once.
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
        """The default weight of BM25; the encoder's is 1."""
        return self.search.fusion.weights["bm25"]

    def scores(self, weight: float) -> SystemScores:
        """On all test queries."""
        if weight not in self._known:
            self._known[weight] = scored(self.run(weight, self.test), self.test)
        return self._known[weight]

    def run(self, weight: float, judgements: Judgements) -> Run:
        """The rankings of some queries with this weight of BM25."""
        weights = {**self.search.fusion.weights, "bm25": weight}
        search = FusedSearch(
            self.search.components, replace(self.search.fusion, weights=weights)
        ).search
        return search_splits(search, {"test": judgements}, DEPTH)["test"]

    def asked(self, seed: int) -> Asked:
        """Training queries, drawn by the seed, and what is shown to those who ask them."""
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
        """The weight of BM25 that the product learns, the default one where too few queries are
        judged.
        """
        if len(taught.queries) < MIN_LEARNING_QUERIES:
            return self.first
        return learn_weights(self.search, taught, METRIC).weights["bm25"]


def life(bench: Bench, behaviour: str, seed: int, asked: Asked) -> dict[str, Any]:
    """What comes of one behaviour: the weight that is learned, its gain on other queries, and what
    gates say.
    """
    said = judgements(
        asked, simulated(BEHAVIOURS[behaviour], asked, random.Random(f"{seed} {behaviour}"))
    )
    splits = split_queries({query: None for query in said.queries}, QuerySplitSettings())
    taught = _only(said, [query for query, split in splits.items() if split in ("dev", "train")])
    tested = _only(said, [query for query, split in splits.items() if split == GATE])
    weight = bench.learned(taught)
    pairs = [(query, document) for query, own in said.qrels.items() for document in own]
    true = {
        arrival_query_id(text): asked.queries.qrels[query]
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
    """`SAID` clicks or thumbs of as many sessions as it takes, each of somebody new who asks any of
    the queries.
    """
    said: list[Feedback] = []
    while len(said) < SAID:
        said += behaviour(asked, chance, chance.choice(sorted(asked.hits)))
    return said[:SAID]


def judgements(asked: Asked, said: Sequence[Feedback]) -> Judgements:
    """What the product makes of it: a retrain leaves out queries that nothing answers, and 0 is no
    answer.
    """
    found = {
        text: {id_: value for id_, value in own.items() if value}
        for text, own in feedback_relevance(said).items()
    }
    kept = {arrival_query_id(text): (text, own) for text, own in sorted(found.items()) if own}
    return Judgements(
        {query: text for query, (text, _) in kept.items()},
        {query: own for query, (_, own) in kept.items()},
        "qrels",
    )


def gates(bench: Bench) -> list[dict[str, Any]]:
    """For each weight of the grid, what it is worth, and how often gates of three sizes promote it."""
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
    """Judged queries that a gate sees, and all others."""
    queries = sorted(bench.test.queries)
    seen = set(random.Random(f"gate {seed}").sample(queries, size))
    return sorted(seen), [query for query in queries if query not in seen]


def scored(run: Run, judgements: Judgements) -> SystemScores:
    """The metrics of the gate."""
    return SystemScores(
        "fused", "test", pd.DataFrame(evaluate_run(run, judgements.qrels, METRICS)).sort_index()
    )


def joined(*scores: SystemScores) -> SystemScores:
    """The scores of different queries, as one test split has them."""
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
    """All lives, and all weights of the grid."""
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
    """The page's three: what each behaviour comes to, what gates do with it, and with any weight."""
    return "\n".join(
        [_behaviours(result["lives"]), _verdicts(result["lives"]), _sizes(result["gates"])]
    )


def _behaviours(lives: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        "| what people do | judgements right | weight of BM25 | gain, lowest to highest | better, same, worse |"
    ]
    lines.append("|---|---|---|---|---|")
    for behaviour in BEHAVIOURS:
        own = [life for life in lives if life["behaviour"] == behaviour]
        gains = [life["gain"] for life in own]
        weights = Counter(life["weight"] for life in own)
        lines.append(
            f"| {behaviour.replace('0.', '.')} | {np.mean([life['right'] for life in own]):.2f} | "
            f"{', '.join(f'{weight:g} ({times})' for weight, times in sorted(weights.items()))} | "
            f"{_signed(min(gains))} to {_signed(max(gains))} | "
            f"{sum(gain > 0 for gain in gains)}, {gains.count(0)}, {sum(gain < 0 for gain in gains)} |"
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
