"""Guards the lock between processes: a second holder waits until the first lets go, and says so if it is to."""

from __future__ import annotations

import threading

from orchestration.file_lock import file_lock


def test_a_second_holder_waits(tmp_path):
    order: list[str] = []

    def second() -> None:
        with file_lock(tmp_path / "new" / "lock"):
            order.append("second")

    thread = threading.Thread(target=second)
    with file_lock(tmp_path / "new" / "lock"):
        thread.start()
        thread.join(timeout=0.2)
        order.append("first")
    thread.join(timeout=5)
    assert order == ["first", "second"]


def test_who_holds_it_goes_on_and_still_holds_it_after_an_inner_block(tmp_path):
    order: list[str] = []

    def second() -> None:
        with file_lock(tmp_path / "lock"):
            order.append("second")

    thread = threading.Thread(target=second)
    with file_lock(tmp_path / "lock"):
        with file_lock(tmp_path / "." / "lock"):
            order.append("inner")
        thread.start()
        thread.join(timeout=0.2)
        order.append("outer")
    thread.join(timeout=5)
    assert order == ["inner", "outer", "second"]


def test_who_must_wait_says_for_what_and_who_need_not_is_silent(tmp_path, capsys):
    def second() -> None:
        with file_lock(tmp_path / "lock", "waiting for the first"):
            said.append(capsys.readouterr().err)

    said: list[str] = []
    second()
    thread = threading.Thread(target=second)
    with file_lock(tmp_path / "lock"):
        thread.start()
        thread.join(timeout=0.2)
        assert said == [""]
    thread.join(timeout=5)
    assert said == ["", "waiting for the first\n"]
