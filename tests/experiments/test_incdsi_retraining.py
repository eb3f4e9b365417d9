"""Guards the ways of adding that train: what each changes and leaves, where new rows start, and which steps are run."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from experiments.incdsi_frontier import retraining as incdsi_retraining
from experiments.incdsi_frontier.encoded import Encoded
from experiments.incdsi_frontier.frontier import AdditionOrders
from experiments.incdsi_frontier.learning import Asking
from experiments.incdsi_frontier.methods import ENCODED
from experiments.incdsi_frontier.retraining import RETRAINING, WAYS, fine_tune, measure_ways, retrain
from experiments.incdsi_frontier.spaces import LEARNED, Space
from model_code.dsi.settings import DocumentVectorSettings
from model_code.dsi.vectors import random_vectors
from model_code.incdsi.tuning import TrialBench
from tests.experiments.incdsi_collection import encoded_collection


@pytest.fixture(scope="module")
def encoded(tmp_path_factory: pytest.TempPathFactory) -> Encoded:
    """The collection."""
    return encoded_collection(tmp_path_factory.mktemp("retraining"))


def arrivals(space: Space, orders: int = 2) -> AdditionOrders:
    return AdditionOrders(TrialBench(space.state(), space.encoded.splits()[1]), orders, (5,))


def test_learned_spaces_answer_their_training_queries_better(encoded: Encoded) -> None:
    rows = list(range(encoded.pages.old))
    asked, targets = encoded.asking(rows, "train")
    hits = {}
    for name, learned in {"own": None, **{one: DocumentVectorSettings(start=LEARNED[one]) for one in LEARNED}}.items():
        vectors = Space(encoded, learned).state().vectors.view
        hits[name] = ((asked @ vectors.T).argmax(axis=1) == targets).mean()
    assert hits["dsi"] >= hits["own"]


def test_retraining_a_dense_space_without_another_encoder_is_plain_encoding(encoded: Encoded) -> None:
    space = Space(encoded)
    arriving = arrivals(space)
    ours = retrain(space, space.vectors(space.old), encoded.new)
    for own, plain in zip(ours, arriving.found(ENCODED)[-1], strict=True):
        np.testing.assert_array_equal(own, plain)


def test_retraining_a_dense_space_takes_the_other_encoder(encoded: Encoded) -> None:
    turned = Encoded(encoded.pages, -encoded.documents, encoded.queries)
    ours = retrain(Space(encoded, None, turned), encoded.documents[: encoded.pages.old], encoded.new)
    assert ours[0].mean() < retrain(Space(encoded), encoded.documents[: encoded.pages.old], encoded.new)[0].mean()


def test_what_fine_tuning_starts_from_and_learns_from(encoded: Encoded, monkeypatch: pytest.MonkeyPatch) -> None:
    space, added = Space(encoded), encoded.new[:4]
    vectors = space.vectors(space.old)
    seen: list[tuple[np.ndarray, Asking, DocumentVectorSettings]] = []

    def record(start: np.ndarray, train: Asking, dev: None, settings: DocumentVectorSettings, seed: int) -> np.ndarray:
        seen.append((start, train, settings))
        return start

    monkeypatch.setattr(incdsi_retraining, "learn", record)
    for way in (fine_tune, partial(fine_tune, start="documents"), partial(fine_tune, old_queries=False)):
        way(space, vectors, added)
    for start, _, settings in seen:
        np.testing.assert_array_equal(start[: len(vectors)], vectors)
        assert settings.epochs == 10
    np.testing.assert_array_equal(seen[0][0][len(vectors) :], random_vectors(4, vectors.shape[1], 0))
    np.testing.assert_array_equal(seen[1][0][len(vectors) :], encoded.documents[added])
    both, new = seen[0][1], seen[2][1]
    assert set(new.targets) <= set(range(len(vectors), len(vectors) + 4))
    kept = both.targets >= len(vectors)
    np.testing.assert_array_equal(both.queries[kept], new.queries)
    np.testing.assert_array_equal(both.targets[kept], new.targets)
    assert kept.sum() < len(kept)


def test_points_of_every_way_at_every_step(encoded: Encoded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incdsi_retraining, "EPOCHS", 1)
    space = Space(encoded, DocumentVectorSettings(epochs=1))
    arriving = arrivals(space)
    points, last = measure_ways(space, arriving, orders=2)
    assert [(one.method, one.added) for one in points] == [(way, step) for way in WAYS for step in arriving.after]
    assert [one.orders for one in points] == [2, 1] * len(WAYS)
    assert points[1].new.mrr_at_10 == pytest.approx(last[RETRAINING][1].mean())
