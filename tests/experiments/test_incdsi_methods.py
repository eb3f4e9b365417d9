"""Guards IncDSI's protocol: settings chosen on the tuning split alone, every purpose kept, orders averaged, prefixes of
one run equal to shorter runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from experiments.incdsi_frontier.frontier import BEST, AdditionOrders, Point, choices, frontier, undominated
from experiments.incdsi_frontier.methods import INCDSI, METHODS, PLAIN, SCALED, Method, tried
from model_code.errors import SettingsError
from model_code.incdsi.settings import IncDsiSettings
from model_code.incdsi.state import IncDsiState
from model_code.incdsi.tuning import Split, Trial, TrialBench
from tests.model_code.incdsi.test_tuning import make_split

SMALL = {
    "plain": PLAIN,
    "scaled": SCALED,
    "published": INCDSI,
    "ours": Method(includes=(SCALED, INCDSI), fixed=(IncDsiSettings(prior="encoder", on_conflict="keep"),)),
}


def benches(orders: int = 2, steps: tuple[int, ...] = ()) -> tuple[TrialBench, AdditionOrders]:
    state, tuning, test = two_splits()
    return TrialBench(state, tuning), AdditionOrders(TrialBench(state, test), orders, steps)


def two_splits() -> tuple[IncDsiState, Split, Split]:
    state, split = make_split(new=10)
    halves = []
    for chosen in (slice(0, 4), slice(4, 10)):
        halves.append(
            replace(
                split,
                documents=split.documents[chosen],
                new_queries=split.new_queries[chosen],
                new_targets=split.new_targets[chosen],
            )
        )
    return state, *halves


def points() -> list[Point]:
    return frontier(*benches(3, (2, 100)), methods=SMALL, trials=3)


def test_every_method_at_every_step() -> None:
    found = points()
    assert {(point.method, point.added) for point in found} == {(name, step) for name in SMALL for step in (2, 6)}
    assert {point.chosen_for for point in found if point.method == "ours"} >= {BEST, "loss at most 0.08"}
    assert {point.orders for point in found} == {3}
    row = found[0].row()
    assert row["old_loss_hit_at_1"] == row["before_hit_at_1"] - row["old_hit_at_1"]
    assert all(np.isfinite(value) for value in row.values() if isinstance(value, float))


def test_equal_calls_give_equal_points() -> None:
    assert points() == points()


def test_all_additions_are_what_the_bench_measures() -> None:
    state, _, test = two_splits()
    found = frontier(*benches(), methods={"plain": PLAIN})
    trial = TrialBench(state, test).trial("", PLAIN.fixed[0])
    for point in found:  # plain vectors do not depend on the order
        assert point.old.mrr_at_10 == pytest.approx(trial.old)
        assert point.new.mrr_at_10 == pytest.approx(trial.new)
        assert point.deviations.mrr_at_10 == pytest.approx(0)


def test_the_first_steps_equal_a_shorter_run() -> None:
    state, _, test = two_splits()
    method = {"published": Method(fixed=(IncDsiSettings(gamma1=0.5, gamma2=0.5),))}
    (settings,) = method["published"].fixed
    _, arrivals = benches(2, (3,))
    (old, new), first = arrivals.found(settings, 1)[0], arrivals.orders[1][:3]
    shorter = replace(
        test,
        documents=[test.documents[i] for i in first],
        new_queries=test.new_queries[first],
        new_targets=[test.new_targets[i] for i in first],
    )
    trial = TrialBench(state, shorter).trial("", settings)
    assert (old.mean(), new.mean()) == (trial.old, pytest.approx(trial.new))
    assert sorted(arrivals.orders[1]) == list(arrivals.orders[0]) == list(range(6))


def trial(name: str, old: float, new: float) -> Trial:
    return Trial(name, IncDsiSettings(gamma1=float(name)), old, new, score=old, statuses={})


def test_choices_are_the_best_within_each_loss() -> None:
    trials = [trial("1", 0.50, 0.1), trial("2", 0.485, 0.4), trial("3", 0.47, 0.3), trial("4", 0.3, 0.9)]
    chosen = {purpose: settings.gamma1 for purpose, settings in choices(trials, before=0.5).items()}
    assert chosen == {
        BEST: 1.0,
        "loss at most 0": 1.0,
        "loss at most 0.01": 1.0,
        "loss at most 0.02": 2.0,
        "loss at most 0.04": 2.0,
        "loss at most 0.08": 2.0,
    }
    assert "loss at most 0.02" not in choices(trials[2:], before=0.5)


def test_no_loss_asked_for_gives_the_best_alone() -> None:
    assert list(choices([trial("1", 0.50, 0.1)], before=0.5, losses=())) == [BEST]


def test_undominated_trials_are_those_that_none_beats_twice() -> None:
    trials = [trial("1", 0.3, 0.9), trial("2", 0.5, 0.1), trial("3", 0.4, 0.1), trial("4", 0.5, 0.2)]
    assert [one.settings.gamma1 for one in undominated(trials)] == [4.0, 1.0]


def test_what_a_method_includes_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    state, tuning, _ = two_splits()
    bench = TrialBench(state, tuning)
    apart = tried(INCDSI, bench, 3, seed=0)
    monkeypatch.setattr(bench, "add", lambda *arguments: pytest.fail("tried again"))
    together = tried(Method(includes=(INCDSI,)), bench, 3, seed=0)
    assert together == apart


def test_the_methods_of_the_protocol() -> None:
    assert list(METHODS)[0] == "plain encoding"
    assert {"scaled encoding", "IncDSI as published"} <= METHODS.keys()
    assert all(settings.prior == "encoder" for settings in SCALED.fixed)


def test_all_are_added_in_the_whole_orders_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.incdsi_frontier.frontier.EARLY", 3)
    state, _, test = two_splits()
    arrivals = AdditionOrders(TrialBench(state, test), orders=3, steps=(2, 3), whole=1)
    points = arrivals.points("plain", BEST, PLAIN.fixed[0])
    assert [(point.added, point.orders) for point in points] == [(2, 3), (3, 3), (6, 1)]
    every = AdditionOrders(TrialBench(state, test), orders=3, steps=(2, 3)).points("plain", BEST, PLAIN.fixed[0])
    assert points[:2] == every[:2]


def test_refusals() -> None:
    with pytest.raises(SettingsError, match="must hold"):
        benches(orders=0)
    with pytest.raises(SettingsError, match="must be at least 1"):
        frontier(*benches(), trials=0)
