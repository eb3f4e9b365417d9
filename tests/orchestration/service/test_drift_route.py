"""The service shows the newest drift report as a page."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256

from model_code.collection.index.project_ledger import open_ledger

MEASURE = {
    "name": "growth",
    "value": 0.6,
    "threshold": 0.5,
    "null": {},
    "tripped": True,
    "suspected": True,
    "detail": {"added": 60, "trained": 100},
    "tail": "high",
    "scope": "batch",
}
REPORT = {
    "documents": 60,
    "batches": 1,
    "window_documents": 60,
    "alpha": 0.05,
    "measures": [MEASURE],
    "examples": {"growth": [{"document_id": "a", "value": None, "note": ""}]},
}
DECISION = {"action": "retrain", "wanted": "retrain", "reasons": ["growth"], "dry_run": False}


def test_without_report_there_is_no_page(serve):
    response = serve().get("/drift")

    assert response.status_code == 404
    assert "there is no drift report yet" in response.json()["error"]


def test_newest_report_is_shown(serve, project):
    with open_ledger(project, "hce") as ledger:
        ledger.record_drift_report({"report": REPORT, "decision": DECISION}, (1, 60))

    response = serve().get("/drift")

    assert response.status_code == 200
    assert "Decision: retrain" in response.text
    assert '<th scope="row" class="id">a</th><td>a</td>' in response.text


def test_policy_of_the_page_allows_its_own_style_only(serve, project):
    with open_ledger(project, "hce") as ledger:
        ledger.record_drift_report({"report": REPORT, "decision": DECISION}, (1, 60))

    response = serve().get("/drift")

    (style,) = re.findall("<style>(.*?)</style>", response.text, re.DOTALL)
    digest = b64encode(sha256(style.encode()).digest()).decode()
    policy = response.headers["content-security-policy"]
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}'; ")
    assert "script-src" not in policy
