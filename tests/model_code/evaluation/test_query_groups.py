"""Guards which queries count as unseen: those none of whose relevant documents is judged in another split."""

from __future__ import annotations

import pandas as pd

from model_code.evaluation.query_groups import query_groups


def qrels(seen, unseen):
    rows = [("t0", "shared", "train"), ("d0", "tuned", "dev"), ("later", "fresh0", "later")]
    rows += [(f"s{i:02}", "shared" if i % 2 else "tuned", "test") for i in range(seen)]
    rows += [(f"s{i:02}", "only here", "test") for i in range(seen)]
    rows += [(f"u{i:02}", f"fresh{i}", "test") for i in range(unseen)]
    return pd.DataFrame(rows, columns=["query_id", "document_id", "split"])


def ids(table):
    return sorted(set(table.loc[table["split"] == "test", "query_id"]))


def test_one_shared_document_makes_a_query_seen_and_later_ones_do_not_count():
    table = qrels(seen=25, unseen=20)
    groups = query_groups(table, "test", ids(table))
    assert groups == {"unseen": [f"u{i:02}" for i in range(20)], "seen": [f"s{i:02}" for i in range(25)]}


def test_a_group_too_small_to_say_anything_leaves_none():
    for seen, unseen in [(25, 19), (19, 25), (40, 0), (0, 40)]:
        table = qrels(seen, unseen)
        assert query_groups(table, "test", ids(table)) == {}


def test_only_the_evaluated_queries_are_grouped():
    table = qrels(seen=25, unseen=25)
    kept = [query for query in ids(table) if query not in ("u00", "s00")]
    groups = query_groups(table, "test", kept)
    assert "u00" not in groups["unseen"]
    assert "s00" not in groups["seen"]
    assert len(groups["unseen"]) + len(groups["seen"]) == len(kept)
