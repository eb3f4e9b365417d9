"""Test that the benchmark of a whole collection measures every step, with a tiny collection.

Run: python -m pytest tests/benchmarks/test_collection.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import collection
from tests.tiny_encoder import make_tiny_encoder

PASSAGES = 300


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """The values of a tiny collection, whose steps run in this process."""
    folder = tmp_path_factory.mktemp("collection")
    texts = collection.Topics(PASSAGES, dimension=2).draw(5).texts
    base = make_tiny_encoder(folder / "tiny", texts)

    def run_in_this_process(step: str, folder: Path, passages: int, base: str) -> dict[str, float]:
        return collection.STEPS[step](folder, passages, base)

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("FRESHET_STATE", raising=False)
        patch.setattr(collection, "run_step", run_in_this_process)
        patch.setattr(collection, "BATCH_DOCUMENTS", 20)
        patch.setattr(collection, "QUERIES", 3)
        return collection.measure(folder / "project", PASSAGES, base)


@pytest.mark.full
@pytest.mark.parametrize(
    "name",
    [
        "search: opening, s",
        "search: first search after a switch, filter of 10 %, ms",
        "changes: one added document, s",
        "changes: merging all added segments, s",
        "restart: memory after searches with filters, MB",
        "disk: all files, MB",
    ],
)
def test_value_is_measured(measured: dict[str, float], name: str) -> None:
    assert measured[name] > 0


@pytest.mark.full
def test_ratio_compares_with_a_search_without_filter(measured: dict[str, float]) -> None:
    label = "search: search, filter of 50 %"

    expected = measured[f"{label}, ms"] / measured["search: search, ms"]

    assert measured[f"{label}, times a search without filter"] == pytest.approx(expected)


@pytest.mark.parametrize("percentage", collection.PERCENTAGES)
def test_filter_matches_its_share_of_documents(percentage: int) -> None:
    matching = [
        number for number in range(100) if percentage in collection.fields_of(number)["percent"]
    ]

    assert len(matching) == percentage


def test_passages_of_a_topic_are_near_each_other() -> None:
    vectors = collection.Topics(PASSAGES, dimension=64).draw(PASSAGES).vectors

    cosines = vectors @ vectors.T
    nearest = np.sort(cosines, axis=1)[:, -50:]
    assert nearest.mean() > cosines.mean() + 0.3


def test_words_are_different() -> None:
    words = collection.Topics(PASSAGES, dimension=2).words

    assert len(set(words.tolist())) == collection.VOCABULARY
