"""Test the commands over the life of a project, from the build to a champion that is rolled back.

The expected answers are in `life_cycle.json`. A change of them is a change of behaviour, which the
commit has to name.

Run: python -m pytest tests/end_to_end/test_life_cycle.py
Write the expected answers: python -m tests.end_to_end.test_life_cycle
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestration import parameters
from tests.end_to_end import tiny_project
from tests.end_to_end.tiny_project import freshet, run

# Run one search per list of arguments, and print the first hit of each. One process is enough,
# because no search changes the project.
SEARCHES = """
import json, sys
from typer.testing import CliRunner
from orchestration.cli import app

for arguments in json.loads(sys.argv[1]):
    result = CliRunner().invoke(app, ["search", *arguments, "--json"], catch_exceptions=False)
    print(json.dumps(json.loads(result.stdout)[0]))
"""
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
    "retrievers.weak={steps: 1, evaluate_every: 1, hierarchy_weight: 0.0, batches: random, "
    "negatives: bm25}",
    "promotion.alpha=0.49",
    "promotion.margin=0.99",
)


class ProjectLife:
    """A project, and the facts of what its commands answered, in their order.

    The facts are exit codes, ids, counts and generations. Sentences are not recorded, so that they
    can be improved without a change of the expected answers.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.answers: list[dict[str, Any]] = []

    def run(self, *arguments: str, check: bool = True) -> tuple[int, str]:
        """Run a command; returns its exit code and its output."""
        process = freshet(self.folder, *arguments, check=check)
        return process.returncode, process.stdout

    def record(self, step: str, answer: Any) -> None:
        self.answers.append({"step": step, "answer": answer})

    def write_rows(self, name: str, *rows: dict[str, Any] | str) -> str:
        """Write a file of rows; a text is written as it is. Returns the name of the file."""
        lines = []
        for row in rows:
            line = row if isinstance(row, str) else json.dumps(row)
            lines.append(line)
        (self.folder / name).write_text("\n".join(lines) + "\n")
        return name

    def change(self, step: str, *arguments: str) -> None:
        """Run an addition, update or deletion, and record what it did with the rows."""
        code, output = self.run(*arguments, "--json", check=False)
        report = json.loads(output)
        answer = {"exit": code}
        for key in ("added", "updated", "deleted", "unchanged"):
            answer[key] = report[key]
        answer["rejected"] = []
        for rejection in report["rejected"]:
            assert rejection["reason"], "every rejected row has a reason"
            answer["rejected"].append(
                {key: rejection[key] for key in ("file", "row", "document_id")}
            )
        self.record(step, answer)

    def search(self, step: str, retriever: str | None = None) -> None:
        """Record the first hit of some queries, whose words only one document has."""
        options = ["--retriever", retriever] if retriever else []
        queries = []
        for document in (*DESERTS, CHANGED, *SNOW):
            queries.append(f"{document['title']} {document['text']}")
        searches = [[query, "-k", "3", *options] for query in queries]

        first_hits = {}
        lines = run(self.folder, SEARCHES, json.dumps(searches)).splitlines()
        for query, line in zip(queries, lines, strict=True):
            best = json.loads(line)
            is_exact = best["score"] > 0.9999
            first_hits[query] = best["document_id"] if is_exact else "another"
        self.record(step, first_hits)

    def status(self, step: str) -> None:
        """Record the champion and the number of live documents of each retriever."""
        status = self._status()
        documents = {state["retriever"]: state["documents"] for state in status["live"]}
        champion = {key: status["champion"][key] for key in ("retriever", "version")}
        self.record(step, {"champion": champion, "documents": documents})

    def generation(self, retriever: str = "weak") -> int:
        """Return the number of a retriever's current generation."""
        states = self._status()["live"]
        return next(state["generation"] for state in states if state["retriever"] == retriever)

    def _status(self) -> dict[str, Any]:
        _, output = self.run("status", "--json")
        return json.loads(output)


def live_through(folder: Path) -> list[dict[str, Any]]:
    """Run every step in one project that DVC has built; returns the answers."""
    parameters.write_overrides(folder / "params.yaml", SETTINGS)
    life = ProjectLife(folder)
    life.run("run")
    _promote_first_champion(life)
    _change_documents(life)
    _roll_back_a_generation(life)
    _retrain(life)
    _promote_another_retriever(life)
    return life.answers


def _promote_first_champion(life: ProjectLife) -> None:
    life.run("register", "weak")
    life.run("promote")
    life.status("promoted without a champion")
    life.search("searched as built")


def _change_documents(life: ProjectLife) -> None:
    deserts = life.write_rows(
        "deserts.jsonl", *DESERTS, {"id": "empty", "title": "", "text": ""}, "no JSON"
    )
    life.change("added, with two bad rows", "add", deserts)
    life.search("searched with the added ones")
    life.change("the same again", "add", deserts)
    life.change(
        "updated, and an unknown one",
        "update",
        life.write_rows("changed.jsonl", CHANGED, *SNOW[:1]),
    )
    life.search("searched with the update")
    life.change("deleted, and an unknown one", "delete", "desert-2", "sea-1", "nobody")
    life.search("searched without the deleted ones")
    life.status("after all changes")


def _roll_back_a_generation(life: ProjectLife) -> None:
    before = life.generation()
    life.change("added, to be rolled back", "add", life.write_rows("snow.jsonl", *SNOW))
    life.search("searched before the rollback")
    life.run("rollback", "--generation", str(before))
    life.status("rolled back by a generation")
    life.search("searched after the rollback")
    life.change("what was rolled back, added again", "add", "snow.jsonl")
    life.search("searched after adding it again")


def _retrain(life: ProjectLife) -> None:
    parameters.write_overrides(
        life.folder / "params.yaml",
        ["retrievers.weak.steps=16", "retrievers.weak.evaluate_every=8"],
    )
    life.record("retrained", {"exit": life.run("retrain", check=False)[0]})
    life.status("after the retrain")
    life.search("searched by the retrained one")
    life.change("deleted after the retrain", "delete", "snow-0")
    life.run("rollback")
    life.status("champion rolled back")
    life.search("searched by the earlier champion, kept current")


def _promote_another_retriever(life: ProjectLife) -> None:
    life.run("register", "hce")
    life.record("another retriever promoted", {"exit": life.run("promote", check=False)[0]})
    life.status("two are live")
    life.search("searched by the champion", "hce")
    before = life.generation("hce")
    life.change("added for both", "add", life.write_rows("again.jsonl", SNOW[0]))
    life.search("searched by the champion, added", "hce")
    life.search("searched by the other, added", "weak")
    life.run("rollback", "--generation", str(before))
    life.change(
        "added behind the rollback", "add", life.write_rows("late.jsonl", {**SNOW[0], "id": "late"})
    )
    life.status("two are live, rolled back by a generation")
    life.search("searched by the champion, rolled back", "hce")
    life.search("searched by the other, after the champion's rollback", "weak")
    life.run("rollback")
    life.status("champion rolled back to the other")
    life.search("searched by default after that")


def test_answers_are_as_expected(copy_of_build):
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
