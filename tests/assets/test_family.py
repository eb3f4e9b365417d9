"""Guards that every asset asks the contract of its own stage first, the function that the runner asked."""

from __future__ import annotations

import pytest

from assets.catalogue import FAMILIES
from model_code.context import StageContext
from model_code.contracts.registry import CONTRACTS
from model_code.contracts.rules import require


@pytest.mark.parametrize("stage", FAMILIES)
def test_the_check_asks_the_contract_of_its_stage_and_tells_the_violation(stage, tmp_path, monkeypatch):
    first = FAMILIES[stage].all_checks[0]
    asked = []

    def broken(context):
        asked.append(context)
        require(len(asked) > 1, "a rule is broken")

    monkeypatch.setitem(CONTRACTS, stage, broken)
    context = StageContext(tmp_path, {}, tmp_path, {}, tmp_path)
    assert first.name == "contract_holds"
    passed, seen = first.ask(context)
    assert (passed, seen["violation"]) == (False, "a rule is broken")
    assert f"dvc repro --force --single-item {stage} makes it again" in seen["what to do"]
    assert first.ask(context) == (True, {})
    assert asked == [context, context]
