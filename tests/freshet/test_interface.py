"""Tests of the one interface of `Client`, `AsyncClient` and `Project`.

Each does the same, from search to the errors.
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


class BlockingAsyncClient:
    """An `AsyncClient` whose methods are called as those of a `Client`."""

    def __init__(self, url: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.client = AsyncClient(url)

    def __getattr__(self, name):
        method = getattr(self.client, name)

        def call_and_wait(*arguments, **options):
            answer = method(*arguments, **options)
            if inspect.isasyncgen(answer):
                answer = collect(answer)
            return self.loop.run_until_complete(answer)

        return call_and_wait


async def collect(generator):
    """Return the items of an asynchronous generator as a list."""
    return [item async for item in generator]


@pytest.fixture(params=["client", "async", "project"])
def api(request, url, project):
    """The project, opened by each class of the interface."""
    if request.param == "project":
        opened = freshet.Project.open(project.root)
    elif request.param == "client":
        opened = Client(url)
    else:
        opened = BlockingAsyncClient(url)
    # Other tests changed the collection through another process.
    opened.apply()
    yield opened
    opened.close()


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kind", [AsyncClient, freshet.Project])
def test_every_class_has_the_same_parameters(kind, verb):
    parameters = list(inspect.signature(getattr(kind, verb)).parameters)

    assert parameters == list(inspect.signature(getattr(Client, verb)).parameters)


def test_client_has_no_other_public_name():
    assert {name for name in vars(Client) if not name.startswith("_")} == set(VERBS)


def test_project_is_opened_by_its_class(project):
    opened = freshet.Project(project.root)

    assert opened.search("text", 1).retriever == "hce"
    opened.close()


def test_folder_outside_of_projects_is_refused(tmp_path):
    with pytest.raises(freshet.FreshetError, match="not inside a Freshet project"):
        freshet.Project(tmp_path)


@pytest.fixture
def added(api):
    """The receipt of adding LINES and a row without text. The document is deleted afterwards."""
    receipt = api.add([LINES, {"_id": "empty"}])
    yield receipt
    if "io/lines.md" in ids_of(api.documents()):
        api.delete(["io/lines.md"])


def test_added_row_is_searchable_or_rejected(added):
    assert added.searchable
    assert [row.document_id for row in added.rejected] == ["empty"]


def test_added_document_is_found(api, added):
    found = api.search("Lines Read all lines of a file", 1, min_generation=added.generation)

    (hit,) = found.hits
    assert found.retriever == "hce"
    # The service may publish a later generation, which holds what earlier tests recorded.
    assert found.generation >= added.generation
    assert hit.document_id == "io/lines.md"
    assert hit.title == "Lines"
    assert hit.text == LINES["text"]
    assert hit.generation == found.generation
    assert hit.fields == {"year": 2024}
    # An addition belongs to the node of the hierarchy in which it is placed.
    assert hit.topics == (NAMES[hit.path[0]],)


@pytest.mark.usefixtures("added")
def test_added_document_can_be_read(api):
    document = Document("io/lines.md", "Lines", LINES["text"], {"year": 2024})

    stored = api.get("io/lines.md")

    assert stored == freshet.StoredDocument(
        "io/lines.md", "Lines", LINES["text"], {"year": 2024}, None, document.content_hash
    )


@pytest.mark.usefixtures("added")
def test_partial_update_keeps_the_other_properties(api):
    receipt = api.update([{"_id": "io/lines.md", "year": 2025}], partial=True)

    stored = api.get("io/lines.md")
    assert receipt.searchable
    assert stored.text == LINES["text"]
    assert stored.fields == {"year": 2025}


@pytest.mark.usefixtures("added")
def test_change_of_an_older_version_is_refused(api):
    old_version = api.get("io/lines.md").version
    api.update([{"_id": "io/lines.md", "year": 2025}], partial=True)

    with pytest.raises(InvalidRequest, match="version conflict: the document has version"):
        api.add([{**LINES, "if_version": old_version}])
    with pytest.raises(InvalidRequest, match="version conflict"):
        api.delete(["io/lines.md"], if_version=old_version)


@pytest.mark.usefixtures("added")
def test_update_replaces_the_document(api):
    receipt = api.update([{**LINES, "text": "Read no line."}])

    assert receipt.searchable
    assert api.get("io/lines.md").text == "Read no line."


@pytest.mark.usefixtures("added")
def test_deleted_document_cannot_be_read(api):
    receipt = api.delete(["io/lines.md"])

    assert receipt.searchable
    with pytest.raises(NotFoundError, match="there is no document 'io/lines.md'"):
        api.get("io/lines.md")


def ids_of(documents):
    """Return the ids of hits or stored documents."""
    return [document.document_id for document in documents]


def test_first_page_tells_the_next(api):
    first = api.page(limit=4)

    assert ids_of(first.documents) == sorted(DOCUMENTS)[:4]
    assert first.total == len(DOCUMENTS)
    assert first.next == sorted(DOCUMENTS)[3]


def test_next_page_continues_after_the_first(api):
    first = api.page(limit=4)

    assert ids_of(api.page(first.next, 99).documents) == sorted(DOCUMENTS)[4:]


def test_last_page_has_no_next(api):
    first = api.page(limit=4)

    assert api.page(first.next, len(DOCUMENTS) - 4).next is None


def test_all_documents_are_listed_by_id(api):
    listed = [(document.document_id, document.text) for document in api.documents()]

    assert listed == sorted(DOCUMENTS.items())


def test_fields_are_listed_with_their_commonest_values(api):
    fields = api.fields().fields

    assert sorted(fields) == ["package", "since", "tags"]
    assert list(fields["package"].items())[:2] == [("builtins", 1), ("csv", 1)]
    assert fields["tags"] == {"strings": 2, "text": 2}


@pytest.mark.parametrize(
    ("filters", "matching"),
    [
        ({"package": "csv"}, {"csv.reader"}),
        (
            {"or": [{"package": ["csv", "json"]}, {"since": {">": 2}}]},
            {"csv.reader", "json.load", "re.split", "str.split"},
        ),
        (["since>=3", "package!=re"], {"str.split"}),
        ({"since": {">": 3}}, set()),
    ],
)
def test_filter_is_an_object_or_texts(api, filters, matching):
    ranked = ids_of(api.search("read a list", 9).hits)

    found = ids_of(api.search("read a list", 9, filters=filters).hits)

    assert found == [document_id for document_id in ranked if document_id in matching]


def write_source(api, project, more=(), documents=tuple(DOCUMENTS)):
    """Write the project's source: documents of the collection, and more rows."""
    rows = []
    for document_id in documents:
        stored = api.get(document_id)
        row = {"_id": document_id, "title": stored.title, "text": stored.text, **stored.fields}
        rows.append(row)
    rows += more
    lines = [json.dumps(row) + "\n" for row in rows]
    (project.root / "rows.jsonl").write_text("".join(lines))


