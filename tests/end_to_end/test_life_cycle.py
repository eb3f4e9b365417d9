"""Guards a project's whole life from outside: what each command answers, from the build to a
champion rolled back.

The answers stand in `life_cycle.json`. A change of them is a change of behaviour: name it in the
commit.

Run: python -m pytest tests/end_to_end/test_life_cycle.py
Write the answers anew: python -m tests.end_to_end.test_life_cycle
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestration import parameters
from tests.end_to_end import tiny_project
from tests.end_to_end.tiny_project import freshet

ANSWERS = Path(__file__).with_name("life_cycle.json")
DESERTS = [
    {
        "id": "desert-0",
        "title": "desert dune",
        "text": "dune cactus sand mirage",
        "queries": ["cactus mirage"],
    },
    {
        "id": "desert-1",
        "title": "desert oasis",
        "text": "oasis camel heat dust",
        "queries": ["camel dust"],
    },
    {
        "id": "desert-2",
        "title": "desert nomad",
        "text": "nomad scorpion sand heat",
        "queries": ["nomad heat"],
    },
    {
        "id": "desert-3",
        "title": "desert heat",
        "text": "heat mirage camel dune",
        "fields": {"kind": "hot"},
    },
]
SNOW = [
    {"id": f"snow-{i}", "title": f"snow {i}", "text": text}
    for i, text in enumerate(["glacier ski", "sled ice"])
]
CHANGED = {"id": "desert-1", "title": "desert oasis", "text": "oasis nomad scorpion dust"}
SETTINGS = (
    "retrievers.weak={steps: 1, evaluate_every: 1, hierarchy_weight: 0.0, batches: random, negatives: bm25}",
    "promotion.alpha=0.49",
    "promotion.margin=0.99",
)


class Life:
    """A project and what its commands answered, in their order."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.answers = folder, []

    def freshet(self, *arguments: str, check: bool = True) -> tuple[int, str]:
        """The exit code and the output of a command."""
        done = freshet(self.folder, *arguments, check=check)
        return done.returncode, done.stdout

    def tell(self, step: str, answer: Any) -> None:
        self.answers.append({"step": step, "answer": answer})

    def write(self, name: str, *lines: dict[str, Any] | str) -> str:
        rows = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        (self.folder / name).write_text("\n".join(rows) + "\n")
        return name

    def change(self, step: str, *arguments: str) -> None:
        """An addition, update or deletion, and what became of its rows."""
        code, output = self.freshet(*arguments, "--json", check=False)
        told = json.loads(output)
        kept = ("added", "updated", "deleted", "unchanged", "rejected")
        self.tell(step, {"exit": code} | {key: told[key] for key in kept})

    def search(self, step: str, retriever: str | None = None) -> None:
        """The first hit of some texts, in words that only one document has as its own."""
        named = ["--retriever", retriever] if retriever else []
        first = {}
        for text in [
            document["title"] + " " + document["text"] for document in (*DESERTS, CHANGED, *SNOW)
        ]:
            hits = json.loads(self.freshet("search", text, "-k", "3", "--json", *named)[1])
            first[text] = hits[0]["document_id"] if hits[0]["score"] > 0.9999 else "another"
        self.tell(step, first)

    def status(self, step: str) -> None:
        told = json.loads(self.freshet("status", "--json")[1])
        live = {row["retriever"]: row["documents"] for row in told["live"]}
        champion = {key: told["champion"][key] for key in ("retriever", "version")}
        self.tell(step, {"champion": champion, "documents": live})

    def generation(self, retriever: str = "weak") -> int:
        told = json.loads(self.freshet("status", "--json")[1])
        return next(row["generation"] for row in told["live"] if row["retriever"] == retriever)


def live_through(folder: Path) -> list[dict[str, Any]]:
    """Every step, in one project that DVC has built."""
    parameters.write_overrides(folder / "params.yaml", SETTINGS)
    life = Life(folder)
    life.freshet("run")
    for part in (
        _first_champion,
        _documents_come_and_go,
        _generation_is_rolled_back,
        _trained_anew,
        _two_are_live,
    ):
        part(life)
    return life.answers


def _first_champion(life: Life) -> None:
    life.freshet("register", "weak")
    life.freshet("promote")
    life.status("promoted without a champion")
    life.search("searched as built")


def _documents_come_and_go(life: Life) -> None:
    deserts = life.write(
        "deserts.jsonl", *DESERTS, {"id": "empty", "title": "", "text": ""}, "no JSON"
    )
    life.change("added, with two bad rows", "add", deserts)
    life.search("searched with the added ones")
    life.change("the same again", "add", deserts)
    life.change(
        "updated, and an unknown one", "update", life.write("changed.jsonl", CHANGED, *SNOW[:1])
    )
    life.search("searched with the update")
    life.change("deleted, and an unknown one", "delete", "desert-2", "sea-1", "nobody")
    life.search("searched without the deleted ones")
    life.status("after all changes")


def _generation_is_rolled_back(life: Life) -> None:
    before = life.generation()
    life.change("added, to be rolled back", "add", life.write("snow.jsonl", *SNOW))
    life.search("searched before the rollback")
    life.freshet("rollback", "--generation", str(before))
    life.status("rolled back by a generation")
    life.search("searched after the rollback")
    life.change("what was rolled back, added again", "add", "snow.jsonl")
    life.search("searched after adding it again")


def _trained_anew(life: Life) -> None:
    parameters.write_overrides(
        life.folder / "params.yaml",
        ["retrievers.weak.steps=16", "retrievers.weak.evaluate_every=8"],
    )
    life.tell("retrained", {"exit": life.freshet("retrain", check=False)[0]})
    life.status("after the retrain")
    life.search("searched by the retrained one")
    life.change("deleted after the retrain", "delete", "snow-0")
    life.freshet("rollback")
    life.status("champion rolled back")
    life.search("searched by the earlier champion, kept current")


def _two_are_live(life: Life) -> None:
    life.freshet("register", "hce")
    life.tell("another retriever promoted", {"exit": life.freshet("promote", check=False)[0]})
    life.status("two are live")
    life.search("searched by the champion", "hce")
    before = life.generation("hce")
    life.change("added for both", "add", life.write("again.jsonl", SNOW[0]))
    life.search("searched by the champion, added", "hce")
    life.search("searched by the other, added", "weak")
    life.freshet("rollback", "--generation", str(before))
    life.change(
        "added behind the rollback", "add", life.write("late.jsonl", {**SNOW[0], "id": "late"})
    )
    life.status("two are live, rolled back by a generation")
    life.search("searched by the champion, rolled back", "hce")
    life.search("searched by the other, after the champion's rollback", "weak")
    life.freshet("rollback")
    life.status("champion rolled back to the other")
    life.search("searched by default after that")


def test_every_answer_is_as_it_was(copy_of_build):
    answers = live_through(copy_of_build)
    expected = json.loads(ANSWERS.read_text(encoding="utf-8"))
    assert [answer["step"] for answer in answers] == [answer["step"] for answer in expected]
    for answer, before in zip(answers, expected, strict=True):
        assert answer == before


def _projects() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        project = tiny_project.make_project(Path(folder) / "project")
        freshet(project, "ingest")
        yield project


if __name__ == "__main__":
    for project in _projects():
        ANSWERS.write_text(json.dumps(live_through(project), indent=1) + "\n", encoding="utf-8")
