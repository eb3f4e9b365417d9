"""Guards the one interface of `Client`, `AsyncClient` and `Project`: each does the same, from
search to the errors.
"""

from __future__ import annotations

import asyncio
import datetime
import inspect
import json
import socket
import uuid
from decimal import Decimal
from pathlib import Path

import httpx
import numpy as np
import pandas as pd
import pytest

import freshet
from freshet import AsyncClient, Client, InvalidRequest, NotFoundError, Unavailable
from model_code.collection.index.project_ledger import read_feedback
from model_code.text.documents import Document
from orchestration.service import routes
from orchestration.service.server import bind_socket
from tests.model_code.collection.conftest import DOCUMENTS, NAMES

CHANGES = ("add", "update", "delete", "apply", "sync")
VERBS = (
    "search",
    "search_many",
    "get",
    "page",
    "documents",
    "fields",
    *CHANGES,
    "feedback",
    "status",
    "close",
)
LINES = {"_id": "io/lines.md", "title": "Lines", "text": "Read all lines of a file.", "year": 2024}


class Awaited:
    """An `AsyncClient` whose methods are called as those of a `Client`."""

    def __init__(self, url: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.client = AsyncClient(url)

    def __getattr__(self, name):
        method = getattr(self.client, name)

        def call(*arguments, **options):
            answer = method(*arguments, **options)
            return self.loop.run_until_complete(
                collect(answer) if inspect.isasyncgen(answer) else answer
            )

        return call


async def collect(generator):
    return [one async for one in generator]


@pytest.fixture(params=["client", "async", "project"])
def api(request, url, project):
    """The project by each way of asking it."""
    if request.param == "project":
        opened = freshet.Project.open(project.root)
    else:
        opened = Client(url) if request.param == "client" else Awaited(url)
    yield opened
    opened.close()


def test_one_interface(project):
    for kind in (Client, AsyncClient, freshet.Project):
        for verb in VERBS:
            own, model = (
                list(inspect.signature(getattr(each, verb)).parameters) for each in (kind, Client)
            )
            assert own == model, verb
    assert set(VERBS) == {name for name in vars(Client) if not name.startswith("_")}


def test_life_of_a_document(api):
    added = api.add([LINES, {"_id": "empty"}])
    assert (added.searchable, [row.document_id for row in added.rejected]) == (True, ["empty"])
    found = api.search("Lines Read all lines of a file", 1, min_generation=added.generation)
    (hit,) = found.hits
    assert (found.retriever, hit.document_id, hit.title, hit.text) == (
        "hce",
        "io/lines.md",
        "Lines",
        LINES["text"],
    )
    assert hit.topics == (NAMES[hit.path[0]],), (
        "an addition stands below the node that it is placed in"
    )
    assert (found.generation, hit.generation, hit.fields) == (
        added.generation,
        added.generation,
        {"year": 2024},
    )
    stored = api.get("io/lines.md")
    expected = Document("io/lines.md", "Lines", LINES["text"], {"year": 2024})
    assert stored == freshet.StoredDocument(
        "io/lines.md", "Lines", LINES["text"], {"year": 2024}, None, expected.content_hash
    )
    assert api.update([{"_id": "io/lines.md", "year": 2025}], partial=True).searchable
    assert api.get("io/lines.md").text == LINES["text"]
    assert api.get("io/lines.md").fields == {"year": 2025}
    with pytest.raises(InvalidRequest, match="version conflict: the document has version"):
        api.add([{**LINES, "if_version": stored.version}])
    with pytest.raises(InvalidRequest, match="version conflict"):
        api.delete(["io/lines.md"], if_version=stored.version)
    assert api.update([{**LINES, "text": "Read no line."}]).searchable
    assert api.get("io/lines.md").text == "Read no line."
    assert api.delete(["io/lines.md"]).searchable
    with pytest.raises(NotFoundError, match="there is no document 'io/lines.md'"):
        api.get("io/lines.md")


def test_all_documents_come_in_pages(api):
    api.apply()  # what another one deleted is seen
    first = api.page(limit=4)
    assert ([one.document_id for one in first.documents], first.total) == (
        sorted(DOCUMENTS)[:4],
        len(DOCUMENTS),
    )
    assert first.next == sorted(DOCUMENTS)[3]
    assert [one.document_id for one in api.page(first.next, 99).documents] == sorted(DOCUMENTS)[4:]
    assert api.page(first.next, len(DOCUMENTS) - 4).next is None
    assert [(one.document_id, one.text) for one in api.documents()] == sorted(DOCUMENTS.items())


def test_the_fields_are_listed_with_their_commonest_values(api):
    api.apply()
    fields = api.fields().fields
    assert sorted(fields) == ["package", "since", "tags"]
    assert list(fields["package"].items())[:2] == [("builtins", 1), ("csv", 1)]
    assert fields["tags"] == {"strings": 2, "text": 2}


def test_a_filter_is_an_object_or_texts_everywhere(api):
    everything = [hit.document_id for hit in api.search("read a list", 9).hits]
    for filters, wanted in (
        ({"package": "csv"}, {"csv.reader"}),
        (
            {"or": [{"package": ["csv", "json"]}, {"since": {">": 2}}]},
            {"csv.reader", "json.load", "re.split", "str.split"},
        ),
        (["since>=3", "package!=re"], {"str.split"}),
        ({"since": {">": 3}}, set()),
    ):
        found = [hit.document_id for hit in api.search("read a list", 9, filters=filters).hits]
        assert found == [one for one in everything if one in wanted]


def test_a_sync_follows_the_source_of_the_project(api, project):
    def write(*more, of=tuple(DOCUMENTS)):
        documents = [api.get(name) for name in of]
        rows = [
            {"_id": one.document_id, "title": one.title, "text": one.text, **one.fields}
            for one in documents
        ]
        (project.root / "rows.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in [*rows, *more])
        )

    api.apply()
    write({"_id": "moss", "text": "Moss grows on stone."}, {"_id": "broken"})
    for wanted in ({"dry_run": True}, {}):
        done = api.sync(**wanted)
        assert (done.added, done.updated, done.deleted, done.waiting) == (["moss"], [], [], [])
        assert (done.unchanged, done.beside) == (len(DOCUMENTS), 0)
        assert [row.document_id for row in done.rejected] == ["broken"]
    assert (
        api.search("moss on stone", 1, min_generation=done.generation).hits[0].document_id == "moss"
    )
    write(of=())
    with pytest.raises(InvalidRequest, match="10 of 10 documents are no longer in the source"):
        api.sync()
    write()
    assert api.sync(force=True).deleted == ["moss"]
    (project.root / "rows.jsonl").unlink()
    with pytest.raises(InvalidRequest, match="rows.jsonl"):
        api.sync()


def test_several_searches_are_answered_from_one_generation(api):
    api.apply()
    texts = ["split a string", "square root"]
    results = api.search_many(texts, 3)
    assert results == [api.search(text, 3) for text in texts]
    assert {len(result.hits) for result in results} == {3}


def test_feedback_is_recorded_or_refused(api, project):
    query = "split  a\nstring by feedback"
    assert api.feedback(query, "str.split", "up", who="ada") == "up"
    assert api.feedback(query, "str.split", "click", rank=3, who="ada") == "up"
    kept = [each for each in read_feedback(project) if each.query == "split a string by feedback"]
    assert [(each.document_id, each.verdict, each.who) for each in kept] == [
        ("str.split", "up", "ada")
    ]
    with pytest.raises(NotFoundError, match="there is no document 'none'"):
        api.feedback(query, "none", "up")
    for wrong in (
        {"verdict": "great"},
        {"rank": 0},
        {"who": "a b"},
        {"query": " "},
        {"query": "a\0b"},
        {"query": "a" * 1001},
    ):
        with pytest.raises(InvalidRequest):
            api.feedback(**{"query": query, "document_id": "str.split", "verdict": "up"} | wrong)


def test_refusals_become_client_errors(api, monkeypatch):
    monkeypatch.setattr(routes, "MAX_GENERATION_WAIT_SECONDS", 0.1)
    for wrong, kind, message in (
        (lambda: api.search(" "), InvalidRequest, "text is empty"),
        (
            lambda: api.search("x", 0),
            InvalidRequest,
            "k: input should be greater than or equal to 1",
        ),
        (
            lambda: api.search("x", filters=["colour=red"]),
            InvalidRequest,
            "no document has a field 'colour'",
        ),
        (lambda: api.search("x", retriever="mlr"), NotFoundError, "'mlr' is not live"),
        (
            lambda: api.search("x", min_generation=10**6),
            Unavailable,
            "generation 1000000 of hce is not searchable yet",
        ),
        (
            lambda: api.update([LINES]),
            InvalidRequest,
            "row 1: unknown id: no such document is searchable or waiting",
        ),
        (lambda: api.delete(["nobody"]), InvalidRequest, "row 1: unknown id"),
    ):
        with pytest.raises(kind, match=message):
            wrong()
    assert api.search("split", 1).hits, "and the next request is served"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda api: api.delete("ab"), "document_ids is the text 'ab', but it must be a list"),
        (lambda api: api.search_many("ab"), "texts is the text 'ab', but it must be a list"),
        (lambda api: api.add({"_id": "x", "text": "y"}), "documents is one object"),
        (lambda api: api.update("ab"), "documents is the text 'ab'"),
    ],
)
def test_text_or_object_for_a_list_is_refused(api, call, message):
    with pytest.raises(InvalidRequest, match=message):
        call(api)


