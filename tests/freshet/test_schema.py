"""Guards the OpenAPI schema: what schemathesis makes of it is answered as it says; its names read
well, and its pages fetch nothing from elsewhere.
"""

from __future__ import annotations

import re

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from orchestration.service import routes

# such as that a text is not blank, or that an id is one of a document
NOT_IN_A_SCHEMA = [positive_data_acceptance]
GENERATED = settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
OPERATIONS = {
    "search",
    "search_by_address",
    "search_batch",
    "give_feedback",
    "withdraw_feedback",
    "list_fields",
    "list_documents",
    "get_document",
    "add_documents",
    "upload_files",
    "apply_changes",
    "sync_source",
    "delete_documents",
    "delete_document",
    "status",
    "overview",
    "get_file",
    "health",
    "liveness",
    "metrics",
}


@pytest.fixture(scope="module")
def schema(url):
    return schemathesis.openapi.from_url(f"{url}/openapi.json")


def test_answers_follow_the_schema(schema, monkeypatch):
    monkeypatch.setattr(routes, "MAX_GENERATION_WAIT_SECONDS", 0.0)
    for operation in schema.get_all_operations():

        @GENERATED
        @given(case=operation.ok().as_strategy())
        def answered(case):
            case.call_and_validate(excluded_checks=NOT_IN_A_SCHEMA)

        answered()


def test_requests_against_the_schema_are_refused(schema):
    """Requests with a wrong type, a number out of bounds or an unknown key."""
    for path in ("/search", "/search/batch", "/documents/delete", "/feedback"):
        operation = schema[path]["POST"]

        @GENERATED
        @given(case=operation.as_strategy(GenerationMode.NEGATIVE))
        def refused(case):
            case.call_and_validate(excluded_checks=NOT_IN_A_SCHEMA)

        refused()


def test_unknown_method_names_a_known_one(url):
    answer = httpx.request("TRACE", f"{url}/fields")
    assert answer.status_code == 405
    assert "GET" in answer.headers["allow"]


def test_body_that_is_not_utf8_is_refused(url):
    headers = {"Content-Type": "application/json"}
    answer = httpx.post(f"{url}/feedback", content=b"/h\x10\xff", headers=headers)
    assert answer.status_code == 422
    assert "it is not JSON in UTF-8" in answer.json()["error"]


def test_recorded_deletion_is_in_the_schema(url):
    paths = httpx.get(f"{url}/openapi.json").json()["paths"]
    assert "202" in paths["/documents/{document_id}"]["delete"]["responses"]


def test_operations_are_named_as_one_would_call_them(schema):
    named = {
        operation.ok().definition.raw["operationId"] for operation in schema.get_all_operations()
    }

    assert named == OPERATIONS


def test_schema_pages_fetch_nothing_external(url):
    for page in ("/docs", "/redoc"):
        fetched = re.findall(r'(?:src|href)="([^"]+)"', httpx.get(url + page).text)
        assert fetched
        for address in fetched:
            assert address.startswith("/"), address
            assert httpx.get(url + address).status_code == 200, address