@pytest.fixture
def moss_in_source(api, project):
    """A source with one document more than the collection, and a row without text.

    The source and the collection are as before afterwards.
    """
    moss = {"_id": "moss", "text": "Moss grows on stone."}
    write_source(api, project, [moss, {"_id": "broken"}])
    yield moss
    write_source(api, project)
    api.sync(force=True)
    (project.root / "rows.jsonl").unlink()


@pytest.mark.usefixtures("moss_in_source")
@pytest.mark.parametrize("options", [{"dry_run": True}, {}])
def test_sync_reports_its_changes(api, options):
    report = api.sync(**options)

    assert report.added == ["moss"]
    assert report.updated == []
    assert report.deleted == []
    assert report.waiting == []
    assert report.unchanged == len(DOCUMENTS)
    assert report.beside == 0
    assert ids_of(report.rejected) == ["broken"]


def test_sync_counts_expired_documents(api, project):
    write_source(api, project, [{"_id": "old", "text": "Closed.", "expires": "2020-01-01"}])

    report = api.sync(dry_run=True)

    (project.root / "rows.jsonl").unlink()
    assert report.added == []
    assert report.expired == 1
    assert report.doubt == ""


@pytest.mark.usefixtures("moss_in_source")
def test_synced_document_is_found(api):
    report = api.sync()

    found = api.search("moss on stone", 1, min_generation=report.generation)

    assert ids_of(found.hits) == ["moss"]