def test_values_of_python_numpy_and_pandas_are_kept(api):
    row = {
        "_id": uuid.UUID(int=7),
        "text": "A row of many types.",
        "date": datetime.date(2024, 2, 29),
        "price": Decimal("9.90"),
        "exact": Decimal("0.12345678901234567891"),
        "seen": datetime.datetime(2024, 3, 1, 12, tzinfo=datetime.UTC),
        "count": np.int64(3),
        "ratio": np.float32(0.5),
        "flag": np.bool_(True),
        "array": np.array([1, 2]),
        "stamp": pd.Timestamp("2024-03-02"),
        "missing": [pd.NaT, pd.NA, float("nan"), Decimal("NaN"), np.datetime64("NaT")],
        "path": Path("a/b"),
        "tags": {"x"},
    }
    api.add([row])
    try:
        kept = api.get("00000000-0000-0000-0000-000000000007")
    finally:
        api.delete(["00000000-0000-0000-0000-000000000007"])

    assert kept.date == "2024-02-29T00:00:00+00:00"
    assert kept.fields == {
        "price": 9.9,
        "exact": "0.12345678901234567891",
        "seen": "2024-03-01T12:00:00+00:00",
        "count": 3,
        "ratio": 0.5,
        "flag": True,
        "array": [1, 2],
        "stamp": "2024-03-02T00:00:00",
        "missing": [None, None, None, None, None],
        "path": "a/b",
        "tags": ["x"],
    }


