"""The page of a drift report: complete, self-contained, and safe whatever a title contains."""

from __future__ import annotations

import re
from dataclasses import asdict
from html.parser import HTMLParser

import numpy as np
import pytest

from model_code.drift.descriptions import (
    ASKED_QUERIES,
    CHANGED_DOCUMENTS,
    DESCRIPTIONS,
    PROTECTED_QUERIES,
)
from model_code.drift.measures import MEASURES, DocumentExample, Statistic, growth, judge
from model_code.drift.report import DriftReport, SkippedMeasure
from orchestration.freshness.drift_page import DECISION_MEANINGS, example_ids, render_page
from orchestration.freshness.policy import Action, Decision

NULL = np.linspace(-0.1, 0.1, 1999)
VOID = {"meta", "line", "rect", "circle"}


def make_row(**values):
    statistics = [
        Statistic(ASKED_QUERIES, -0.3, NULL, "low", "batch", {"documents": 40}),
        Statistic("domain_auc", 0.05, NULL, "high", "window"),
    ]
    report = DriftReport(
        documents=40,
        batches=2,
        window_documents=90,
        alpha=0.05,
        measures=(*judge(statistics, 0.05), growth(60, 100, 0.5)),
        unmeasured=(SkippedMeasure(CHANGED_DOCUMENTS, "3 changed documents are few", "batch"),),
        examples={
            ASKED_QUERIES: (DocumentExample("notes/a.md", 0.125),),
            "growth": (DocumentExample("gone.md"),),
        },
        incdsi="IncDSI refined 2 documents.",
    )
    decision = Decision(
        Action.NO_ACTION, ("asked_quality is below", "held back: <no judgements>"), Action.RETRAIN
    )
    row = {
        "retriever": "fused",
        "recorded": 1_750_000_000.0,
        "first_event": 11,
        "last_event": 50,
        "report": {"report": report.to_dict(), "decision": asdict(decision)},
    }
    row.update(values)
    return row


class Balance(HTMLParser):
    """Check that every element is closed, and collect what a reader and a browser get."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def parse(page: str) -> Balance:
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    return parser


@pytest.fixture
def page() -> str:
    return render_page(make_row(), {"notes/a.md": "Bees & <b>hives</b>"})


def test_page_shows_each_result_with_threshold_and_p(page):
    text = " ".join(parse(page).text)

    assert "-0.3000" in text
    assert "beyond its threshold" in text
    assert "within its threshold" in text
    assert "p = 0.0005" in text
    assert "0.6000" in text


def test_page_tells_the_effect_of_incdsi(page):
    assert "IncDSI refined 2 documents." in " ".join(parse(page).text)


def test_page_explains_each_measure(page):
    for name in (ASKED_QUERIES, "domain_auc", "growth"):
        assert DESCRIPTIONS[name].question in page


def test_page_shows_decision_and_reasons(page):
    assert "Decision: no action (called for: retrain)" in page
    assert "held back: &lt;no judgements&gt;" in page


def test_page_lists_skipped_measures(page):
    assert "3 changed documents are few" in page


def test_example_shows_title_as_text(page):
    assert "Bees &amp; &lt;b&gt;hives&lt;/b&gt;" in page
    assert ">0.125<" in page


def test_deleted_document_has_no_title(page):
    assert re.search(r"gone\.md</th><td>no longer live", page)


def test_page_loads_nothing_from_elsewhere(page):
    tags = parse(page).tags

    assert not {"script", "img", "link", "iframe"} & {tag for tag, _ in tags}
    for _, attributes in tags:
        assert "style" not in attributes
        for name in ("href", "src"):
            assert attributes.get(name, "#").startswith("#")
    assert "url(" not in page


def test_links_lead_to_sections(page):
    tags = parse(page).tags
    ids = {attributes["id"] for _, attributes in tags if "id" in attributes}

    for tag, attributes in tags:
        if tag == "a":
            assert attributes["href"].removeprefix("#") in ids


def test_pictures_have_texts(page):
    pictures = [attributes for tag, attributes in parse(page).tags if tag == "svg"]

    assert pictures
    assert all("threshold" in attributes["aria-label"] for attributes in pictures)


def test_report_without_examples_is_shown():
    row = make_row()
    del row["report"]["report"]["examples"]

    assert "Drift report" in render_page(row, {})
    assert example_ids(row["report"]) == []


def test_each_measure_and_decision_is_explained():
    measures = {*MEASURES, CHANGED_DOCUMENTS, PROTECTED_QUERIES, "conflicts", "growth"}

    assert set(DESCRIPTIONS) == measures
    assert set(DECISION_MEANINGS) == {str(action) for action in Action}
