"""Guards what the pages of the corpus's assets show of a query generator, trained or not."""

from __future__ import annotations

from assets.corpus import preview_query_generator
from model_code.files import write_json


def test_a_generator_that_was_not_trained_says_so(tmp_path):
    write_json(tmp_path / "report.json", {"trained": False})

    assert "pseudo_queries.training.base" in preview_query_generator(tmp_path)["history"]


def test_trained_generator_page_shows_likelihood_curve(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        "model_code.evaluation.plots.draw", lambda size, paint: drawn.append(size) or b"png"
    )
    write_json(tmp_path / "report.json", {"trained": True})
    write_json(
        tmp_path / "history.json",
        [{"step": step, "loss": 2.0, "log_likelihood": -1.5} for step in range(20)],
    )
    rows = [row.data for row in preview_query_generator(tmp_path)["history"].records]

    assert rows[0] == {"log_likelihood": -1.5, "loss": 2.0, "step": 10}
    assert len(rows) == 10
    # The figure has a panel for the loss and one for the likelihood, in inches.
    assert drawn[0][0] == 3.6 * 2
