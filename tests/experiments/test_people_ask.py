"""Guards that the questions are fifty different ones, and that the shares told are those of the
documents found.
"""

from __future__ import annotations

import json

import pytest

from experiments.people_ask.run import HERE
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
