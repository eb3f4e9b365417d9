"""Guards when a drift check is due."""

from __future__ import annotations

import pytest

from model_code.collection.ledger.tasks import EventRange
from model_code.drift.settings import DriftSettings
from orchestration.freshness.backlog import IngestBacklog, events_to_check

SETTINGS = DriftSettings()


@pytest.mark.parametrize(
    ("unmeasured", "events"),
    [
        (0, None),
        (99, None),
        (100, EventRange(8, 107)),
        (199, EventRange(8, 107)),
        (250, EventRange(8, 207)),
    ],
)
def test_drift_check_covers_whole_batches(unmeasured, events):
    backlog = IngestBacklog(generation=1, documents=500, last_measured=7, unmeasured=unmeasured)

    assert events_to_check(backlog, SETTINGS) == events


def test_no_drift_check_if_nothing_is_live():
    assert events_to_check(None, SETTINGS) is None
