"""Checks the runs of other systems: reading, scores on the queries of a build, and clear errors."""

from __future__ import annotations

import pandas as pd
import pytest
import pytrec_eval

from model_code.corpus.tables import load_corpus
from model_code.errors import FreshetError
from model_code.evaluation.outside_runs import (
    parse_outside_runs,
    read_outside_run,
    refuse_taken_names,
    score_outside_run,
)
from model_code.evaluation.scores import SystemScores
from tests.model_code.evaluation.tiny_corpus import DOCUMENTS, write_corpus

METRICS = ["nDCG@10", "MRR@10", "hit@1", "MAP"]
DEPTH = 20


@pytest.fixture
def corpus(tmp_path):
    return load_corpus(write_corpus(tmp_path / "corpus"))


@pytest.fixture
def build(corpus):
    """Scores of a system of the build on the test queries."""
    queries = sorted(corpus.judgements("test").queries)
    values = pd.DataFrame(0.0, index=pd.Index(queries, name="query_id"), columns=METRICS)
    return SystemScores("bm25", "test", values, with_known=frozenset(queries[:2]))


def write_run(folder, lines):
    path = folder / "outside.trec"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_order_is_by_score_and_then_by_falling_id(tmp_path):
    path = write_run(
        tmp_path,
        ["q Q0 a 1 1.0 x", "q\tQ0\tb\t2\t1.0\tx", "q  Q0 c 3 2.5 x", "", "p Q0 a%20b 1 3 x"],
    )

    run = read_outside_run(path)

    assert [document for document, _ in run["q"]] == ["c", "b", "a"]
    assert run["p"] == [("a b", 3.0)]


def test_known_id_with_percent_sign_stays_as_it_is(tmp_path):
    path = write_run(tmp_path, ["q Q0 https://x/a%20b 1 2.0 x", "q Q0 c%20d 2 1.0 x"])

    run = read_outside_run(path, known_ids={"https://x/a%20b"})

    assert run == {"q": [("https://x/a%20b", 2.0), ("c d", 1.0)]}


def test_scores_equal_trec_eval(tmp_path, corpus, build):
    queries = list(build.values.index)
    lines = []
    for number, query in enumerate(queries[:40]):
        for rank in range(3):
            document = DOCUMENTS[(number * rank + number) % len(DOCUMENTS)]
            lines.append(f"{query} Q0 {document} 1 {rank % 2} outside")
    # A line that occurs twice would rank a document twice.
    distinct = {tuple(line.split()[:3]): line for line in lines}
    path = write_run(tmp_path, distinct.values())

    _, scores = score_outside_run("outside", path, corpus, build, DEPTH)

    qrels = corpus.judgements("test").qrels
    evaluator = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut_10"})
    expected = evaluator.evaluate({q: dict(r) for q, r in read_outside_run(path).items()})
    for query in queries:
        wanted = expected.get(query, {"ndcg_cut_10": 0.0})["ndcg_cut_10"]
        assert scores.values.loc[query, "nDCG@10"] == pytest.approx(wanted)


def test_queries_without_ranking_score_zero(tmp_path, corpus, build):
    first = build.values.index[0]
    path = write_run(tmp_path, [f"{first} Q0 {DOCUMENTS[0]} 1 1.0 x"])

    _, scores = score_outside_run("outside", path, corpus, build, DEPTH)

    assert list(scores.values.index) == list(build.values.index)
    assert list(scores.values.columns) == METRICS
    assert scores.values.iloc[1:].to_numpy().sum() == 0
    assert scores.with_known == build.with_known


def test_ranks_below_the_depth_of_the_build_do_not_count(tmp_path, corpus, build):
    query = build.values.index[0]
    answer = next(iter(corpus.judgements("test").qrels[query]))
    documents = [f"unjudged{rank}" for rank in range(DEPTH)]
    documents.append(answer)
    lines = [f"{query} Q0 {name} 1 {-rank} x" for rank, name in enumerate(documents)]

    run, scores = score_outside_run("outside", write_run(tmp_path, lines), corpus, build, DEPTH)

    assert len(run[query]) == DEPTH
    assert scores.values.loc[query].sum() == 0


def test_byte_order_mark_is_no_part_of_an_id(tmp_path):
    path = write_run(tmp_path, ["\ufeffq Q0 a 1 1.0 x"])

    assert read_outside_run(path) == {"q": [("a", 1.0)]}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("q Q0 a 1 1.0", "5 fields"),
        ("q Q0 a 1 high x", "score 'high'"),
        ("q Q0 a 1 nan x", "finite"),
        ("other Q0 a 1 1.0 x", "none of its 1 queries is judged"),
        ("test:river-00 Q0 elsewhere 1 1.0 x", "none of its 1 documents is in the corpus"),
    ],
)
def test_unusable_runs_are_refused(tmp_path, corpus, build, line, message):
    path = write_run(tmp_path, [line])

    with pytest.raises(FreshetError, match=message):
        score_outside_run("outside", path, corpus, build, DEPTH)


def test_a_document_ranked_twice_is_refused(tmp_path, corpus, build):
    line = f"{build.values.index[0]} Q0 {DOCUMENTS[0]} 1 1.0 x"
    path = write_run(tmp_path, [line, line])

    with pytest.raises(FreshetError, match="twice"):
        score_outside_run("outside", path, corpus, build, DEPTH)


@pytest.mark.parametrize("argument", ["colbert", "=file", "a.b=file", "a b=file"])
def test_other_arguments_are_refused(argument):
    with pytest.raises(FreshetError, match="NAME=FILE"):
        parse_outside_runs([argument])


def test_missing_files_and_repeated_names_are_refused(tmp_path):
    path = write_run(tmp_path, [])

    with pytest.raises(FreshetError, match="does not exist"):
        parse_outside_runs([f"a={tmp_path / 'absent'}"])
    with pytest.raises(FreshetError, match="twice"):
        parse_outside_runs([f"a={path}", f"a={path}"])
    assert parse_outside_runs([f"a={path}"]) == {"a": path}


def test_names_of_the_build_are_refused():
    with pytest.raises(FreshetError, match="a system of this name"):
        refuse_taken_names(["bm25"], ["bm25", "hce"])
