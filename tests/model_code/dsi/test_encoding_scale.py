"""Guards how long added documents' vectors are: as many queries taken as by learned ones, by a loop over them all."""

from __future__ import annotations

import numpy as np
import pytest

from model_code.dsi import encoding_scale as module
from model_code.dsi.encoding_scale import ENOUGH, encoding_scale


def made(seed: int, documents: int = 40, queries: int = 300):
    """V, a sample of its rows, their encodings, and queries near the documents that answer them."""
    random = np.random.default_rng(seed)
    encodings = random.normal(size=(documents, 8))
    vectors = 0.8 * encodings + 0.3 * random.normal(size=encodings.shape)
    relevant = [set(random.permutation(documents)[: random.integers(1, 4)].tolist()) for _ in range(queries)]
    asked = np.stack([encodings[sorted(rows)[0]] for rows in relevant]) + random.normal(size=(queries, 8))
    sample = np.sort(random.permutation(documents)[: documents // 2])
    return vectors, sample, encodings[sample], asked, relevant


def taken(vectors, sample, replaced, queries, relevant) -> int:
    """How many queries that are kept without the sample it takes, if its vectors are `replaced`: by definition."""
    count, in_sample = 0, {int(row): vector for row, vector in zip(sample, replaced, strict=True)}
    for query, answers in zip(queries, relevant, strict=True):
        own = max(float(query @ vectors[row]) for row in answers)
        rest = [row for row in range(len(vectors)) if row not in answers]
        others = [float(query @ vectors[row]) for row in rest if row not in in_sample]
        added = [float(query @ in_sample[row]) for row in rest if row in in_sample]
        count += own > 0 and own > max(others) and max(added) >= own
    return count


@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_largest_scale_that_takes_no_more_than_learned_vectors(seed: int):
    vectors, sample, encodings, queries, relevant = made(seed)
    scale = encoding_scale(vectors, sample, encodings, queries, relevant)
    assert scale is not None
    now = taken(vectors, sample, vectors[sample], queries, relevant)
    assert taken(vectors, sample, scale * (1 - 1e-9) * encodings, queries, relevant) <= now
    assert taken(vectors, sample, scale * (1 + 1e-9) * encodings, queries, relevant) > now


def test_encodings_of_another_length_change_the_scale_and_nothing_else():
    vectors, sample, encodings, queries, relevant = made(0)
    scale = encoding_scale(vectors, sample, encodings, queries, relevant)
    assert encoding_scale(vectors, sample, 4 * encodings, queries, relevant) == pytest.approx(scale / 4)


def test_blocks_of_queries_change_nothing(monkeypatch: pytest.MonkeyPatch):
    whole = encoding_scale(*made(1))
    monkeypatch.setattr(module, "CELLS", 100)
    assert encoding_scale(*made(1)) == pytest.approx(whole)


def test_vectors_that_were_not_learned_stay_as_they_are():
    _, sample, encodings, queries, relevant = made(2)
    vectors = np.random.default_rng(2).normal(size=(40, 8))
    vectors[sample] = encodings
    scale = encoding_scale(vectors, sample, encodings, queries, relevant)
    assert scale is not None
    assert scale >= 1
    now = taken(vectors, sample, encodings, queries, relevant)
    assert taken(vectors, sample, scale * (1 - 1e-9) * encodings, queries, relevant) == now


def test_too_few_queries_say_nothing():
    vectors, sample, encodings, queries, relevant = made(3)
    assert encoding_scale(vectors, sample, encodings, queries[: ENOUGH - 1], relevant[: ENOUGH - 1]) is None


def test_where_no_scale_is_too_large_there_is_none():
    vectors, sample, encodings, queries, relevant = made(4)
    assert encoding_scale(vectors, sample, np.zeros_like(encodings), queries, relevant) is None
