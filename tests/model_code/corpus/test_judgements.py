"""Guards qrels and splits: what a judgement may point at, one split per query, and that none ever
moves.
"""

from __future__ import annotations

from collections import Counter

import pytest

from model_code.corpus.qrels import QrelTargets, admit_qrels
from model_code.corpus.quarantine import Quarantine
from model_code.corpus.rows import Row
from model_code.corpus.settings import QuerySplitSettings
from model_code.corpus.splits import key_documents, position, split_queries

KNOWN = QrelTargets({"q1", "q2", "q3"}, {"d1", "d2"}, {"d1-copy": "d1"})


def take(*rows, known=KNOWN):
    names = ("query_id", "document_id", "relevance", "split")
    values = [dict(zip(names, row, strict=False)) for row in rows]
    quarantine = Quarantine()
    source = (Row("qrels", f"qrels:{i}", value) for i, value in enumerate(values, start=1))
    return admit_qrels(source, known, QuerySplitSettings(dev_share=0), quarantine), quarantine


def test_judgements_of_merged_documents_keep_highest_grade():
    grades = [("q1", "d1", 1, "test"), ("q1", "d1-copy", "3.0", "test"), ("q1", "d1", 2, "test")]
    qrels, _ = take(*grades, ("q1", "d2", 0, "test"), ("q2", "d2"))

    assert qrels.pairs == {("q1", "d1"): 3, ("q2", "d2"): 1}
    assert qrels.repeated == 2
    assert qrels.not_relevant == 1
    assert qrels.judged_not_relevant == {"q1": ["d2"]}


def test_not_relevant_needs_a_relevant_document_and_no_better_grade():
    qrels, _ = take(
        ("q1", "d1", 0, "test"),
        ("q1", "d1-copy", 1, "test"),
        ("q2", "d2", 0, "test"),
        ("q3", "d1", 1, "test"),
        ("q3", "d2", -2, "test"),
    )

    assert qrels.judged_not_relevant == {"q3": ["d2"]}


MALFORMED = {
    "dangling qrel": [("q9", "d1", 1, "test"), ("q1", "d9", 1, "test")],
    "missing id": [(None, "d1", 1, "test")],
    # past int64
    "bad relevance": [
        ("q1", "d1", grade, "test") for grade in ("high", 0.5, None, "1e30", 10**400)
    ],
    "bad split": [("q1", "d1", 1, "holdout")],
}


MALFORMED_ROWS = []
for _reason, _rows in MALFORMED.items():
    MALFORMED_ROWS += [(_row, _reason) for _row in _rows]


@pytest.mark.parametrize(("row", "reason"), MALFORMED_ROWS)
def test_malformed_judgements_are_refused(row, reason):
    qrels, quarantine = take(row, ("q2", "d2", 1, "test"))

    assert qrels.pairs == {("q2", "d2"): 1}
    assert quarantine.reasons() == {f"qrels: {reason}": 1}


def test_a_limited_source_leaves_judgements_behind_without_blame():
    limited = QrelTargets(KNOWN.queries, KNOWN.documents, {}, limited=True)
    qrels, quarantine = take(("q1", "d9", 1, "test"), ("q1", "d1", 1, "test"), known=limited)

    assert qrels.outside_limit == 1
    assert quarantine.refused == []


def test_query_in_two_splits_stays_in_test():
    qrels, quarantine = take(
        ("q1", "d1", 1, "train"),
        ("q1", "d2", 1, "test"),
        ("q2", "d1", 1, "train"),
        ("q2", "d2", 1, "dev"),
    )

    assert qrels.splits == {"q1": "test", "q2": "dev"}
    assert qrels.pairs == {("q1", "d2"): 1, ("q2", "d2"): 1}
    assert quarantine.reasons() == {"qrels: conflicting split": 2}
    assert quarantine.refused[0].location == "qrels:1"


IDS = [f"id-{i}" for i in range(20_000)]


def test_positions_are_uniform_and_independent_between_purposes():
    first, second = (
        [position(name, 0, purpose) for name in IDS] for purpose in ("parts", "queries")
    )
    deciles = Counter(int(place * 10) for place in first)

    # 4 sigma
    assert max(abs(count - 2_000) for count in deciles.values()) < 4 * (20_000 * 0.1 * 0.9) ** 0.5

    both = sum(a < 0.5 and b < 0.5 for a, b in zip(first, second, strict=True))
    assert abs(both - 5_000) < 4 * (20_000 * 0.25 * 0.75) ** 0.5


def test_given_splits_are_kept_others_drawn():
    given = {**dict.fromkeys(IDS), "a": "test", "b": "train", "c": "dev"}
    splits = split_queries(given, QuerySplitSettings())

    assert splits["a"] == "test"
    assert splits["b"] == "train"
    assert splits["c"] == "dev"

    counts = Counter(splits.values())
    for split, share, error in (("test", 0.3, 0.02), ("dev", 0.1, 0.01), ("gate", 0.2, 0.02)):
        assert abs(counts[split] / 20_000 - share) < error


