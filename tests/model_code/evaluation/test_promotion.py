"""Guards the promotion gate: passing, each way to be refused, and the rate of false passes."""

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
    recall = np.full(size, 0.9) if recall is None else recall
    index = [f"q{i:04}" for i in range(size)]
    return SystemScores(
        system, "test", pd.DataFrame({"nDCG@10": ndcg, "R@100": recall}, index=index)
    )


def noise(seed, spread=0.1, size=SIZE):
    return np.random.default_rng(seed).normal(0, spread, size)


BASE = np.random.default_rng(0).uniform(0.3, 0.7, SIZE)
CHAMPION = scores("champion", BASE)


def test_clear_gain_passes():
    verdict = judge_promotion(scores("hce", BASE + 0.03 + noise(1)), CHAMPION, SETTINGS)
    assert verdict.passed
    assert verdict.reasons[0].startswith("better: nDCG@10 0.")
    assert verdict.queries == SIZE
    gain = verdict.intervals[0]
    assert gain.metric == "nDCG@10"
    assert 0 < gain.low < gain.difference < gain.high
    at_90_percent = 2 * 1.645 * noise(1).std() / np.sqrt(SIZE)
    assert gain.high - gain.low == pytest.approx(at_90_percent, rel=0.06), "1 - 2 alpha"
    record = json.loads(json.dumps(asdict(verdict)))
    assert record["passed"] is True
    assert [row["metric"] for row in record["intervals"]] == ["nDCG@10", "R@100"]
    assert record["reasons"] == list(verdict.reasons)


# The spread is so large that nobody can tell whether this recall fell.
LATE = 0.9 + noise(5, spread=0.4)


@pytest.mark.parametrize(
    ("ndcg", "recall", "reasons"),
    [
        (BASE, None, ["not better"]),
        # a gain within the noise
        (BASE + 0.0005 + noise(3) - noise(3).mean(), None, ["not better"]),
        # a loss within the margin, but certain
        (BASE + 0.03, np.where(np.arange(SIZE) < 8, 0.4, 0.9), ["worse"]),
        (BASE + 0.03, LATE - LATE.mean() + 0.9, ["may be worse"]),
        (BASE - 0.05, np.full(SIZE, 0.8), ["not better", "worse", "worse"]),
    ],
)
def test_refusals_are_named(ndcg, recall, reasons):
    verdict = judge_promotion(scores("hce", ndcg, recall), CHAMPION, SETTINGS)
    assert not verdict.passed
    assert [reason.split(":")[0] for reason in verdict.reasons] == reasons
    if reasons == ["may be worse"]:
        assert judge_promotion(
            scores("hce", ndcg, recall), CHAMPION, SETTINGS.replace(margin=0.1)
        ).passed


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


def test_the_first_retriever_passes():
    for verdict in (
        judge_promotion(CHAMPION, None, SETTINGS),
        judge_retrain(CHAMPION, None, SETTINGS, NEW),
    ):
        assert (verdict.passed) is True
        assert verdict.reasons == ("there is no champion yet",)


def test_challengers_without_effect_seldom_pass():
    """Better needs p < alpha two-sided on the side of a gain: alpha / 2 of challengers without any
    effect.
    """
    settings = PromotionSettings(
        metric="nDCG@10", protected=(), bootstrap_samples=100, permutations=499
    )
    champion = scores("champion", BASE[:60], size=60)
    passed = [
        judge_promotion(
            scores("hce", BASE[:60] + noise(seed, size=60), size=60), champion, settings
        ).passed
        for seed in range(200)
    ]
    assert np.mean(passed) <= 0.06


def test_missing_scores_are_refused():
    with pytest.raises(FreshetError, match="no scores for MAP: add them to evaluation.metrics"):
        judge_promotion(CHAMPION, CHAMPION, SETTINGS.replace(protected=("MAP",)))
    nobody = scores("hce", BASE[:0], size=0)
    with pytest.raises(FreshetError, match="no judged queries"):
        judge_promotion(nobody, nobody, SETTINGS)


NEW = frozenset(f"q{i:04}" for i in range(300, SIZE))
OLD_GAIN = np.arange(SIZE) < 300
NEW_GAIN = np.arange(SIZE) >= 300


def opened_by(verdict):
    return [reason.split(": nDCG")[0] for reason in verdict.reasons]


