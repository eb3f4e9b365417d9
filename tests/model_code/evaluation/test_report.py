"""Test the report: its summary, the numbers of its tables, and its self-contained page."""

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


def random_scores(generator, name, queries):
    values = pd.DataFrame(generator.uniform(size=(len(queries), 3)), queries, SETTINGS.metrics)
    return SystemScores(name, "test", values)


def make_comparison(names=("bm25", "zero_shot", "hce<1>|x", "zero_shot.rrf")):
    """Return a comparison of systems with random scores for 50 queries, 20 of them without known queries."""
    generator = np.random.default_rng(0)
    queries = [f"q{i:02}" for i in range(50)]
    systems = [random_scores(generator, name, queries) for name in names]

    groups = {}
    for group, group_queries in (("without_known", queries[:20]), ("with_known", queries[20:])):
        group_systems = [system.restrict_to(group_queries) for system in systems]
        groups[group] = compare_systems(group_systems, SETTINGS, 0)

    comparison = compare_systems(systems, SETTINGS, 0)
    comparison["main_metric"] = "nDCG@10"
    comparison["confidence"] = 0.95
    comparison["documents"] = 1200
    comparison["left_out"] = {}
    comparison["groups"] = groups
    comparison["examples"] = {}
    if len(names) > 1:
        examples = {"system": "a", "reference": "b", "won": [EXAMPLE], "lost": []}
        comparison["examples"] = examples
    return comparison


@pytest.fixture
def comparison_with_best_system():
    """Return a comparison of three systems with round numbers; zero_shot is the best."""
    comparison = make_comparison(("bm25", "zero_shot", "hce"))
    for name, value in {"bm25": 0.5, "zero_shot": 0.6, "hce": 0.55}.items():
        cell = comparison["systems"][name]["nDCG@10"]
        cell["value"] = value
        cell["low"] = value - 0.1
        cell["high"] = value + 0.1
    return comparison


def test_summary_names_the_best_system(comparison_with_best_system):
    assert summary_sentence(comparison_with_best_system) == (
        "zero_shot is the best of 3 systems: nDCG@10 0.600 [0.500, 0.700] (over queries), 0.050 "
        "above hce, on 1,200 documents and 50 judged test queries."
    )


def test_summary_counts_queries_that_are_documents(comparison_with_best_system):
    comparison_with_best_system["own_documents"] = 7

    assert summary_sentence(comparison_with_best_system).endswith(
        " 7 of the queries are documents of the corpus, and their own document is left out of "
        "their rankings."
    )


def test_summary_of_a_single_system_has_no_difference(comparison_with_best_system):
    systems = comparison_with_best_system["systems"]
    comparison_with_best_system["systems"] = {"bm25": systems["bm25"]}

    summary = summary_sentence(comparison_with_best_system)

    assert "[0.400, 0.600] (over queries), on 1,200 documents" in summary


def test_summary_names_groups_below_known_queries():
    """Known queries can be better than the best system for documents with earlier queries."""
    comparison = make_comparison(("bm25_known", "hce"))
    comparison["systems"]["hce"]["nDCG@10"]["value"] = 0.9
    comparison["groups"] = {}
    for group, known_value, hce_value in (("with_known", 0.7, 0.6), ("without_known", 0.2, 0.6)):
        systems = {
            "bm25_known": {"nDCG@10": {"value": known_value}},
            "hce": {"nDCG@10": {"value": hce_value}},
        }
        comparison["groups"][group] = {"systems": systems}

    summary = summary_sentence(comparison)

    assert summary.endswith(
        " On the queries 'with_known', bm25_known is above it: 0.700 against 0.600."
    )
    assert "without_known" not in summary


def test_summary_begins_with_missing_systems():
    comparison = make_comparison()
    comparison["left_out"] = {"mlr": "mlr is not trained"}

    assert summary_sentence(comparison).startswith("Mlr is not trained. ")


def test_summary_without_judged_queries():
    comparison = make_comparison()
    comparison["left_out"] = {"mlr": "mlr is not trained"}
    comparison["queries"] = 0
    comparison["systems"] = {}

    summary = summary_sentence(comparison)

    assert summary.startswith("This corpus has no judged dev or test queries")
    assert summary.endswith("Mlr is not trained.")


