"""Guards reading the query log back: what was cut off does not count, and nothing older than asked for is read."""

from __future__ import annotations

import json
import logging

import pytest

from orchestration.freshness import query_log
from orchestration.freshness.query_log import FOLDER, Logged, QueryLog, is_kept, logged_since


def write(state, *times, max_bytes=10_000, files=3):
    log = QueryLog(state / FOLDER, max_bytes, files)
    for time in times:
        log.write({"time": time, "text": f"query {time}", "k": 10})
    log.close()


def test_without_a_log_there_is_nothing(tmp_path):
    assert not is_kept(tmp_path)
    assert logged_since(tmp_path, 0) == []


def test_what_was_written_is_read_over_all_files(tmp_path):
    write(tmp_path, 1.0, 2.0, 3.0, max_bytes=1)
    assert len(list((tmp_path / FOLDER).iterdir())) == 3
    assert logged_since(tmp_path, 0) == [Logged(float(i), f"query {float(i)}") for i in (1, 2, 3)]
    assert [one.time for one in logged_since(tmp_path, 1.0)] == [2.0, 3.0]
    assert is_kept(tmp_path)


def test_older_files_are_not_read(tmp_path):
    write(tmp_path, 1.0, 2.0, 3.0, max_bytes=1)
    (tmp_path / FOLDER / "queries-000001.jsonl").write_bytes(b"\xff\xfe")  # would be an error
    assert [one.time for one in logged_since(tmp_path, 2.0)] == [3.0]


def test_broken_lines_are_told_and_do_not_count(tmp_path, caplog):
    write(tmp_path, 1.0)
    path = tmp_path / FOLDER / "queries-000001.jsonl"
    whole = json.dumps({"time": 2.0, "text": "ä\u2028b"}, ensure_ascii=False)
    path.write_text(path.read_text() + '{"time": 1.5, "te\n' + whole + "\n" + '{"time": 3.0')
    with caplog.at_level(logging.WARNING):
        assert [one.text for one in logged_since(tmp_path, 0)] == ["query 1.0", "ä\u2028b"]
    assert "cannot be read, and do not count: 1" in caplog.text


def test_a_log_that_was_deleted_goes_on_and_keeps_no_more_files_than_it_may(tmp_path):
    log = QueryLog(tmp_path / FOLDER, max_bytes=1, files=2)
    for number in range(5):
        log.write({"time": float(number), "text": "a"})
        if number == 2:
            for path in (tmp_path / FOLDER).iterdir():
                path.unlink()
    log.close()
    assert [one.time for one in logged_since(tmp_path, -1)] == [3.0, 4.0]


def test_a_file_that_cannot_be_begun_costs_that_line_alone(tmp_path, monkeypatch):
    log, real = QueryLog(tmp_path / FOLDER, max_bytes=1, files=9), query_log._open

    def full(path):
        raise OSError("no space left on device")

    log.write({"time": 1.0, "text": "a"})
    monkeypatch.setattr(query_log, "_open", full)
    with pytest.raises(OSError, match="no space"):
        log.write({"time": 2.0, "text": "a"})
    monkeypatch.setattr(query_log, "_open", real)
    log.write({"time": 3.0, "text": "a"})
    log.close()
    assert [one.time for one in logged_since(tmp_path, 0)] == [1.0, 3.0]
