"""Tests of the promotion gate: passing, each way to be refused, and the rate of false passes."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pytest

from model_code.errors import FreshetError
from model_code.evaluation.promotion import judge_pilot, judge_promotion, judge_retrain
from model_code.evaluation.scores import SystemScores
from model_code.evaluation.settings import PromotionSettings

SETTINGS = PromotionSettings(
    metric="nDCG@10",
    protected=("nDCG@10", "R@100"),
    margin=0.02,
    bootstrap_samples=500,
    permutations=999,
)
SIZE = 400


def scores(system, ndcg, recall=None, size=SIZE):
    """Make the scores of a system. Without values, R@100 is 0.9 for every query."""
    if recall is None:
        recall = np.full(size, 0.9)
    queries = [f"q{i:04}" for i in range(size)]
    values = pd.DataFrame({"nDCG@10": ndcg, "R@100": recall}, index=queries)
    return SystemScores(system, "test", values)


def noise(seed, spread=0.1, size=SIZE):
    """Make random differences of scores, with mean 0 in expectation."""
    return np.random.default_rng(seed).normal(0, spread, size)


BASE = np.random.default_rng(0).uniform(0.3, 0.7, SIZE)
CHAMPION = scores("champion", BASE)


@pytest.fixture
def gain():
    """The verdict about a challenger with a clear gain."""
    return judge_promotion(scores("hce", BASE + 0.03 + noise(1)), CHAMPION, SETTINGS)


def test_clear_gain_passes(gain):
    assert gain.passed
    assert gain.reasons[0].startswith("better: nDCG@10 0.")
    assert gain.queries == SIZE


def test_interval_of_the_gain_covers_1_minus_2_alpha(gain):
    interval = gain.intervals[0]

    assert interval.metric == "nDCG@10"
    assert 0 < interval.low < interval.difference < interval.high
    width_at_90_percent = 2 * 1.645 * noise(1).std() / np.sqrt(SIZE)
    assert interval.high - interval.low == pytest.approx(width_at_90_percent, rel=0.06)


def test_verdict_is_written_as_json(gain):
    record = json.loads(json.dumps(asdict(gain)))

    assert record["passed"] is True
    assert [row["metric"] for row in record["intervals"]] == ["nDCG@10", "R@100"]
    assert record["reasons"] == list(gain.reasons)


# The spread is so large that nobody can tell whether this recall fell.
WIDE_NOISE = noise(5, spread=0.4)
UNCERTAIN_RECALL = 0.9 + WIDE_NOISE - WIDE_NOISE.mean()
# The loss is within the margin, but certain.
SMALL_LOSS = np.where(np.arange(SIZE) < 8, 0.4, 0.9)
GAIN_WITHIN_NOISE = BASE + 0.0005 + noise(3) - noise(3).mean()


@pytest.mark.parametrize(
    ("ndcg", "recall", "reasons"),
    [
        (BASE, None, ["not better"]),
        (GAIN_WITHIN_NOISE, None, ["not better"]),
        (BASE + 0.03, SMALL_LOSS, ["worse"]),
        (BASE + 0.03, UNCERTAIN_RECALL, ["may be worse"]),
        (BASE - 0.05, np.full(SIZE, 0.8), ["not better", "worse", "worse"]),
    ],
)
def test_refusals_are_named(ndcg, recall, reasons):
    verdict = judge_promotion(scores("hce", ndcg, recall), CHAMPION, SETTINGS)

    assert not verdict.passed
    assert [reason.split(":")[0] for reason in verdict.reasons] == reasons


def test_larger_margin_allows_an_uncertain_loss():
    challenger = scores("hce", BASE + 0.03, UNCERTAIN_RECALL)

    verdict = judge_promotion(challenger, CHAMPION, SETTINGS.replace(margin=0.1))

    assert verdict.passed


def test_refusal_states_how_many_queries_show_a_gain():
    champion = scores("champion", BASE)
    gain = noise(1, spread=0.2)

    verdict = judge_promotion(scores("hce", BASE + gain - gain.mean()), champion, SETTINGS)

    needed = verdict.intervals[0].queries_for_gain
    # 1.96 and 0.84 are the quantiles of the normal distribution for 5 % and 80 %.
    assert needed == pytest.approx(((1.96 + 0.84) * gain.std() / 0.02) ** 2, rel=0.01)
    assert verdict.reasons[0].endswith(
        f"400 queries were judged, and about {needed:,} show a gain of 0.02 with 80% power"
    )


def test_equal_systems_state_no_number_of_queries():
    verdict = judge_promotion(scores("hce", BASE), CHAMPION, SETTINGS)

    assert verdict.intervals[0].queries_for_gain is None
    assert "power" not in verdict.reasons[0]


def test_first_retriever_passes():
    verdict = judge_promotion(CHAMPION, None, SETTINGS)

    assert verdict.passed is True
    assert verdict.reasons == ("there was no champion before",)


def test_first_retrain_passes():
    verdict = judge_retrain(CHAMPION, None, SETTINGS, NEW)

    assert verdict.passed is True
    assert verdict.reasons == ("there was no champion before",)


def test_challengers_without_effect_seldom_pass():
    """Better needs p < alpha two-sided on the side of a gain: alpha / 2 of challengers without any
    effect.
    """
    settings = PromotionSettings(
        metric="nDCG@10", protected=(), bootstrap_samples=100, permutations=499
    )
    base = BASE[:60]
    champion = scores("champion", base, size=60)

    passed = []
    for seed in range(200):
        challenger = scores("hce", base + noise(seed, size=60), size=60)
        passed.append(judge_promotion(challenger, champion, settings).passed)

    assert np.mean(passed) <= 0.06


def test_missing_metric_is_refused():
    settings = SETTINGS.replace(protected=("MAP",))

    with pytest.raises(FreshetError, match="no scores for MAP: add them to evaluation.metrics"):
        judge_promotion(CHAMPION, CHAMPION, settings)


def test_scores_without_queries_are_refused():
    empty = scores("hce", BASE[:0], size=0)

    with pytest.raises(FreshetError, match="no judged queries"):
        judge_promotion(empty, empty, SETTINGS)


NEW = frozenset(f"q{i:04}" for i in range(300, SIZE))
OLD_GAIN = np.arange(SIZE) < 300
NEW_GAIN = np.arange(SIZE) >= 300


def first_words(verdict):
    """Return each reason of a verdict up to its metric."""
    return [reason.split(": nDCG")[0] for reason in verdict.reasons]


def test_retrain_with_gain_on_new_documents_passes():
    challenger = scores("hce", BASE + NEW_GAIN * 0.1 + noise(4, 0.02))

    verdict = judge_retrain(challenger, CHAMPION, SETTINGS, NEW)

    assert verdict.passed
    assert verdict.reasons[0].startswith("new documents: better: nDCG@10")
    assert [row.metric for row in verdict.intervals] == [
        "nDCG@10 (old documents)",
        "R@100 (old documents)",
        "nDCG@10 (new documents)",
        "R@100 (new documents)",
    ]


def test_retrain_must_gain_on_new_documents():
    challenger = scores("hce", BASE + OLD_GAIN * 0.1 + noise(4, 0.02))

    verdict = judge_retrain(challenger, CHAMPION, SETTINGS, NEW)

    # Its gain over all documents is clear.
    assert judge_promotion(challenger, CHAMPION, SETTINGS).passed
    assert first_words(verdict) == ["new documents: not better"]


def test_retrain_must_not_lose_on_old_documents():
    challenger = scores("hce", BASE + NEW_GAIN * 0.3 - OLD_GAIN * 0.05 + noise(4, 0.02))

    verdict = judge_retrain(challenger, CHAMPION, SETTINGS, NEW)

    assert first_words(verdict) == ["old documents: worse"]


@pytest.mark.parametrize(
    ("new", "group"), [(frozenset(), "new"), (frozenset(CHAMPION.values.index), "old")]
)
def test_retrain_without_new_or_old_queries(new, group):
    challenger = scores("hce", BASE + 0.03 + noise(1))

    verdict = judge_retrain(challenger, CHAMPION, SETTINGS, new)

    assert verdict.passed
    assert verdict.reasons[0].startswith(f"no judged query asks for one of the {group} documents")
    assert verdict.intervals == judge_promotion(challenger, CHAMPION, SETTINGS).intervals


# Each new document has one query.
OWN = {query: query for query in NEW}


def find_interval_of_new(verdict):
    """Return the interval of nDCG@10 over the queries of new documents."""
    return next(row for row in verdict.intervals if row.metric == "nDCG@10 (new documents)")


@pytest.fixture
def pilot():
    """The scores of a pilot that gains on the new documents and loses on the old ones."""
    return scores("hce", BASE + np.where(NEW_GAIN, 0.05, -0.1) + noise(21, 0.02))


def test_pilot_is_judged_by_new_documents_only(pilot):
    verdict = judge_pilot(pilot, CHAMPION, SETTINGS, OWN, 0.01)

    assert verdict.passed is True
    assert verdict.queries == len(NEW)
    assert first_words(verdict) == ["new documents: better", "old documents"]


def test_pilot_must_gain_more_than_its_margin(pilot):
    low = find_interval_of_new(judge_pilot(pilot, CHAMPION, SETTINGS, OWN, 0.01)).low

    assert judge_pilot(pilot, CHAMPION, SETTINGS, OWN, low - 1e-5).passed
    assert not judge_pilot(pilot, CHAMPION, SETTINGS, OWN, low).passed
    assert not judge_pilot(pilot, CHAMPION, SETTINGS, OWN, 0.06).passed


def test_pilot_without_gain_names_the_margin():
    verdict = judge_pilot(CHAMPION, CHAMPION, SETTINGS, OWN, 0.01)

    assert not verdict.passed
    assert verdict.reasons[0].startswith("new documents: not better by more than 0.01: nDCG@10")


def test_pilot_counts_each_document_once():
    ids = sorted(NEW)
    gaining = ids[:90]
    # All gaining queries ask for the same document.
    documents = {query: query for query in ids}
    documents.update(dict.fromkeys(gaining, "first"))
    gained = scores("hce", BASE + np.isin(CHAMPION.values.index, gaining) * 0.2)

    own_documents = judge_pilot(gained, CHAMPION, SETTINGS, OWN, 0.01)
    one_document = judge_pilot(gained, CHAMPION, SETTINGS, documents, 0.01)

    assert own_documents.passed
    assert find_interval_of_new(one_document).difference == pytest.approx(0.2 / 11, abs=1e-6)
    assert not one_document.passed


def with_training_queries(retriever_scores, queries):
    """Return the scores with the queries whose documents were asked for in training."""
    return replace(retriever_scores, with_known=frozenset(queries))


def test_verdict_reports_queries_of_training_documents_apart():
    asked = [f"q{i:04}" for i in range(100)]
    gain = np.where(np.arange(SIZE) < 100, 0.2, 0.0)
    challenger = with_training_queries(scores("hce", BASE + gain + noise(6, 0.01)), asked)

    verdict = judge_promotion(challenger, CHAMPION, SETTINGS)

    groups = verdict.by_known_queries
    assert list(groups) == ["with_known", "without_known"]
    assert groups["with_known"][0].difference == pytest.approx(0.2, abs=0.01)
    assert groups["without_known"][0].difference == pytest.approx(0.0, abs=0.01)
    alone = judge_promotion(challenger.restrict_to(asked), CHAMPION.restrict_to(asked), SETTINGS)
    assert groups["with_known"] == alone.intervals
    with_known, without_known = verdict.group_statements
    assert with_known.startswith("documents with known queries: nDCG@10 0.")
    assert with_known.endswith("(100 queries)")
    assert without_known.startswith("documents without known queries: nDCG@10 ")
    assert verdict.statements == (*verdict.reasons, with_known, without_known)
    record = json.loads(json.dumps(asdict(verdict)))
    assert record["by_known_queries"]["with_known"][0]["metric"] == "nDCG@10"


def test_queries_that_only_the_champion_knows_are_a_group():
    champion = with_training_queries(CHAMPION, ["q0000"])

    verdict = judge_promotion(scores("hce", BASE + noise(1)), champion, SETTINGS)

    assert verdict.by_known_queries["with_known"][0].queries == 1


def judge_challenger(challenger):
    return judge_promotion(challenger, CHAMPION, SETTINGS)


def judge_retrained(challenger):
    return judge_retrain(challenger, CHAMPION, SETTINGS, NEW)


@pytest.mark.parametrize("judge", [judge_challenger, judge_retrained])
def test_groups_of_queries_decide_nothing(judge):
    challenger = scores("hce", BASE + 0.03 + noise(1))
    grouped_challenger = with_training_queries(challenger, NEW)

    plain = judge(challenger)
    grouped = judge(grouped_challenger)

    assert set(grouped.by_known_queries) == {"with_known", "without_known"}
    without_groups = replace(grouped, by_known_queries={})
    assert without_groups == replace(plain, by_known_queries={})
