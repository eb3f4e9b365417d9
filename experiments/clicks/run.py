"""Simulate 500 clicks or thumbs and measure their effect on other queries, on `tldr`.

`python -m experiments.clicks.run PROJECT` needs a project in the folder PROJECT in which
`freshet demo` has run. It writes `result.json` and the tables of `README.md` here.

The untrained fusion starts with its default weights. Freshet's own code turns feedback into
judgements, splits them, and learns weights from the train and dev splits. The gate, the statistical
test before a promotion, then compares the learned weights with the default ones. The experiment
also measures how often the gate rejects learned weights that harm.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
from model_code.retrieval.protocol import Retriever
from model_code.stages.fusion import (
    MIN_LEARNING_QUERIES,
    WEIGHT_GRID,
    default_weights,
    learn_weights,
)
from orchestration.freshness.feedback import feedback_relevance

HERE = Path(__file__).parent
# Number of clicks or thumbs in a simulation.
FEEDBACK_COUNT = 500
# Number of training queries that people ask in a simulation.
ASKED_QUERIES = 300
# Number of hits that a user sees, and that are evaluated.
PAGE_HITS = 10
DEPTH = 100
SEEDS = range(10)
# Probabilities that a user does the opposite of a right click.
NOISE_LEVELS = (0.0, 0.1, 0.3, 0.5, 1.0)
# Number of judged test queries, and number of them that the gate uses.
TEST_QUERIES = 3000
GATE_QUERIES = 200
# Number of documents that a promoter gives thumbs up.
FAVOURITES = 50
# Numbers of judged queries that the gate is tested with, and number of draws of each.
GATE_SIZES = (50, 200, 1000)
GATE_DRAWS = 50
RULES = PromotionSettings()
METRIC = RULES.metric
METRICS = list(dict.fromkeys((METRIC, *RULES.protected)))
# Name of the encoder among the components.
ENCODER = "zero_shot"

Hits = Mapping[str, Sequence[str]]
"""Ids of the documents that a search shows, best first, by query id."""


@dataclass(frozen=True)
class AskedQueries:
    """Queries of one simulation.

    Attributes:
        judgements: The queries with their true answers.
        hits: Ids of the documents that the fusion shows for each query, best first.
        component_hits: Ids of the documents that each component of the fusion finds for each query,
            best first, by the component's name.
        favourites: Ids of the documents that a promoter gives thumbs up.
    """

    judgements: Judgements
    hits: Hits
    component_hits: Mapping[str, Hits]
    favourites: frozenset[str]

    def text(self, query: str) -> str:
        """Return the text of the query with this id."""
        return self.judgements.queries[query]

    def is_relevant(self, query: str, document: str) -> bool:
        """Return whether a document answers a query."""
        return self.judgements.qrels[query].get(document, 0) > 0


Behaviour = Callable[[AskedQueries, random.Random, str], Iterable[Feedback]]
"""Returns the feedback of a new user on the query with that id."""


def click_relevant(
    noise: float, asked: AskedQueries, generator: random.Random, query: str
) -> Iterable[Feedback]:
    """Simulate a user who clicks on relevant documents.

    The user looks at rank r with probability 1 / r. With probability `noise`, the user does the
    opposite: a click on a document that is not relevant, and none on a relevant one.

    Args:
        noise: Probability of the opposite.
        asked: Queries of the simulation.
        generator: Generator of the user's choices.
        query: Id of the query.
    """
    for rank, document in enumerate(asked.hits[query][:PAGE_HITS], start=1):
        looks_at_hit = generator.random() < 1 / rank
        if not looks_at_hit:
            continue
        does_opposite = generator.random() < noise
        clicks = asked.is_relevant(query, document) != does_opposite
        if clicks:
            yield Feedback(asked.text(query), document, "click", rank)


def reverse_thumbs(asked: AskedQueries, generator: random.Random, query: str) -> Iterable[Feedback]:
    """Simulate a user who gives thumbs down to relevant documents, and thumbs up to all others.

    The user looks at rank r with probability 1 / r. The arguments are those of a `Behaviour`.
    """
    for rank, document in enumerate(asked.hits[query][:PAGE_HITS], start=1):
        if generator.random() < 1 / rank:
            verdict = "down" if asked.is_relevant(query, document) else "up"
            yield Feedback(asked.text(query), document, verdict, rank)


def promote_favourites(
    asked: AskedQueries, generator: random.Random, query: str
) -> Iterable[Feedback]:
    """Simulate a user who gives thumbs up to the same `FAVOURITES` documents, at any rank."""
    for rank, document in enumerate(asked.hits[query], start=1):
        if document in asked.favourites:
            yield Feedback(asked.text(query), document, "up", rank)


def praise_component(
    component: str, asked: AskedQueries, generator: random.Random, query: str
) -> Iterable[Feedback]:
    """Simulate a user who gives thumbs up to the first hit of one component, relevant or not."""
    for document in asked.component_hits[component][query][:1]:
        yield Feedback(asked.text(query), document, "up")


BEHAVIOURS: dict[str, Behaviour] = {
    **{f"clicks, noise {noise:g}": partial(click_relevant, noise) for noise in NOISE_LEVELS},
    "thumbs turned round": reverse_thumbs,
    "a promoter of 50 documents": promote_favourites,
    "thumbs for the encoder's first hit": partial(praise_component, ENCODER),
    "thumbs for BM25's first hit": partial(praise_component, "bm25"),
}


class CachingDenseRetriever(DenseRetriever):
    """A dense retriever that keeps the vectors of queries, so that each is encoded only once."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._vectors: dict[tuple[str, ...], np.ndarray] = {}

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors (q, H) of query texts."""
        key = tuple(texts)
        if key not in self._vectors:
            self._vectors[key] = super().encode_queries(key)
        return self._vectors[key]


class FusionEvaluator:
    """Evaluates the untrained fusion of a project with any weight of BM25.

    The scores for a weight are computed once.

    Args:
        project: Folder of the project.

    Attributes:
        corpus: Corpus of the project.
        search: The fusion with its default weights.
        test: A sample of the judged test queries.
    """

    def __init__(self, project: Path) -> None:
        self.corpus = load_corpus(project / "artifacts/corpus")
        build = project / "artifacts/baselines/untrained/build"
        retriever = open_retriever(build / "encoder", build / "index")
        assert isinstance(retriever, FusedRetriever)
        weights = default_weights(tuple(retriever.components), retriever.fusion.normalizers)

        components = dict(retriever.components)
        dense = components[ENCODER]
        components[ENCODER] = CachingDenseRetriever(dense.encoder, dense.index, dense.fingerprint)
        self.search = FusedRetriever(components, replace(retriever.fusion, weights=weights))
        self.test = sample_queries(self.corpus.judgements("test"), TEST_QUERIES)
        self._known_scores: dict[float, SystemScores] = {}

    @property
    def default_weight(self) -> float:
        """Default weight of BM25 in the fusion. The weight of the encoder is 1."""
        return self.search.fusion.weights["bm25"]

    def scores(self, weight: float) -> SystemScores:
        """Return the scores on all test queries with this weight of BM25."""
        if weight not in self._known_scores:
            self._known_scores[weight] = score_run(self.run(weight, self.test), self.test)
        return self._known_scores[weight]

    def run(self, weight: float, judgements: Judgements) -> Run:
        """Return the rankings of the given queries with this weight of BM25."""
        weights = {**self.search.fusion.weights, "bm25": weight}
        fusion = replace(self.search.fusion, weights=weights)
        fused = FusedSearch(self.search.components, fusion)
        return search_splits(fused.search, {"test": judgements}, DEPTH)["test"]

    def ask(self, seed: int) -> AskedQueries:
        """Draw training queries by a seed, and search for them.

        The queries are searched by the fusion and by each of its components.
        """
        train = self.corpus.judgements("train")
        sample = random.Random(seed).sample(sorted(train.queries), ASKED_QUERIES)
        judgements = select_queries(train, sample)
        component_hits = {}
        for name, component in self.search.components.items():
            component_hits[name] = find_hits(component, judgements)

        documents = sorted(self.corpus.documents["document_id"])
        favourites = frozenset(random.Random(seed).sample(documents, FAVOURITES))
        return AskedQueries(
            judgements, find_hits(self.search, judgements), component_hits, favourites
        )

    def learn_weight(self, judgements: Judgements) -> float:
        """Return the weight of BM25 that Freshet learns from judgements.

        With fewer than `MIN_LEARNING_QUERIES` queries, it is the default weight.
        """
        if len(judgements.queries) < MIN_LEARNING_QUERIES:
            return self.default_weight
        return learn_weights(self.search, judgements, METRIC).weights["bm25"]


def find_hits(retriever: Retriever, judgements: Judgements) -> dict[str, list[str]]:
    """Return the documents that a retriever finds for each query, best first."""
    rankings = retriever.search(list(judgements.queries.values()), DEPTH)
    hits = {}
    for query, ranking in zip(judgements.queries, rankings, strict=True):
        hits[query] = [document for document, _ in ranking]
    return hits


def simulate(
    evaluator: FusionEvaluator, behaviour: str, seed: int, asked: AskedQueries
) -> dict[str, Any]:
    """Simulate one behaviour of users, and learn a weight of BM25 from their feedback.

    Args:
        evaluator: Evaluator of the fusion.
        behaviour: A key of `BEHAVIOURS`.
        seed: Seed of the users' choices and of the gate.
        asked: Queries that the users ask.

    Returns:
        The learned weight, its gain on test queries, and the verdicts of the gate on it. If Freshet
        keeps the default weight, the gain is 0 and the gate has nothing to judge.
    """
    generator = random.Random(f"{seed} {behaviour}")
    feedback = simulate_feedback(BEHAVIOURS[behaviour], asked, generator)
    judgements = judge_feedback(feedback)
    learning_judgements, gate_judgements = split_judgements(judgements)
    weight = evaluator.learn_weight(learning_judgements)

    correct, total = count_correct(judgements, asked)
    row = {
        "behaviour": behaviour,
        "seed": seed,
        "judgements": total,
        "right": round(correct / total, 3),
        "taught by": len(learning_judgements.queries),
        "weight": weight,
        "gain": 0.0,
        "low": 0.0,
        "high": 0.0,
        "promoted": {},
    }
    if weight != evaluator.default_weight:
        row.update(judge_weight(evaluator, weight, gate_judgements, seed))
    return row


def split_judgements(judgements: Judgements) -> tuple[Judgements, Judgements]:
    """Split judgements as Freshet does.

    Returns:
        Judgements of the splits train and dev, from which weights are learned. Judgements of the
        split gate.
    """
    split_of_query = split_queries(dict.fromkeys(judgements.queries), QuerySplitSettings())
    learning_queries = []
    gate_queries = []
    for query, split in split_of_query.items():
        if split in ("dev", "train"):
            learning_queries.append(query)
        elif split == GATE:
            gate_queries.append(query)
    return select_queries(judgements, learning_queries), select_queries(judgements, gate_queries)


def judge_weight(
    evaluator: FusionEvaluator, weight: float, gate_judgements: Judgements, seed: int
) -> dict[str, Any]:
    """Compare a learned weight with the default weight.

    The test queries are divided: some are those of a gate, and the gain is measured on the others.

    Args:
        evaluator: Evaluator of the fusion.
        weight: The learned weight of BM25.
        gate_judgements: Judgements from feedback that belong to the split gate.
        seed: Seed of the gate.

    Returns:
        The gain with the ends of its interval, and the verdicts of `judge_gates`, under the keys of
        a row of `simulate`.
    """
    challenger = evaluator.scores(weight)
    champion = evaluator.scores(evaluator.default_weight)
    people_queries, other_queries = draw_gate_queries(evaluator, GATE_QUERIES, seed)
    verdict = judge_promotion(
        challenger.restrict_to(other_queries), champion.restrict_to(other_queries), RULES, seed
    )
    gain = main_metric_interval(verdict)

    champion_run = evaluator.run(evaluator.default_weight, gate_judgements)
    challenger_run = evaluator.run(weight, gate_judgements)
    promoted = judge_gates(
        people_champion=champion.restrict_to(people_queries),
        people_challenger=challenger.restrict_to(people_queries),
        user_champion=score_run(champion_run, gate_judgements),
        user_challenger=score_run(challenger_run, gate_judgements),
        seed=seed,
    )
    return {"gain": gain.difference, "low": gain.low, "high": gain.high, "promoted": promoted}


def judge_gates(
    people_champion: SystemScores,
    people_challenger: SystemScores,
    user_champion: SystemScores,
    user_challenger: SystemScores,
    seed: int,
) -> dict[str, bool]:
    """Return whether each of three gates promotes a learned weight.

    Args:
        people_champion: Scores of the default weight on queries with people's judgements.
        people_challenger: Scores of the learned weight on these queries.
        user_champion: Scores of the default weight on queries with judgements from feedback.
        user_challenger: Scores of the learned weight on these queries.
        seed: Seed of the gates.

    Returns:
        By the name of the gate: "people" and "users" compare on one kind of query, "both" on all.
    """
    gates = {
        "people": (people_challenger, people_champion),
        "both": (
            join_scores(people_challenger, user_challenger),
            join_scores(people_champion, user_champion),
        ),
        "users": (user_challenger, user_champion),
    }
    promoted = {}
    for name, (challenger, champion) in gates.items():
        promoted[name] = judge_promotion(challenger, champion, RULES, seed).passed
    return promoted


def simulate_feedback(
    behaviour: Behaviour, asked: AskedQueries, generator: random.Random
) -> list[Feedback]:
    """Return `FEEDBACK_COUNT` clicks or thumbs from as many sessions as necessary.

    Each session is a new user who asks any of the queries.

    Args:
        behaviour: Behaviour of the users.
        asked: Queries of the simulation.
        generator: Generator of the users' choices.
    """
    queries = sorted(asked.hits)
    feedback: list[Feedback] = []
    session = 0
    while len(feedback) < FEEDBACK_COUNT:
        session += 1
        # One person counts once for a query and document, so each user needs a name.
        for opinion in behaviour(asked, generator, generator.choice(queries)):
            feedback.append(replace(opinion, who=f"user{session}"))
    return feedback[:FEEDBACK_COUNT]


def judge_feedback(feedback: Sequence[Feedback]) -> Judgements:
    """Turn feedback into judgements, as Freshet does before a training.

    Queries without a relevant document are left out. A grade of 0 is not relevant.
    """
    texts = {}
    qrels = {}
    for text, grades in sorted(feedback_relevance(feedback).items()):
        # A document with a grade of 0 is judged to be no answer.
        relevant = {document: grade for document, grade in grades.items() if grade}
        if relevant:
            query = text_query_id(text)
            texts[query] = text
            qrels[query] = relevant
    return Judgements(texts, qrels, "qrels")


def count_correct(judgements: Judgements, asked: AskedQueries) -> tuple[int, int]:
    """Return how many judged documents are relevant in truth, and how many are judged."""
    true_qrels = {}
    for query, text in asked.judgements.queries.items():
        true_qrels[text_query_id(text)] = asked.judgements.qrels[query]

    correct = 0
    total = 0
    for query, documents in judgements.qrels.items():
        total += len(documents)
        for document in documents:
            if true_qrels[query].get(document, 0) > 0:
                correct += 1
    return correct, total


def measure_gates(evaluator: FusionEvaluator) -> list[dict[str, Any]]:
    """Return the gain of each weight of BM25, and how often gates of three sizes accept it."""
    champion = evaluator.scores(evaluator.default_weight)
    rows = []
    for weight in WEIGHT_GRID:
        if weight == evaluator.default_weight:
            continue
        challenger = evaluator.scores(weight)
        gain = main_metric_interval(judge_promotion(challenger, champion, RULES))
        row = {
            "weight": weight,
            "gain": gain.difference,
            "low": gain.low,
            "high": gain.high,
            "promoted": {
                size: count_promotions(evaluator, challenger, champion, size) for size in GATE_SIZES
            },
        }
        rows.append(row)
        print(row, flush=True)
    return rows


def count_promotions(
    evaluator: FusionEvaluator, challenger: SystemScores, champion: SystemScores, size: int
) -> int:
    """Return how many of `GATE_DRAWS` random gates promote the challenger.

    Args:
        evaluator: Evaluator of the fusion, whose test queries are drawn.
        challenger: Scores of a weight on all test queries.
        champion: Scores of the default weight on all test queries.
        size: Number of queries of each gate.
    """
    promotions = 0
    for draw in range(GATE_DRAWS):
        queries, _ = draw_gate_queries(evaluator, size, draw)
        verdict = judge_promotion(
            challenger.restrict_to(queries), champion.restrict_to(queries), RULES
        )
        if verdict.passed:
            promotions += 1
    return promotions


def draw_gate_queries(
    evaluator: FusionEvaluator, size: int, seed: int
) -> tuple[list[str], list[str]]:
    """Draw the queries of a gate from the test queries.

    Returns:
        Ids of the gate's `size` queries, and ids of all other test queries.
    """
    queries = sorted(evaluator.test.queries)
    gate_queries = set(random.Random(f"gate {seed}").sample(queries, size))
    other_queries = [query for query in queries if query not in gate_queries]
    return sorted(gate_queries), other_queries


def score_run(run: Run, judgements: Judgements) -> SystemScores:
    """Return the scores of a run by the metrics that the gate uses."""
    values = pd.DataFrame(evaluate_run(run, judgements.qrels, METRICS)).sort_index()
    return SystemScores("fused", "test", values)


def join_scores(first: SystemScores, second: SystemScores) -> SystemScores:
    """Join the scores of different queries into one test split."""
    return replace(first, values=pd.concat([first.values, second.values]).sort_index())


def main_metric_interval(verdict: Verdict) -> Any:
    """Return the gate's interval of the main metric."""
    return next(interval for interval in verdict.intervals if interval.metric == METRIC)


