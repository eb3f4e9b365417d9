"""Guards what arrivals are compared with: documents of the training, untouched by it where there are enough, by date.

pytest tests/orchestration/watching/test_eligible.py
"""

from __future__ import annotations

import json
import re

import pandas as pd
import pytest

from model_code.errors import FreshetError
from model_code.files import write_text
from model_code.live.searcher import Searcher
from orchestration import parameters
from orchestration.watching.eligible import by_date, eligible
from orchestration.watching.reference import build_reference
from orchestration.watching.vectors import passage_vectors
from orchestration.watching.watch import watch
from tests.orchestration.watching.subjects import PARAMS, SEA, add, documents

SEAS = {f"sea-{i:03}" for i in range(150)}


def generation(project):
    return Searcher.open(project.live).generation


def date(project, days):
    """The corpus's documents get dates, by id the number of a day."""
    path = project.artifacts / "corpus" / "documents.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    dates = [f"2025-01-{day:02}" for day in days.values()]
    pd.DataFrame({"document_id": list(days), "date": dates}).to_parquet(path)


def test_documents_that_training_asked_for_are_left_out_where_others_are_enough(project, corpus):
    found, note = eligible(project, generation(project), 120)
    assert (found, note) == ({f"sea-{i:03}" for i in range(120)}, "")
    found, note = eligible(project, generation(project), 121)
    assert found == SEAS
    assert "120 of 150 are asked for by none, and 121 are wanted" in note


def test_without_a_corpus_every_trained_document_is_compared_with(project):
    found, note = eligible(project, generation(project), 60)
    assert found == SEAS
    assert "0 of 150" in note
    add(project, documents(SEA, 24, "more", 1))
    watched = watch(project)
    assert watched.report.reference.startswith("also documents that training queries ask for")
    assert watched.report.reference in watched.text


def test_an_order_is_that_of_the_dates(project):
    date(project, {"b": 3, "a": 2, "c": 1})
    assert by_date(project, generation(project), {"a", "b", "c"}) == ["c", "a", "b"]
    with pytest.raises(FreshetError, match=r"1 of 2 documents have no date, first 'x'.*set drift.batches to random"):
        by_date(project, generation(project), {"a", "x"})


def test_in_order_the_reference_is_the_latest_documents(project):
    drift = {**PARAMS["drift"], "batches": "in_order"}
    write_text(project.params_file, json.dumps({**PARAMS, "drift": drift}))
    add(project, documents(SEA, 24, "more", 1))
    with pytest.raises(FreshetError, match=r"150 of 150 documents have no date"):
        watch(project, record=False)
    names = sorted(SEAS)
    date(project, {name: 1 + number // 10 for number, name in enumerate(names)} | dict.fromkeys(names[:60], 28))
    searcher, settings = Searcher.open(project.live), parameters.load(project.params_file)
    made = build_reference(project, searcher, settings, project.state / "drift")
    ids = searcher.base.rows.document_ids
    latest = {row.tobytes() for row, one in zip(passage_vectors(searcher.base), ids, strict=True) if one in names[:60]}
    assert {row.tobytes() for row in made.vectors} == latest
    why = {one.name: one.why for one in watch(project).report.unmeasured}
    assert re.match(r"the reference lends 41 runs of so many documents, fewer than \d+: raise drift.ref", why["topics"])
    assert "lends" not in why.get("new_quality", "")