def test_systems_table_holds_the_numbers():
    comparison = make_comparison()

    table = systems_table(comparison)

    assert table["system"].tolist() == ["bm25", "zero_shot", "hce<1>|x", "zero_shot.rrf"]
    assert list(table.columns) == [
        "system",
        "nDCG@10 [95 % interval]",
        "hit@1 [95 % interval]",
        "interval over",
    ]
    cell = comparison["systems"]["bm25"]["hit@1"]
    assert table.iloc[0, 2] == f"{cell['value']:.3f} [{cell['low']:.3f}, {cell['high']:.3f}]"


def test_systems_table_says_what_intervals_are_over():
    table = systems_table(make_comparison())

    expected = ["queries", "queries", "queries, one training", "queries"]
    assert table["interval over"].tolist() == expected


def test_differences_table_holds_the_numbers():
    comparison = make_comparison()
    numbers = {"difference": 0.5, "low": -0.1, "high": 1.0, "p_holm": 0.0004}
    comparison["differences"][0].update(numbers)

    table = differences_table(comparison, "nDCG@10")

    assert table.iloc[0].tolist() == [
        "zero_shot − bm25",
        "+0.500 [-0.100, +1.000]",
        "< 0.001",
        "queries",
    ]
    assert table["interval over"].tolist()[-1] == "queries, one training"


def first_words(titles):
    return [title.split()[0] for title in titles]


def test_report_has_two_tables_per_group():
    comparison = make_comparison()
    tables = report_tables(comparison)

    # The last table holds examples.
    assert first_words(tables) == ["Results", "Paired", *["Queries"] * 5]
    unknown, unknown_differences, known, known_differences = list(tables)[2:6]
    for title, group in ((unknown, "without_known"), (known, "with_known")):
        expected = systems_table(comparison, comparison["groups"][group])
        pd.testing.assert_frame_equal(tables[title], expected)
    for title, group in ((unknown_differences, "without_known"), (known_differences, "with_known")):
        expected = differences_table(comparison["groups"][group], "nDCG@10")
        pd.testing.assert_frame_equal(tables[title], expected)


def test_report_shows_examples():
    tables = report_tables(make_comparison())

    won = tables["Queries that a won against b by most in nDCG@10"]
    assert won.iloc[0].tolist() == ["how?", "+0.500", "✓ d1; d2", "<d3>"]


def test_report_of_a_single_system_has_no_differences_and_examples():
    tables = report_tables(make_comparison(names=("hce",)))

    assert first_words(tables) == ["Results", "Queries", "Queries"]


class Page(HTMLParser):
    """Collect addresses, and check that elements close in order."""

    def __init__(self):
        super().__init__()
        self.open_tags = []
        self.addresses = []

    def handle_starttag(self, tag, attributes):
        self.addresses += [value for name, value in attributes if name in ("src", "href")]
        if tag not in ("meta", "img"):
            self.open_tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open_tags.pop() == tag


@pytest.fixture(scope="module")
def html():
    tables = report_tables(make_comparison())
    tables["long"] = pd.DataFrame({"a": ["word " * 40]})
    return render_page("<t>", ["<script>"], b"png", tables)


def test_page_is_well_formed(html):
    parser = Page()

    parser.feed(html)

    assert parser.open_tags == []


def test_page_needs_no_other_file(html):
    parser = Page()

    parser.feed(html)

    assert [address[:22] for address in parser.addresses] == ["data:image/png;base64,"]
    assert not re.search(r"https?://|@import", html)


def test_page_escapes_names_and_texts(html):
    assert not re.search(r"<script|<t>|<1>|<d3>", html)
    assert "hce&lt;1&gt;|x" in html


def test_page_cuts_no_text(html):
    assert "word " * 39 in html


@pytest.mark.parametrize(
    ("main_metric", "metrics", "shown_metrics"),
    [
        ("nDCG@10", ["MAP", "R@100", "hit@1", "nDCG@10"], ["nDCG@10", "hit@1", "R@100"]),
        ("MAP", ["MAP", "hit@1", "nDCG@10"], ["MAP", "nDCG@10", "hit@1"]),
        ("MRR@5", ["MRR@5"], ["MRR@5"]),
    ],
)
def test_main_metric_comes_first(main_metric, metrics, shown_metrics):
    comparison = {"main_metric": main_metric, "systems": {"bm25": dict.fromkeys(metrics)}}

    assert headline_metrics(comparison) == shown_metrics
