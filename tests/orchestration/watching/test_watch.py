"""Guards drift as it is watched: batches by the ledger's events, small ones left to grow, dry runs kept nowhere."""

from __future__ import annotations

from orchestration.freshening import Freshener
from orchestration.watching.watch import past, watch
from tests.orchestration.watching.subjects import SEA, SPACE, add, documents


def test_before_anything_arrives_there_is_nothing_to_measure(project):
    assert watch(project) is None
    assert not (project.live / "ledger.sqlite").exists(), "looking makes no ledger"


def test_documents_like_the_old_ones_are_only_added(project):
    ledger = add(project, documents(SEA, 24, "more", 1))
    watched = watch(project)
    assert watched.decision.action == "add"
    assert watched.tripped == ()
    assert watched.report.documents == 24
    assert ledger.last_drift(1)[0]["last_event"] == 24
    assert watch(project) is None, "the same documents are not reported twice"


def test_other_documents_trip_and_the_report_says_which_measures(project):
    add(project, documents(SPACE, 24, "space", 2))
    watched = watch(project, record=False)
    assert {"domain_auc", "mmd"} <= set(watched.tripped)
    assert "TRIPPED" in watched.text


def test_a_dry_run_keeps_nothing(project):
    ledger = add(project, documents(SPACE, 24, "space", 2))
    first, second = watch(project, record=False), watch(project, record=False)
    assert first.decision.dry_run
    assert first.report == second.report
    assert ledger.last_drift(5) == []
    assert ledger.last_decisions(5) == []


def test_a_small_batch_waits_for_more(project):
    ledger = add(project, documents(SEA, 12, "few", 3))
    assert watch(project) is None
    assert "too few documents" in watch(project, record=False).decision.reasons[0]
    assert ledger.last_drift(1) == []
    add(project, documents(SEA, 12, "others", 4))
    assert watch(project).report.documents == 24


def test_the_window_holds_the_last_batches(project):
    add(project, documents(SEA, 24, "one", 5))
    watch(project)
    add(project, documents(SEA, 24, "two", 6))
    report = watch(project).report
    assert (report.batches, report.window_documents) == (2, 48)


def test_what_was_deleted_meanwhile_is_not_measured(project):
    add(project, documents(SEA, 24, "one", 5))
    freshener = Freshener(project)
    freshener.remove(["one-000", "one-001"], "test")
    freshener.apply_pending()
    assert watch(project).report.documents == 22


def test_the_cooldown_counts_retrains_that_were_carried_out(project):
    ledger = add(project, documents(SEA, 24, "one", 5))
    ledger.record_decision("retrain", "topics moved", {"batch": [1, 24]})
    assert [(one.action, one.carried_out) for one in past(ledger)] == [("retrain", False)]
    ledger.record_decision("failed", "disk full", {})
    ledger.record_decision("promoted", "better", {})
    assert [(one.action, one.carried_out) for one in past(ledger)] == [("retrain", True)]
