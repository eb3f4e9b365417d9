"""Guards the bench that asks a retrain whether it was due: what is learned, what is measured, and
when it says yes.

pytest tests/experiments/test_drift_retraining.py
"""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

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


def triples(count: int, seed: int) -> Triples:
    chance = np.random.default_rng(seed)
    texts = [list(chance.choice(WORDS, 8)) for _ in range(count)]
    return [(" ".join(text), " ".join(text[:3]), " ".join(text[4:])) for text in texts]


@pytest.mark.full
@pytest.mark.parametrize("queries", [False, True])
def test_no_measured_query_is_learned(
    queries: bool, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned: list[tuple[Triples, Triples, Triples, int]] = []

    def record(
        documents: Triples,
        cut: Triples,
        written: Triples,
        trial: RetrainingTrial,
        base: Path,
        seed: int,
    ) -> Any:
        learned.append((documents, cut, written, seed))
        return Encoder.load(base, trial.drift.max_tokens)

    monkeypatch.setattr(drift_retraining, "train", record)
    home, away = triples(320, 0), triples(21, 1)  # of which 20 may arrive
    # a known query
    away[0] = (away[0][0], away[0][1], home[int(np.random.default_rng(3).permutation(320)[0])][2])
    champion = Champion(home, replace(TINY, queries=queries), base, seed=3)
    shifts = {Shift(AGAIN, 0.0): [], Shift("", 0.0): [], Shift("away", 0.5): away}
    effects = {shift: Effect() for shift in shifts}
    for shift, documents in shifts.items():
        champion.meets(shift, documents, effects[shift])
    (old, cut, known, _), again, *challengers = learned
    assert again == (old, known, known, 1003)
    assert (len(old), cut) == (260, known)
    others = {query for *_, query in old} - {query for *_, query in known}
    assert len(others) == 130
    for (everything, cut, written, seed), count in zip(challengers, (0, 20), strict=True):
        new = everything[260:]
        assert (everything[:260], cut, seed) == (old, known + new, 3)
        assert written == known + (new[KNOWN] if queries else [])
        assert sum(one in away for one in new) == count
        measured = others | {query for *_, query in (new[OTHERS] if queries else new)}
        assert not measured & {query for *_, query in written}
    for shift, effect in effects.items():
        (added,), (retrained,) = effect.added, effect.retrained
        assert [len(ranks) for ranks in added] == [130, 20 if queries else 40]
        np.testing.assert_array_equal(added.old, retrained.old)
        np.testing.assert_array_equal(added.new, retrained.new)
        assert effect.line(str(shift))[4:6] == ["+0.000 [+0.000, +0.000]", "no"]
        assert len(effect.batches.retrain) == 4 * 2


def test_retrain_is_due_if_gain_is_positive() -> None:
    calls = CellCounts(**{one.name: [True, False] for one in fields(CellCounts)})
    ranks = Ranks(np.full(8, 0.5), np.tile([0.25, 0.5], 8))
    better, worse = Ranks(ranks.old - 0.25, ranks.new + 0.25), Ranks(ranks.old, ranks.new - 0.25)
    line = dict(
        zip(
            HEAD,
            Effect([ranks, ranks], [better, Ranks(ranks.old, ranks.new + 0.0625)], calls).line("x"),
            strict=True,
        )
    )
    assert (line["measured"], line["added"], line["retrained"]) == ("32", "0.375", "0.531")
    assert line["gain"].startswith("+0.156 [+0.1")
    assert line["gain of old"].startswith("-0.125 [-0.")
    assert (line["due"], line["new below old"], line["called for"]) == ("yes", "+0.125", "1 of 2")
    assert Effect([ranks], [worse], calls).line("x")[5] == "no"
    slightly = Ranks(ranks.old, np.where(np.arange(16) < 2, ranks.new - 0.01, ranks.new))
    assert Effect([ranks, ranks], [better, slightly], calls).line("x")[5] == "no", (
        "with one seed it was found worse"
    )


@pytest.mark.full
def test_the_command_trains_and_prints_a_table(
    base: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def docstrings(packages: tuple[str, ...]) -> list[tuple[str, str]]:
        return [
            (text, written)
            for text, _, written in triples(310 if len(packages) > 1 else 90, len(packages))
        ]

    monkeypatch.setattr(drift_batches, "_docstrings", docstrings)
    monkeypatch.setattr(drift_retraining, "StudyPlan", lambda: TINY.drift)
    monkeypatch.setitem(drift_retraining.SETTINGS, "frozen_layers", 1)
    main(
        [
            "--base",
            str(base),
            "--old",
            "260",
            "--new",
            "40",
            "--steps",
            "2",
            "--seeds",
            "1",
            "--queries",
        ]
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "docstrings, 1 of 1 seeds"
    assert lines[3] == f"| {' | '.join(HEAD)} |"
    names = ["none trained again", "none", "100% scipy", "100% matplotlib", "100% jargon"]
    assert [line.split(" | ")[0] for line in lines[5:]] == [f"| {name}" for name in names]
    assert all(" of 8 |" in line for line in lines[5:])
    with pytest.raises(FreshetError, match="--new is 19, but drift judges batches of 20"):
        main(["--new", "19"])
