"""Guards that the questions are fifty different ones, and that the shares told are those of the
documents found.
"""

from __future__ import annotations

import json

import pytest

from experiments.people_ask.run import HERE
from experiments.people_ask_2.run import Questions, measure, update_report
from model_code.files import read_json


def test_the_shares_are_those_of_what_was_found():
    questions = dict(json.loads((HERE / "questions.json").read_text()))
    result = read_json(HERE / "result.json")

    assert len(questions) == 50
    assert result["questions"] == 50

    for shares in result["systems"].values():
        assert shares["found"].keys() == questions.keys()
        by_id = [
            bool(set(answers) & set(shares["found"][text][:1]))
            for text, answers in questions.items()
        ]
        # No first answer is known by an alias alone.
        assert sum(by_id) / 50 == pytest.approx(shares["first 1"])


def test_measured_words_leave_other_systems_as_they_are():
    questions = Questions({"q": "moss"}, {"q": {"d2": 1}})
    systems = {"bm25": FixedRanking(["d1", "d2"]), "bm25_known": FixedRanking(["d2", "d1"])}
    report = {"questions": 1, "systems": {"headline": {}}, "first three": {}, "gains": {}}

    update_report(report, measure(systems, questions))

    assert report["systems"].keys() == {"headline", "bm25", "bm25_known"}
    assert report["gains"] == {}
    assert report["gains of known queries"]["hit@1"]["better"] == 1


class FixedRanking:
    """A retriever that ranks the same documents for every query."""

    def __init__(self, documents: list[str]) -> None:
        self.documents = documents

    def search(self, texts: list[str], k: int) -> list[list[tuple[str, float]]]:
        """Return the documents with falling scores."""
        ranking = [(document, -float(rank)) for rank, document in enumerate(self.documents)]
        return [ranking[:k] for _ in texts]
