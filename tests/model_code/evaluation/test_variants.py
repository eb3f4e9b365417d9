"""Guards the variants of a retriever: which there are, and that each run is on exactly the judged queries."""

from __future__ import annotations

from dataclasses import replace

from model_code.corpus.tables import Judgements
from model_code.evaluation.settings import EvaluationSettings
from model_code.evaluation.variants import retriever_runs

SETTINGS = EvaluationSettings(metrics=("hit@1",), main_metric="hit@1", depth=3, rerank_depth=2, fusion_constant=1)
JUDGED = {"dev": Judgements({}, {}, "qrels"), "test": Judgements({"q1": "x", "q2": "y"}, {}, "qrels")}
RUNS = {"dev": {}, "test": {"q1": [("a", 3.0), ("b", 2.0), ("c", 1.0)], "q2": [("a", 1.0)]}}
BM25 = {"dev": {}, "test": {"q1": [("c", 9.0), ("d", 8.0), ("a", 7.0)], "q2": []}}


class Reversing:
    """Encodes a query as its text in capitals; finds a, b and c; re-ranks by names, backwards; has one variant."""

    def __init__(self):
        self.encoded = []

    def encode_queries(self, texts):
        assert texts, "nothing to encode in an empty split"
        self.encoded += texts
        return [text.upper() for text in texts]

    def find(self, queries, k):
        assert all(query.isupper() for query in queries)
        return [[("a", 3.0), ("b", 2.0), ("c", 1.0)][:k] if query == "X" else [("a", 1.0)] for query in queries]

    def rerank_encoded(self, queries, candidates):
        assert len(queries) == len(candidates)
        return [[(name, float(ord(name))) for name in sorted(names, reverse=True)] for names in candidates]

    def variants(self):
        return {"beta": lambda texts, k: [[("z", 1.0)] for _ in texts]}


def test_the_retrievers_own_come_first_then_both_hybrids_and_queries_are_encoded_once():
    retriever = Reversing()
    found = dict(retriever_runs(retriever, BM25, JUDGED, SETTINGS))
    assert retriever.encoded == ["x", "y"]
    assert list(found) == [None, "beta", "rrf", "bm25_rerank"]
    assert found[None] == RUNS
    assert found["beta"] == {"dev": {}, "test": {"q1": [("z", 1.0)], "q2": [("z", 1.0)]}}
    assert found["bm25_rerank"] == {"dev": {}, "test": {"q1": [("d", 100.0), ("c", 99.0)], "q2": []}}
    assert found["rrf"]["test"] == {
        "q1": [("a", 1 / 2 + 1 / 4), ("c", 1 / 4 + 1 / 2), ("b", 1 / 3)],
        "q2": [("a", 1 / 2)],
    }


def test_without_variants_there_is_the_search_alone():
    found = dict(retriever_runs(Reversing(), {}, JUDGED, replace(SETTINGS, variants=False)))
    assert found == {None: RUNS}
