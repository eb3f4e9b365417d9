"""Test `/documents`: receipts, groups of changes, limits, failures, and the stop."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from model_code.collection.generations import raised_hits
from model_code.collection.index.status import CANARY
from model_code.collection.ledger.events import Feedback
from model_code.files import write_json
from orchestration.service import ingest_queue, service
from tests.orchestration.service.conftest import FakeCollection, FakeLive, until

CAKE = {"_id": "c", "title": "", "text": "cake"}
TEA = {"_id": "t", "text": "tea"}
ROW = '{"documents": [{"_id": "x", "text": "y"}'
JSON = {"content-type": "application/json"}


def add(client, *documents, wait=True):
    """Post documents. Without `wait`, the service answers once they are recorded."""
    path = "/documents" if wait else "/documents?wait=false"
    return client.post(path, json={"documents": documents})


def search_ids(client, text):
    hits = client.get("/search", params={"text": text}).json()["hits"]
    return [hit["document_id"] for hit in hits]


def status(client):
    return client.get("/status").json()


def metric_lines(client):
    return client.get("/metrics").text.splitlines()


def test_added_document_is_searchable_when_answered(serve):
    client = serve()

    answer = add(client, CAKE, {"_id": "x", "text": ""})

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
    assert search_ids(client, "cake") == ["c"]


def test_changed_document_is_searchable_when_answered(serve):
    client = serve()
    add(client, CAKE)

    add(client, {"_id": "c", "text": "crumble"})

    assert search_ids(client, "cake") == []
    assert search_ids(client, "crumble") == ["c"]


def test_deleted_document_is_gone_when_answered(serve):
    client = serve()

    answer = client.delete("/documents/a")

    assert answer.json()["generation"] == 1
    assert search_ids(client, "apple") == []


def test_several_documents_are_deleted_at_once(serve):
    client = serve()

    answer = client.post("/documents/delete", json={"ids": ["a", "b", "zzz"]})

    assert answer.json()["received"] == 3
    (collection,) = status(client)["open"]
    assert collection["retriever"] == "hce"
    assert collection["generation"] == 1
    assert collection["documents"] == 0


def test_changes_of_another_process_are_applied_on_demand(serve, live):
    client = serve()
    live.pending.append(("c", "cake"))

    answer = client.post("/documents/apply")

    assert answer.status_code == 200
    assert answer.json() == {
        "searchable": True,
        "generation": 1,
        "received": 0,
        "unchanged": 0,
        "rejected": [],
        "events": [],
        "matched": [],
    }
    assert search_ids(client, "cake") == ["c"]


def test_apply_without_changes_makes_no_generation(serve):
    client = serve()
    add(client, CAKE)

    assert client.post("/documents/apply").json()["generation"] == 1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/documents", {"documents": [{"_id": "x", "text": ""}]}),
        ("/documents/delete", {"ids": ["zzz"]}),
    ],
)
def test_fully_rejected_request_names_reasons(serve, path, body):
    client = serve()

    answer = client.post(path, json=body)

    assert answer.status_code == 422
    assert answer.json() == {
        "error": "none of 1 rows was accepted; row 1: empty text",
        "searchable": False,
        "generation": None,
        "received": 1,
        "unchanged": 0,
        "events": [],
        "matched": [],
        "rejected": [{"row": 1, "document_id": None, "reason": "empty text"}],
    }
    assert status(client)["open"][0]["generation"] == 0


def test_unknown_document_is_not_deleted(serve):
    client = serve()

    answer = client.delete("/documents/folder/page")

    assert answer.status_code == 404
    assert answer.json()["error"] == "there is no document 'folder/page'"
    assert status(client)["open"][0]["generation"] == 0


@pytest.mark.parametrize(
    ("content", "status_code", "message"),
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
        ('{"documents": [' + "[" * 100_000, 422, "the body cannot be read"),
        ('{"documents": ' + "[" * 1000 + "]" * 1000 + "}", 422, "the body cannot be read"),
        ('{"documents": [' + "{}," * 100_000 + "{}]}", 413, "the request has 100,001 documents"),
        (
            '{"documents": [' + "[]," * 2_000_001 + "{}]}",
            413,
            "4,000,000 values that are accepted at once",
        ),
    ],
)
def test_bad_requests_are_refused_and_change_nothing(serve, live, content, status_code, message):
    client = serve(max_documents=3)

    answer = client.post("/documents", content=content, headers=JSON)

    assert answer.status_code == status_code
    assert message in answer.json()["error"]
    assert len(answer.content) < 1100
    assert len(live.generations) == 1


def test_invalid_utf8_id_does_not_affect_others(serve, live):
    client = serve()

    answer = client.post("/documents/delete", content='{"ids": ["a", "caf\\udce9"]}', headers=JSON)

    assert answer.status_code == 200
    assert len(answer.json()["rejected"]) == 1
    assert list(live.generations[-1]) == ["b"]


def test_invalid_utf8_id_alone_is_refused(serve):
    client = serve()

    answer = client.post("/documents/delete", content='{"ids": ["\\udce9"]}', headers=JSON)

    assert answer.status_code == 422


def test_document_is_deleted_by_a_number(serve):
    client = serve()
    row = {"_id": "7", "text": "A seventh cake."}
    assert client.post("/documents", json={"documents": [row]}).status_code == 200

    answer = client.post("/documents/delete", content='{"ids": [7.0]}', headers=JSON)

    assert answer.status_code == 200
    assert client.get("/documents/7").status_code == 404


@pytest.mark.parametrize("value", ["7.5", "true", "null", "[7]"])
def test_id_that_is_no_text_or_number_is_refused(serve, value):
    client = serve()

    answer = client.post("/documents/delete", content=f'{{"ids": ["b", {value}]}}', headers=JSON)

    assert answer.status_code == 422
    error = "ids.1: value error, an id is a text or a whole number; see /docs"
    assert answer.json()["error"] == error


def test_total_size_of_bodies_is_limited(serve, monkeypatch):
    monkeypatch.setattr("orchestration.service.app.MAX_TOTAL_BODY_BYTES", 1000)
    client = serve()
    assert add(client, CAKE).status_code == 200

    refused = add(client, {"_id": "c", "text": "x" * 1000})

    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "1"
    # The refused body no longer counts.
    assert add(client, CAKE).status_code == 200


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded"])
def test_body_with_another_content_type_is_refused(serve, content_type):
    headers = {"content-type": content_type}

    answer = serve().post("/documents", content='{"documents": []}', headers=headers)

    assert answer.status_code == 422
    assert answer.json()["error"] == (
        f"the content type of the body is {content_type}; send JSON with Content-Type: "
        "application/json"
    )


def test_body_without_content_type_is_refused(serve):
    answer = serve().post("/documents", content='{"documents": []}')

    assert answer.status_code == 422
    assert answer.json()["error"] == (
        "the content type of the body is missing; send JSON with Content-Type: application/json"
    )


def test_slow_change_returns_a_receipt(serve, live):
    client = serve(add_wait_seconds=0.5)
    live.can_apply.clear()

    answer = add(client, CAKE)

    assert answer.status_code == 202
    assert answer.json()["searchable"] is False


def test_change_that_is_not_recorded_in_time_is_refused(serve, live):
    client = serve(add_wait_seconds=0.5)
    live.can_receive.clear()

    answer = add(client, CAKE, wait=False)

    assert answer.status_code == 503
    assert answer.headers["Retry-After"] == "1"
    assert "the change was not received within 0.5 s" in answer.json()["error"]


@pytest.fixture
def busy_client(serve, live):
    """Return a client of a service that is applying `CAKE` until `live.can_apply` is set."""
    client = serve()
    live.can_apply.clear()
    add(client, CAKE, wait=False)
    assert until(lambda: live.pending and status(client)["waiting_documents"] == 0)
    return client


def test_recorded_change_is_acknowledged(serve, live):
    client = serve()
    live.can_apply.clear()

    receipt = add(client, CAKE, wait=False)

    assert receipt.status_code == 202
    assert receipt.json()["searchable"] is False
    assert receipt.json()["events"] == [0]
    assert search_ids(client, "cake") == []


def test_changes_are_acknowledged_during_a_batch(busy_client):
    for number in range(3):
        receipt = add(busy_client, {"_id": str(number), "text": "tea"}, wait=False)
        assert receipt.status_code == 202
        assert receipt.json()["events"] == [number + 1]

    receipt = busy_client.post("/documents/delete?wait=false", json={"ids": ["a"]})
    assert receipt.status_code == 202


def test_waiting_changes_are_counted(busy_client):
    for number in range(4):
        add(busy_client, {"_id": str(number), "text": "tea"}, wait=False)

    counts = status(busy_client)

    assert counts["waiting_documents"] == 4
    assert counts["freshness"]["pending"] == 5
    assert counts["ready"] is True
    assert "freshet_queue_documents 4.0" in metric_lines(busy_client)


def test_old_generation_is_searched_during_a_batch(busy_client):
    add(busy_client, TEA, wait=False)
    busy_client.post("/documents/delete?wait=false", json={"ids": ["a"]})

    assert busy_client.get("/health").status_code == 200
    assert search_ids(busy_client, "tea") == []
    assert search_ids(busy_client, "apple") == ["a"]


def test_waiting_changes_are_applied_after_the_batch(busy_client, live):
    for number in range(3):
        add(busy_client, {"_id": str(number), "text": "tea"}, wait=False)
    busy_client.post("/documents/delete?wait=false", json={"ids": ["a"]})

    live.can_apply.set()

    assert until(lambda: search_ids(busy_client, "tea") == ["0", "1", "2"])
    # On a busy machine, the first batch may begin after the second request.
    assert len(live.batches) == 2
    assert sum(live.batches) == 5
    assert search_ids(busy_client, "apple") == []
    assert search_ids(busy_client, "cake") == ["c"]


def test_waiting_changes_become_one_generation(serve, live):
    client = serve(queued_documents=8)
    live.can_apply.clear()

    with ThreadPoolExecutor(9) as pool:
        # A single request may exceed the limit of the queue.
        large = pool.submit(add, client, *[CAKE] * 9)
        assert until(lambda: live.pending)
        small = [pool.submit(add, client, {"_id": str(i), "text": "tea"}) for i in range(8)]
        # A batch takes the changes that are recorded, and recording follows waiting.
        assert until(lambda: len(live.pending) == 9 + 8)
        assert status(client)["waiting_documents"] == 8
        live.can_apply.set()

    assert large.result().json()["generation"] == 1
    assert {answer.result().json()["generation"] for answer in small} == {2}
    assert live.batches == [9, 8]


def test_full_queue_refuses_changes(busy_client, monkeypatch):
    monkeypatch.setattr(ingest_queue, "MAX_QUEUED_DOCUMENTS", 8)
    add(busy_client, *[{"_id": str(i), "text": "tea"} for i in range(8)], wait=False)

    refused = add(busy_client, CAKE)

    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "1"
    assert "8 documents wait, and 1 more exceed the limit of 8" in refused.json()["error"]


def test_failed_change_is_kept_and_reported(serve, live):
    client = serve()
    live.apply_error = "the disk is full"

    failed = add(client, TEA)

    assert failed.status_code == 503
    assert failed.headers["retry-after"] == "5"
    assert (
        "in the ledger, but not searchable yet: the disk is full; the service tries again"
        in failed.json()["error"]
    )
    assert status(client)["reason"] == "the disk is full"
    assert "freshet_failing 1.0" in metric_lines(client)


def test_failed_change_is_applied_later(serve, live):
    client = serve()
    live.apply_error = "the disk is full"
    add(client, TEA)

    live.apply_error = ""

    assert until(lambda: search_ids(client, "tea") == ["t"])
    assert status(client)["reason"] is None


@pytest.mark.parametrize("repetitions", [1, 2])
def test_unopened_generation_is_not_called_searchable(serve, live, repetitions):
    client = serve()
    live.is_broken = True

    for _ in range(repetitions):
        answer = add(client, CAKE)

    assert answer.status_code == 202
    assert answer.json()["searchable"] is False
    assert answer.json()["generation"] is None
    assert search_ids(client, "cake") == []
    assert "freshet_freshness_seconds_count 0.0" in metric_lines(client)


def test_repaired_generation_is_searchable(serve, live):
    client = serve()
    live.is_broken = True
    add(client, CAKE)

    live.is_broken = False

    assert until(lambda: search_ids(client, "cake") == ["c"])
    assert add(client, CAKE).json()["searchable"]


def test_change_waits_for_new_default_retriever(serve, live, project):
    new_default = FakeLive()
    client = serve({"con": new_default})
    (project.live / "con").mkdir()
    (project.live / "con" / "current").write_text("0\n")
    live.can_apply.clear()

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(add, client, CAKE)
        assert until(lambda: live.pending)
        # Both retrievers read the same ledger.
        new_default.pending.append(("c", "cake"))
        (project.live / "current").write_text("con\n")
        live.can_apply.set()

    assert answer.result().status_code == 200
    assert answer.result().json()["generation"] == 1
    assert search_ids(client, "cake") == ["c"]
    assert len(new_default.generations) == 2


def test_unreachable_ledger_is_reported_by_status(serve, live):
    client = serve()
    live.ledger_error = "the server closed the connection\n(Background on this error)"

    answer = client.get("/status")

    assert answer.status_code == 200
    assert answer.json()["freshness"] is None
    assert answer.json()["reason"] == "the server closed the connection"


def test_reachable_ledger_ends_the_report(serve, live):
    client = serve()
    live.ledger_error = "the server closed the connection"
    status(client)

    live.ledger_error = ""

    assert status(client)["reason"] is None


def test_damaged_ledger_is_reported_by_metrics(serve, project):
    client = serve()
    (project.live / "ledger.sqlite").write_text("no database " * 99)

    answer = client.get("/metrics")

    assert answer.status_code == 200
    assert "freshet_lag_seconds NaN" in answer.text.splitlines()
    assert "freshet_failing 1.0" in answer.text.splitlines()


def test_damaged_ledger_is_logged_once(serve, project, caplog):
    client = serve()
    (project.live / "ledger.sqlite").write_text("no database " * 99)

    client.get("/metrics")
    client.get("/metrics")

    message = "ledger.sqlite is damaged (file is not a database); run freshet repair"
    assert caplog.text.count(message) == 1


def test_metrics_recover_from_a_damaged_ledger(serve, project):
    client = serve()
    (project.live / "ledger.sqlite").write_text("no database " * 99)
    client.get("/metrics")

    (project.live / "ledger.sqlite").unlink()

    lines = metric_lines(client)
    assert "freshet_lag_seconds 0.0" in lines
    assert "freshet_failing 0.0" in lines


def test_newest_document_is_probed_after_a_batch(serve, monkeypatch):
    probed_generations = []

    def record_probe(project, searcher, ledger):
        probed_generations.append(searcher.number)

    monkeypatch.setattr(service, "CANARY_SECONDS", 0.0)
    monkeypatch.setattr(service, "probe_newest_document", record_probe)
    client = serve()

    add(client, CAKE)

    assert until(lambda: probed_generations[-1:] == [1])


def test_metrics_show_the_probe(serve, project, monkeypatch):
    def skip_probe(project, searcher, ledger):
        return None

    monkeypatch.setattr(service, "probe_newest_document", skip_probe)
    client = serve()
    assert "freshet_newest_rank NaN" in metric_lines(client)

    write_json(project.state / CANARY, {"rank": 2, "lag": 0.5})

    lines = metric_lines(client)
    assert "freshet_newest_rank 2.0" in lines
    assert "freshet_newest_lag_seconds 0.5" in lines


def test_refused_request_does_not_affect_its_group(busy_client, live):
    with ThreadPoolExecutor(2) as pool:
        refused = pool.submit(
            busy_client.post, "/documents", json={"documents": [CAKE], "source": "refused"}
        )
        accepted = pool.submit(add, busy_client, TEA)

        # The refusal does not wait for the batch.
        assert refused.result().status_code == 422
        assert until(lambda: status(busy_client)["waiting_documents"] == 1)
        live.can_apply.set()
        assert accepted.result().status_code == 200


def test_stop_applies_recorded_changes(busy_client, live):
    running_service = busy_client.app.state.service

    with ThreadPoolExecutor(2) as pool:
        answer = pool.submit(add, busy_client, TEA)
        assert until(lambda: running_service.ingest_queue.documents == 1)
        stop = pool.submit(running_service.stop)
        assert until(lambda: running_service.ingest_queue.is_closed)
        live.can_apply.set()
        assert answer.result().status_code == 200
        stop.result()

    assert {"t", "c"} <= set(live.generations[-1])


def test_stopping_service_refuses_changes(busy_client, live):
    running_service = busy_client.app.state.service

    with ThreadPoolExecutor(1) as pool:
        stop = pool.submit(running_service.stop)
        assert until(lambda: running_service.ingest_queue.is_closed)
        refused = add(busy_client, CAKE)
        live.can_apply.set()
        stop.result()

    assert refused.status_code == 503
    assert "stopping" in refused.json()["error"]


@pytest.mark.parametrize(
    "line",
    [
        'freshet_requests_total{route="POST /documents",status="200"} 1.0',
        'freshet_requests_total{route="GET /search",status="200"} 1.0',
        'freshet_requests_total{route="GET none",status="404"} 1.0',
        "freshet_search_seconds_count 1.0",
        "freshet_apply_seconds_count 1.0",
        "freshet_freshness_seconds_count 1.0",
        "freshet_queue_documents 0.0",
        'freshet_generation{retriever="hce"} 1.0',
        'freshet_documents{retriever="hce"} 3.0',
        "freshet_failing 0.0",
    ],
)
def test_metrics_count_requests_and_documents(serve, line):
    client = serve()
    add(client, CAKE)
    search_ids(client, "cake")
    client.get("/nowhere/1")

    assert line in metric_lines(client)


def test_metrics_count_unexpected_errors(serve):
    client = serve()

    client.post("/search", json={"text": "bug"})

    assert 'freshet_requests_total{route="POST /search",status="500"} 1.0' in metric_lines(client)


def test_retrievers_that_are_behind_are_named(serve):
    client = serve()
    add(client, CAKE)

    client.app.state.service.maintenance.failures["other"] = "no space left"

    assert status(client)["behind"] == {"other": "no space left"}
    lines = metric_lines(client)
    assert 'freshet_behind{retriever="hce"} 0.0' in lines
    assert 'freshet_behind{retriever="other"} 1.0' in lines


@pytest.fixture
def client_without_live_retriever(serve, project):
    (project.live / "current").unlink()
    return serve()


def test_search_without_live_retriever_is_refused(client_without_live_retriever):
    answer = client_without_live_retriever.get("/search?text=a")

    assert answer.status_code == 503
    assert "nothing is live yet" in answer.json()["error"]


def test_change_without_live_retriever_is_refused(client_without_live_retriever):
    answer = add(client_without_live_retriever, CAKE)

    assert answer.status_code == 503
    assert "nothing is live yet" in answer.json()["error"]


def test_service_without_live_retriever_is_not_ready(client_without_live_retriever):
    health = client_without_live_retriever.get("/health")

    assert health.status_code == 503
    assert health.json()["ready"] is False
    assert client_without_live_retriever.get("/health/live").status_code == 200


def test_service_is_ready_once_a_retriever_is_live(client_without_live_retriever, project):
    client = client_without_live_retriever

    (project.live / "current").write_text("hce\n")

    assert client.get("/health").json() == {"live": True, "ready": True, "reason": None}
    assert add(client, CAKE).status_code == 200


def test_document_shows_its_queries_and_counts_those_of_users(serve):
    document = serve().get("/documents/a").json()

    assert document["known_queries"] == ["about apple"]
    assert document["hidden_queries"] == 1


def test_document_shows_queries_of_users_by_setting(serve, project):
    client = serve()
    (project.root / "params.yaml").write_text("known_queries: {show: true}\n")

    document = client.get("/documents/a").json()

    assert document["known_queries"] == ["about apple", "a secret"]
    assert document["hidden_queries"] == 0


def test_refused_name_is_answered_with_the_allowed_letters(serve):
    opinion = {"query": "apple", "document_id": "a", "verdict": "up", "who": "Ann Müller"}

    answer = serve().post("/feedback", json=opinion)

    assert "who: string should match pattern '^[A-Za-z0-9" in answer.json()["error"]


@pytest.mark.parametrize("raised", [True, False])
def test_opinion_records_whether_known_queries_raised_the_hit(serve, monkeypatch, raised):
    asked = []
    recorded = []

    def is_raised(searcher, text, document_id):
        asked.append((text, document_id))
        return raised

    def record(feedback):
        recorded.append(feedback)
        return feedback.verdict

    ledger = SimpleNamespace(record_feedback=record)
    monkeypatch.setattr(raised_hits, "is_raised_by_known_queries", is_raised)
    monkeypatch.setattr(FakeCollection, "ledger", ledger, raising=False)
    opinion = {"query": "red  apple", "document_id": "a", "verdict": "up", "rank": 3}

    answer = serve().post("/feedback", json=opinion)

    assert answer.json() == {"verdict": "up"}
    # The service finds the rank itself: a client could state any.
    assert asked == [("red apple", "a")]
    assert recorded == [Feedback("red apple", "a", "up", rank=3, raised=raised)]


def test_thumb_down_costs_no_search(serve, monkeypatch):
    asked = []
    recorded = []

    def is_raised(searcher, text, document_id):
        asked.append(text)
        return True

    def record(feedback):
        recorded.append(feedback)
        return feedback.verdict

    ledger = SimpleNamespace(record_feedback=record)
    monkeypatch.setattr(raised_hits, "is_raised_by_known_queries", is_raised)
    monkeypatch.setattr(FakeCollection, "ledger", ledger, raising=False)

    serve().post("/feedback", json={"query": "apple", "document_id": "a", "verdict": "down"})

    assert asked == []
    assert recorded == [Feedback("apple", "a", "down")]