@pytest.mark.usefixtures("moss_in_source")
def test_large_loss_of_the_source_is_refused(api, project):
    api.sync()
    complete_source = (project.root / "rows.jsonl").read_text()

    (project.root / "rows.jsonl").write_text("")
    with pytest.raises(InvalidRequest, match="10 of 10 documents are no longer in the source"):
        api.sync()
    doubt = api.sync(dry_run=True).doubt

    (project.root / "rows.jsonl").write_text(complete_source)
    assert "10 of 10 documents are no longer in the source" in doubt


@pytest.mark.usefixtures("moss_in_source")
def test_forced_sync_deletes_what_left_the_source(api, project):
    api.sync()
    write_source(api, project)

    assert api.sync(force=True).deleted == ["moss"]


def test_sync_without_its_source_is_refused(api):
    with pytest.raises(InvalidRequest, match="rows.jsonl"):
        api.sync()


def test_several_searches_equal_single_searches(api):
    texts = ["split a string", "square root"]

    results = api.search_many(texts, 3)

    assert results == [api.search(text, 3) for text in texts]
    assert {len(result.hits) for result in results} == {3}


def test_feedback_is_recorded(api, project):
    query = f"split  a\nstring by feedback {id(api)}"

    opinion = api.feedback(query, "str.split", "up", who="ada")
    opinion_after_click = api.feedback(query, "str.split", "click", rank=3, who="ada")

    normal_query = " ".join(query.split())
    (feedback,) = [entry for entry in read_feedback(project) if entry.query == normal_query]
    assert opinion == "up"
    assert opinion_after_click == "up"
    assert feedback.document_id == "str.split"
    assert feedback.verdict == "up"
    assert feedback.who == "ada"


def test_feedback_on_unknown_document_is_refused(api):
    with pytest.raises(NotFoundError, match="there is no document 'none'"):
        api.feedback("split", "none", "up")


@pytest.mark.parametrize(
    "change",
    [
        {"verdict": "great"},
        {"rank": 0},
        {"who": "a b"},
        {"query": " "},
        {"query": "a\0b"},
        {"query": "a" * 1001},
    ],
)
def test_impossible_feedback_is_refused(api, change):
    feedback = {"query": "split", "document_id": "str.split", "verdict": "up"}
    feedback.update(change)

    with pytest.raises(InvalidRequest):
        api.feedback(**feedback)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"text": " "}, InvalidRequest, "text is empty"),
        (
            {"text": "x", "k": 0},
            InvalidRequest,
            "k: input should be greater than or equal to 1",
        ),
        (
            {"text": "x", "filters": ["colour=red"]},
            InvalidRequest,
            "no document has a field 'colour'",
        ),
        ({"text": "x", "retriever": "mlr"}, NotFoundError, "'mlr' is not live"),
        (
            {"text": "x", "min_generation": 10**6},
            Unavailable,
            "generation 1000000 of hce is not searchable yet",
        ),
    ],
)
def test_refused_search_is_a_client_error(api, monkeypatch, options, kind, message):
    monkeypatch.setattr(routes, "MAX_GENERATION_WAIT_SECONDS", 0.1)

    with pytest.raises(kind, match=message):
        api.search(**options)

    # The next request is answered.
    assert api.search("split", 1).hits


def test_update_of_unknown_document_is_refused(api):
    with pytest.raises(
        InvalidRequest, match="row 1: unknown id: no such document is searchable or waiting"
    ):
        api.update([LINES])


def test_deletion_of_unknown_document_is_refused(api):
    with pytest.raises(InvalidRequest, match="row 1: unknown id"):
        api.delete(["nobody"])


