"""Guards IncDSI's protocol: it runs on tiny data, no part sees another's documents or queries, and
its mathematics.

Run: python -m pytest tests/experiments/test_incdsi_frontier.py
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.incdsi_frontier import ranks, retraining, run
from experiments.incdsi_frontier.ablations import BETAS, ablations, with_queries
from experiments.incdsi_frontier.encoded import Encoded, encode
from experiments.incdsi_frontier.frontier import BEST, AdditionOrders, choices, undominated
from experiments.incdsi_frontier.gates import Difference, adding_cost, at_matched_loss, resampled
from experiments.incdsi_frontier.learning import Asking, learn
from experiments.incdsi_frontier.methods import (
    ENCODED,
    INCDSI,
    METHODS,
    PLAIN,
    SCALED,
    Method,
    tried,
)
from experiments.incdsi_frontier.pages import NEW, OLD, TUNING, Pages
from experiments.incdsi_frontier.protocol import Protocol, ProtocolPlan
from experiments.incdsi_frontier.ranks import CachedRanks
from experiments.incdsi_frontier.retraining import WAYS
from experiments.incdsi_frontier.run import KEYS, main
from experiments.incdsi_frontier.spaces import Space
from experiments.incdsi_frontier.tuning import (
    PUBLISHED,
    WIDE,
    Split,
    Trial,
    TrialBench,
    Way,
    f_beta,
    open_study,
    suggest,
)
from model_code.dsi.settings import DocumentVectorSettings
from model_code.errors import SettingsError
from model_code.incdsi.adder import IncDsiAdder
from model_code.incdsi.state import IncDsiState
from model_code.incdsi.store import constraint_texts
from tests.model_code.incdsi.small import make_collection
from tests.tiny_encoder import make_tiny_encoder

WORDS = [f"word{i}" for i in range(40)]
OLD_COUNT = NEW_COUNT = 30
DAY = "2025-01-01"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder and a judged collection with dates: later ones first, two share a title, p30 has
    no train query.
    """
    root, random = tmp_path_factory.mktemp("frontier"), np.random.default_rng(0)
    (root / "beir" / "qrels").mkdir(parents=True)
    documents, queries, qrels = [], [], {"train": [], "dev": [], "test": []}
    for number in range(OLD_COUNT + NEW_COUNT)[::-1]:
        own = random.choice(WORDS, 8, replace=False)
        date = f"{2024 if number < OLD_COUNT else 2025}-01-{number % 28 + 1:02d}"
        documents.append(
            {
                "_id": f"p{number}",
                "title": f"title{number // 2}",
                "text": " ".join(own),
                "date": date,
            }
        )
        for split in qrels:
            if split != "train" or number != OLD_COUNT:
                queries.append({"_id": f"{split}{number}", "text": " ".join(random.choice(own, 3))})
                qrels[split].append(f"{split}{number}\tp{number}\t1")
    for name, rows in (("corpus", documents), ("queries", queries)):
        (root / "beir" / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for split, rows in qrels.items():
        (root / "beir" / "qrels" / f"{split}.tsv").write_text(
            "\n".join(["query-id\tcorpus-id\tscore", *rows])
        )
    make_tiny_encoder(root / "encoder", WORDS)
    return root


@pytest.fixture(scope="module")
def encoded(root: Path) -> Encoded:
    return encode(Pages.read(root / "beir", DAY), root / "encoder", 32)


def test_the_command_prints_every_table(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "BASE", str(root / "encoder"))
    monkeypatch.setattr(run, "MAX_TOKENS", 32)
    words = [
        str(root / "beir"),
        "--space",
        "dsi",
        "--trials",
        "2",
        "--orders",
        "2",
        "--steps",
        "5",
        "--fronts",
    ]
    main([*words, "--methods", "plain", "paper", "centred", "ours", "retrain", "tune"])
    said = capsys.readouterr().out
    for part in (
        "30 old documents",
        "before any addition",
        "against plain",
        "added by | old hit@1",
        "ours at the",
    ):
        assert part in said
    for method in ("retraining on all", "continual fine-tuning (as published)", "plain encoding"):
        assert f"| {method} | " in said
    assert "scaled encoding |" not in said
    assert sorted(KEYS.values()) == sorted([*METHODS, *WAYS])
    with pytest.raises(SettingsError, match="date:DAY or share"):
        main([str(root / "beir"), "--split", "thirds"])


def test_parts_share_no_document_or_query(root: Path, encoded: Encoded) -> None:
    pages = encoded.pages
    parts = [{pages.ids[row] for row in pages.rows(part)} for part in (OLD, TUNING, NEW)]
    assert sum(map(len, parts)) == len(set().union(*parts)) == len(pages.ids)
    assert {int(name[1:]) < OLD_COUNT for name in parts[0]} == {True}
    tuning, test = encoded.splits()
    assert [{one.id for one in split.documents} for split in (tuning, test)] == parts[1:]
    assert [set(split.new_targets) for split in (tuning, test)] == parts[1:]
    numbers = [
        set(pages.of(pages.ids[: pages.old], split)[0].tolist()) for split in ("dev", "test")
    ]
    assert not numbers[0] & numbers[1]
    assert len(Pages.read(root / "beir", DAY, documents=51).ids) == 52, "two of each title"
    written = pages.with_written()
    own = [
        [*written.queries, *written.written][row] for row in written.asked["train"][written.ids[0]]
    ]
    assert own == constraint_texts("", written.texts[0], 4)
    assert written.asked["test"] == pages.asked["test"], "what is measured is never written"
    with pytest.raises(SettingsError, match="no document is old"):
        Pages.read(root / "beir", "1999-01-01")


def test_a_document_without_queries_is_its_own(encoded: Encoded) -> None:
    alone, asked = (encoded.number[f"p{OLD_COUNT + i}"] for i in range(2))
    np.testing.assert_array_equal(encoded.asks(alone), encoded.documents[alone : alone + 1])
    assert not np.allclose(encoded.asks(asked), encoded.documents[asked])


def test_learning_is_reproducible_step_by_step(
    encoded: Encoded,
) -> None:
    state, (_, test) = Space(encoded).state(), encoded.splits()
    settings = Way(gamma1=0.5, gamma2=0.5)
    arrivals = AdditionOrders(TrialBench(state, test), 2, (3,))
    old, new = arrivals.found(settings, 1)[0]
    first = {test.documents[i].id for i in arrivals.orders[1][:3]}
    documents = [test.documents[i] for i in arrivals.orders[1][:3]]
    asked = [number for number, target in enumerate(test.new_targets) if target in first]
    queries, targets = test.new_queries[asked], [test.new_targets[i] for i in asked]
    shorter = replace(test, documents=documents, new_queries=queries, new_targets=targets)
    trial = TrialBench(state, shorter).trial("", settings)
    assert (old.mean(), new.mean()) == (pytest.approx(trial.old), pytest.approx(trial.new))
    assert (
        sorted(arrivals.orders[1]) == list(arrivals.orders[0]) == list(range(len(test.documents)))
    )
    assert arrivals.points("", BEST, settings) == arrivals.points("", BEST, settings)


def test_choices_are_the_best_within_each_loss_and_undominated_ones_are_beaten_by_none() -> None:
    def trial(name: float, old: float, new: float) -> Trial:
        return Trial(str(name), Way(gamma1=name), old, new, score=old, statuses={})

    trials = [trial(1, 0.50, 0.1), trial(2, 0.485, 0.4), trial(3, 0.47, 0.3), trial(4, 0.3, 0.9)]
    chosen = {purpose: settings.gamma1 for purpose, settings in choices(trials, before=0.5).items()}
    within = {"0": 1.0, "0.01": 1.0, "0.02": 2.0, "0.04": 2.0, "0.08": 2.0}
    assert chosen == {BEST: 1.0} | {f"loss at most {loss}": name for loss, name in within.items()}
    assert "loss at most 0.02" not in choices(trials[2:], before=0.5)
    trials = [trial(1, 0.3, 0.9), trial(2, 0.5, 0.1), trial(3, 0.4, 0.1), trial(4, 0.5, 0.2)]
    assert [one.settings.gamma1 for one in undominated(trials)] == [4.0, 1.0]


def test_what_a_method_includes_is_tried_once(
    encoded: Encoded, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = TrialBench(Space(encoded).state(), encoded.splits()[0])
    apart = tried(INCDSI, bench, 3, seed=0)
    monkeypatch.setattr(bench, "add", lambda *arguments: pytest.fail("tried again"))
    assert tried(Method(includes=(INCDSI,)), bench, 3, seed=0) == apart


def test_plain_differs_from_itself_by_nothing_and_each_beta_has_what_it_likes_best(
    encoded: Encoded,
) -> None:
    plan = ProtocolPlan(
        methods={"plain": PLAIN, "scaled": SCALED}, ways={}, trials=4, orders=1, steps=(5,)
    )
    protocol = Protocol(Space(encoded), plan)
    old, new = protocol.against_plain(protocol.points())["plain"]
    assert (old.mean, new.mean) == (0.0, 0.0)
    assert all(one.met for one in protocol.matched(SCALED, SCALED))
    trials, judge = tried(INCDSI, protocol.bench, 4, 0), protocol.arrivals.judge
    for beta, row in zip(BETAS, ablations(protocol, INCDSI)["beta"], strict=True):
        best = max(trials, key=lambda one: f_beta(one.old, one.new, beta))
        vectors = np.stack([one.vector for one in judge.add(best.settings)])
        for ours, theirs in zip(row.found, judge.ranks.reciprocal_ranks(vectors), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    three = [
        replace(one, queries=np.repeat(one.queries, 3, axis=0) * [[1], [2], [3]])
        for one in judge.split.documents
    ]
    cut = with_queries(TrialBench(judge.state, replace(judge.split, documents=three)), 2)
    for fewer, before in zip(cut.split.documents, three, strict=True):
        np.testing.assert_array_equal(fewer.queries, before.queries[: len(fewer.queries)])


def found_by(old: float, new: float) -> tuple[np.ndarray, np.ndarray]:
    """Reciprocal ranks, 1 for these shares of 200 and 300 queries and 0 for the rest."""
    return (np.arange(200) < old * 200).astype(float), (np.arange(300) < new * 300).astype(float)


def test_interval_covers_95_percent_with_paired_resampling() -> None:
    # many samples of one distribution, resampled alike
    values = np.random.default_rng(1).normal(0.1, 1, (400, 100))
    samples = resampled(values, samples=300)
    found = [Difference.between(0.0, samples[:, number]) for number in range(400)]
    assert 0.9 <= np.mean([one.low <= 0.1 <= one.high for one in found]) <= 0.98
    both = resampled(np.concatenate([values[:1], values[:1] + 1]), samples=20)
    np.testing.assert_allclose(both[:, 1] - both[:, 0], 1)


def test_ours_is_interpolated_at_the_papers_old_documents_and_met_only_where_it_is_kept() -> None:
    (one,) = at_matched_loss([found_by(0.5, 0.45)], [found_by(0.6, 0.2), found_by(0.4, 0.8)])
    assert (one.old, one.new) == (pytest.approx(0.5), pytest.approx(0.45))
    assert one.change.mean == pytest.approx(0.05)
    assert one.change.low < 0.05 < one.change.high
    assert (one.reached, one.met) == (True, True)
    above, below = at_matched_loss(
        [found_by(0.7, 0.1), found_by(0.5, 0.9)], [found_by(0.6, 0.2), found_by(0.4, 0.8)]
    )
    assert [(one.reached, one.met) for one in (above, below)] == [(False, False), (True, False)]
    assert adding_cost(found_by(0.48, 0.0), found_by(0.5, 0.0)).mean == pytest.approx(0.02)


def test_learning_step_follows_cross_entropy_gradient() -> None:
    random, count = np.random.default_rng(0), 12
    start = random.standard_normal((count, 8)).astype(np.float32)
    start /= np.linalg.norm(start, axis=1, keepdims=True)
    targets = np.arange(48) % count
    queries = random.standard_normal((count, 8))[targets] + 0.3 * random.standard_normal((48, 8))
    asking = Asking(np.float32(queries / np.linalg.norm(queries, axis=1, keepdims=True)), targets)
    settings = DocumentVectorSettings(epochs=1, learning_rate=1e-3, batch_size=48)
    moved = learn(start, asking, None, settings) - start
    chances = np.exp(settings.logit_scale * asking.queries.astype(float) @ start.T.astype(float))
    chances /= chances.sum(axis=1, keepdims=True)
    chances[np.arange(48), targets] -= 1
    gradient = settings.logit_scale * chances.T @ asking.queries / 48
    certain = np.abs(gradient) > 1e-3  # Adam's first step is the gradient's sign times the rate
    assert certain.mean() > 0.5
    np.testing.assert_array_equal(np.sign(moved[certain]), -np.sign(gradient[certain]))
    longer = DocumentVectorSettings(epochs=20, learning_rate=2e-2, batch_size=16)
    learned, again = (learn(start, asking, None, longer, seed=0) for _ in range(2))
    np.testing.assert_array_equal(learned, again)
    assert (asking.queries @ learned.T).argmax(axis=1).tolist() == targets.tolist()


def test_dense_retrain_without_new_encoder_only_encodes(
    encoded: Encoded,
) -> None:
    space = Space(encoded)
    arrivals = AdditionOrders(TrialBench(space.state(), encoded.splits()[1]), 2, (5,))
    ours = retraining.retrain(space, space.vectors(space.old), encoded.new)
    for own, plain in zip(ours, arrivals.found(ENCODED)[-1], strict=True):
        np.testing.assert_array_equal(own, plain)


def make_split(seed: int) -> tuple[IncDsiState, Split]:
    """Two queries each of three are known; the third is the one that judges."""
    state, documents = make_collection(40, 6, seed=seed)
    random = np.random.default_rng(seed)
    asked = state.vectors.view + 0.2 * random.normal(size=state.vectors.view.shape)
    return state, Split(
        documents=[replace(document, queries=document.queries[:2]) for document in documents],
        old_queries=asked,
        old_targets=list(state.ids),
        new_queries=np.stack([document.queries[2] for document in documents]),
        new_targets=[document.id for document in documents],
    )


def test_a_trial_is_what_adding_and_searching_gives() -> None:
    state, split = make_split(seed=3)
    settings = Way(gamma1=0.5, gamma2=0.5)
    trial = TrialBench(state, split).trial("one", settings)
    IncDsiAdder(state, settings.incdsi).add_batch(
        [settings.pulled(document) for document in split.documents]
    )

    def mrr(queries: np.ndarray, targets: list[str]) -> float:
        scores = np.float32(queries) @ state.vectors.view.T
        places = [state.row(key) for key in targets]  # the older of two equals comes first
        rank = [
            1 + (row > row[place]).sum() + (row[:place] == row[place]).sum()
            for row, place in zip(scores, places, strict=True)
        ]
        return float(np.mean([1 / one if one <= 10 else 0.0 for one in rank]))

    assert trial.old == pytest.approx(mrr(split.old_queries, split.old_targets))
    assert trial.new == pytest.approx(mrr(split.new_queries, split.new_targets))
    assert trial.score == f_beta(trial.old, trial.new)
    with pytest.raises(SettingsError, match="needs documents to add"):
        TrialBench(state, replace(split, documents=[]))


def test_f_beta_weighs_old_documents_more() -> None:
    assert f_beta(0.8, 0.2) > f_beta(0.7, 0.9)
    assert f_beta(0.8, 0.2, beta=1.0) < f_beta(0.7, 0.9, beta=1.0)
    assert f_beta(0.3, 0.6, beta=1.0) == pytest.approx(2 / (1 / 0.3 + 1 / 0.6))


def test_optuna_finds_the_better_region() -> None:
    """The study learns: later trials are nearer to a known best than the first, random ones."""
    study, away = open_study(seed=0), []
    for _ in range(60):
        trial = study.ask()
        values = suggest(trial, PUBLISHED)
        away.append(abs(values["gamma1"] - 3.0))
        study.tell(trial, -away[-1])
    assert np.mean(away[-20:]) < 0.5 * np.mean(away[:10])


def test_every_dimension_is_a_setting() -> None:
    values = suggest(open_study(seed=0).ask(), WIDE)
    assert values.keys() == WIDE.keys()
    Way().replace(**values)


def reciprocal_rank(query: np.ndarray, vectors: np.ndarray, target: int) -> float:
    scores = (vectors @ query).tolist()
    rank = 1 + sum(
        score > scores[target] or (score == scores[target] and i < target)
        for i, score in enumerate(scores)
    )
    return 1 / rank if rank <= 10 else 0.0


@pytest.mark.parametrize("seed", range(4))
def test_equal_to_ranking_everything_anew(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "BLOCK", 7)
    random = np.random.default_rng(seed)
    # many ties
    old, new = (
        random.integers(-2, 3, (count, 3)).astype(np.float32) for count in (5 + 20 * seed, 9)
    )
    old_queries, new_queries = (
        random.integers(-2, 3, (count, 3)).astype(np.float32) for count in (30, 25)
    )
    old_targets, new_targets = random.integers(len(old), size=30), random.integers(9, size=25)
    cached = CachedRanks(old, old_queries, old_targets, new_queries, new_targets)
    order = random.permutation(9)
    for count in (0, 1, 4, 9):
        present = order[:count]
        found = cached.reciprocal_ranks(new[present], present)
        together = np.concatenate([old, new[present]])
        of_old = [
            reciprocal_rank(*pair)
            for pair in zip(old_queries, [together] * 30, old_targets, strict=True)
        ]
        places = {number: len(old) + place for place, number in enumerate(present)}
        of_new = [
            reciprocal_rank(query, together, places[target])
            for query, target in zip(new_queries, new_targets, strict=True)
            if target in places
        ]
        np.testing.assert_array_equal(found[0], of_old)
        np.testing.assert_array_equal(found[1], of_new)