def select_queries(judgements: Judgements, queries: Iterable[str]) -> Judgements:
    """Return the judgements of the given queries, in the order of their ids."""
    ordered = sorted(queries)
    return Judgements(
        {query: judgements.queries[query] for query in ordered},
        {query: judgements.qrels[query] for query in ordered},
        judgements.source,
    )


def main(project: Path) -> dict[str, Any]:
    """Run all simulations and all weights of the grid."""
    evaluator = FusionEvaluator(project)
    simulations = []
    for seed in SEEDS:
        asked = evaluator.ask(seed)
        for behaviour in BEHAVIOURS:
            row = simulate(evaluator, behaviour, seed, asked)
            simulations.append(row)
            print(row, flush=True)

    default_mean = float(evaluator.scores(evaluator.default_weight).values[METRIC].mean())
    return {
        "documents": len(evaluator.corpus.documents),
        "test queries": len(evaluator.test.queries),
        "before": {"weight": evaluator.default_weight, METRIC: round(default_mean, 6)},
        "lives": simulations,
        "gates": measure_gates(evaluator),
    }


def tables(result: Mapping[str, Any]) -> str:
    """Return the page's tables: each behaviour, the verdicts of the gate, and each weight."""
    return "\n".join(
        [
            _behaviour_table(result["lives"]),
            _verdict_table(result["lives"]),
            _weight_table(result["gates"]),
        ]
    )