@pytest.mark.parametrize(
    ("verb", "argument", "message"),
    [
        ("delete", "ab", "document_ids is the text 'ab', but it must be a list"),
        ("search_many", "ab", "texts is the text 'ab', but it must be a list"),
        ("add", {"_id": "x", "text": "y"}, "documents is one object"),
        ("update", "ab", "documents is the text 'ab'"),
    ],
)
def test_text_or_object_for_a_list_is_refused(api, verb, argument, message):
    with pytest.raises(InvalidRequest, match=message):
        getattr(api, verb)(argument)


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


def test_search_by_document_finds_similar_ones(api):
    similar = api.search(like="str.split", k=3)

    assert similar.hits[0].document_id == "re.split"
    assert similar.total == len(DOCUMENTS) - 1


def test_search_by_unknown_document_is_refused(api):
    with pytest.raises(NotFoundError, match="there is no document 'nothing'"):
        api.search(like="nothing")


def test_search_by_vector_of_another_width_is_refused(api):
    with pytest.raises(InvalidRequest, match="the vector must be a list of"):
        api.search(vector=[1.0, 2.0])


def test_search_for_nothing_is_refused(api):
    with pytest.raises(InvalidRequest, match="give exactly one of text, like and vector"):
        api.search()


@pytest.fixture
def _colours(api):
    """Three documents with a field `colour`, which are deleted afterwards."""
    colours = ("red", "blue", "green")
    api.add([{**LINES, "_id": name, "colour": name} for name in colours])
    yield
    api.delete(filters={"colour": list(colours)})


@pytest.mark.usefixtures("_colours")
def test_deletion_by_filter_can_be_tried(api):
    found = api.delete(filters={"colour": ["red", "blue"]}, dry_run=True)

    assert found.matched == ["blue", "red"]
    assert found.events == []
    assert api.get("red").fields["colour"] == "red"


@pytest.mark.usefixtures("_colours")
def test_documents_are_deleted_by_filter(api):
    deleted = api.delete(filters=["colour = red", "colour=blue"])

    assert deleted.matched == ["blue", "red"]
    assert len(deleted.events) == 2
    assert api.get("green").fields["colour"] == "green"
    assert api.delete(filters={"colour": "red"}).matched == []


@pytest.mark.parametrize("options", [{}, {"document_ids": ["x"], "filters": {"colour": "red"}}])
def test_deletion_needs_ids_or_filters(api, options):
    with pytest.raises(InvalidRequest, match="give either ids or filters"):
        api.delete(**options)


def test_expired_document_is_not_found(api):
    in_an_hour = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    text = "A notice about the unusual zebra."
    api.add(
        [
            {"_id": "old", "text": text, "expires": "2020-01-01"},
            {"_id": "valid", "text": text, "expires": in_an_hour.isoformat()},
        ]
    )

    found = ids_of(api.search("unusual zebra notice", 99).hits)
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
    # Results are compared by their ids: the service may still publish what earlier tests recorded,
    # and each hit states its generation.
    with Client(url) as client:
        first = ids_of(client.search("split", 1).hits)
        client._thread_state.connection.sock.close()
        client._thread_state.connection.sock = None
        assert ids_of(client.search("split", 1).hits) == first
        kept = client._thread_state.connection.sock
        assert ids_of(client.search("split", 1).hits) == first
        assert client._thread_state.connection.sock is kept


@pytest.mark.parametrize("address", ["localhost:8765", "127.0.0.1:8765", "http://host:port", ""])
def test_address_without_scheme_or_port_is_explained(address):
    with pytest.raises(InvalidRequest, match="write it with http:// or https://"):
        Client(address).search("split")


def test_line_break_after_the_token_is_ignored(url):
    assert Client(url, token="a token from a file\n").search("split", 1).hits


def test_kept_connection_answers_without_delay():
    """asyncio sets TCP_NODELAY only if the socket states its protocol.

    Otherwise each answer waits 40 ms for the client.
    """
    with bind_socket("127.0.0.1", 0) as listening:
        assert listening.proto == socket.IPPROTO_TCP
