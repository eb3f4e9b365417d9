"""Test `/search`: both forms, limits and refusals, and generations that change meanwhile."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from freshet import Client
from freshet.results import SearchResult
from model_code.errors import FreshetError
from orchestration.guard import read_or_create_token
from orchestration.service import searchers, service
from tests.orchestration.service.conftest import FakeSearcher, until


def test_both_forms_return_hits_with_their_generation(serve):
    client = serve()

    posted = client.post("/search", json={"text": "a", "k": 1}).json()

    hit = {
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
    assert posted == {
        "retriever": "hce",
        "generation": 0,
        "hits": [hit],
        "total": 1,
        "facets": {},
        "rerank_ms": None,
    }
    assert client.get("/search", params={"text": "a", "k": 1}).json() == posted


@pytest.mark.parametrize(
    ("options", "status", "message"),
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
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_invalid_search_is_refused_in_one_line(serve, method, options, status, message):
    client = serve(max_k=50, max_text_characters=100)

    if method == "GET":
        answer = client.get("/search", params=options)
    else:
        answer = client.post("/search", json=options)

    assert answer.status_code == status
    assert list(answer.json()) == ["error"]
    assert message in answer.json()["error"]
    assert "\n" not in answer.json()["error"]
    assert answer.text.endswith("}\n")


def test_service_answers_after_a_fault(serve):
    client = serve()
    assert client.post("/search", json={"text": "bug"}).status_code == 500

    assert client.post("/search", json={"text": "a"}).status_code == 200


@pytest.fixture
def searched_options(monkeypatch):
    """Return the options of each search; none of them has hits."""
    recorded = []

    def record(searcher, texts, options):
        recorded.append(options)
        return [SearchResult("hce", 0, [], 0, {}) for _ in texts]

    monkeypatch.setattr(FakeSearcher, "search_pages", record)
    return recorded


def test_order_options_in_both_forms(serve, searched_options):
    client = serve()
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

    posted, addressed = searched_options
    assert posted.boosts == addressed.boosts
    for name in ("k", "offset", "window", "sort", "group_by", "facets", "filters"):
        assert getattr(posted, name) == getattr(addressed, name)
    assert posted.offset == 5
    assert posted.facets == ["kind", "year"]


def test_searches_with_other_options_are_not_answered_together(serve, monkeypatch):
    client = serve()
    pool = client.app.state.service.pool
    search = pool.search
    kinds = []

    def record_kind(kind, *arguments):
        kinds.append(kind)
        return search(kind, *arguments)

    monkeypatch.setattr(pool, "search", record_kind)
    client.get("/search?text=a")
    client.get("/search?text=b")
    client.get("/search?text=a&offset=1")

    assert kinds[0] == kinds[1]
    assert kinds[1] != kinds[2]


def test_filters_in_an_address_have_two_names(serve, searched_options):
    client = serve()

    answer = client.get("/search?text=a&filters=x=1&filter=y=2&filter=y=3")

    assert answer.status_code == 200
    (options,) = searched_options
    assert options.filters == ["x=1", "y=2", "y=3"]


def post_search(client, content):
    return client.post("/search", content=content, headers={"content-type": "application/json"})


def test_large_body_is_refused(serve):
    answer = post_search(serve(max_body_bytes=2000), b"x" * 3000)

    assert answer.status_code == 413
    assert "more than the 2,000 bytes" in answer.json()["error"]


def test_large_body_in_chunks_is_refused(serve):
    """The length of such a body is not known before it is read."""
    chunks = iter([b"x" * 500] * 10)

    answer = post_search(serve(max_body_bytes=2000), chunks)

    assert answer.status_code == 413
    assert "more than the 2,000 bytes" in answer.json()["error"]


def test_foreign_host_name_is_refused(serve):
    answer = serve().get("/search?text=a", headers={"host": "evil.example"})

    assert answer.status_code == 403


def test_simple_request_of_a_foreign_page_is_refused(serve):
    """A browser sends bodies of this content type to other sites without asking them first."""
    answer = serve().post(
        "/documents",
        content='{"documents": [{"_id": "x"}]}',
        headers={"content-type": "text/plain"},
    )

    assert answer.status_code == 422


def test_new_generation_is_served(serve, live):
    client = serve()

    live.change(("c", "cake"))

    assert until(lambda: client.get("/search?text=cake").json()["generation"] == 1)


def test_damaged_generation_is_not_served(serve, live):
    client = serve()

    live.is_broken = True
    live.change(("d", "date"))

    assert until(lambda: client.get("/status").json()["reason"] == "hce: generation is damaged")
    assert client.get("/search?text=apple").json()["generation"] == 0


def test_repaired_generation_is_served(serve, live):
    client = serve()
    live.is_broken = True
    live.change(("d", "date"))
    assert until(lambda: client.get("/status").json()["reason"] == "hce: generation is damaged")

    live.is_broken = False

    assert until(lambda: client.get("/search?text=date").json()["generation"] == 1)
    assert client.get("/status").json()["reason"] is None


def test_no_answer_mixes_generations(serve, live):
    client = serve(search_threads=3)
    is_done = threading.Event()
    answers = []

    def search_until_done():
        while not is_done.is_set():
            answers.append(client.get("/search?text=e").json())

    def wait_for_answers(count):
        assert until(lambda: len(answers) > count)

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(search_until_done) for _ in range(3)]
        for number in range(12):
            live.change((f"n{number}", "e"))
            wait_for_answers(len(answers) + 3)
        is_done.set()

    assert [reader.result() for reader in readers] == [None] * 3
    assert len({answer["generation"] for answer in answers}) > 5
    for answer in answers:
        generation = answer["generation"]
        matching = [text for text in live.generations[generation].values() if "e" in text]
        assert len(answer["hits"]) == min(10, len(matching))
        assert {hit["title"] for hit in answer["hits"]} == {f"generation {generation}"}


@pytest.fixture
def full_service(serve, live):
    """Return a client and the answers of two slow searches: one runs, the other waits.

    No further search may wait. A search waits for at most 0.05 s.
    """
    client = serve(search_threads=1, waiting_searches=1, search_wait_seconds=0.05)
    live.can_apply.clear()
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(client.get, "/search?text=slow") for _ in range(2)]
        assert until(lambda: client.get("/status").json()["running_searches"] == 2)
        yield client, answers
        live.can_apply.set()


def test_full_service_refuses_searches(full_service):
    client, _ = full_service

    refused = client.get("/search?text=a")

    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "1"
    assert "1 searches run and 1 wait" in refused.json()["error"]


def test_search_that_waited_too_long_is_refused(full_service, live):
    _, futures = full_service
    time.sleep(0.1)
    live.can_apply.set()

    answers = sorted((future.result() for future in futures), key=status_code)

    assert answers[0].status_code == 200
    assert answers[1].status_code == 503
    assert "waited more than 0.05 s" in answers[1].json()["error"]


def status_code(answer) -> int:
    return answer.status_code


def test_full_service_recovers(full_service, live):
    client, _ = full_service

    live.can_apply.set()

    assert until(lambda: client.get("/search?text=a").status_code == 200)


def test_search_without_token_is_refused(serve, project):
    client = serve(token=read_or_create_token(project.token_file))

    assert client.get("/health").status_code == 401


def test_client_sends_the_token(serve, project):
    token = read_or_create_token(project.token_file)
    client = serve(token=token)

    headers = Client("http://testserver", project.token_file.read_text().strip())._headers

    assert client.post("/search", json={"text": "apple"}, headers=headers).status_code == 200


@pytest.fixture
def client_for_one_site(serve):
    return serve(token="secret", origins=("https://app.example",))


def preflight(client, origin):
    headers = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization",
    }
    return client.options("/search", headers=headers)


def search_from(client, origin):
    headers = {"origin": origin, "authorization": "Bearer secret"}
    return client.post("/search", json={"text": "apple"}, headers=headers)


def test_preflight_of_an_allowed_site_succeeds(client_for_one_site):
    answer = preflight(client_for_one_site, "https://app.example")

    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://app.example"


def test_preflight_of_another_site_is_refused(client_for_one_site):
    assert preflight(client_for_one_site, "https://evil.example").status_code == 400


def test_search_of_an_allowed_site_succeeds(client_for_one_site):
    answer = search_from(client_for_one_site, "https://app.example")

    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://app.example"


def test_search_of_another_site_is_refused(client_for_one_site):
    assert search_from(client_for_one_site, "https://evil.example").status_code == 403


def test_options_of_typed_queries_reach_the_searcher(serve, searched_options):
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

    posted, addressed = searched_options
    assert {name: getattr(posted, name) for name in options} == options
    assert posted == addressed


def test_options_of_typed_queries_have_defaults(serve, searched_options):
    assert serve().get("/search", params={"text": "a"}).status_code == 200

    (options,) = searched_options
    assert options.syntax
    assert options.typos
    assert not options.prefix
    assert options.min_score is None
    assert options.diversity == 0


def test_error_of_expiry_does_not_end_the_watch_for_generations(serve, live, monkeypatch):
    has_failed = threading.Event()

    def fail(self):
        has_failed.set()
        raise FreshetError("params.yaml is half edited")

    monkeypatch.setattr(FakeSearcher, "expired_documents", fail)
    monkeypatch.setattr(service, "EXPIRY_SECONDS", 0.0)
    client = serve()
    assert has_failed.wait(30)

    live.change(("c", "cake"))

    assert until(lambda: client.get("/search", params={"text": "cake"}).json()["hits"])


def test_error_of_the_file_system_does_not_end_the_watch(serve, live, monkeypatch):
    read_names = searchers.retrievers
    has_failed = threading.Event()

    def fail_once(folder):
        if not has_failed.is_set():
            has_failed.set()
            raise OSError("too many open files")
        return read_names(folder)

    client = serve()
    monkeypatch.setattr(searchers, "retrievers", fail_once)
    assert has_failed.wait(30)

    live.change(("c", "cake"))

    assert until(lambda: client.get("/search", params={"text": "cake"}).json()["hits"])
