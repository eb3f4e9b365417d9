"""Guards the report: its first sentence, its tables are the comparison's numbers, the page is whole
by itself.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from model_code.evaluation.comparison import compare_systems
from model_code.evaluation.report import (
    differences_table,
    headline_metrics,
    render_page,
    report_tables,
    summary_sentence,
    systems_table,
)
from model_code.evaluation.scores import SystemScores
from model_code.evaluation.settings import EvaluationSettings

SETTINGS = EvaluationSettings(
    metrics=("nDCG@10", "hit@1", "MAP"), bootstrap_samples=100, permutations=100
)
EXAMPLE = {
    "query": "how?",
    "difference": 0.5,
    "first": {"a": [["d1", True], ["d2", False]], "b": [["<d3>", False]]},
}


def comparison(names=("bm25", "zero_shot", "hce<1>|x", "zero_shot.rrf")):
    generator = np.random.default_rng(0)
    index = [f"q{i:02}" for i in range(50)]
    systems = [
        SystemScores(
            name, "test", pd.DataFrame(generator.uniform(size=(50, 3)), index, SETTINGS.metrics)
        )
        for name in names
    ]
    parts = {"unseen": index[:20], "seen": index[20:]}
    groups = {
        name: compare_systems([one.restrict_to(own) for one in systems], SETTINGS, 0)
        for name, own in parts.items()
    }
    facts = {
        "main_metric": "nDCG@10",
        "confidence": 0.95,
        "documents": 1200,
        "left_out": {},
        "groups": groups,
    }
    examples = {"system": "a", "reference": "b", "won": [EXAMPLE], "lost": []}
    return (
        facts
        | compare_systems(systems, SETTINGS, 0)
        | {"examples": examples if len(names) > 1 else {}}
    )


def test_summary_names_the_best_system():
    found = comparison(("bm25", "zero_shot", "hce"))
    for name, value in {"bm25": 0.5, "zero_shot": 0.6, "hce": 0.55}.items():
        found["systems"][name]["nDCG@10"] |= {
            "value": value,
            "low": value - 0.1,
            "high": value + 0.1,
        }
    assert summary_sentence(found) == (
        "zero_shot is the best of 3 systems: nDCG@10 0.600 [0.500, 0.700] (over queries), 0.050 "
        "above hce, on 1,200 documents and 50 judged test queries."
    )
    sentence = summary_sentence({**found, "own_documents": 7})
    assert sentence.endswith(
        " 7 of the queries are documents of the corpus, and their own document is left out of "
        "their rankings."
    )
    found["systems"] = {"bm25": found["systems"]["bm25"]}
    assert "[0.400, 0.600] (over queries), on 1,200 documents" in summary_sentence(found), (
        "there is no other"
    )


def test_summary_names_groups_below_known_queries():
    """Known queries are worth more than the best system where documents were asked before."""
    found = comparison(("bm25_known", "hce"))
    values = {"seen": (0.7, 0.6), "unseen": (0.2, 0.6)}
    found["systems"]["hce"]["nDCG@10"]["value"] = 0.9
    found["groups"] = {}
    for name, (known, own) in values.items():
        systems = {"bm25_known": {"nDCG@10": {"value": known}}, "hce": {"nDCG@10": {"value": own}}}
        found["groups"][name] = {"systems": systems}

    summary = summary_sentence(found)
    assert summary.endswith(" On the queries 'seen', bm25_known is above it: 0.700 against 0.600.")
    assert "unseen" not in summary


def test_summary_begins_with_limits():
    found = comparison() | {"left_out": {"mlr": "mlr is not trained"}}
    assert summary_sentence(found).startswith("Mlr is not trained. ")
    nothing = summary_sentence(found | {"queries": 0, "systems": {}})
    assert nothing.startswith("This corpus has no judged dev or test queries")
    assert nothing.endswith("Mlr is not trained.")


def test_systems_table_holds_the_numbers():
    found = comparison()
    table = systems_table(found)

    assert table["system"].tolist() == ["bm25", "zero_shot", "hce<1>|x", "zero_shot.rrf"]
    assert list(table.columns) == [
        "system",
        "nDCG@10 [95 % interval]",
        "hit@1 [95 % interval]",
        "interval over",
    ]
    cell = found["systems"]["bm25"]["hit@1"]
    assert table.iloc[0, 2] == f"{cell['value']:.3f} [{cell['low']:.3f}, {cell['high']:.3f}]"


def test_systems_table_says_what_intervals_are_over():
    over = systems_table(comparison())["interval over"].tolist()

    assert over == ["queries", "queries", "queries, one training", "queries"]


def test_differences_table_holds_the_numbers():
    found = comparison()
    found["differences"][0] |= {"difference": 0.5, "low": -0.1, "high": 1.0, "p_holm": 0.0004}

    table = differences_table(found, "nDCG@10")

    assert table.iloc[0].tolist() == [
        "zero_shot − bm25",
        "+0.500 [-0.100, +1.000]",
        "< 0.001",
        "queries",
    ]
    assert table["interval over"].tolist()[-1] == "queries, one training"


def test_report_has_a_table_per_group():
    titles = list(report_tables(comparison()))
    assert [title.split()[0] for title in titles] == [
        "Results",
        "Paired",
        "Queries",
        "The",
        "Queries",
        "Queries",
    ]
    won = report_tables(comparison())["Queries that a won against b by most in nDCG@10"]
    assert won.iloc[0].tolist() == ["how?", "+0.500", "✓ d1; d2", "<d3>"]
    alone = [title.split()[0] for title in report_tables(comparison(names=("hce",)))]
    assert alone == ["Results", "Queries", "Queries"], "neither differences nor examples"


class Page(HTMLParser):
    """Collects addresses and checks that elements close in order."""

    def __init__(self):
        super().__init__()
        self.open, self.addresses = [], []

    def handle_starttag(self, tag, attributes):
        self.addresses += [value for name, value in attributes if name in ("src", "href")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_page_is_well_formed_and_self_contained():
    long = pd.DataFrame({"a": ["word " * 40]})
    html = render_page("<t>", ["<script>"], b"png", report_tables(comparison()) | {"long": long})
    parser = Page()
    parser.feed(html)
    assert parser.open == []
    assert [address[:22] for address in parser.addresses] == ["data:image/png;base64,"]
    assert not re.search(r"<script|https?://|@import|<t>|<1>|<d3>", html)
    assert "hce&lt;1&gt;|x" in html
    assert "word " * 39 in html, "nothing is cut"


@pytest.mark.parametrize(
    ("main_metric", "metrics", "shown"),
    [
        ("nDCG@10", ["MAP", "R@100", "hit@1", "nDCG@10"], ["nDCG@10", "hit@1", "R@100"]),
        ("MAP", ["MAP", "hit@1", "nDCG@10"], ["MAP", "nDCG@10", "hit@1"]),
        ("MRR@5", ["MRR@5"], ["MRR@5"]),
    ],
)
def test_main_metric_comes_first(main_metric, metrics, shown):
    assert (
        headline_metrics({"main_metric": main_metric, "systems": {"bm25": dict.fromkeys(metrics)}})
        == shown
    )
