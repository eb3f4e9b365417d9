"""Guards the vectors of IncDSI's protocol: kept and read again, queries by document, tuning and test apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments.incdsi_frontier.encoded import Encoded, encode
from experiments.incdsi_frontier.pages import NEW, OLD, TUNING, Pages
from tests.experiments import incdsi_collection
from tests.experiments.incdsi_collection import DAY, encoded_collection, make_base, write_collection


@pytest.fixture(scope="module")
def encoded(tmp_path_factory: pytest.TempPathFactory) -> Encoded:
    """The collection."""
    return encoded_collection(tmp_path_factory.mktemp("encoded"))


def test_vectors_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages, base = Pages.read(write_collection(tmp_path / "beir"), DAY), make_base(tmp_path)
    first = encode(pages, base, 32, cache=tmp_path / "cache")
    monkeypatch.setattr("model_code.encoding.encoder.Encoder.load", None)
    again = encode(pages, base, 32, cache=tmp_path / "cache")
    np.testing.assert_array_equal(again.documents, first.documents)
    np.testing.assert_array_equal(again.queries, first.queries)


def test_tuning_and_test_share_no_document_and_no_query(encoded: Encoded) -> None:
    tuning, test = encoded.splits()
    held = [{one.id for one in split.documents} for split in (tuning, test)]
    pages = encoded.pages
    assert held == [{pages.ids[row] for row in pages.rows(part)} for part in (TUNING, NEW)]
    assert not held[0] & held[1]
    assert set(test.new_targets) == held[1]
    assert set(tuning.new_targets) == held[0]
    assert set(test.old_targets) == {pages.ids[row] for row in pages.rows(OLD)}
    numbers = [set(pages.of(pages.ids[: pages.old], split)[0].tolist()) for split in ("dev", "test")]
    assert not numbers[0] & numbers[1]


def test_asking_gives_queries_and_positions(encoded: Encoded) -> None:
    rows = [5, 3]
    queries, targets = encoded.asking(rows, "test")
    assert targets.tolist() == [0, 1]
    for query, row in zip(queries, rows, strict=True):
        (own,) = encoded.pages.asked["test"][encoded.pages.ids[row]]
        np.testing.assert_array_equal(query, encoded.queries[own])


def test_a_document_without_queries_is_its_own(encoded: Encoded) -> None:
    row = encoded.number[f"p{incdsi_collection.OLD}"]
    np.testing.assert_array_equal(encoded.asks(row), encoded.documents[row : row + 1])
    other = encoded.number[f"p{incdsi_collection.OLD + 1}"]
    assert not np.allclose(encoded.asks(other), encoded.documents[other])
