"""Test the drift reference: the rows it keeps, and its checksummed folder."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from model_code.drift.reference import DriftReference, Question, Questions
from model_code.errors import FreshetError
from model_code.files import hash_path
from tests.model_code.drift.unit_vectors import SETTINGS, reference, topical


@pytest.fixture
def reference_with_questions() -> DriftReference:
    made = Question("a", "a piece", frozenset("a"))
    asked = (Question("b", "what?", frozenset("cab")), Question("b", "which?", frozenset("b")))
    protected = (Question("a", "how?", frozenset("ab"), 3), Question("c", "why?", frozenset("c")))
    questions = Questions(made=(made,), asked=asked, protected=protected)
    return replace(reference(), questions=questions)


def test_loaded_reference_equals_the_saved_one(
    tmp_path: Path, reference_with_questions: DriftReference
) -> None:
    reference_with_questions.save(tmp_path)

    loaded = DriftReference.load(tmp_path)

    for field in fields(DriftReference):
        saved_value = getattr(reference_with_questions, field.name)
        loaded_value = getattr(loaded, field.name)
        saved_dtype = getattr(saved_value, "dtype", None)
        assert getattr(loaded_value, "dtype", None) == saved_dtype, field.name
        assert np.all(loaded_value == saved_value), field.name


def test_loaded_reference_is_saved_with_the_same_bytes(
    tmp_path: Path, reference_with_questions: DriftReference
) -> None:
    reference_with_questions.save(tmp_path / "saved")

    DriftReference.load(tmp_path / "saved").save(tmp_path / "saved again")

    assert hash_path(tmp_path / "saved again") == hash_path(tmp_path / "saved")


def test_changed_folder_is_refused(tmp_path: Path) -> None:
    reference().save(tmp_path)
    (tmp_path / "questions.json").write_text("{}")

    with pytest.raises(FreshetError, match=r"questions.json was changed"):
        DriftReference.load(tmp_path)


def test_only_eligible_rows_are_sampled() -> None:
    vectors = topical(300, 0)
    eligible_rows = np.arange(0, 300, 2)

    sampled = DriftReference.build(vectors, "f", SETTINGS, rows=eligible_rows)

    assert (sampled.vectors == vectors[eligible_rows]).all()
    assert sampled.trained == 300


@pytest.mark.parametrize("count", [1, 2, 119])
def test_few_documents_are_all_kept(tmp_path: Path, count: int) -> None:
    vectors = topical(count, 0)
    DriftReference.build(vectors, "f", SETTINGS).save(tmp_path)

    loaded = DriftReference.load(tmp_path)

    assert (loaded.vectors == vectors).all()
    assert loaded.trained == count
