"""Guards what a document should be found by: never empty, never twice, spread over the whole text; and the stored
state: parts add up to the state that grew, damage is found, equal rows give equal bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model_code.additions.store import SPAN, constraint_texts, read_state, write_part
from model_code.errors import FreshetError
from model_code.files import hash_path
from model_code.incdsi.adder import IncDsiAdder, NewDocument
from model_code.incdsi.state import IncDsiState
from tests.model_code.incdsi.small import make


def test_spans_are_spread_from_the_second_sentence_to_the_end() -> None:
    words = [f"w{i}" for i in range(100)]
    title, first, *spans = constraint_texts("t", "First one. " + " ".join(words), spans=4)
    assert (title, first) == ("t", "First one.")
    assert [span.split()[0] for span in spans] == ["w0", "w29", "w59", "w88"]
    assert {len(span.split()) for span in spans} == {SPAN}
    assert spans[-1].endswith("w99")


def test_a_short_text_is_not_repeated() -> None:
    assert constraint_texts("", "no sentence at all", 4) == ["no sentence at all"]
    assert constraint_texts("title", "", 4) == ["title"]
    assert constraint_texts("same", "same", 4) == ["same"]
    assert constraint_texts("t", "One line\nand a second one", 1) == ["t", "One line", "and a second one"]
    assert constraint_texts("t", "One. Two three.", 0) == ["t", "One."]


def test_texts_without_blanks_have_sentences_and_spans_too() -> None:
    rest = "归并排序是稳定的，它把列表分成两半，分别排序，然后合并起来。"
    first, *spans = constraint_texts("", "快速排序很快。" + rest, spans=2)
    assert first == "快速排序很快。"
    assert len(spans) == 2
    assert rest.startswith(spans[0])
    assert rest.endswith(spans[1])


def test_a_part_per_generation_adds_up_to_the_state_that_grew(tmp_path: Path) -> None:
    state, documents = make(30, 6)
    adder = IncDsiAdder(state)
    write_part(tmp_path / "1", state, state.ids)
    adder.add_batch(documents[:4])
    write_part(tmp_path / "2", state, ["new 0", "new 1", "new 2", "new 3"])
    adder.delete(["old 7", "new 1", "new 3"])
    adder.add(NewDocument("new 1", documents[5].queries))
    write_part(tmp_path / "3", state, ["new 1"])
    read = read_state([tmp_path / name for name in "123"], alive=state.ids)
    assert sorted(read.ids) == sorted(state.ids)
    assert read.score_deviation == state.score_deviation
    for key in state.ids:
        for one, other in ((read.vectors, state.vectors), (read.queries, state.queries)):
            np.testing.assert_array_equal(one.view[read.row(key)], other.view[state.row(key)])
    ours, theirs = IncDsiAdder(read).add(documents[4]), adder.add(documents[4])
    np.testing.assert_allclose(ours.vector, theirs.vector, rtol=1e-6, atol=1e-7)


def test_equal_rows_give_equal_bytes(tmp_path: Path) -> None:
    state, _ = make(10, 0)
    for name in "ab":
        write_part(tmp_path / name, state, state.ids)
    assert hash_path(tmp_path / "a") == hash_path(tmp_path / "b")


def test_damage_is_found(tmp_path: Path) -> None:
    state, _ = make(10, 0)
    write_part(tmp_path / "1", state, state.ids)
    with (tmp_path / "1" / "vectors.npy").open("r+b") as stream:
        stream.seek(200)
        stream.write(b"\x01\x02")
    with pytest.raises(FreshetError, match="was changed"):
        read_state([tmp_path / "1"], state.ids)
    with pytest.raises(FreshetError, match="was not finished"):
        read_state([tmp_path / "2"], state.ids)


def test_parts_of_other_widths_are_refused(tmp_path: Path) -> None:
    for width in (2, 3):
        ids = [str(i) for i in range(width)]
        write_part(tmp_path / str(width), IncDsiState(np.eye(width), np.eye(width), ids), ids)
    with pytest.raises(FreshetError, match="vectors of 3 numbers"):
        read_state([tmp_path / "2", tmp_path / "3"], ids)
