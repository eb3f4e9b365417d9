"""Guards the acceptance stage: it passes a fit corpus, stops an unfit one by name, and leaves a
readable verdict.
"""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from model_code.context import StageContext
from model_code.corpus.build import build_corpus
from model_code.corpus.rows import Row
from model_code.corpus.settings import AcceptanceSettings, CorpusSettings
from model_code.corpus.tables import write_table
from model_code.errors import FreshetError
from model_code.files import read_json
from model_code.stages import acceptance
from model_code.text.settings import PassageSettings


class Words:
    """A source of twelve documents, each asked for by one test query, or by none; so many queries
    say the same.
    """

    def __init__(self, queries: bool, same: int = 0) -> None:
        self.queries = queries
        self.same = same

    def rows(self, table, progress=None):
        if table != "documents" and not self.queries:
            return

        for number in range(12):
            text = f"the text of number {number}"
            if table == "queries" and number < self.same:
                text = "the same"
            values = {"id": str(number), "text": text}
            if table == "qrels":
                values = {"query_id": str(number), "document_id": str(number), "split": "test"}
            yield Row(table, f"{number}", values)


def context(root: Path, queries: bool = True, same: int = 0, **settings) -> StageContext:
    folders = {name: root / name for name in ("corpus", "output")}
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    for name, table in build_corpus(
        Words(queries, same), CorpusSettings(), PassageSettings()
    ).tables.items():
        write_table(folders["corpus"], name, table)
    return StageContext(
        root, folders, folders["output"], {"acceptance": AcceptanceSettings(**settings)}, root
    )


def test_valid_corpus_passes_with_data_docs(tmp_path):
    places = [tmp_path / "one", tmp_path / "two"]
    reports = [acceptance.run(context(place)) for place in places]

    assert reports[0] == {"passed": True, "expectations": 6}
    assert reports[1] == {"passed": True, "expectations": 6}

    first, second = ((place / "output" / "verdict.json").read_bytes() for place in places)
    assert first == second
    assert [path.name for path in (places[0] / "output").iterdir()] == ["verdict.json"]

    docs = places[0] / ".freshet" / "data_docs"
    assert "documents" in (docs / "index.html").read_text()

    acceptance.run(context(places[0]))
    # Only the pages of the last run are kept.
    assert len(list((docs / "validations").rglob("*.html"))) == 3


def test_every_broken_bound_is_named_and_stays_readable(tmp_path):
    with pytest.raises(FreshetError) as refusal:
        acceptance.run(context(tmp_path, min_documents=13, same=8))
    for message in (
        "documents: too few: 12, must be at least 13",
        "queries: equal to another: 58.3",
    ):
        assert message in str(refusal.value)

    verdict = read_json(tmp_path / ".freshet" / "data_docs" / "verdict.json")
    assert [row["passed"] for row in verdict["expectations"]].count(False) == 2
    assert verdict["passed"] is False


def test_without_judgements_documents_alone_must_suffice(tmp_path):
    assert acceptance.run(context(tmp_path, queries=False)) == {"passed": True, "expectations": 2}


def test_a_judgement_of_no_document_stops_the_stage(tmp_path):
    place = context(tmp_path)
    path = tmp_path / "corpus" / "qrels.parquet"
    pd.read_parquet(path).replace({"document_id": {"3": "absent"}}).to_parquet(path)

    with pytest.raises(
        FreshetError, match="judgements: of an unknown document: .* %, must be at most 0 %"
    ):
        acceptance.run(place)
    assert json.dumps(read_json(place.output / "verdict.json"))