@pytest.mark.parametrize(("name", "other", "share"), [("dev", "gate", 0.1), ("gate", "dev", 0.2)])
def test_missing_dev_and_gate_come_from_train(name, other, share):
    given = {**dict.fromkeys(IDS[:5_000], "train"), **dict.fromkeys(IDS[5_000:6_000], "test")}
    alone = QuerySplitSettings().replace(**{f"{other}_share": 0.0})
    splits = split_queries(given, alone)
    carved = {query for query, split in splits.items() if split == name}

    assert abs(len(carved) / 5_000 - share) < 0.02
    assert carved < set(IDS[:5_000])
    assert split_queries({**given, "d": name}, alone) == {**given, "d": name}

    both = split_queries(given, QuerySplitSettings())
    assert {query for query, split in both.items() if split == "test"} == set(IDS[5_000:6_000])
    # No other draw moves a query.
    assert {split for query, split in both.items() if query in carved} <= {name, "dev"}
    assert split_queries({"q": "test"}, QuerySplitSettings()) == {"q": "test"}

    drawn = split_queries(given | dict.fromkeys(IDS[6_000:9_000]), QuerySplitSettings())
    # The split is also the same beside queries that are drawn, as in a retrain.
    assert {query: drawn[query] for query in given} == both


def test_adding_gate_split_moves_only_training_queries():
    """Test and dev queries of the same shares are the same ones, whatever the gate takes."""
    given = dict.fromkeys(IDS)
    before, after = (
        split_queries(given, QuerySplitSettings(gate_share=share)) for share in (0.0, 0.2)
    )
    moved = {query for query in given if before[query] != after[query]}

    assert {(before[query], after[query]) for query in moved} == {("train", "gate")}


def pairs_of_documents(documents: int, queries: int) -> dict[tuple[str, str], int]:
    """Make judgements of `queries` queries for each of `documents` documents."""
    pairs = {}
    for document in range(documents):
        for query in range(queries):
            pairs[f"q{document}-{query}", f"d{document}"] = 1
    return pairs


def splits_by_document(splits: dict[str, str], documents: dict[str, str]) -> dict[str, set[str]]:
    """The splits other than test that each document's queries are in."""
    found: dict[str, set[str]] = {}
    for query, split in splits.items():
        if split != "test":
            found.setdefault(documents[query], set()).add(split)
    return found


def test_by_document_keeps_queries_together():
    documents = key_documents(pairs_of_documents(500, 6))
    settings = QuerySplitSettings(by_document=1.0)

    drawn = split_queries(dict.fromkeys(documents), settings, documents)
    carved = split_queries(dict.fromkeys(documents, "train"), settings, documents)

    assert all(len(splits) == 1 for splits in splits_by_document(drawn, documents).values())
    assert all(len(splits) == 1 for splits in splits_by_document(carved, documents).values())
    assert set(drawn.values()) == {"test", "dev", "gate", "train"}
    assert set(carved.values()) == {"dev", "gate", "train"}


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_by_document_keeps_the_shares(share):
    documents = key_documents(pairs_of_documents(10_000, 2))
    settings = QuerySplitSettings(by_document=share)

    counts = Counter(split_queries(dict.fromkeys(documents), settings, documents).values())

    for split, expected in (("test", 0.3), ("dev", 0.1), ("gate", 0.2), ("train", 0.4)):
        assert abs(counts[split] / 20_000 - expected) < 0.015


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_by_document_share_of_unasked_dev_queries(share):
    """Of documents with many queries, training asks for nearly all that are not split whole."""
    documents = key_documents(pairs_of_documents(4_000, 10))
    settings = QuerySplitSettings(by_document=share)

    splits = split_queries(dict.fromkeys(documents), settings, documents)

    asked = {documents[query] for query, split in splits.items() if split == "train"}
    for name in ("dev", "gate"):
        queries = [query for query, split in splits.items() if split == name]
        unasked = sum(documents[query] not in asked for query in queries)
        assert abs(unasked / len(queries) - share) < 0.05


def test_by_document_moves_no_test_query():
    documents = key_documents(pairs_of_documents(500, 4))
    stated = dict.fromkeys(documents)

    test_queries = [
        {
            query
            for query, split in split_queries(
                stated, QuerySplitSettings(by_document=share), documents
            ).items()
            if split == "test"
        }
        for share in (0.0, 1.0)
    ]

    assert test_queries[0] == test_queries[1]


def test_by_document_splits_depend_on_nothing_else():
    documents = key_documents(pairs_of_documents(300, 4))
    queries = list(documents)
    whole = split_queries(dict.fromkeys(queries), QuerySplitSettings(), documents)

    part = split_queries(dict.fromkeys(queries[::-3]), QuerySplitSettings(), documents)

    assert part == {query: whole[query] for query in queries[::-3]}


def test_dev_stays_whatever_the_gate_takes_by_document():
    documents = key_documents(pairs_of_documents(1_000, 3))
    stated = dict.fromkeys(documents)

    before = split_queries(stated, QuerySplitSettings(gate_share=0.0), documents)
    after = split_queries(stated, QuerySplitSettings(gate_share=0.2), documents)

    moved = {(before[query], after[query]) for query in stated if before[query] != after[query]}
    assert moved == {("train", "gate")}
