"""A writer and its followers, and how their searches are compared."""

from __future__ import annotations

from pathlib import Path

from model_code.collection.follow.follower import Follower
from model_code.collection.follow.publish import publish
from model_code.collection.generations.generation_store import GenerationStore
from model_code.collection.generations.searcher import Searcher
from model_code.collection.index.live_index import LiveIndex
from model_code.project import Project

KEY = b"a key of both sides, which is long"
QUERIES = ("word1 word2", "word7", "word3 word11 word20 word29")
RETRIEVER = "r"


def change(project: Project, puts: dict[str, str], deletes: list[str] = ()) -> None:
    """Add, update and delete documents, and make the changes searchable."""
    index = LiveIndex(project)
    rows = [{"_id": name, "title": name, "text": text} for name, text in puts.items()]
    index.receive(rows, "test")
    if deletes:
        index.remove(list(deletes), "test")
    index.apply()


def searches(project: Project) -> list[list[tuple[str, float, str]]]:
    """Return id, score and text of all hits of a few queries."""
    searcher = Searcher.open(project.live)
    found = []
    for query in QUERIES:
        hits = searcher.search(query, 50)
        found.append([(hit.document_id, hit.score, hit.text) for hit in hits])
    return found


def follow(root: Path, target: str, name: str = "reader", **options) -> Follower:
    return Follower(root, target, KEY, name, **options)


def publish_to(project: Project, target: str, **options):
    return publish(project, target, KEY, **options)


def held_folders(follower: Follower) -> set[str]:
    """Return the names of the folders of generations that a follower has on its disk."""
    folders = (follower.project.live / RETRIEVER / "generations").glob("*")
    return {folder.name for folder in folders}


def require_intact(project: Project) -> None:
    """Compare every file that a search reads with its checksum."""
    GenerationStore(project.live, RETRIEVER).current().verify_all()
