"""Guards the laws of the build: no row is lost, contracts hold whatever comes in, parts and splits
fit together.
"""

from __future__ import annotations

import json
import random

import pytest

from model_code.checks.tables import check_tables
from model_code.corpus.build import build_corpus
from model_code.corpus.settings import CorpusSettings
from model_code.errors import FreshetError
from model_code.text.settings import PassageSettings

ALL = CorpusSettings(quarantine_limit=1.0)
NO_PASSAGES = PassageSettings(words=0)


def junk(draw: random.Random, size: int) -> dict[str, list[dict]]:
    """Rows of which many are malformed in some way, duplicated, dangling, or in conflict."""
    ids = [*(f"x{i}" for i in range(size // 2)), None, "", 7, "\udce9"]
    odd = ["", None, 5, "\x00", "caf\udce9", "l" * 400]
    texts = ["moss", "Moss ", "fern tree", *odd, *(f"text {i}" for i in range(9))]
    unread = [{"a": 1}, [None], ["\udce9"]]
    answers = [
        None,
        [],
        ["moss", "fern"],
        "moss",
        '["moss"]',
        [5],
        [""],
        {"text": ["moss"]},
        *unread,
    ]
    dates = [None, "2024-05-01", "2025-05-01", "spring"]

    def record(names):
        drawn_from = {"id": ids, "date": dates, "answers": answers}
        values = {name: draw.choice(drawn_from.get(name, texts)) for name in names}
        return {name: value for name, value in values.items() if draw.random() < 0.95}

    return {
        "documents": [record(("id", "title", "text", "date")) for _ in range(size)],
        "queries": [record(("id", "text", "answers")) for _ in range(size)],
        "qrels": [
            {
                "query_id": draw.choice(ids),
                "document_id": draw.choice(ids),
                "relevance": draw.choice([-1, 0, 1, 2, "x"]),
                "split": draw.choice(["train", "dev", "test", None, "odd"]),
            }
            for _ in range(2 * size)
        ],
    }


@pytest.mark.parametrize("seed", range(12))
def test_every_row_is_counted_and_contracts_hold(row_source, seed):
    draw = random.Random(seed)
    rows = junk(draw, 60)
    settings = ALL.replace(
        max_characters=300,
        merge_duplicates=draw.choice(["text", "title", "none"]),
        limit=draw.choice([None, 40]),
    )
    built = build_corpus(row_source(**rows), settings, PassageSettings(words=2, stride=1))

    check_tables(built.tables)

    report = built.report
    assert report["documents_read"] == (settings.limit or len(rows["documents"]))

    kinds = ("documents", "documents_merged", "documents_quarantined")
    assert report["documents_read"] == sum(report[kind] for kind in kinds)
    assert report["queries_read"] == len(rows["queries"])
    assert report["queries_read"] == report["queries"] + report["queries_quarantined"]

    kinds = (
        "qrels",
        "qrels_repeated",
        "qrels_not_relevant",
        "qrels_outside_limit",
        "qrels_quarantined",
    )
    assert report["qrels_read"] == len(rows["qrels"])
    assert report["qrels_read"] == sum(report[kind] for kind in kinds)
    assert report["quarantine"] == sum(report["quarantine_reasons"].values()) > 0


def test_query_split_comes_from_its_judgements(row_source):
    rows = {
        "documents": [{"id": "a", "text": "a text"}],
        "queries": [{"id": name, "text": name} for name in ("trained", "tested", "neither")],
        "qrels": [
            {"query_id": "trained", "document_id": "a", "split": "train"},
            {"query_id": "tested", "document_id": "a", "split": "test"},
        ],
    }
    settings = ALL.replace(splits=ALL.splits.replace(dev_share=0.0))
    tables = build_corpus(row_source(**rows), settings, NO_PASSAGES).tables

    check_tables(tables)
    assert tables["queries"]["split"].tolist() == ["train", "test", None]
    assert tables["qrels"]["split"].tolist() == ["train", "test"]


def test_duplicate_document_id_is_refused(
    row_source,
):
    documents = [
        {"id": "a", "text": ""},
        {"id": "a", "text": "first"},
        {"id": "a", "text": "second"},
    ]
    built = build_corpus(row_source(documents=documents), ALL, NO_PASSAGES)

    check_tables(built.tables)
    assert built.tables["documents"]["text"].tolist() == ["first"]
    assert built.report["quarantine_reasons"] == {
        "documents: duplicate id": 1,
        "documents: empty text": 1,
    }
    # A corpus need not have queries.
    assert {name: len(table) for name, table in built.tables.items()} == {
        "documents": 1,
        "passages": 1,
        "queries": 0,
        "qrels": 0,
        "quarantine": 2,
    }


DOCUMENTS_WITH_ANSWERS = [{"id": "d", "text": "in 2008"}]
QUERIES_WITH_ANSWERS = [
    {"id": "a", "text": "when", "answers": ["in 2008", "the year '08"]},
    {"id": "b", "text": "why", "answers": []},
    {"id": "c", "text": "who", "answers": {"alias": "x"}},
]


def test_answers_are_optional_and_counted(row_source):
    source = row_source(documents=DOCUMENTS_WITH_ANSWERS, queries=QUERIES_WITH_ANSWERS)

    built = build_corpus(source, ALL, NO_PASSAGES)

    check_tables(built.tables)
    answers = built.tables["queries"].set_index("query_id")["answers"]
    assert json.loads(answers["a"]) == ["in 2008", "the year '08"]
    assert answers["b"] is None
    assert answers["c"] is None
    assert built.report["queries_with_answers"] == 1
    assert built.report["queries_with_unread_answers"] == 1
    assert built.report["quarantine"] == 0


def test_corpus_without_answers_has_no_column_for_them(row_source):
    source = row_source(documents=DOCUMENTS_WITH_ANSWERS, queries=QUERIES_WITH_ANSWERS[1:2])

    built = build_corpus(source, ALL, NO_PASSAGES)

    assert list(built.tables["queries"]) == ["query_id", "text", "split"]
    assert "queries_with_answers" not in built.report
    assert "queries_with_unread_answers" not in built.report


def test_malformed_rows_or_no_documents_stop_build(row_source):
    documents = [{"id": 1, "text": ""}, {"id": 2, "text": "t"}]

    with pytest.raises(FreshetError, match=r"1 of 2 rows of documents .* documents:1 empty text"):
        build_corpus(row_source(documents=documents), CorpusSettings(), NO_PASSAGES)
    with pytest.raises(FreshetError, match="holds no document"):
        build_corpus(row_source(), ALL, NO_PASSAGES)
