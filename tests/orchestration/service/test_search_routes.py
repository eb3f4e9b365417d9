"""Guards `/search`: both forms, its bounds and refusals, generations that change under it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from freshet import Client
from freshet.results import SearchResult
from orchestration.guard import read_or_create_token
from tests.orchestration.service.conftest import FakeSearcher, until


def test_both_forms_give_hits_of_a_stated_generation(serve):
    client = serve()
    posted = client.post("/search", json={"text": "a", "k": 1}).json()
    assert posted == {
        "retriever": "hce",
        "generation": 0,
        "hits": [
            {
                "rank": 1,
                "score": 1.0,
                "document_id": "a",
                "title": "generation 0",
                "text": "apple",
                "start": 0,
                "end": 5,
                "section": None,
                "snippet": "apple",
                "marks": [[0, 5]],
                "fields": {"kind": "food"},
                "date": None,
                "path": [0, 1],
                "generation": 0,
                "tokens": None,
                "topics": [],
                "below_floor": False,
            }
        ],
        "total": 1,
        "facets": {},
        "rerank_ms": None,
    }
    assert client.get("/search", params={"text": "a", "k": 1}).json() == posted


@pytest.mark.parametrize(
    ("asked", "status", "message"),
    [
        ({"text": "a", "k": 51}, 422, "k is 51, but this service returns at most 50"),
        ({"text": "a", "k": 0}, 422, "k: input should be greater than or equal to 1"),
        (
            {"text": "a" * 101},
            422,
            "text and filters have 101 characters, but this service accepts at most 100",
        ),
        ({"text": ""}, 422, "text is empty; say what you are looking for"),
        ({"text": " \t "}, 422, "text is empty; say what you are looking for"),
        ({"text": "a", "filters": ["x=y"] * 51}, 422, "51 filters"),
        ({"text": "a", "filters": ["colour=red"]}, 422, "no document has a field 'colour'"),
        ({"text": "a", "explain": True}, 422, "does not score by token"),
        ({"text": "a", "offset": -1}, 422, "offset: input should be greater than or equal to 0"),
        ({"text": "a", "offset": 10_000}, 422, "offset + k is 10,010"),
        ({"text": "a", "window": 0}, 422, "window: input should be greater than or equal to 1"),
        ({"text": "a", "sort": ["x"] * 51}, 422, "sort has 51 entries"),
        (
            {"text": "a", "diversity": 1.1},
            422,
            "diversity: input should be less than or equal to 1",
        ),
        ({"text": "a", "min_score": "much"}, 422, "min_score: input should be a valid number"),
        ({"text": "a", "boost": ["date:30x"]}, 422, "weight of the boost of date is '30x'"),
        ({"text": "a", "kk": 3}, 422, "kk: extra inputs are not permitted"),
        ({"k": 3}, 422, "give exactly one of text, like and vector"),
        ({"text": "a", "like": "a"}, 422, "give exactly one of text, like and vector"),
        ({"like": "unknown"}, 404, "there is no document 'unknown'"),
        ({"text": "a", "retriever": "mlr"}, 404, "'mlr' is not live (live: hce)"),
        ({"text": "bug"}, 500, "the service failed (ZeroDivisionError)"),
    ],
)
def test_invalid_search_is_refused_in_one_line(serve, asked, status, message):
    client = serve(max_k=50, max_text_characters=100)
    for answer in (client.post("/search", json=asked), client.get("/search", params=asked)):
        assert (answer.status_code, list(answer.json())) == (status, ["error"])
        assert message in answer.json()["error"]
        assert "\n" not in answer.json()["error"]
        assert answer.text.endswith("}\n"), "one line"
    assert client.post("/search", json={"text": "a"}).status_code == 200


def test_order_options_in_both_forms(serve, monkeypatch):
    client, asked = serve(), []

    def record(self, texts, options):
        asked.append(options)
        return [SearchResult("hce", 0, [], 0, {}) for _ in texts]

    monkeypatch.setattr(FakeSearcher, "search_pages", record)
    body = {
        "text": "a",
        "offset": 5,
        "window": 50,
        "sort": ["-date"],
        "group_by": "kind",
        "facets": ["kind", "year"],
        "boost": {"date": {"half_life": "1w"}},
    }
    address = "/search?text=a&offset=5&window=50&sort=-date&group_by=kind&facets=kind&facets=year"

    assert client.post("/search", json=body).status_code == 200
    assert client.get(f"{address}&boost=date:1w").status_code == 200

    posted, addressed = asked
    assert posted.boosts == addressed.boosts
    for name in ("k", "offset", "window", "sort", "group_by", "facets", "filters"):
        assert getattr(posted, name) == getattr(addressed, name)
    assert posted.offset == 5
    assert posted.facets == ["kind", "year"]


def test_searches_with_other_options_are_not_answered_together(serve, monkeypatch):
    kinds = []
    client = serve()
    pool = client.app.state.service.pool
    search = pool.search
    monkeypatch.setattr(
        pool, "search", lambda kind, *arguments: kinds.append(kind) or search(kind, *arguments)
    )
    client.get("/search?text=a")
    client.get("/search?text=b")
    client.get("/search?text=a&offset=1")

    assert kinds[0] == kinds[1]
    assert kinds[1] != kinds[2]


def test_filters_in_an_address_go_by_both_names(serve, monkeypatch):
    client, asked = serve(), []
    monkeypatch.setattr(
        FakeSearcher,
        "search_batch",
        lambda self, texts, k, filters, explain: asked.append(filters) or [[]],
    )
    assert client.get("/search?text=a&filters=x=1&filter=y=2&filter=y=3").status_code == 200
    assert asked == [["x=1", "y=2", "y=3"]]


def test_large_body_is_refused(serve):
    client = serve(max_body_bytes=2000)
    for content in (b"x" * 3000, (b"x" * 500 for _ in range(10))):
        answer = client.post(
            "/search", content=content, headers={"content-type": "application/json"}
        )
        assert answer.status_code == 413
        assert "more than the 2,000 bytes" in answer.json()["error"]


def test_foreign_host_name_is_refused(serve):
    client = serve()
    assert client.get("/search?text=a", headers={"host": "evil.example"}).status_code == 403
    # what a browser sends to other sites without asking them
    simple = {"content-type": "text/plain"}
    assert (
        client.post(
            "/documents", content='{"documents": [{"_id": "x"}]}', headers=simple
        ).status_code
        == 422
    )


def test_new_generation_is_served_unless_damaged(serve, live):
    client = serve()
    live.change(("c", "cake"))
    assert until(lambda: client.get("/search?text=cake").json()["generation"] == 1)
    live.broken = True
    live.change(("d", "date"))
    assert until(lambda: client.get("/status").json()["reason"] == "hce: generation is damaged")
    assert client.get("/search?text=cake").json()["generation"] == 1
    live.broken = False
    assert until(lambda: client.get("/search?text=date").json()["generation"] == 2)
    assert client.get("/status").json()["reason"] is None


def test_no_answer_mixes_generations_while_they_are_swapped(serve, live):
    client = serve(search_threads=3)
    done, answers = threading.Event(), []

    def read():
        while not done.is_set():
            answers.append(client.get("/search?text=e").json())

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read) for _ in range(3)]
        for number in range(12):
            before = len(answers)
            live.change((f"n{number}", "e"))
            assert until(lambda: len(answers) > before + 3)  # noqa: B023
        done.set()
    assert [reader.result() for reader in readers] == [None] * 3
    for answer in answers:
        expected = sum("e" in text for text in live.generations[answer["generation"]].values())
        assert len(answer["hits"]) == min(10, expected)
        assert {hit["title"] for hit in answer["hits"]} == {f"generation {answer['generation']}"}
    assert len({answer["generation"] for answer in answers}) > 5


def test_only_so_many_searches_wait(serve, live):
    client = serve(search_threads=1, waiting_searches=1, search_wait_seconds=0.05)
    live.gate.clear()
    with ThreadPoolExecutor(2) as pool:
        slow = [pool.submit(client.get, "/search?text=slow") for _ in range(2)]
        assert until(lambda: client.get("/status").json()["running_searches"] == 2)
        refused = client.get("/search?text=a")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert "1 searches run and 1 wait" in refused.json()["error"]
        time.sleep(0.1)
        live.gate.set()
        late = sorted(
            (each.result().status_code, each.result().json().get("error", "")) for each in slow
        )
    assert [status for status, _ in late] == [200, 503]
    assert "waited more than 0.05 s" in late[1][1]
    assert until(lambda: client.get("/search?text=a").status_code == 200)


def test_client_sends_the_token(serve, project):
    client = serve(token=read_or_create_token(project.token_file))
    assert client.get("/health").status_code == 401
    headers = Client("http://testserver", project.token_file.read_text().strip())._headers
    assert client.post("/search", json={"text": "apple"}, headers=headers).status_code == 200


def test_cors_allows_only_named_sites(serve):
    client = serve(token="secret", origins=("https://app.example",))
    asked = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization",
    }
    may = client.options("/search", headers=asked | {"origin": "https://app.example"})
    assert (may.status_code, may.headers["access-control-allow-origin"]) == (
        200,
        "https://app.example",
    )
    assert (
        client.options("/search", headers=asked | {"origin": "https://evil.example"}).status_code
        == 400
    )
    search = {"origin": "https://app.example", "authorization": "Bearer secret"}
    found = client.post("/search", json={"text": "apple"}, headers=search)
    assert (found.status_code, found.headers["access-control-allow-origin"]) == (
        200,
        "https://app.example",
    )
    refused = client.post(
        "/search", json={"text": "apple"}, headers=search | {"origin": "https://evil.example"}
    )
    assert refused.status_code == 403


def test_options_of_typed_queries_reach_the_searcher(serve, monkeypatch):
    asked = []

    def remember(searcher, texts, options):
        asked.append(options)
        return [SearchResult("hce", 0, [], 0, {}) for _ in texts]

    monkeypatch.setattr(FakeSearcher, "search_pages", remember)
    client = serve()
    options = {
        "syntax": False,
        "typos": False,
        "prefix": True,
        "min_score": 0.5,
        "diversity": 0.3,
    }

    assert client.post("/search", json={"text": "a", **options}).status_code == 200
    assert client.get("/search", params={"text": "a", **options}).status_code == 200
    assert client.get("/search", params={"text": "a"}).status_code == 200

    posted, addressed, default = asked
    assert {name: getattr(posted, name) for name in options} == options
    assert posted == addressed
    assert default.syntax
    assert default.typos
    assert not default.prefix
    assert default.min_score is None
    assert default.diversity == 0
