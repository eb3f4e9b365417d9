"""The service records who asked for a change, also if another thread makes it."""

from __future__ import annotations

import pytest

from model_code.audit import current_actor, os_user
from orchestration.service.ingest_queue import IngestJob
from tests.orchestration.service.conftest import FakeCollection

TEA = {"_id": "t", "text": "tea"}


@pytest.fixture
def recording_actors(monkeypatch) -> list[str]:
    """The actors of the changes that the collection received."""
    actors: list[str] = []
    receive = FakeCollection.receive

    def receive_and_note(self, *arguments, **options):
        actors.append(current_actor())
        return receive(self, *arguments, **options)

    monkeypatch.setattr(FakeCollection, "receive", receive_and_note)
    return actors


def test_request_with_token_is_recorded_as_token(serve, recording_actors):
    client = serve(token="secret")

    client.post("/documents", json={"documents": [TEA]}, headers={"authorization": "Bearer secret"})

    assert recording_actors == ["token"]


def test_request_to_open_service_is_anonymous(serve, recording_actors):
    serve().post("/documents", json={"documents": [TEA]})

    assert recording_actors == ["anonymous"]


def test_changes_of_the_service_itself_belong_to_its_user():
    assert IngestJob(0, lambda index: None).actor == os_user()
