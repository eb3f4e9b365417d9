"""Guards what the pages of the corpus's assets show of a query generator, trained or not."""

from __future__ import annotations

from assets.corpus import preview_query_generator
from model_code.files import write_json


def test_a_generator_that_was_not_trained_says_so(tmp_path):
    write_json(tmp_path / "report.json", {"trained": False})
    assert "pseudo_queries.training.base" in preview_query_generator(tmp_path)["history"]


def test_a_trained_one_shows_the_end_of_its_curve(tmp_path):
    write_json(tmp_path / "report.json", {"trained": True})
    write_json(tmp_path / "history.json", [{"step": step, "log_likelihood": -1.5} for step in range(20)])
    lines = preview_query_generator(tmp_path)["history"].splitlines()
    assert lines[2] == "| -1.5 | 10 |"
    assert len(lines) == 12
