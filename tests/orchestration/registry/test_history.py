"""Guards the history of promotions: lines are only appended, and a crash damages none."""

from __future__ import annotations

import pytest

from model_code.project import Project
from orchestration.registry import history


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


def test_history_is_empty_at_first(project):
    assert history.read(project) == []


def test_lines_are_read_in_order(project):
    verdict = {"passed": True, "by_known_queries": {}, "findings": ["below bm25_known"]}
    history.append(project, "promote", None, "1", verdict)
    history.append(project, "rollback", "1", "2", None)

    promotion, rollback = history.read(project)

    assert promotion["action"] == "promote"
    assert promotion["from"] is None
    assert promotion["to"] == "1"
    assert promotion["verdict"] == verdict
    assert rollback["action"] == "rollback"
    assert rollback["from"] == "1"
    assert rollback["to"] == "2"
    assert rollback["verdict"] is None


def test_lines_are_only_appended(project):
    history.append(project, "promote", None, "1", None)
    before = project.promotions.read_bytes()

    history.append(project, "rollback", "1", "2", None)

    assert project.promotions.read_bytes().startswith(before)


def test_line_cut_off_by_crash_is_skipped(project):
    history.append(project, "promote", None, "1", None)
    with project.promotions.open("a") as stream:
        stream.write('{"action": "pro')
    assert [line["to"] for line in history.read(project)] == ["1"]

    history.append(project, "promote", "1", "2", None)

    assert [line["to"] for line in history.read(project)] == ["1", "2"]


def test_completed_promotion_is_not_repeated(project):
    history.append(project, "promote", None, "1", None)
    history.append(project, "promote", None, "1", None)

    assert len(history.read(project)) == 1


def test_refusal_is_repeated(project):
    history.append(project, "refuse", "1", "2", None)
    history.append(project, "refuse", "1", "2", None)

    assert len(history.read(project)) == 2


def test_verdict_of_an_earlier_version_gets_the_missing_keys(project):
    history.append(project, "promote", None, "1", {"passed": True, "reasons": ["better"]})

    assert history.last_verdict(project)["verdict"] == {
        "passed": True,
        "reasons": ["better"],
        "by_known_queries": {},
        "findings": [],
    }


def test_line_separator_within_a_text_ends_no_line(project):
    verdict = {"passed": False, "reasons": ["a\u2028b"]}
    history.append(project, "refuse", None, "1", verdict)

    assert history.last_verdict(project)["verdict"]["reasons"] == ["a\u2028b"]
