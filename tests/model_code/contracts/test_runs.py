"""Guards the contract of run files: each rule is broken once, and a whole one is read in no time."""

from __future__ import annotations

import re
import time

import pytest

from model_code.contracts.runs import check_run, read_frame
from model_code.errors import FreshetError
from model_code.evaluation.runs import read_run, write_run

RUN = {"q 1": [("d1", 3.0), ("50 %", 3.0), ("d3", 1.0)], "q2": [("d2", 2.0)]}
QUERIES, DOCUMENTS = ("q 1", "q2", "unanswered"), ("d1", "d2", "d3", "50 %")


def check(path, depth=3):
    check_run(path, "hce", QUERIES, DOCUMENTS, depth)


@pytest.fixture
def path(tmp_path):
    write_run(tmp_path / "run.test.trec", RUN, "hce")
    return tmp_path / "run.test.trec"


def test_a_whole_run_passes_and_so_does_an_empty_one(path):
    check(path)
    frame = read_frame(path)
    assert frame["document_id"].tolist() == ["d1", "50 %", "d3", "d2"]
    assert {query: [name for name, _ in ranking] for query, ranking in read_run(path).items()} == {
        "q 1": ["d1", "50 %", "d3"],
        "q2": ["d2"],
    }
    path.write_text("")
    check(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("q2 Q0", "q3 Q0", "query_id breaks a judged query.*row 3: 'q3'"),
        ("q2 Q0", "q2 0", "q0 breaks Q0"),
        ("Q0 d3 ", "Q0 d9 ", "document_id breaks an initial document.*row 2: 'd9'"),
        ("Q0 d3 ", "Q0 d1 ", "query_id and document_id must be unique"),
        ("d3 3 1", "d3 2 1", "ranks of a query must be 1, 2, 3.*row 2: 'q 1 Q0 d3 2"),
        ("d2 1 2", "d2 0 2", "ranks of a query must be 1, 2, 3"),
        ("d3 3 1", "d3 3 3.5", "scores of a query must fall from rank to rank"),
        ("d3 3 1", "d3 3 2.99999976", "scores of a query must fall"),
        ("d1 1 3", "d1 1 inf", "score breaks finite"),
        ("1 hce", "1 dsi", "tag breaks the name of the system"),
    ],
)
def test_each_broken_rule_is_named_with_its_line(path, old, new, message):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(
        FreshetError, match=re.escape("run.test.trec breaks its contract in ") + f"[12] rows: {message}"
    ):
        check(path)


def test_more_than_depth_documents_are_refused(path):
    with pytest.raises(FreshetError, match=r"rank breaks .*\(2\).*row 2"):
        check(path, depth=2)


@pytest.mark.parametrize("line", ["q2 Q0 d2 1 2\n", "q2 Q0 d2 1 2 hce more\n", "q2 Q0 d2 one 2 hce\n"])
def test_a_line_of_another_form_cannot_be_read(path, line):
    path.write_text(path.read_text() + line)
    with pytest.raises(ValueError, match="CSV"):
        check(path)


def test_a_missing_run_is_refused(tmp_path):
    with pytest.raises(FreshetError, match="run.dev.trec is missing"):
        check(tmp_path / "run.dev.trec")


def test_a_hundred_thousand_lines_take_no_second(tmp_path):
    documents = [f"d{i}" for i in range(100)]
    run = {f"q{i}": [(name, 100.0 - rank) for rank, name in enumerate(documents)] for i in range(1000)}
    write_run(tmp_path / "run.test.trec", run, "hce")
    check_run(tmp_path / "run.test.trec", "hce", run.keys(), documents, 100)
    start = time.process_time()
    check_run(tmp_path / "run.test.trec", "hce", run.keys(), documents, 100)
    assert time.process_time() - start < 1
