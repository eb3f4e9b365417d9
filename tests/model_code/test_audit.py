"""The audit log: lines are only appended, name the actor, and survive a cut-off line."""

from __future__ import annotations

import json
import logging
import threading

import pytest

from model_code.audit import AuditAction, AuditLog, acting_as, current_actor, os_user


@pytest.fixture
def log(tmp_path) -> AuditLog:
    return AuditLog(tmp_path / "state" / "audit.jsonl")


def test_log_without_file_is_empty(log):
    assert log.read() == []


def test_line_names_user_action_and_events(log):
    log.append(AuditAction.PUT, 3, [4, 5, 6])

    (entry,) = log.read()
    assert entry.actor == os_user()
    assert entry.action == "put"
    assert entry.count == 3
    assert entry.events == ((4, 6),)


def test_lines_are_only_appended(log):
    log.append(AuditAction.PUT, 1, [1])
    before = log.path.read_bytes()

    log.append(AuditAction.REMOVE, 1, [2])

    assert log.path.read_bytes().startswith(before)
    assert [entry.action for entry in log.read()] == ["put", "remove"]


def test_change_of_nothing_is_not_recorded(log):
    log.append(AuditAction.REMOVE, 0)

    assert not log.path.exists()


def test_request_names_its_actor_in_its_own_context(log):
    seen = []

    with acting_as("token"):
        log.append(AuditAction.FEEDBACK)
        thread = threading.Thread(target=lambda: seen.append(current_actor()))
        thread.start()
        thread.join()

    assert log.read()[0].actor == "token"
    assert current_actor() == os_user()
    # Another thread does not inherit the actor of this request.
    assert seen == [os_user()]


def test_cut_off_line_is_skipped_and_not_continued(log):
    log.append(AuditAction.PUT, 1, [1])
    with log.path.open("a") as stream:
        stream.write('{"time": 1')

    log.append(AuditAction.PUT, 1, [2])

    assert [entry.events for entry in log.read()] == [((1, 1),), ((2, 2),)]


def test_line_separator_within_a_text_ends_no_line(log):
    log.append(AuditAction.PUT, 1, [1], detail="a\u2028b")

    assert [entry.detail for entry in log.read()] == ["a\u2028b"]


def test_unwritable_log_is_reported(log, caplog):
    log.path.mkdir(parents=True)

    with caplog.at_level(logging.ERROR):
        log.append(AuditAction.PUT, 1, [1])

    assert "cannot be written" in caplog.text


def test_concurrent_lines_stay_whole(log):
    def append_many() -> None:
        for number in range(20):
            log.append(AuditAction.PUT, 1, [number], "x" * 100)

    threads = [threading.Thread(target=append_many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    lines = log.path.read_text().splitlines()
    assert len(lines) == 80
    assert all(json.loads(line)["detail"] for line in lines)
