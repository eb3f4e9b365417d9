"""Tests of the experiment that compares ways to add documents to a dsi.

The experiment runs on tiny data. Its splits share no document and no query. Its mathematics is
compared with plain loops.
"""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from experiments.incdsi_frontier import ranks, retraining, run
from experiments.incdsi_frontier.ablations import BETAS, measure_ablations, with_queries
from experiments.incdsi_frontier.encoded import Encoded, encode
from experiments.incdsi_frontier.frontier import (
    BEST_F_BETA,
    AdditionOrders,
    choose_settings,
    select_undominated,
)
from experiments.incdsi_frontier.gates import (
    Difference,
    adding_cost,
    compare_at_equal_loss,
    resample_means,
)
from experiments.incdsi_frontier.learning import AnsweredQueries, learn
from experiments.incdsi_frontier.methods import (
    ENCODED,
    INCDSI,
    METHODS,
    PLAIN,
    SCALED,
    Method,
    try_settings,
)
from experiments.incdsi_frontier.pages import NEW, OLD, TUNING, Pages
from experiments.incdsi_frontier.protocol import Protocol, ProtocolPlan
from experiments.incdsi_frontier.ranks import CachedRanks, ReciprocalRanks
from experiments.incdsi_frontier.retraining import TRAINING_METHODS
from experiments.incdsi_frontier.run import KEYS, main
from experiments.incdsi_frontier.spaces import Space
from experiments.incdsi_frontier.tuning import (
    PUBLISHED,
    WIDE,
    AdditionEvaluator,
    AdditionSettings,
    Split,
    Trial,
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
OLD_COUNT = 30
NEW_COUNT = 30
DAY = "2025-01-01"


def write_collection(folder: Path) -> None:
    """Write a judged collection with dates, later documents first.

    Two documents share a title, and p30 has no train query.
    """
    random = np.random.default_rng(0)
    documents = []
    queries = []
    qrels: dict[str, list[str]] = {"train": [], "dev": [], "test": []}
    for number in reversed(range(OLD_COUNT + NEW_COUNT)):
        words = random.choice(WORDS, 8, replace=False)
        year = 2024 if number < OLD_COUNT else 2025
        documents.append(
            {
                "_id": f"p{number}",
                "title": f"title{number // 2}",
                "text": " ".join(words),
                "date": f"{year}-01-{number % 28 + 1:02d}",
            }
        )
        for split, rows in qrels.items():
            if split == "train" and number == OLD_COUNT:
                continue
            query_id = f"{split}{number}"
            queries.append({"_id": query_id, "text": " ".join(random.choice(words, 3))})
            rows.append(f"{query_id}\tp{number}\t1")

    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text("\n".join(json.dumps(row) for row in documents))
    (folder / "queries.jsonl").write_text("\n".join(json.dumps(row) for row in queries))
    for split, rows in qrels.items():
        lines = ["query-id\tcorpus-id\tscore", *rows]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an encoder and a judged collection."""
    root = tmp_path_factory.mktemp("frontier")
    write_collection(root / "beir")
    make_tiny_encoder(root / "encoder", WORDS)
    return root


@pytest.fixture(scope="module")
def encoded(root: Path) -> Encoded:
    """The collection, encoded; documents from 2025 on are new."""
    return encode(Pages.read(root / "beir", DAY), root / "encoder", 32)


@pytest.fixture(scope="module")
def printed(root: Path) -> str:
    """The output of a small run of the command."""
    output = io.StringIO()
    options = ["--space", "dsi", "--trials", "2", "--orders", "2", "--steps", "5", "--fronts"]
    methods = ["--methods", "plain", "paper", "centred", "ours", "retrain", "tune"]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(output):
        patch.setattr(run, "BASE", str(root / "encoder"))
        patch.setattr(run, "MAX_TOKENS", 32)
        main([str(root / "beir"), *options, *methods])
    return output.getvalue()


@pytest.mark.parametrize(
    "text",
    [
        "30 old documents",
        "before any addition",
        "against plain",
        "added by | old hit@1",
        "ours at the",
    ],
)
def test_command_prints_every_table(printed: str, text: str) -> None:
    assert text in printed


@pytest.mark.parametrize(
    "method", ["retraining on all", "continual fine-tuning (as published)", "plain encoding"]
)
def test_command_prints_chosen_methods(printed: str, method: str) -> None:
    assert f"| {method} | " in printed


def test_command_prints_no_other_method(printed: str) -> None:
    assert "scaled encoding |" not in printed


def test_every_method_can_be_chosen() -> None:
    assert sorted(KEYS.values()) == sorted([*METHODS, *TRAINING_METHODS])


def test_unknown_split_is_refused(root: Path) -> None:
    with pytest.raises(SettingsError, match="date:DAY or share"):
        main([str(root / "beir"), "--split", "thirds"])


def documents_of(pages: Pages, part: str) -> set[str]:
    """Return the ids of the old, tuning or new documents."""
    return {pages.ids[row] for row in pages.rows(part)}


def test_parts_share_no_document(encoded: Encoded) -> None:
    pages = encoded.pages
    old = documents_of(pages, OLD)
    tuning = documents_of(pages, TUNING)
    new = documents_of(pages, NEW)

    assert old | tuning | new == set(pages.ids)
    assert len(old) + len(tuning) + len(new) == len(pages.ids)
    assert all(int(name.removeprefix("p")) < OLD_COUNT for name in old)


@pytest.mark.parametrize(("number", "part"), [(0, TUNING), (1, NEW)])
def test_split_asks_for_its_own_documents(encoded: Encoded, number: int, part: str) -> None:
    split = encoded.splits()[number]

    documents = documents_of(encoded.pages, part)
    assert {document.id for document in split.documents} == documents
    assert set(split.new_targets) == documents


def test_dev_and_test_share_no_query(encoded: Encoded) -> None:
    pages = encoded.pages
    old_ids = pages.ids[: pages.old]

    dev_queries, *_ = pages.queries_for(old_ids, "dev")
    test_queries, *_ = pages.queries_for(old_ids, "test")

    assert not set(dev_queries.tolist()) & set(test_queries.tolist())


def test_sample_keeps_documents_of_one_title_together(root: Path) -> None:
    assert len(Pages.read(root / "beir", DAY, documents=51).ids) == 52


def test_written_queries_are_only_trained_on(encoded: Encoded) -> None:
    pages = encoded.pages

    written = pages.with_text_parts()

    texts = [*written.queries, *written.text_parts]
    train_queries = [texts[row] for row in written.query_rows["train"][written.ids[0]]]
    assert train_queries == constraint_texts("", written.texts[0], 4)
    assert written.query_rows["test"] == pages.query_rows["test"]


def test_day_before_all_documents_is_refused(root: Path) -> None:
    with pytest.raises(SettingsError, match="no document is old"):
        Pages.read(root / "beir", "1999-01-01")


def test_document_without_queries_is_its_own_query(encoded: Encoded) -> None:
    without_query = encoded.row_of[f"p{OLD_COUNT}"]

    queries = encoded.train_queries(without_query)

    np.testing.assert_array_equal(queries, encoded.documents[without_query : without_query + 1])


def test_document_with_queries_is_not_its_own_query(encoded: Encoded) -> None:
    with_query = encoded.row_of[f"p{OLD_COUNT + 1}"]

    assert not np.allclose(encoded.train_queries(with_query), encoded.documents[with_query])


MARGINS = AdditionSettings(gamma1=0.5, gamma2=0.5)


@pytest.fixture
def addition_orders(encoded: Encoded) -> AdditionOrders:
    """Two orders of the test documents, measured after three additions and after all."""
    _, test_split = encoded.splits()
    return AdditionOrders(AdditionEvaluator(Space(encoded).state(), test_split), 2, (3,))


def test_measure_after_some_additions_equals_a_trial(
    encoded: Encoded, addition_orders: AdditionOrders
) -> None:
    _, test_split = encoded.splits()
    documents = [test_split.documents[row] for row in addition_orders.orders[1][:3]]
    ids = {document.id for document in documents}
    asked = [row for row, target in enumerate(test_split.new_targets) if target in ids]
    shorter_split = replace(
        test_split,
        documents=documents,
        new_queries=test_split.new_queries[asked],
        new_targets=[test_split.new_targets[row] for row in asked],
    )

    old_ranks, new_ranks = addition_orders.results(MARGINS, 1)[0]

    trial = AdditionEvaluator(Space(encoded).state(), shorter_split).trial("", MARGINS)
    assert old_ranks.mean() == pytest.approx(trial.old)
    assert new_ranks.mean() == pytest.approx(trial.new)


def test_every_order_has_every_document(encoded: Encoded, addition_orders: AdditionOrders) -> None:
    _, test_split = encoded.splits()
    rows = list(range(len(test_split.documents)))

    assert list(addition_orders.orders[0]) == rows
    assert sorted(addition_orders.orders[1]) == rows


def test_measures_are_reproducible(addition_orders: AdditionOrders) -> None:
    first = addition_orders.points("", BEST_F_BETA, MARGINS)

    assert addition_orders.points("", BEST_F_BETA, MARGINS) == first


def make_trial(number: float, old: float, new: float) -> Trial:
    """Make a trial whose margin is its number."""
    return Trial(str(number), AdditionSettings(gamma1=number), old, new, score=old, statuses={})


TRIALS = [
    make_trial(1, 0.50, 0.1),
    make_trial(2, 0.485, 0.4),
    make_trial(3, 0.47, 0.3),
    make_trial(4, 0.3, 0.9),
]


def test_choices_are_the_best_within_each_loss() -> None:
    chosen = choose_settings(TRIALS, before=0.5)

    margins = {purpose: settings.gamma1 for purpose, settings in chosen.items()}
    assert margins == {
        BEST_F_BETA: 1.0,
        "loss at most 0": 1.0,
        "loss at most 0.01": 1.0,
        "loss at most 0.02": 2.0,
        "loss at most 0.04": 2.0,
        "loss at most 0.08": 2.0,
    }


def test_loss_that_no_trial_keeps_has_no_choice() -> None:
    assert "loss at most 0.02" not in choose_settings(TRIALS[2:], before=0.5)


def test_undominated_trials_are_beaten_by_none() -> None:
    trials = [
        make_trial(1, 0.3, 0.9),
        make_trial(2, 0.5, 0.1),
        make_trial(3, 0.4, 0.1),
        make_trial(4, 0.5, 0.2),
    ]

    assert [trial.settings.gamma1 for trial in select_undominated(trials)] == [4.0, 1.0]


def test_trials_of_an_included_method_are_reused(
    encoded: Encoded, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuning_split, _ = encoded.splits()
    bench = AdditionEvaluator(Space(encoded).state(), tuning_split)
    trials = try_settings(INCDSI, bench, 3, seed=0)

    def fail_to_add(*arguments: object) -> None:
        pytest.fail("try_settings again")

    monkeypatch.setattr(bench, "add", fail_to_add)

    assert try_settings(Method(includes=(INCDSI,)), bench, 3, seed=0) == trials


@pytest.fixture
def protocol(encoded: Encoded) -> Protocol:
    """The protocol for plain and scaled encodings."""
    plan = ProtocolPlan(
        methods={"plain": PLAIN, "scaled": SCALED},
        training_methods={},
        trials=4,
        orders=1,
        steps=(5,),
    )
    return Protocol(Space(encoded), plan)


def test_plain_differs_from_itself_by_nothing(protocol: Protocol) -> None:
    old, new = protocol.compare_with_plain(protocol.points())["plain"]

    assert old.mean == 0.0
    assert new.mean == 0.0


def test_method_meets_its_own_loss(protocol: Protocol) -> None:
    matched = protocol.compare_at_equal_loss(SCALED, SCALED)

    assert matched
    assert all(comparison.met for comparison in matched)


def test_each_beta_has_its_best_trial(protocol: Protocol) -> None:
    evaluator = protocol.arrivals.evaluator
    trials = try_settings(INCDSI, protocol.tuning, 4, 0)

    rows = measure_ablations(protocol, INCDSI)["beta"]

    for beta, row in zip(BETAS, rows, strict=True):
        best = max(trials, key=lambda trial: f_beta(trial.old, trial.new, beta))
        vectors = np.stack([added.vector for added in evaluator.add(best.settings)])
        old_ranks, new_ranks = evaluator.ranks.reciprocal_ranks(vectors)
        np.testing.assert_array_equal(row.ranks[0], old_ranks)
        np.testing.assert_array_equal(row.ranks[1], new_ranks)


def test_number_of_queries_can_be_limited(protocol: Protocol) -> None:
    evaluator = protocol.arrivals.evaluator
    documents = []
    for document in evaluator.split.documents:
        three_queries = np.repeat(document.queries, 3, axis=0) * [[1], [2], [3]]
        documents.append(replace(document, queries=three_queries))
    bench = AdditionEvaluator(evaluator.state, replace(evaluator.split, documents=documents))

    limited = with_queries(bench, 2)

    for document, before in zip(limited.split.documents, documents, strict=True):
        first_queries = before.queries[: len(document.queries)]
        np.testing.assert_array_equal(document.queries, first_queries)


def make_ranks(old: float, new: float) -> ReciprocalRanks:
    """Make reciprocal ranks: 1 for these shares of 200 old and 300 new queries, 0 for the rest."""
    old_ranks = np.arange(200) < old * 200
    new_ranks = np.arange(300) < new * 300
    return ReciprocalRanks(old_ranks.astype(float), new_ranks.astype(float))


def test_interval_covers_95_percent() -> None:
    # There are 400 samples of one distribution, whose mean is 0.1.
    values = np.random.default_rng(1).normal(0.1, 1, (400, 100))
    samples = resample_means(values, samples=300)

    covers_mean = []
    for number in range(400):
        interval = Difference.between(0.0, samples[:, number])
        covers_mean.append(interval.low <= 0.1 and interval.high >= 0.1)

    assert np.mean(covers_mean) >= 0.9
    assert np.mean(covers_mean) <= 0.98


def test_measures_are_resampled_alike() -> None:
    values = np.random.default_rng(1).normal(0.1, 1, (1, 100))

    samples = resample_means(np.concatenate([values, values + 1]), samples=20)

    np.testing.assert_allclose(samples[:, 1] - samples[:, 0], 1)


# Our points on either side of 0.5 for old documents.
OURS = [make_ranks(0.6, 0.2), make_ranks(0.4, 0.8)]


def test_ours_is_interpolated_at_the_papers_loss() -> None:
    paper = make_ranks(0.5, 0.45)

    (comparison,) = compare_at_equal_loss([paper], OURS)

    assert comparison.old == pytest.approx(0.5)
    assert comparison.new == pytest.approx(0.45)
    assert comparison.change.mean == pytest.approx(0.05)
    assert comparison.change.low < 0.05
    assert comparison.change.high > 0.05
    assert comparison.reached
    assert comparison.met


def test_loss_beyond_our_points_is_not_reached() -> None:
    (comparison,) = compare_at_equal_loss([make_ranks(0.7, 0.1)], OURS)

    assert not comparison.reached
    assert not comparison.met


def test_better_new_documents_are_not_met() -> None:
    (comparison,) = compare_at_equal_loss([make_ranks(0.5, 0.9)], OURS)

    assert comparison.reached
    assert not comparison.met


def test_cost_of_adding_is_the_loss_of_old_documents() -> None:
    cost = adding_cost(make_ranks(0.48, 0.0), make_ranks(0.5, 0.0))

    assert cost.mean == pytest.approx(0.02)


def to_unit_rows(vectors: np.ndarray) -> np.ndarray:
    """Divide each row by its norm."""
    return np.float32(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


class LearningCase(NamedTuple):
    """Start vectors of 12 documents, and 48 queries near them."""

    start: np.ndarray
    asking: AnsweredQueries
    # Document of each query.
    targets: np.ndarray


@pytest.fixture
def learning() -> LearningCase:
    """Random documents, and queries near other random vectors of theirs."""
    random = np.random.default_rng(0)
    start = random.standard_normal((12, 8)).astype(np.float32)
    targets = np.arange(48) % 12
    centres = random.standard_normal((12, 8))
    queries = centres[targets] + 0.3 * random.standard_normal((48, 8))
    return LearningCase(
        to_unit_rows(start), AnsweredQueries(to_unit_rows(queries), targets), targets
    )


def test_learning_step_follows_cross_entropy_gradient(learning: LearningCase) -> None:
    start, asking, targets = learning
    settings = DocumentVectorSettings(epochs=1, learning_rate=1e-3, batch_size=48)

    change = learn(start, asking, None, settings) - start

    logits = settings.logit_scale * asking.queries.astype(float) @ start.T.astype(float)
    errors = np.exp(logits)
    errors /= errors.sum(axis=1, keepdims=True)
    errors[np.arange(48), targets] -= 1
    gradient = settings.logit_scale * errors.T @ asking.queries / 48
    # Adam's first step has the sign of the gradient, where this is clearly not 0.
    is_clear = np.abs(gradient) > 1e-3
    assert is_clear.mean() > 0.5
    np.testing.assert_array_equal(np.sign(change[is_clear]), -np.sign(gradient[is_clear]))


def test_learned_vectors_answer_their_queries(learning: LearningCase) -> None:
    start, asking, targets = learning
    settings = DocumentVectorSettings(epochs=20, learning_rate=2e-2, batch_size=16)

    learned = learn(start, asking, None, settings, seed=0)

    answers = (asking.queries @ learned.T).argmax(axis=1)
    assert answers.tolist() == targets.tolist()


def test_learning_is_reproducible(learning: LearningCase) -> None:
    start, asking, _ = learning
    settings = DocumentVectorSettings(epochs=20, learning_rate=2e-2, batch_size=16)

    learned = learn(start, asking, None, settings, seed=0)
    again = learn(start, asking, None, settings, seed=0)

    np.testing.assert_array_equal(learned, again)


def test_dense_retrain_without_new_encoder_only_encodes(encoded: Encoded) -> None:
    space = Space(encoded)
    _, test_split = encoded.splits()
    arrivals = AdditionOrders(AdditionEvaluator(space.state(), test_split), 2, (5,))

    old_ranks, new_ranks = retraining.retrain(space, space.vectors(space.old), encoded.new)

    plain_old_ranks, plain_new_ranks = arrivals.results(ENCODED)[-1]
    np.testing.assert_array_equal(old_ranks, plain_old_ranks)
    np.testing.assert_array_equal(new_ranks, plain_new_ranks)


def make_split(seed: int) -> tuple[IncDsiState, Split]:
    """Make a split in which two queries of each new document are known, and the third judges."""
    state, documents = make_collection(40, 6, seed=seed)
    random = np.random.default_rng(seed)
    vectors = state.vectors.view
    split = Split(
        documents=[replace(document, queries=document.queries[:2]) for document in documents],
        old_queries=vectors + 0.2 * random.normal(size=vectors.shape),
        old_targets=list(state.ids),
        new_queries=np.stack([document.queries[2] for document in documents]),
        new_targets=[document.id for document in documents],
    )
    return state, split


def reciprocal_rank(scores: np.ndarray, target: int) -> float:
    """Return 1 / rank of the target, or 0 beyond rank 10; an earlier row wins a tie."""
    higher = (scores > scores[target]).sum()
    earlier_ties = (scores[:target] == scores[target]).sum()
    rank = 1 + higher + earlier_ties
    return 1 / rank if rank <= 10 else 0.0


def mean_reciprocal_rank(state: IncDsiState, queries: np.ndarray, targets: list[str]) -> float:
    """Return MRR@10 of queries with one answer each."""
    scores = np.float32(queries) @ state.vectors.view.T
    rows = [state.row(target) for target in targets]
    values = [reciprocal_rank(row, target) for row, target in zip(scores, rows, strict=True)]
    return float(np.mean(values))


def test_trial_equals_adding_and_searching() -> None:
    state, split = make_split(seed=3)

    trial = AdditionEvaluator(state, split).trial("one", MARGINS)

    documents = [MARGINS.with_prior(document) for document in split.documents]
    IncDsiAdder(state, MARGINS.solver_settings).add_batch(documents)
    old = mean_reciprocal_rank(state, split.old_queries, split.old_targets)
    new = mean_reciprocal_rank(state, split.new_queries, split.new_targets)
    assert trial.old == pytest.approx(old)
    assert trial.new == pytest.approx(new)
    assert trial.score == f_beta(trial.old, trial.new)


def test_trial_without_documents_is_refused() -> None:
    state, split = make_split(seed=3)

    with pytest.raises(SettingsError, match="needs documents to add"):
        AdditionEvaluator(state, replace(split, documents=[]))


def test_f_beta_weighs_old_documents_more() -> None:
    assert f_beta(0.8, 0.2) > f_beta(0.7, 0.9)
    assert f_beta(0.8, 0.2, beta=1.0) < f_beta(0.7, 0.9, beta=1.0)
    assert f_beta(0.3, 0.6, beta=1.0) == pytest.approx(2 / (1 / 0.3 + 1 / 0.6))


def test_optuna_finds_the_better_region() -> None:
    """The study learns: later trials are nearer to a known best than the first, random ones."""
    study = open_study(seed=0)

    distances = []
    for _ in range(60):
        trial = study.ask()
        distance = abs(suggest(trial, PUBLISHED)["gamma1"] - 3.0)
        distances.append(distance)
        study.tell(trial, -distance)

    assert np.mean(distances[-20:]) < 0.5 * np.mean(distances[:10])


def test_every_dimension_is_a_setting() -> None:
    values = suggest(open_study(seed=0).ask(), WIDE)

    settings = AdditionSettings().replace(**values)

    for name, value in values.items():
        assert getattr(settings, name) == value
    assert values.keys() == WIDE.keys()


def draw_whole_numbers(random: np.random.Generator, count: int) -> np.ndarray:
    """Draw vectors of three whole numbers, whose products have many ties."""
    return random.integers(-2, 3, (count, 3)).astype(np.float32)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("added", [0, 1, 4, 9])
def test_cached_ranks_equal_ranking_everything(
    seed: int, added: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "QUERIES_PER_BLOCK", 7)
    random = np.random.default_rng(seed)
    old = draw_whole_numbers(random, 5 + 20 * seed)
    new = draw_whole_numbers(random, 9)
    old_queries = draw_whole_numbers(random, 30)
    new_queries = draw_whole_numbers(random, 25)
    old_targets = random.integers(len(old), size=30)
    new_targets = random.integers(9, size=25)
    cached = CachedRanks(old, old_queries, old_targets, new_queries, new_targets)
    present = random.permutation(9)[:added]

    old_ranks, new_ranks = cached.reciprocal_ranks(new[present], present)

    vectors = np.concatenate([old, new[present]])
    expected_old_ranks = []
    for query, target in zip(old_queries, old_targets, strict=True):
        expected_old_ranks.append(reciprocal_rank(vectors @ query, target))
    row_of_new = {number: len(old) + place for place, number in enumerate(present)}
    expected_new_ranks = []
    for query, target in zip(new_queries, new_targets, strict=True):
        if target in row_of_new:
            expected_new_ranks.append(reciprocal_rank(vectors @ query, row_of_new[target]))
    np.testing.assert_array_equal(old_ranks, expected_old_ranks)
    np.testing.assert_array_equal(new_ranks, expected_new_ranks)
