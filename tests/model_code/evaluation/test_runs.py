"""Guards that run files keep our order for a reader that, like trec_eval, sorts by 32-bit score and
id descending.
"""

from __future__ import annotations

import numpy as np
import pytest
import pytrec_eval

from model_code.errors import FreshetError
from model_code.evaluation.runs import read_run, strictly_decreasing, write_run

TIED = {
    "q2": [("a", 0.5), ("b", 0.5), ("c", 0.5), ("d", 0.0), ("e", 0.0)],
    "q1": [("z", 1.0), ("y", -1.0), ("x", -1.0)],
}


def test_scores_equal_in_32_bits_keep_order(tmp_path):
    close = {"q": [("a", 0.7000000000000002), ("b", 0.7000000000000001), ("c", 0.7)]}
    write_run(tmp_path / "run.trec", close, tag="dense")
    assert [document for document, _ in read_run(tmp_path / "run.trec")["q"]] == ["a", "b", "c"]


def test_trec_eval_itself_sees_our_order(tmp_path):
    """Each document is relevant to one copy of the query: its reciprocal rank tells where trec_eval
    puts it.
    """
    documents = [f"d{i}" for i in range(6)]
    run = {f"q-{document}": [(other, 0.25) for other in documents] for document in documents}
    write_run(tmp_path / "run.trec", run, tag="tied")
    qrels = {f"q-{document}": {document: 1} for document in documents}
    lines = (tmp_path / "run.trec").read_text().splitlines()
    result = pytrec_eval.RelevanceEvaluator(qrels, {"recip_rank"}).evaluate(
        pytrec_eval.parse_run(lines)
    )
    ranks = [1 / result[f"q-{document}"]["recip_rank"] for document in documents]
    assert ranks == pytest.approx([1, 2, 3, 4, 5, 6])


def test_the_bytes(tmp_path):
    write_run(tmp_path / "run.trec", TIED, tag="bm25")
    lines = (tmp_path / "run.trec").read_text().splitlines()
    assert lines[0] == "q1 Q0 z 1 1 bm25"
    assert lines[3:5] == ["q2 Q0 a 1 0.5 bm25", "q2 Q0 b 2 0.49999997 bm25"]
    write_run(tmp_path / "again.trec", read_run(tmp_path / "run.trec"), tag="bm25")
    assert (tmp_path / "again.trec").read_bytes() == (tmp_path / "run.trec").read_bytes()


def test_written_scores_fall_strictly():
    generator = np.random.default_rng(0)
    scores = np.sort(generator.integers(-3, 4, size=200) / 3)[::-1]
    strict = strictly_decreasing(scores.tolist())
    assert (np.diff(np.array([f"{score:.9g}" for score in strict], dtype=np.float32)) < 0).all()
    assert np.abs(np.array(strict) - scores).max() < 1e-5
    distinct = [3.0, 1 / 3, 1e-7, 0.0, -2.5]
    assert strictly_decreasing(distinct) == [float(np.float32(score)) for score in distinct]


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_score_that_is_no_number_is_refused(broken):
    with pytest.raises(FreshetError, match="no finite number"):
        strictly_decreasing([1.0, broken])


def test_ids_with_spaces_percents_and_other_scripts_survive(tmp_path):
    names = ["my notes/100%.md", "a%20b", "a b", "tab\tand\u2003em space", "größe", "日本語"]
    run = {"what is this?": [(name, float(-i)) for i, name in enumerate(names)]}
    write_run(tmp_path / "run.trec", run, tag="a system")
    assert all(len(line.split()) == 6 for line in (tmp_path / "run.trec").read_text().splitlines())
    assert read_run(tmp_path / "run.trec") == run
