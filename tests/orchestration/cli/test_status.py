"""Guards the text of the status: what is there, what is missing, and what to do about it."""

from __future__ import annotations

import pytest

from orchestration.cli.status import status_text

NAMED = ("corpus", "service", "moved_by_hand", "champion", "challenger", "previous")
NOTHING = dict.fromkeys(NAMED) | {"stages": {"corpus": "not built"}, "live": [], "moves": []}


def test_an_empty_project_says_what_is_missing():
    assert status_text(NOTHING).splitlines() == [
        "corpus      not ingested yet",
        "stages      0 of 1 built (freshet plan shows which are out of date)",
        "champion    none",
        "challenger  none",
        "previous    none",
        "live        nothing; freshet promote opens the champion",
    ]


def test_a_finished_project_names_versions_and_generations():
    live = {"generation": 2, "documents": 1234, "fingerprint": "f", "freshness": {"ledger": None}}
    status = {
        "corpus": {"source": "files", "content_hash": "0123456789abcdef"},
        "stages": {"corpus": "built", "train@hce": "built", "index@hce": "not built"},
        "champion": {"version": "3", "retriever": "hce"},
        "challenger": None,
        "previous": {"version": "1", "retriever": "contrastive"},
        "moved_by_hand": (
            by_hand := "moved by hand from version 1 (contrastive) to version 3 (hce)"
        ),
        "service": {"pid": 1, "url": "http://127.0.0.1:8765"},
        "live": [
            {"retriever": "hce", "default": True, **live},
            {"retriever": "other", "default": False, **live},
        ],
    }
    assert status_text(status).splitlines() == [
        "corpus      files, content 0123456789ab",
        "stages      2 of 3 built (freshet plan shows which are out of date)",
        "champion    version 3 (hce)",
        f"            {by_hand}; freshet promote settles this, and so does a sensor of freshet ui",
        "challenger  none",
        "previous    version 1 (contrastive)",
        "live        hce generation 2, 1,234 documents, searched by default",
        "live        other generation 2, 1,234 documents",
        "service     http://127.0.0.1:8765",
    ]


@pytest.mark.parametrize("tripped", [True, False])
def test_status_shows_freshness(tripped):
    measures = [
        {"name": "topics", "value": 0.25, "threshold": 0.1, "tripped": tripped},
        {"name": "growth", "value": 0.1, "threshold": 0.5, "tripped": False},
    ]
    unmeasured = {"name": "protected_old", "why": "3 are fewer than 20", "scope": "batch"}
    drift = (
        "topics 0.25 is past its threshold 0.1"
        if tripped
        else "none of 2 measures is past its threshold"
    )
    ledger = {
        "documents": {"pending": 2, "live": 1200, "superseded": 0, "rolled_back": 3},
        "lag": {"pending": 2, "seconds": 300.0},
        "drift": {"report": {"report": {"measures": measures, "unmeasured": [unmeasured]}}},
        "work": [
            {
                "kind": "retrain",
                "state": "open",
                "reason": "topics 0.25 is above 0.1",
                "outcome": None,
            }
        ],
    }
    live = {
        "retriever": "hce",
        "default": True,
        "generation": 2,
        "documents": 1234,
        "fingerprint": "f",
    }
    live |= {"freshness": {"watermark": 17, "ledger": ledger}}
    behind = {"watermark": 3, "ledger": ledger | {"lag": {"pending": 14, "seconds": 7300.0}}}
    other = live | {"retriever": "other", "default": False, "freshness": behind}
    status = NOTHING | {"live": [live, other]}
    assert status_text(status).splitlines()[5:] == [
        "live        hce generation 2, 1,234 documents, searched by default",
        "documents   2 pending, 1,200 live, 3 rolled back (after event 17)",
        "lag         2 waiting, the oldest for 5 min",
        f"drift       {drift}",
        "            whether additions push old documents down was not measured: 3 are fewer than 20",
        "work        retrain (open): topics 0.25 is above 0.1",
        "live        other generation 2, 1,234 documents",
        "lag         14 waiting, the oldest for 2 h",
    ]
