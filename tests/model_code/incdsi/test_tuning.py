"""Guards the choice of settings: seeded, silent, never below a baseline on its split, with scores that repeat."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest

from model_code.errors import SettingsError
from model_code.incdsi.adder import IncDsiAdder
from model_code.incdsi.documents import NewDocument
from model_code.incdsi.settings import IncDsiSettings
from model_code.incdsi.state import IncDsiState
from model_code.incdsi.tuning import PUBLISHED, WIDE, Split, TrialBench, f_beta, open_study, suggest, tune
from tests.model_code.incdsi.small import make


def make_split(seed: int = 0, old: int = 40, new: int = 6) -> tuple[IncDsiState, Split]:
    """Two queries each of three are known; the third is the one that judges."""
    state, documents = make(old, new, seed=seed)
    random = np.random.default_rng(seed)
    asked = state.vectors.view + 0.2 * random.normal(size=state.vectors.view.shape)
    return state, Split(
        documents=[replace(document, queries=document.queries[:2]) for document in documents],
        old_queries=asked,
        old_targets=list(state.ids),
        new_queries=np.stack([document.queries[2] for document in documents]),
        new_targets=[document.id for document in documents],
    )


def test_baselines_come_first_and_nothing_is_changed() -> None:
    state, split = make_split()
    report = tune(state, split, trials=4)
    names = [trial.name for trial in report.trials]
    assert names[0] == "encoder vector"
    assert names[-4:] == ["trial 1", "trial 2", "trial 3", "trial 4"]
    assert report.best.score == max(trial.score for trial in report.trials)
    assert (len(state), state.won) == (40, None)
    assert sum(report.rows()[-1]["statuses"].values()) == 6


def test_equal_seeds_give_equal_reports_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    state, split = make_split()
    with caplog.at_level(logging.INFO):
        first, second, other = (tune(state, split, trials=5, seed=seed) for seed in (1, 1, 2))
    assert first == second
    assert first.trials != other.trials
    assert not caplog.records


def test_a_trial_is_what_adding_and_searching_gives() -> None:
    state, split = make_split(seed=3)
    settings = IncDsiSettings(gamma1=0.5, gamma2=0.5)
    trial = TrialBench(state, split).trial("one", settings)
    IncDsiAdder(state, settings).add_batch(split.documents)

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


def test_f_beta_weighs_old_documents_more() -> None:
    assert f_beta(0.8, 0.2) > f_beta(0.7, 0.9)
    assert f_beta(0.8, 0.2, beta=1.0) < f_beta(0.7, 0.9, beta=1.0)
    assert f_beta(0.3, 0.6, beta=1.0) == pytest.approx(2 / (1 / 0.3 + 1 / 0.6))


def test_without_encodings_only_the_papers_prior_is_tried() -> None:
    state, split = make_split()
    bare = replace(split, documents=[NewDocument(one.id, one.queries) for one in split.documents])
    report = tune(state, bare, trials=3)
    assert [trial.name for trial in report.trials] == ["mean query", "trial 1", "trial 2", "trial 3"]
    assert {trial.settings.prior for trial in report.trials[1:]} == {"zero"}


def test_an_empty_split_is_refused() -> None:
    state, split = make_split()
    with pytest.raises(SettingsError, match="needs documents to add"):
        tune(state, replace(split, documents=[]), trials=1)
    with pytest.raises(SettingsError, match="trials is -1"):
        tune(state, split, trials=-1)


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
    trial = open_study(seed=0).ask()
    values = suggest(trial, WIDE)
    assert values.keys() == WIDE.keys()
    IncDsiSettings().replace(**values)
