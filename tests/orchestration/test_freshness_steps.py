"""Guards what the sensor asks for: additions while changes wait, a retrain until it is settled, neither twice."""

from __future__ import annotations

from orchestration.freshness_steps import ATTEMPTS, due_retrain


def decisions(*kinds):
    """Newest first, as the ledger lists them; ids count from the oldest."""
    return [
        {"id": number, "kind": kind, "reason": f"reason {number}"}
        for number, kind in reversed(list(enumerate(kinds, start=1)))
    ]


def test_a_retrain_is_due_until_it_is_promoted_or_refused():
    assert due_retrain(decisions("add", "retrain", "add")).key == "2-1"
    assert due_retrain(decisions("retrain", "promoted", "add")) is None
    assert due_retrain(decisions("retrain", "refused", "add")) is None
    assert due_retrain(decisions("retrain", "refused", "retrain")).key == "3-1"


def test_a_failed_retrain_is_tried_again_under_another_key_and_not_for_ever():
    keys = [due_retrain(decisions("retrain", *["failed"] * failures)).key for failures in range(ATTEMPTS)]
    assert keys == ["1-1", "1-2", "1-3"]
    assert due_retrain(decisions("retrain", *["failed"] * ATTEMPTS)) is None


def test_a_retrain_that_was_asked_for_again_starts_with_all_its_attempts():
    assert due_retrain(decisions("retrain", "failed", "failed", "retrain")).key == "4-1"


def test_without_a_retrain_nothing_is_due():
    assert due_retrain(decisions("add", "recluster", "rollback")) is None
    assert due_retrain([]) is None