def test_retrain_must_gain_on_new_documents():
    gained = scores("hce", BASE + NEW_GAIN * 0.1 + noise(4, 0.02))
    verdict = judge_retrain(gained, CHAMPION, SETTINGS, NEW)
    assert verdict.passed
    assert verdict.reasons[0].startswith("new documents: better: nDCG@10")
    assert [row.metric for row in verdict.intervals] == [
        "nDCG@10 (old documents)",
        "R@100 (old documents)",
        "nDCG@10 (new documents)",
        "R@100 (new documents)",
    ]
    helped = scores("hce", BASE + OLD_GAIN * 0.1 + noise(4, 0.02))
    assert judge_promotion(helped, CHAMPION, SETTINGS).passed, "else what follows shows nothing"
    assert opened_by(judge_retrain(helped, CHAMPION, SETTINGS, NEW)) == [
        "new documents: not better"
    ]
    forgetful = scores("hce", BASE + NEW_GAIN * 0.3 - OLD_GAIN * 0.05 + noise(4, 0.02))
    assert opened_by(judge_retrain(forgetful, CHAMPION, SETTINGS, NEW)) == ["old documents: worse"]


@pytest.mark.parametrize(
    ("new", "group"), [(frozenset(), "new"), (frozenset(CHAMPION.values.index), "old")]
)
def test_retrain_without_new_or_old_queries(new, group):
    better = scores("hce", BASE + 0.03 + noise(1))
    verdict = judge_retrain(better, CHAMPION, SETTINGS, new)
    assert verdict.passed
    assert verdict.reasons[0].startswith(f"no judged query asks for one of the {group} documents")
    assert verdict.intervals == judge_promotion(better, CHAMPION, SETTINGS).intervals


# Each new document has one query.
OWN = {query: query for query in NEW}


def of_new(verdict):
    return next(row for row in verdict.intervals if row.metric == "nDCG@10 (new documents)")


def test_pilot_must_gain_more_than_its_margin():
    gained = scores("hce", BASE + np.where(NEW_GAIN, 0.05, -0.1) + noise(21, 0.02))
    verdict = judge_pilot(gained, CHAMPION, SETTINGS, OWN, 0.01)
    assert (verdict.passed) is True
    assert verdict.queries == len(NEW)
    assert opened_by(verdict) == ["new documents: better", "old documents"]
    low = of_new(verdict).low
    for margin, passes in ((low - 1e-5, True), (low, False), (0.06, False)):
        assert judge_pilot(gained, CHAMPION, SETTINGS, OWN, margin).passed == passes
    same = judge_pilot(CHAMPION, CHAMPION, SETTINGS, OWN, 0.01)
    assert not same.passed
    assert same.reasons[0].startswith("new documents: not better by more than 0.01: nDCG@10")


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
    assert of_new(one_document).difference == pytest.approx(0.2 / 11, abs=1e-6)
    assert not one_document.passed


def with_training_queries(retriever_scores, asked):
    return replace(retriever_scores, asked_in_training=frozenset(asked))


def test_verdict_reports_queries_of_training_documents_apart():
    asked = [f"q{i:04}" for i in range(100)]
    gain = np.where(np.arange(SIZE) < 100, 0.2, 0.0)
    challenger = with_training_queries(scores("hce", BASE + gain + noise(6, 0.01)), asked)

    verdict = judge_promotion(challenger, CHAMPION, SETTINGS)

    groups = verdict.by_training_documents
    assert list(groups) == ["asked_in_training", "not_asked_in_training"]
    assert groups["asked_in_training"][0].difference == pytest.approx(0.2, abs=0.01)
    assert groups["not_asked_in_training"][0].difference == pytest.approx(0.0, abs=0.01)
    alone = judge_promotion(
        challenger.restrict_to(asked), CHAMPION.restrict_to(asked), SETTINGS
    ).intervals
    assert groups["asked_in_training"] == alone
    record = json.loads(json.dumps(asdict(verdict)))
    assert record["by_training_documents"]["asked_in_training"][0]["metric"] == "nDCG@10"


def test_groups_of_queries_decide_nothing():
    better = scores("hce", BASE + 0.03 + noise(1))
    grouped = with_training_queries(better, NEW)

    verdicts = [judge_promotion(one, CHAMPION, SETTINGS) for one in (better, grouped)]
    retrains = [judge_retrain(one, CHAMPION, SETTINGS, NEW) for one in (better, grouped)]

    for plain, apart in (verdicts, retrains):
        assert replace(apart, by_training_documents={}) == replace(plain, by_training_documents={})
    assert set(retrains[1].by_training_documents) == {"asked_in_training", "not_asked_in_training"}
