"""Guards the report: tables name their queries and judge, numbers are the comparison's, the page needs no network."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from model_code.evaluation.comparison import compare_groups, compare_systems
from model_code.evaluation.plots import Picture
from model_code.evaluation.report import Cell, differences_table, headline_metrics, make_report, metrics_table
from model_code.evaluation.scores import SystemScores
from model_code.evaluation.settings import EvaluationSettings

SETTINGS = EvaluationSettings(metrics=("nDCG@10", "hit@1", "MAP"), bootstrap_samples=100, permutations=100)
PICTURE = Picture("recall", "Recall <by k>", b"png", "<svg></svg>")


def comparison(source="qrels", names=("bm25", "zero_shot", "hce<1>|x")):
    generator = np.random.default_rng(0)
    index = [f"q{i:02}" for i in range(50)]
    systems = [
        SystemScores(name, source, "test", pd.DataFrame(generator.uniform(size=(50, 3)), index, SETTINGS.metrics))
        for name in names
    ]
    dev = [SystemScores(one.system, source, "dev", one.values.iloc[:30]) for one in systems]
    groups = {"unseen": index[:20], "seen": index[20:]} if source == "qrels" else {}
    facts = {"main_metric": "nDCG@10", "confidence": 0.95, "documents": 1200}
    return (
        facts
        | compare_systems(systems, SETTINGS, 0)
        | {
            "groups": compare_groups(systems, groups, SETTINGS, 0),
            "dev": compare_systems(dev, SETTINGS, 0),
            "examples": {},
        }
    )


def test_every_table_names_its_queries_and_its_judge():
    report = make_report(comparison(), [])
    tables = (*report.tables, *report.details)
    found = [re.search(r"(\d+ \w+) queries, judged by the corpus's own qrels", table.caption) for table in tables]
    expected = ["50 test"] * 2 + ["20 test"] * 2 + ["30 test"] * 2 + ["30 dev"] + ["50 test"] * 3
    assert [match and match[1] for match in found] == expected


def test_the_first_sentence_says_who_is_best_by_how_much_and_on_what():
    found = comparison()
    values = {"bm25": 0.5, "zero_shot": 0.6, "hce<1>|x": 0.55}
    for name, value in values.items():
        found["systems"][name]["nDCG@10"] |= {"value": value, "low": value - 0.1, "high": value + 0.1}
    assert make_report(found, []).lead == (
        "zero_shot is the best of 3 systems: nDCG@10 0.600 [0.500, 0.700], 0.050 above hce<1>|x, on 1,200 documents "
        "and 50 test queries, judged by the corpus's own qrels."
    )
    found["systems"] = {"bm25": found["systems"]["bm25"]}
    assert "[0.400, 0.600], on 1,200 documents" in make_report(found, []).lead, "there is no other"


def test_pseudo_queries_are_called_so_everywhere():
    report = make_report(comparison("pseudo-queries"), [])
    assert all("held-out pseudo-queries" in table.caption for table in (*report.tables, *report.details))
    assert "own qrels" not in report.markdown() + report.html()


def test_markdown_tables_hold_the_comparisons_numbers():
    result = comparison()
    text = make_report(result, [PICTURE]).markdown()
    cell = result["systems"]["bm25"]["hit@1"]
    assert f"{cell['value']:.3f}" in text
    assert f"[{cell['low']:.3f}, {cell['high']:.3f}]" in text
    assert "hce<1>\\|x − bm25" in text
    assert "![Recall <by k>](recall.png)" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert all(len(re.findall(r"(?<!\\)\|", line)) in (4, 5) for line in rows)


def test_the_best_of_a_column_and_the_significant_are_marked():
    result = comparison()
    table = metrics_table(result, ["nDCG@10", "MAP"], "t", 0.95)
    for column, metric in ((1, "nDCG@10"), (2, "MAP")):
        values = [result["systems"][row[0].text][metric]["value"] for row in table.rows]
        assert [row[column].best for row in table.rows] == [value == max(values) for value in values]
    result["differences"][0] |= {"p": 0.0004, "p_holm": 0.049}
    row = differences_table(result, "nDCG@10", "systems", "t", 0.95).rows[0]
    assert row[2:] == (Cell("< 0.001"), Cell("0.049", best=True))


class Page(HTMLParser):
    """Collects addresses and checks that elements close in order."""

    def __init__(self):
        super().__init__()
        self.open, self.addresses, self.alternatives = [], [], []

    def handle_starttag(self, tag, attributes):
        self.addresses += [value for name, value in attributes if name in ("src", "href")]
        self.alternatives += [value for name, value in attributes if name == "alt"]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_self_contained():
    html = make_report(comparison(), [PICTURE]).html()
    page = Page()
    page.feed(html)
    assert page.open == []
    assert [address[:26] for address in page.addresses] == ["data:image/svg+xml;base64,"]
    assert page.alternatives == ["Recall <by k>"]
    assert not re.search(r"<script|https?://|@import", html)
    assert "hce&lt;1&gt;|x" in html
    assert "<1>" not in html


def test_one_system_alone_makes_a_report_without_differences():
    report = make_report(comparison(names=("hce",)), [])
    assert [table.title for table in report.tables] == ["Results", "Unseen documents", "Seen documents", "Dev"]
    assert report.html().count("<table>") == 5


@pytest.mark.parametrize(
    ("measured", "expected"),
    [(["MAP", "R@100", "hit@1"], ["MAP", "hit@1", "R@100"]), (["MAP"], ["MAP"]), (["MAP", "hit@5"], ["MAP"])],
)
def test_the_headline_is_the_main_metric_and_what_was_measured(measured, expected):
    assert headline_metrics("MAP", measured) == expected


def test_equal_comparisons_give_equal_reports():
    assert make_report(comparison(), [PICTURE]).html() == make_report(comparison(), [PICTURE]).html()