def _behaviour_table(simulations: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of behaviours: right judgements, learned weights, and gains of all seeds."""
    lines = [
        "| what people do | judgements right | weight of BM25 | gain, lowest to highest | "
        "better, same, worse |",
        "|---|---|---|---|---|",
    ]
    for behaviour in BEHAVIOURS:
        rows = [row for row in simulations if row["behaviour"] == behaviour]
        right = np.mean([row["right"] for row in rows])
        weight_counts = Counter(row["weight"] for row in rows)
        weights = ", ".join(
            f"{weight:g} ({count})" for weight, count in sorted(weight_counts.items())
        )
        gains = [row["gain"] for row in rows]
        better = sum(gain > 0 for gain in gains)
        worse = sum(gain < 0 for gain in gains)
        lines.append(
            f"| {behaviour.replace('0.', '.')} | {right:.2f} | {weights} | "
            f"{_signed(min(gains))} to {_signed(max(gains))} | "
            f"{better}, {gains.count(0)}, {worse} |"
        )
    return "\n".join(lines) + "\n"


def _verdict_table(simulations: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of how many harmful and how many useful weights each gate refuses."""
    names = {
        "people": f"{GATE_QUERIES} queries that people judged",
        "both": "these and what users said",
        "users": "what users said alone",
    }
    judged = [row for row in simulations if row["promoted"]]
    harms = [row for row in judged if row["gain"] < 0]
    gains = [row for row in judged if row["gain"] >= 0]
    lines = ["| the gate judges by | harm held back | gains held back |", "|---|---|---|"]
    for gate, name in names.items():
        harms_held = sum(not row["promoted"][gate] for row in harms)
        gains_held = sum(not row["promoted"][gate] for row in gains)
        cells = [name, f"{harms_held} of {len(harms)}", f"{gains_held} of {len(gains)}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _weight_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of the grid's weights: gain, and how often gates of each size promote it."""
    head = " | ".join(f"promoted by {size:,}" for size in GATE_SIZES)
    lines = [
        f"| weight of BM25 | gain on all {TEST_QUERIES:,} | {head} |",
        "|---|---|" + "---|" * len(GATE_SIZES),
    ]
    for row in rows:
        gain = f"{_signed(row['gain'])} [{_signed(row['low'])}, {_signed(row['high'])}]"
        # JSON has the sizes as text.
        promoted = [f"{row['promoted'][str(size)]} of {GATE_DRAWS}" for size in GATE_SIZES]
        lines.append(f"| {row['weight']:g} | {gain} | {' | '.join(promoted)} |")
    return "\n".join(lines) + "\n"


def _signed(value: float) -> str:
    """Return a number with its sign and without a leading 0, such as +.012."""
    if round(value, 3) == 0:
        return "0"
    return f"{value:+.3f}".replace("0.", ".")


if __name__ == "__main__":
    write_json(HERE / "result.json", main(Path(sys.argv[1])))
    write_tables(HERE, tables(read_json(HERE / "result.json")))
