"""Tests of the experiment that asks a retrain whether it was due.

They cover the pairs that are learned, the queries that are measured, and the verdict.
"""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from benchmarks import drift_batches
from benchmarks.drift_batches import CellCounts, StudyPlan, Triples
from experiments.drift_retraining import run as drift_retraining
from experiments.drift_retraining.run import (
    AGAIN,
    HEAD,
    KNOWN,
    OTHERS,
    Champion,
    Effect,
    Ranks,
    RetrainingTrial,
    Shift,
    main,
)
from model_code.encoding.encoder import Encoder
from model_code.errors import FreshetError
from tests.benchmarks.rows import WORDS
from tests.tiny_encoder import make_tiny_encoder

TINY = RetrainingTrial(old=260, new=40, steps=2, drift=StudyPlan(batch=20, max_tokens=16))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny encoder."""
    return make_tiny_encoder(tmp_path_factory.mktemp("base") / "encoder", WORDS)


def make_triples(count: int, seed: int) -> Triples:
    """Make triples of a document, a query cut from it and a written query."""
    chance = np.random.default_rng(seed)
    triples = []
    for _ in range(count):
        words = list(chance.choice(WORDS, 8))
        triples.append((" ".join(words), " ".join(words[:3]), " ".join(words[4:])))
    return triples


def queries_of(triples: Triples) -> set[str]:
    """Return the written queries of triples."""
    return {written for *_, written in triples}


class Learned(NamedTuple):
    """The arguments of one training."""

    documents: Triples
    cut: Triples
    written: Triples
    seed: int


class RecordingTrainer:
    """Stands in for training: it records its arguments and returns the base encoder."""

    def __init__(self) -> None:
        self.learned: list[Learned] = []

    def __call__(
        self,
        documents: Triples,
        with_cut_query: Triples,
        with_written_query: Triples,
        trial: RetrainingTrial,
        base: Path,
        seed: int,
    ) -> Any:
        self.learned.append(Learned(documents, with_cut_query, with_written_query, seed))
        return Encoder.load(base, trial.drift.max_tokens)


class Meeting(NamedTuple):
    """A champion that met two shifts: what was learned for it, and what was measured."""

    queries: bool
    # Documents of another collection, of which 20 may arrive.
    away: Triples
    champion: Learned
    trained_again: Learned
    challengers: list[Learned]
    effects: dict[Shift, Effect]


@pytest.fixture(params=[False, True])
def meeting(request: pytest.FixtureRequest, base: Path, monkeypatch: pytest.MonkeyPatch) -> Meeting:
    """A meeting in which new documents have written queries or not."""
    trainer = RecordingTrainer()
    monkeypatch.setattr(drift_retraining, "train", trainer)
    home = make_triples(320, 0)
    away = make_triples(21, 1)
    # The first foreign document has a query that is known at home.
    known_query = home[int(np.random.default_rng(3).permutation(320)[0])][2]
    away[0] = (away[0][0], away[0][1], known_query)

    champion = Champion(home, replace(TINY, queries=request.param), base, seed=3)
    shifts = {Shift(AGAIN, 0.0): [], Shift("", 0.0): [], Shift("away", 0.5): away}
    effects = {shift: Effect() for shift in shifts}
    for shift, documents in shifts.items():
        champion.measure_arrivals(shift, documents, effects[shift])

    learned_by_champion, trained_again, *challengers = trainer.learned
    return Meeting(request.param, away, learned_by_champion, trained_again, challengers, effects)


def measured_old_queries(champion: Learned) -> set[str]:
    """Return the queries of old documents that the champion has not learned."""
    return queries_of(champion.documents) - queries_of(champion.written)


@pytest.mark.full
def test_champion_learns_half_of_the_queries(meeting: Meeting) -> None:
    champion = meeting.champion

    assert len(champion.documents) == 260
    assert champion.cut == champion.written
    assert len(measured_old_queries(champion)) == 130


@pytest.mark.full
def test_champion_is_trained_again_with_another_seed(meeting: Meeting) -> None:
    champion = meeting.champion

    assert meeting.trained_again == Learned(
        champion.documents, champion.written, champion.written, 1003
    )


@pytest.mark.full
def test_challenger_learns_the_new_documents(meeting: Meeting) -> None:
    champion = meeting.champion

    for challenger, foreign_count in zip(meeting.challengers, (0, 20), strict=True):
        new = challenger.documents[260:]
        written = champion.written
        if meeting.queries:
            written = written + new[KNOWN]
        assert challenger.documents[:260] == champion.documents
        assert challenger.cut == champion.written + new
        assert challenger.written == written
        assert challenger.seed == 3
        assert sum(triple in meeting.away for triple in new) == foreign_count


@pytest.mark.full
def test_no_measured_query_is_learned(meeting: Meeting) -> None:
    for challenger in meeting.challengers:
        new = challenger.documents[260:]
        measured_new = new[OTHERS] if meeting.queries else new
        measured = measured_old_queries(meeting.champion) | queries_of(measured_new)
        assert not measured & queries_of(challenger.written)


@pytest.mark.full
def test_old_and_new_documents_are_measured(meeting: Meeting) -> None:
    new_queries = 20 if meeting.queries else 40

    for effect in meeting.effects.values():
        (added,) = effect.added
        assert len(added.old) == 130
        assert len(added.new) == new_queries
        assert len(effect.batches.retrain) == 4 * 2


@pytest.mark.full
def test_equal_encoders_have_no_effect(meeting: Meeting) -> None:
    for shift, effect in meeting.effects.items():
        (added,) = effect.added
        (retrained,) = effect.retrained
        np.testing.assert_array_equal(added.old, retrained.old)
        np.testing.assert_array_equal(added.new, retrained.new)
        assert effect.line(str(shift))[4:6] == ["+0.000 [+0.000, +0.000]", "no"]


CALLS = CellCounts(**{field.name: [True, False] for field in fields(CellCounts)})
RANKS = Ranks(np.full(8, 0.5), np.tile([0.25, 0.5], 8))
BETTER = Ranks(RANKS.old - 0.25, RANKS.new + 0.25)
SLIGHTLY_BETTER = Ranks(RANKS.old, RANKS.new + 0.0625)
WORSE = Ranks(RANKS.old, RANKS.new - 0.25)


def line_of(effect: Effect) -> dict[str, str]:
    """Return the cells of an effect's line, by the header of the table."""
    return dict(zip(HEAD, effect.line("x"), strict=True))


