"""Guards `/documents`: found when answered, receipts without waiting, groups, a full line,
failures, and the stop.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from model_code.collection.index.status import CANARY
from model_code.files import write_json
from orchestration.service import service
from tests.orchestration.service.conftest import FakeLive, until

CAKE = {"_id": "c", "title": "", "text": "cake"}
ROW = '{"documents": [{"_id": "x", "text": "y"}'


def found(client, text):
    return [
        hit["document_id"] for hit in client.get("/search", params={"text": text}).json()["hits"]
    ]


def test_change_is_searchable_when_answered(serve):
    client = serve()
    answer = client.post("/documents", json={"documents": [CAKE, {"_id": "x", "text": ""}]})
    assert answer.status_code == 200
    assert answer.json() == {
        "searchable": True,
        "generation": 1,
        "received": 2,
        "unchanged": 0,
        "rejected": [{"row": 2, "document_id": None, "reason": "empty text"}],
        "events": [0],
        "matched": [],
    }
    assert found(client, "cake") == ["c"]
    client.post("/documents", json={"documents": [{"_id": "c", "text": "crumble"}]})
    assert (found(client, "cake"), found(client, "crumble")) == ([], ["c"])
    assert client.delete("/documents/c").json()["generation"] == 3
    assert found(client, "crumble") == []
    assert client.post("/documents/delete", json={"ids": ["a", "b", "zzz"]}).json()["received"] == 3
    (opened,) = client.get("/status").json()["open"]
    assert (opened["retriever"], opened["generation"], opened["documents"]) == ("hce", 4, 0)


def test_what_another_process_recorded_becomes_searchable_on_demand(serve, live):
    client = serve()
    live.pending.append(("c", "cake"))
    answer = client.post("/documents/apply")
    assert (answer.status_code, answer.json()) == (
        200,
        {
            "searchable": True,
            "generation": 1,
            "received": 0,
            "unchanged": 0,
            "rejected": [],
            "events": [],
            "matched": [],
        },
    )
    assert found(client, "cake") == ["c"]
    assert client.post("/documents/apply").json()["generation"] == 1, "nothing waits"


def test_fully_rejected_request_names_reasons(serve):
    client = serve()
    for path, body in (
        ("", {"documents": [{"_id": "x", "text": ""}]}),
        ("/delete", {"ids": ["zzz"]}),
    ):
        answer = client.post(f"/documents{path}", json=body)
        assert (answer.status_code, answer.json()) == (
            422,
            {
                "error": "none of 1 rows was accepted; row 1: empty text",
                "searchable": False,
                "generation": None,
                "received": 1,
                "unchanged": 0,
                "events": [],
                "matched": [],
                "rejected": [{"row": 1, "document_id": None, "reason": "empty text"}],
            },
        )
    answer = client.delete("/documents/folder/page")
    assert (answer.status_code, answer.json()["error"]) == (
        404,
        "there is no document 'folder/page'",
    )
    assert client.get("/status").json()["open"][0]["generation"] == 0


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        ('{"documents": []}', 422, "documents: list should have at least 1 item"),
        ('{"documents": "cake"}', 422, "documents: input should be a valid list"),
        ('{"rows": [{}]}', 422, "documents: field required"),
        (
            '{"documents": [{}, {}, {}, {}]}',
            413,
            "the request has 4 documents, but this service accepts at most 3",
        ),
        (ROW + '], "source": "refused"}', 422, "the ledger refuses this source"),
        (ROW + '], "source": "' + "s" * 2000 + '"}', 422, "source: string should"),
        (ROW + '], "' + "x" * 70_000 + '": 1}', 422, "extra inputs are not permitted"),
        ('{"documents": [' + "[" * 100_000, 400, "parsing the body"),
        ('{"documents": ' + "[" * 1000 + "]" * 1000 + "}", 400, "parsing the body"),
        ('{"documents": [' + "{}," * 100_000 + "{}]}", 413, "the request has 100,001 documents"),
        (
            '{"documents": [' + "[]," * 2_000_001 + "{}]}",
            413,
            "4,000,000 values that are accepted at once",
        ),
    ],
)
def test_bad_requests_are_refused_and_change_nothing(serve, live, content, status, message):
    answer = serve(max_documents=3).post(
        "/documents", content=content, headers={"content-type": "application/json"}
    )
    assert (answer.status_code, len(live.generations)) == (status, 1)
    assert message in answer.json()["error"]
    assert len(answer.content) < 1100


def test_invalid_utf8_id_does_not_affect_others(serve, live):
    client, stated = serve(), {"content-type": "application/json"}
    answer = client.post(
        "/documents/delete", content='{"ids": ["a", "caf\\udce9"]}', headers=stated
    )
    assert (answer.status_code, len(answer.json()["rejected"]), list(live.generations[-1])) == (
        200,
        1,
        ["b"],
    )
    assert (
        client.post("/documents/delete", content='{"ids": ["\\udce9"]}', headers=stated).status_code
        == 422
    )
    refused = client.post("/documents/delete", content='{"ids": ["b", 7]}', headers=stated)
    assert (refused.status_code, refused.json()["error"]) == (
        422,
        "ids.1: value error, an id is a text; see /docs",
    )


def test_total_size_of_bodies_is_limited(serve, monkeypatch):
    monkeypatch.setattr("orchestration.service.app.MAX_TOTAL_BODY_BYTES", 1000)
    client = serve()
    assert client.post("/documents", json={"documents": [CAKE]}).status_code == 200
    refused = client.post("/documents", json={"documents": [CAKE | {"text": "x" * 1000}]})
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert client.post("/documents", json={"documents": [CAKE]}).status_code == 200, (
        "what was refused is forgotten"
    )


@pytest.mark.parametrize("stated", ["", "text/plain", "application/x-www-form-urlencoded"])
def test_body_without_json_type_is_refused(serve, stated):
    answer = serve().post(
        "/documents",
        content='{"documents": []}',
        headers={"content-type": stated} if stated else {},
    )
    assert answer.status_code == 422
    assert answer.json()["error"] == (
        f"the content type of the body is {stated or 'missing'}; send JSON with Content-Type: "
        "application/json"
    )


def test_slow_change_returns_a_receipt(serve, live):
    client = serve(add_wait_seconds=0.5)
    live.gate.clear()
    answer = client.post("/documents", json={"documents": [CAKE]})
    assert (answer.status_code, answer.json()["searchable"]) == (202, False)
    live.door.clear()
    behind = client.post("/documents?wait=false", json={"documents": [CAKE]})
    assert (behind.status_code, behind.headers["Retry-After"]) == (503, "1")
    assert "the change was not received within 0.5 s" in behind.json()["error"]


def test_changes_are_acknowledged_during_a_batch(serve, live):
    client = serve()
    live.gate.clear()
    receipt = client.post("/documents?wait=false", json={"documents": [CAKE]})
    assert (receipt.status_code, receipt.json()["searchable"], receipt.json()["events"]) == (
        202,
        False,
        [0],
    )
    assert found(client, "cake") == []
    assert until(lambda: client.get("/status").json()["waiting_documents"] == 0), (
        "it is being applied"
    )
    for number in range(3):
        row = {"_id": str(number), "text": "tea"}
        answer = client.post("/documents?wait=false", json={"documents": [row]})
        assert (answer.status_code, answer.json()["events"]) == (202, [number + 1])
    assert client.post("/documents/delete?wait=false", json={"ids": ["a"]}).status_code == 202
    status = client.get("/status").json()
    assert (status["waiting_documents"], status["freshness"]["pending"], status["ready"]) == (
        4,
        5,
        True,
    )
    assert "freshet_queue_documents 4.0" in client.get("/metrics").text
    assert (client.get("/health").status_code, found(client, "tea"), found(client, "apple")) == (
        200,
        [],
        ["a"],
    )
    live.gate.set()
    assert until(lambda: found(client, "tea") == ["0", "1", "2"])
    assert (live.batches, found(client, "apple"), found(client, "cake")) == ([1, 4], [], ["c"])


def test_waiting_changes_become_one_generation(serve, live):
    client = serve(queued_documents=8)
    live.gate.clear()
    with ThreadPoolExecutor(9) as pool:
        # alone it may be larger
        first = pool.submit(client.post, "/documents", json={"documents": [CAKE] * 9})
        assert until(lambda: live.pending)
        others = [
            pool.submit(
                client.post, "/documents", json={"documents": [{"_id": str(i), "text": "tea"}]}
            )
            for i in range(8)
        ]
        assert until(lambda: client.get("/status").json()["waiting_documents"] == 8)
        refused = client.post("/documents", json={"documents": [CAKE]})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert "8 documents wait, and 1 more exceed the limit of 8" in refused.json()["error"]
        live.gate.set()
        assert first.result().json()["generation"] == 1
        assert {other.result().json()["generation"] for other in others} == {2}
    assert live.batches == [9, 8]


def test_a_failure_is_told_kept_and_mended(serve, live):
    client = serve()
    live.failing = "the disk is full"
    failed = client.post("/documents", json={"documents": [{"_id": "t", "text": "tea"}]})
    assert (failed.status_code, failed.headers["retry-after"]) == (503, "5")
    assert (
        "in the ledger, but not searchable yet: the disk is full; the service tries again"
        in failed.json()["error"]
    )
    assert client.get("/status").json()["reason"] == "the disk is full"
    assert "freshet_failing 1.0" in client.get("/metrics").text
    live.failing = ""
    assert until(lambda: found(client, "tea") == ["t"])
    assert client.get("/status").json()["reason"] is None


def test_unopened_generation_is_not_called_searchable(serve, live):
    client = serve()
    live.broken = True
    for _ in range(2):
        answer = client.post("/documents", json={"documents": [CAKE]})
        assert (answer.status_code, answer.json()["searchable"], answer.json()["generation"]) == (
            202,
            False,
            None,
        )
        assert found(client, "cake") == []
    assert "freshet_freshness_seconds_count 0.0" in client.get("/metrics").text
    live.broken = False
    assert until(lambda: found(client, "cake") == ["c"])
    assert client.post("/documents", json={"documents": [CAKE]}).json()["searchable"]


def test_change_waits_for_new_default_retriever(serve, live, project):
    other = FakeLive()
    client = serve({"con": other})
    (project.live / "con").mkdir()
    (project.live / "con" / "current").write_text("0\n")
    live.gate.clear()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.post, "/documents", json={"documents": [CAKE]})
        assert until(lambda: live.pending)
        other.pending.append(("c", "cake"))  # as it is in the one ledger
        (project.live / "current").write_text("con\n")
        live.gate.set()
        answer = waiting.result()
    assert (answer.status_code, answer.json()["generation"]) == (200, 1)
    assert (found(client, "cake"), len(other.generations)) == (["c"], 2)


def test_failing_ledger_is_reported_by_status(serve, live, project, caplog):
    client = serve()
    live.silent = "the server closed the connection\n(Background on this error)"
    status = client.get("/status")
    assert (status.status_code, status.json()["freshness"]) == (200, None)
    assert status.json()["reason"] == "the server closed the connection"
    live.silent = ""
    assert client.get("/status").json()["reason"] is None
    (project.live / "ledger.sqlite").write_text("no database " * 99)
    for _ in range(2):
        page = client.get("/metrics")
        assert page.status_code == 200
        assert {"freshet_lag_seconds NaN", "freshet_failing 1.0"} <= set(page.text.splitlines())
    assert (
        caplog.text.count(
            "ledger.sqlite is damaged (file is not a database); mend it: freshet repair"
        )
        == 1
    )
    (project.live / "ledger.sqlite").unlink()
    page = client.get("/metrics").text.splitlines()
    assert {"freshet_lag_seconds 0.0", "freshet_failing 0.0"} <= set(page)


def test_new_document_is_probed_after_a_batch(serve, project, monkeypatch):
    looked = []
    monkeypatch.setattr(service, "CANARY_SECONDS", 0.0)
    monkeypatch.setattr(
        service, "probe_newest_document", lambda at, searcher, seen: looked.append(searcher.number)
    )
    client = serve()
    assert "freshet_newest_rank NaN" in client.get("/metrics").text
    client.post("/documents", json={"documents": [CAKE]})
    assert until(lambda: looked[-1:] == [1])
    write_json(project.state / CANARY, {"rank": 2, "lag": 0.5})
    assert {"freshet_newest_rank 2.0", "freshet_newest_lag_seconds 0.5"} <= set(
        client.get("/metrics").text.splitlines()
    )


def test_refused_request_does_not_affect_its_group(serve, live):
    client = serve()
    live.gate.clear()
    with ThreadPoolExecutor(3) as pool:
        pool.submit(client.post, "/documents", json={"documents": [CAKE]})
        assert until(lambda: live.pending)
        bad = pool.submit(
            client.post, "/documents", json={"documents": [CAKE], "source": "refused"}
        )
        good = pool.submit(
            client.post, "/documents", json={"documents": [{"_id": "t", "text": "tea"}]}
        )
        assert bad.result().status_code == 422, "at once"
        assert until(lambda: client.get("/status").json()["waiting_documents"] == 1)
        live.gate.set()
        assert good.result().status_code == 200


def test_stopping_finishes_what_was_received(serve, live):
    client = serve()
    live.gate.clear()
    client.post("/documents?wait=false", json={"documents": [{"_id": "t", "text": "tea"}]})
    service = client.app.state.service
    assert until(lambda: service.ingest_queue.documents == 0), (
        "it is being applied, so that what waits is the next one"
    )
    with ThreadPoolExecutor(3) as pool:
        waiting = pool.submit(client.post, "/documents", json={"documents": [CAKE]})
        assert until(lambda: service.ingest_queue.documents == 1)
        stopping = pool.submit(service.stop)
        assert until(lambda: service.ingest_queue.is_closed)
        late = client.post("/documents", json={"documents": [CAKE]})
        assert (late.status_code, "stopping" in late.json()["error"]) == (503, True)
        live.gate.set()
        assert waiting.result().status_code == 200
        stopping.result()
    assert {"t", "c"} <= set(live.generations[-1])


def test_metrics_name_retrievers_that_are_behind(serve):
    client = serve()
    client.post("/documents", json={"documents": [CAKE]})
    found(client, "cake")
    client.get("/nowhere/1")
    client.app.state.service.maintenance.failures["other"] = "no space left"
    assert client.get("/status").json()["behind"] == {"other": "no space left"}
    page = client.get("/metrics").text
    for line in (
        'freshet_requests_total{route="POST /documents",status="200"} 1.0',
        'freshet_requests_total{route="GET /search",status="200"} 1.0',
        'freshet_requests_total{route="GET none",status="404"} 1.0',
        "freshet_search_seconds_count 1.0",
        "freshet_apply_seconds_count 1.0",
        "freshet_freshness_seconds_count 1.0",
        "freshet_queue_documents 0.0",
        'freshet_behind{retriever="hce"} 0.0',
        'freshet_behind{retriever="other"} 1.0',
        'freshet_generation{retriever="hce"} 1.0',
        'freshet_documents{retriever="hce"} 3.0',
        "freshet_failing 0.0",
    ):
        assert line in page


def test_nothing_live_is_said_and_ends_by_itself(serve, project):
    (project.live / "current").unlink()
    client = serve()
    for answer in (
        client.get("/search?text=a"),
        client.post("/documents", json={"documents": [CAKE]}),
    ):
        assert answer.status_code == 503
        assert "nothing is live yet" in answer.json()["error"]
    health = client.get("/health")
    assert (health.status_code, health.json()["ready"], client.get("/health/live").status_code) == (
        503,
        False,
        200,
    )
    (project.live / "current").write_text("hce\n")
    assert client.get("/health").json() == {"live": True, "ready": True, "reason": None}
    assert client.post("/documents", json={"documents": [CAKE]}).status_code == 200


def test_document_shows_its_queries_and_counts_those_of_users(serve, project):
    client = serve()
    document = client.get("/documents/a").json()
    assert document["known_queries"] == ["about apple"]
    assert document["hidden_queries"] == 1

    (project.root / "params.yaml").write_text("known_queries: {show: true}\n")
    document = client.get("/documents/a").json()
    assert document["known_queries"] == ["about apple", "a secret"]
    assert document["hidden_queries"] == 0
