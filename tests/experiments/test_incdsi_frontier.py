"""Guards the protocol from the command line: every table, spaces by name and by folder, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.incdsi_frontier import run as incdsi_frontier
from experiments.incdsi_frontier.frontier import BEST
from experiments.incdsi_frontier.methods import METHODS, PLAIN, SCALED
from experiments.incdsi_frontier.protocol import CENTRED, DEFAULT, PAPER, Protocol, ProtocolPlan
from experiments.incdsi_frontier.retraining import WAYS
from experiments.incdsi_frontier.run import KEYS, arguments, main, make_space
from experiments.incdsi_frontier.spaces import Space
from experiments.incdsi_frontier.tables import cost_table, matched_table, steps_table
from model_code.dsi import encoding_scale
from model_code.dsi.settings import DocumentVectorSettings
from model_code.errors import SettingsError
from tests.experiments.incdsi_collection import encoded_collection, make_base, write_collection


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the collection and an encoder."""
    root = tmp_path_factory.mktemp("frontier")
    write_collection(root / "beir")
    make_base(root)
    return root


def test_the_keys_are_all_methods_and_ways() -> None:
    assert sorted(KEYS.values()) == sorted([*METHODS, *WAYS])
    assert {PAPER, CENTRED} <= METHODS.keys()
    assert next(iter(METHODS.values())) is PLAIN


def test_main_prints_every_table(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(incdsi_frontier, "BASE", str(root / "encoder"))
    monkeypatch.setattr(incdsi_frontier, "MAX_TOKENS", 32)
    words = [str(root / "beir"), "--space", "dsi", "--trials", "2", "--orders", "2", "--steps", "5", "--fronts"]
    main([*words, "--cache", str(root / "cache"), "--methods", "plain", "paper", "centred", "ours", "retrain", "tune"])
    said = capsys.readouterr().out
    assert "by hinge" not in said  # only where asked for
    for part in ("30 old documents", "before any addition", "against plain", "added by | old hit@1", "ours at the"):
        assert part in said
    for method in ("retraining on all", "continual fine-tuning (as published)", "plain encoding"):
        assert f"| {method} | " in said
    assert "scaled encoding |" not in said


def test_spaces_by_name_and_by_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incdsi_frontier, "MAX_TOKENS", 32)
    folder, encoder = str(root / "beir"), str(root / "encoder")
    given = arguments().parse_args([folder, "--space", encoder, "--retrained", encoder, "--cache", str(root / "cache")])
    dense = make_space(given)
    assert dense.learned is None
    assert dense.retrained is not None
    for wrong in (["--split", "share:2025"], ["--split", "date"], ["--split", "thirds"]):
        with pytest.raises(SettingsError, match="date:DAY or share"):
            make_space(arguments().parse_args([folder, *wrong]))


def test_differences_to_plain_and_tables(tmp_path: Path) -> None:
    plan = ProtocolPlan(methods={"plain": PLAIN, "scaled": SCALED}, ways={}, orders=3, whole=1, steps=(5, 20))
    protocol = Protocol(Space(encoded_collection(tmp_path)), plan)
    points = protocol.points()
    assert [(point.added, point.orders) for point in points[:3]] == [(5, 3), (20, 3), (points[2].added, 3)]
    old, new = protocol.against_plain(points)["plain"]
    assert (old.mean, new.mean) == (0.0, 0.0)
    assert len(steps_table(points).splitlines()) == 2 + len(points)
    assert {point.chosen_for for point in points} == {BEST}
    front = protocol.front(SCALED)
    assert len(front) >= 1
    matched = protocol.matched(SCALED, SCALED)
    assert all(one.met for one in matched)
    assert matched_table(matched).count("yes") == len(front)
    assert protocol.learned() == ([], None)
    costs = protocol.costs(points, protocol.arrivals.found(PLAIN.fixed[0])[-1])
    assert costs[DEFAULT].mean == costs["plain"].mean == 0
    assert "| plain | +0.000 [+0.000, +0.000] | met |" in cost_table(costs)


def test_beside_learned_vectors_the_default_has_the_measured_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding_scale, "ENOUGH", 1)
    space = Space(encoded_collection(tmp_path), DocumentVectorSettings(epochs=2))
    protocol = Protocol(space, ProtocolPlan(methods={"plain": PLAIN}, ways={}, orders=1, steps=()))
    vectors = protocol.arrivals.judge.state.vectors.view
    assert protocol.default.prior_scale == space.encoding_scale(vectors) != 1
    assert [point.method for point in protocol.points()] == [DEFAULT, "plain"]
