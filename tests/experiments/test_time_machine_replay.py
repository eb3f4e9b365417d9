"""Replays a tiny stream with real trainings of a tiny encoder: what each policy finds and costs."""

from __future__ import annotations

import random

import pytest

from experiments.time_machine.encodings import EncodingCache, Meter
from experiments.time_machine.policies import PolicySettings
from experiments.time_machine.replay import replay
from experiments.time_machine.stream import (
    KNOWN,
    TESTED,
    Batch,
    Step,
    Stream,
    StreamQuery,
    Text,
)
from model_code.encoding.encoder import Encoder
from tests.tiny_encoder import make_tiny_encoder

WORDS = [f"{first}{second}" for first in "bdfgklm" for second in ("ana", "ero", "ilu", "oki")]
POLICIES = [
    PolicySettings("frozen", "frozen index"),
    PolicySettings("plain", "plain additions", adds=True),
    PolicySettings("told", "with queries", adds=True, tells_queries=True, checks_drift=True),
    PolicySettings("retrain", "retraining", retrains=True),
]


def document(number):
    words = random.Random(number).sample(WORDS, 8)
    return Text(f"entry {number}", " ".join(words))


def make_stream():
    """Forty documents; then one changes, one goes, and two arrive."""
    start = {f"d{number:02}": document(number) for number in range(40)}
    puts = {"d00": document(100), "d40": document(40), "d41": document(41)}
    step = Step("2021", "2021-06-01", [Batch("pack 2", "2021-06-01", puts, ["d01"])])
    queries = []
    for number in range(42):
        name = f"d{number:02}"
        words = document(number).text.split()
        arrival = int(number >= 40)
        role = TESTED if number % 2 == 0 else KNOWN
        text = " ".join(words[:4])
        queries.append(StreamQuery(f"q{number}", text, frozenset([name]), arrival, role, "line"))
    return Stream("tiny", "2020-12-31", start, [step], queries)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("time_machine")
    encoder = make_tiny_encoder(folder / "encoder", [*WORDS, "entry", "0 1 2 3 4 5 6 7 8 9"])
    overrides = [
        "acceptance.min_documents=1",
        "acceptance.max_repeated_query_share=1.0",
        "evaluation.variants=false",
        "corpus.splits.test_share=0.0",
        f"encoder.base={encoder}",
        "encoder.max_tokens=32",
        "training.min_judged_queries=0",
        "training.steps=2",
        "training.batch_size=8",
        "training.frozen_layers=null",
        'retrievers={"hce": {"hierarchy_weight": 0.2, "batches": "siblings"}}',
    ]
    cache = EncodingCache()
    with cache.shared():
        return replay(make_stream(), POLICIES, overrides, 0, folder / "replay", cache)


def test_a_frozen_index_shows_what_is_gone(measured):
    last = measured["frozen"][-1]

    assert last["missing"] == 3
    assert last["stale_hits"] > 0
    assert last["arrived"] == 0.0
    assert last["seconds"] == 0.0
    assert last["lag_seconds"] is None


@pytest.mark.parametrize("policy", ["plain", "told", "retrain"])
def test_other_policies_find_everything(measured, policy):
    last = measured[policy][-1]

    assert last["missing"] == 0
    assert last["stale_hits"] == 0
    assert last["arrived"] > 0
    assert last["lag_seconds"] > 0
    assert last["documents"] == 41


def test_retraining_costs_most(measured):
    costs = {policy: rows[-1]["seconds"] for policy, rows in measured.items()}

    assert max(costs, key=lambda name: costs[name]) == "retrain"


def test_all_policies_start_alike(measured):
    starts = {rows[0]["everything"] for rows in measured.values()}

    assert len(starts) == 1


def test_cached_texts_cost_what_encoding_took(tmp_path):
    encoder = Encoder.load(make_tiny_encoder(tmp_path / "encoder", WORDS), 32)
    texts = [" ".join(WORDS[:6]), WORDS[3]]
    cache = EncodingCache()
    expected, expected_signs = encoder.encode_documents_with_signs(texts)

    with cache.shared():
        first = Meter(cache)
        with first.running():
            encoder.encode_documents_with_signs(texts)
        saved_before = cache.saved_seconds
        vectors, signs = encoder.encode_documents_with_signs([texts[1], texts[0]])

    assert saved_before == 0.0
    assert 0 < cache.saved_seconds <= first.seconds
    assert vectors[::-1].tolist() == expected.tolist()
    assert signs[:1].bits.tolist() == expected_signs[1:].bits.tolist()