@pytest.mark.parametrize("value", [object(), b"\xff", 1j, {(1, 2): 3}])
def test_value_without_json_form_is_refused(api, value):
    with pytest.raises(InvalidRequest, match="the request cannot be written as JSON"):
        api.add([{"_id": "x", "text": "y", "field": value}])


def test_search_by_document_and_by_vector(api):
    similar = api.search(like="str.split", k=3)

    assert similar.hits[0].document_id == "re.split"
    assert similar.total == len(DOCUMENTS) - 1
    with pytest.raises(NotFoundError, match="there is no document 'nothing'"):
        api.search(like="nothing")
    with pytest.raises(InvalidRequest, match="the vector must be a list of"):
        api.search(vector=[1.0, 2.0])
    with pytest.raises(InvalidRequest, match="give exactly one of text, like and vector"):
        api.search()


def test_documents_are_deleted_by_filter(api):
    api.add([{**LINES, "_id": name, "colour": name} for name in ("red", "blue", "green")])

    found = api.delete(filters={"colour": ["red", "blue"]}, dry_run=True)
    assert (found.matched, found.events) == (["blue", "red"], [])
    assert api.get("red").fields["colour"] == "red"

    deleted = api.delete(filters=["colour = red", "colour=blue"])
    assert (deleted.matched, len(deleted.events)) == (["blue", "red"], 2)
    assert api.get("green").fields["colour"] == "green"
    assert api.delete(filters={"colour": "red"}).matched == []
    api.delete(["green"])
    for call in ({}, {"document_ids": ["x"], "filters": {"colour": "red"}}):
        with pytest.raises(InvalidRequest, match="give either ids or filters"):
            api.delete(**call)


def test_expired_document_is_not_found(api):
    future = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)).isoformat()
    text = "A notice about the unusual zebra."
    api.add(
        [
            {"_id": "old", "text": text, "expires": "2020-01-01"},
            {"_id": "valid", "text": text, "expires": future},
        ]
    )
    found = [hit.document_id for hit in api.search("unusual zebra notice", 99).hits]
    api.apply()

    assert "old" not in found
    assert "valid" in found
    with pytest.raises(NotFoundError):
        api.get("old")
    api.delete(["valid"])


def test_head_is_answered_like_get_without_body(url):
    answer = httpx.head(f"{url}/health")

    assert answer.status_code == 200
    assert answer.content == b""
    assert httpx.head(f"{url}/documents/unknown").status_code == 404
    assert httpx.head(f"{url}/").headers["content-type"].startswith("text/html")


def test_closed_connection_is_opened_again(url):
    with Client(url) as client:
        first = client.search("split", 1)
        client._thread_state.connection.sock.close()
        client._thread_state.connection.sock = None
        assert client.search("split", 1) == first
        kept = client._thread_state.connection.sock
        assert client.search("split", 1) == first
        assert client._thread_state.connection.sock is kept


def test_kept_connection_answers_without_delay():
    """asyncio sets TCP_NODELAY where the socket states its protocol; else each answer waits 40 ms
    for the client.
    """
    with bind_socket("127.0.0.1", 0) as listening:
        assert listening.proto == socket.IPPROTO_TCP
