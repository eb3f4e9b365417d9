"""Guards that two followers equal their writer after all three were killed at random moments.

Real processes are killed by SIGKILL while the others go on. The followers are searched all the
time. `pytest -m long` kills fifty times during 1,000 changes.

Run: python -m pytest tests/model_code/collection/follow/test_follow_kills.py
"""

from __future__ import annotations

import pytest

from tests.model_code.collection.follow.kills import kill_all


def test_killed_followers_equal_the_killed_writer(own, tmp_path):
    kill_all(own, str(tmp_path / "shared"), tmp_path, kills=3, changes=8)


@pytest.mark.long
def test_fifty_kills_leave_followers_equal_to_the_writer(own, tmp_path):
    compared = kill_all(own, str(tmp_path / "shared"), tmp_path, kills=50, changes=1000)

    assert compared > 1000
