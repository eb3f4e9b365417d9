"""Who changed what: every write has an actor, and the audit log holds no text and no id."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from model_code.audit import acting_as, os_user
from model_code.collection.index.project_ledger import open_ledger
from model_code.collection.ledger.events import (
    Feedback,
    LedgerCursor,
    Opinion,
    Position,
)
from model_code.collection.ledger.ledger import Ledger, RevertTarget
from model_code.corpus.judgement_file import JudgedPair
from model_code.errors import SettingsError
from model_code.project import Project
from model_code.text.documents import Document
from orchestration import parameters
from orchestration.registry import audit_trail, history
from orchestration.registry.audit_trail import filter_trail, parse_moment, read_trail

QUERY = "who is Jane Doe"
SECRET = "https://hooks.example.org/s3cr3t"


@pytest.fixture
def project(tmp_path, monkeypatch) -> Project:
    monkeypatch.delenv("FRESHET_LEDGER", raising=False)
    monkeypatch.delenv("FRESHET_STATE", raising=False)
    (tmp_path / "params.yaml").write_text("retrievers: {hce: {}}\n")
    (tmp_path / "dvc.yaml").touch()
    return Project(tmp_path)


@pytest.fixture
def ledger(project) -> Ledger:
    with open_ledger(project) as ledger:
        yield ledger


def put(ledger: Ledger, *ids: str) -> None:
    ledger.receive([Document(name, name, f"text of {name}") for name in ids], "freshet add")


def actions(project: Project) -> list[tuple[str, int]]:
    return [(entry.action, entry.count) for entry in read_trail(project)]


def test_project_without_changes_has_no_trail(project):
    assert read_trail(project) == []
    # Reading makes no ledger.
    assert not project.live.exists()


def test_changes_of_documents_are_joined_with_the_ledger(project, ledger):
    put(ledger, "a.md", "b.md")
    with acting_as("token"):
        ledger.remove(["a.md"], "freshet delete")

    added, removed = read_trail(project)

    assert added.actor == os_user()
    assert added.documents == ("a.md", "b.md")
    assert added.source == "freshet add"
    assert removed.actor == "token"
    assert removed.action == "remove"
    assert removed.documents == ("a.md",)


def test_unchanged_documents_leave_no_line(project, ledger):
    put(ledger, "a.md")
    put(ledger, "a.md")

    assert actions(project) == [("put", 1)]


def test_erased_document_is_marked_and_stands_in_no_file(project, ledger):
    put(ledger, "jane-doe.md", "b.md")
    ledger.remove(["jane-doe.md"], "freshet delete")
    ledger.erase(["jane-doe.md"])

    added, _, erased = read_trail(project)

    assert erased.action == "erase"
    assert erased.documents == ("jane-doe.md",)
    assert added.erased == ("jane-doe.md",)
    assert "jane-doe.md (erased)" in added.text
    assert "jane-doe" not in project.audit.read_text()


def test_feedback_is_counted_without_query_document_or_person(project, ledger):
    put(ledger, "a.md")
    ledger.record_feedback(Feedback(QUERY, "a.md", Opinion.UP, who="jane"))
    ledger.withdraw_feedback("jane", QUERY, "a.md")
    ledger.withdraw_feedback("jane", QUERY, "a.md")
    ledger.forget_query(QUERY)

    assert actions(project) == [("put", 1), ("feedback", 1), ("withdraw", 1), ("forget", 1)]
    recorded = project.audit.read_text().lower()
    assert "jane" not in recorded
    assert "a.md" not in recorded


def test_rename_and_revert_are_recorded(project, ledger):
    put(ledger, "a.md")
    (event,) = ledger.latest(["a.md"]).values()
    renamed = Document("b.md", "a.md", "text of a.md")
    ledger.rename_documents({"a.md": renamed}, {"a.md": event.content_hash}, "freshet sources")
    cursor = LedgerCursor(Position())
    ledger.revert(RevertTarget("hce", 0, cursor, 1, LedgerCursor(ledger.position()), lambda _: {}))

    _, rename, revert = read_trail(project)

    assert (rename.action, rename.documents) == ("rename", ("b.md", "a.md"))
    assert (revert.action, revert.documents) == ("revert", ("b.md",))


def test_settings_are_recorded_by_name_only(project):
    parameters.change_settings(project, [f"live.webhook={SECRET}", "seed=3"])
    parameters.change_settings(project, ["seed=3"])

    (entry,) = read_trail(project)

    assert entry.action == "settings"
    assert entry.detail == "live.webhook, seed"
    assert "s3cr3t" not in project.audit.read_text()


def test_judgements_are_counted(project, monkeypatch):
    from orchestration.freshness import judged_pairs

    monkeypatch.setattr(judged_pairs, "lock_judgements", lambda _: None)
    judged_pairs.add_judgements(project, [JudgedPair(QUERY, "a.md"), JudgedPair(QUERY, "b.md")])

    assert actions(project) == [("judge", 2)]
    assert "Jane" not in project.audit.read_text()


def test_promotions_come_from_the_history(project):
    history.append(project, "promote", "1", "2", {"passed": True})
    history.append(project, "rollback", "2", "1", None)

    promotion, rollback = read_trail(project)

    assert promotion.actor == os_user()
    assert (promotion.action, promotion.detail) == ("promote", "version 1 -> 2")
    assert (rollback.action, rollback.detail) == ("rollback", "version 2 -> 1")


def test_change_without_line_has_unknown_actor(project, ledger):
    put(ledger, "a.md", "b.md")
    # A process that was killed after the commit writes no line.
    project.audit.unlink()

    (entry,) = read_trail(project)

    assert entry.actor == "unknown"
    assert (entry.action, entry.count) == ("put", 2)
    assert entry.documents == ("a.md", "b.md")


def test_trail_is_filtered(project, ledger):
    put(ledger, "a.md")
    with acting_as("anonymous"):
        put(ledger, "b.md")
    trail = read_trail(project)

    assert [entry.documents for entry in filter_trail(trail, actor="anonymous")] == [("b.md",)]
    assert [entry.documents for entry in filter_trail(trail, document="a.md")] == [("a.md",)]
    assert filter_trail(trail, action="erase") == []
    assert filter_trail(trail, since=datetime(2999, 1, 1, tzinfo=UTC)) == []
    assert len(filter_trail(trail, action="put", since=parse_moment("2020-01-01"))) == 2


def test_wrong_date_is_refused():
    with pytest.raises(SettingsError, match="'yesterday' is no date; write it as 2026-11-01"):
        parse_moment("yesterday")


def test_long_changes_are_shortened(project, ledger):
    put(ledger, *(f"{number}.md" for number in range(10)))

    (entry,) = read_trail(project)

    assert "and 7 more" in entry.text
    assert audit_trail.MAX_SHOWN_DOCUMENTS == 3
