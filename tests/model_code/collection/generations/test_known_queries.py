"""Guards known queries of a live collection: they find their documents, and changes one by one
equal a rebuild.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from model_code.collection.generations.generation_builder import GenerationBuilder
from model_code.collection.generations.searcher import Searcher
from model_code.text.documents import Document, Remove
from tests.model_code.collection.known_collection import (
    PAGES,
    RETRIEVER,
    found,
    judged,
    open_known_collection,
    page,
)
from tests.model_code.collection.laws import up_to

pytestmark = pytest.mark.usefixtures("no_waiting_for_the_disk")

QUESTIONS = ("free some space", "compress a directory", "names in a folder", "wipe the disk")


def rankings(searcher: Searcher) -> list[list[tuple[str, float]]]:
    return searcher.retriever.search(list(QUESTIONS), 10)


@pytest.fixture
def builder(tmp_path: Path) -> GenerationBuilder:
    known = {"rm": [judged("rm", "free some space")]}
    return GenerationBuilder(open_known_collection(tmp_path, known=known), RETRIEVER)


def test_document_is_found_by_words_of_its_queries_only(builder: GenerationBuilder) -> None:
    assert found(builder.searcher, "compress directory") == []
    zipped = page("zip", "Pack files.", "compress a directory")
    builder.apply([zipped], up_to(1), {})

    assert found(builder.searcher, "compress directory") == ["zip"]
    assert found(builder.searcher, "some space") == ["rm"]


def test_changes_one_by_one_equal_a_rebuild(builder: GenerationBuilder, tmp_path: Path) -> None:
    changes: list[Document | Remove] = [
        page("zip", "Pack files.", "compress a directory", "make things small"),
        page("dd", "Copy blocks.", "wipe the disk"),
        page("zip", "Pack files again.", "compress a directory"),
        Remove("tar"),
        page("df", "Show free space."),
    ]
    builder.max_segments = 2
    for event, change in enumerate(changes, start=1):
        builder.apply([change], up_to(event), {})

    pages = {name: text for name, text in PAGES.items() if name != "tar"}
    pages |= {"zip": "Pack files again.", "dd": "Copy blocks.", "df": "Show free space."}
    known = {
        "rm": [judged("rm", "free some space")],
        "zip": [judged("zip", "compress a directory")],
        "dd": [judged("dd", "wipe the disk")],
    }
    live = open_known_collection(tmp_path / "rebuilt", pages, known)
    rebuilt = rankings(Searcher.open(live, RETRIEVER))
    assert rankings(builder.searcher) == rebuilt
    builder.compact()
    assert rankings(builder.searcher) == rebuilt
    assert rankings(Searcher.open(builder.collection.live, RETRIEVER)) == rebuilt
