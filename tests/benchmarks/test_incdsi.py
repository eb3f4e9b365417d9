"""Guards the bench `incdsi`: complete rows that follow from their numbers, a peer that minimises
the same objective, and that ours is proven and never above it.
"""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import incdsi
from benchmarks.incdsi import FALLING, FLAT, Case, make_collection, published_loop
from model_code.incdsi.settings import IncDsiSettings
from tests.benchmarks.rows import check


def test_rows() -> None:
    found = incdsi.rows(sizes=((120, 16),), added=5, published=2)
    kinds = ["one by one", "batches of 5", "reading V and Z", "median", "least", "proven", "equal"]

    assert [line["what"].split(":")[0] for line in found[::7]] == [
        "120 x 16, small margins",
        "120 x 16, large margins",
        "120 x 16, no structure, small margins",
    ]
    assert all(kind in line["what"] for line, kind in zip(found, kinds * 3, strict=True))
    check(found)
    for line in (*found[3:7], *found[10:14], *found[17:21]):
        assert line["met"], line


def test_the_goals_of_large_collections_are_higher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incdsi, "LARGE", 100)
    found = incdsi.rows(sizes=((100, 8),), added=2, published=1)

    assert [line["goal"] for line in found[:3]] == [15.0, 50.0, pytest.approx(1 / 1.7)]


def test_published_loop_reaches_closed_form_score() -> None:
    """Without old documents in the way q.v is M + gamma1, but for lambda2; across q the random
    start may stay.
    """
    query = np.array([0.6, 0.0, 0.8])
    settings = IncDsiSettings(gamma1=1.0, gamma2=0.0, lambda2=0.01)
    far = np.array([[-10.0, 0.0, 0.0]], np.float32)
    vector, seconds = published_loop(Case(query, 2.0, far, far), settings, seed=0)

    assert query @ vector == pytest.approx(3.0 * 0.5 / (0.5 + 0.01), abs=1e-3)
    assert seconds > 0


def test_queries_belong_to_their_documents() -> None:
    data = make_collection(300, 4, 64)
    assert data.vectors.dtype == np.float32
    assert data.queries.dtype == np.float32
    assert data.new.dtype == np.float32
    assert data.new.shape == (4, 3, 64)

    best = (data.queries @ data.vectors.T).argmax(axis=1)
    assert (best == np.arange(300)).mean() > 0.8


@pytest.mark.parametrize(("decay", "least", "most"), [(FALLING, 0.6, 0.8), (FLAT, 0.2, 0.45)])
def test_spectrum_falls_like_sentence_embeddings(decay: float, least: float, most: float) -> None:
    vectors = make_collection(4000, 1, 384, decay).vectors
    energy = np.sort(np.linalg.eigvalsh(vectors.T @ vectors))[::-1]

    assert least < energy[:32].sum() / energy.sum() < most
    # No axis has a much larger share than the others.
    assert np.abs(vectors).max() < 0.4
