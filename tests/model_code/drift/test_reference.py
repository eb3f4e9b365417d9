"""Guards the reference: what it keeps, and its sealed folder."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from model_code.drift.reference import DriftReference, Question, Questions
from model_code.errors import FreshetError
from model_code.files import hash_path
from tests.model_code.drift.unit_vectors import SETTINGS, reference, topical


def test_save_and_load_is_the_identity(tmp_path: Path) -> None:
    questions = Questions(
        made=(Question("a", "a piece", frozenset("a")),),
        asked=(Question("b", "what?", frozenset("cab")), Question("b", "which?", frozenset("b"))),
        protected=(
            Question("a", "how?", frozenset("ab"), 3),
            Question("c", "why?", frozenset("c")),
        ),
    )
    made = replace(reference(), questions=questions)
    made.save(tmp_path / "a")
    loaded = DriftReference.load(tmp_path / "a")
    for field in fields(DriftReference):
        ours, theirs = getattr(made, field.name), getattr(loaded, field.name)
        assert getattr(ours, "dtype", None) == getattr(theirs, "dtype", None), field.name
        assert np.all(ours == theirs), field.name
    loaded.save(tmp_path / "b")
    assert hash_path(tmp_path / "a") == hash_path(tmp_path / "b")


def test_a_changed_folder_is_refused(tmp_path: Path) -> None:
    reference().save(tmp_path)
    (tmp_path / "questions.json").write_text("{}")
    with pytest.raises(FreshetError, match=r"questions.json was changed"):
        DriftReference.load(tmp_path)


def test_only_eligible_rows_are_sampled() -> None:
    vectors, rows = topical(300, 0), np.arange(0, 300, 2)
    chosen = DriftReference.build(vectors, "f", SETTINGS, rows=rows)
    assert (chosen.vectors == vectors[rows]).all()
    assert chosen.trained == 300


@pytest.mark.parametrize("count", [1, 2, 119])
def test_few_documents_are_all_kept(tmp_path: Path, count: int) -> None:
    vectors = topical(count, 0)
    DriftReference.build(vectors, "f", SETTINGS).save(tmp_path)
    loaded = DriftReference.load(tmp_path)
    assert (loaded.vectors == vectors).all()
    assert loaded.trained == count