def test_line_has_measures_and_gains() -> None:
    line = line_of(Effect([RANKS, RANKS], [BETTER, SLIGHTLY_BETTER], CALLS))

    assert line["measured"] == "32"
    assert line["added"] == "0.375"
    assert line["retrained"] == "0.531"
    assert line["gain"].startswith("+0.156 [+0.1")
    assert line["gain of old"].startswith("-0.125 [-0.")
    assert line["new below old"] == "+0.125"
    assert line["called for"] == "1 of 2"


def test_retrain_is_due_if_gain_is_positive() -> None:
    effect = Effect([RANKS, RANKS], [BETTER, SLIGHTLY_BETTER], CALLS)

    assert line_of(effect)["due"] == "yes"


def test_retrain_is_not_due_if_new_documents_lose() -> None:
    assert line_of(Effect([RANKS], [WORSE], CALLS))["due"] == "no"


def test_retrain_is_not_due_if_one_seed_loses() -> None:
    new_ranks = RANKS.new.copy()
    new_ranks[:2] -= 0.01
    slightly_worse = Ranks(RANKS.old, new_ranks)

    effect = Effect([RANKS, RANKS], [BETTER, slightly_worse], CALLS)

    assert line_of(effect)["due"] == "no"


@pytest.fixture
def _small_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command judge batches of 20."""

    def make_small_plan() -> StudyPlan:
        return TINY.drift

    monkeypatch.setattr(drift_retraining, "StudyPlan", make_small_plan)


@pytest.mark.full
@pytest.mark.usefixtures("_small_plan")
def test_command_trains_and_prints_a_table(
    base: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def make_docstrings(packages: tuple[str, ...]) -> list[tuple[str, str]]:
        count = 310 if len(packages) > 1 else 90
        triples = make_triples(count, seed=len(packages))
        return [(text, written) for text, _, written in triples]

    monkeypatch.setattr(drift_batches, "_docstrings", make_docstrings)
    monkeypatch.setitem(drift_retraining.SETTINGS, "frozen_layers", 1)
    sizes = ["--old", "260", "--new", "40", "--steps", "2", "--seeds", "1"]

    main(["--base", str(base), *sizes, "--queries"])

    lines = capsys.readouterr().out.splitlines()
    rows = [line.split(" | ") for line in lines[5:]]
    assert lines[1] == "docstrings, 1 of 1 seeds"
    assert lines[3] == f"| {' | '.join(HEAD)} |"
    assert [row[0] for row in rows] == [
        "| none trained again",
        "| none",
        "| 100% scipy",
        "| 100% matplotlib",
        "| 100% jargon",
    ]
    assert all(row[-1].endswith(" of 8 |") for row in rows)


@pytest.mark.usefixtures("_small_plan")
def test_fewer_new_documents_than_a_batch_are_refused() -> None:
    with pytest.raises(FreshetError, match="--new is 19, but drift judges batches of 20"):
        main(["--new", "19"])
