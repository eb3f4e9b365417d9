"""Guards projects that an earlier Freshet made: each opens, finds what it found, and goes on; a
later one's is refused.

`upgrades/make.py` made them with the code of then: before a log had an identity (1), before it had
feedback (2), and before topics had names (3).
"""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from model_code.collection.backup.repair import problems, repair
from model_code.collection.generations.generation import FORMAT
from model_code.collection.generations.searcher import Searcher
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.ledger import database as tables
from model_code.errors import FreshetError
from model_code.files import MANIFEST, read_json, write_json
from model_code.project import Project
from orchestration import parameters

MADE = Path(__file__).parent / "upgrades"
VERSIONS = sorted(path.name.removesuffix(".tar.gz") for path in MADE.glob("*.tar.gz"))
QUERY = "the array of a string"


def unpacked(root: Path, version: str) -> Project:
    shutil.unpack_archive(MADE / f"{version}.tar.gz", root)
    return Project(root)


@pytest.fixture(autouse=True)
def _own(monkeypatch):
    monkeypatch.setattr("os.fsync", lambda handle: None)


def refusal(project: Project) -> str | None:
    """What is said of the settings, if they are refused."""
    try:
        parameters.load(project.params_file)
    except FreshetError as error:
        return str(error)
    return None


def settle_settings(project: Project) -> None:
    """Do what each refusal of the settings says, one line after the other."""
    while said := refusal(project):
        if "negatives is 'random', but must be one of 'siblings', 'bm25'" in said:
            text = project.params_file.read_text()
            assert "negatives: random" in text
            project.params_file.write_text(text.replace("negatives: random", "negatives: siblings"))
            continue
        key = re.match(r"([\w.]+) is (?:not a setting|no setting)", said)
        assert key, said
        settings = project.params_file.read_text()
        group = rf"^  {key[1].rpartition('.')[2]}:.*\n(    .*\n)*"
        shorter = re.sub(group, "", settings, count=1, flags=re.MULTILINE)
        assert shorter != settings
        project.params_file.write_text(shorter)


def found(project: Project, retriever: str) -> set[str]:
    return {hit.document_id for hit in Searcher.open(project.live, retriever).search(QUERY, k=100)}


def refused_by_all(project: Project, told: str) -> None:
    assert re.search(told, next(problems(project)))
    for use in (lambda: LiveIndex(project).apply(), lambda: repair(project)):
        with pytest.raises(FreshetError, match=told):
            use()


def test_one_is_kept_of_each_earlier_version_of_the_ledger():
    assert [f"ledger_{version}" for version in range(1, tables.VERSION + 1)] == VERSIONS


@pytest.mark.parametrize("version", VERSIONS)
def test_a_project_of_before_opens_searches_and_goes_on(tmp_path, version):
    project = unpacked(tmp_path, version)
    settle_settings(project)
    for retriever, rankings in read_json(tmp_path / "expected.json").items():
        searcher = Searcher.open(project.live, retriever)
        for query, ids in rankings.items():
            assert [hit.document_id for hit in searcher.search(query, k=100)] == ids
    assert list(problems(project)) == []
    default, other = LiveIndex(project), LiveIndex(project, "contrastive")
    default.receive(
        [
            {"id": "new-1", "title": "", "text": "file"},
            {"id": "later", "title": "", "text": "sort"},
        ],
        "x",
    )
    default.remove(["new-2"], "x")
    before = default.generation.number
    for collection in (other, default):
        collection.apply()
    expected = {
        *(f"base-{number}" for number in range(20) if number != 4),
        "new-1",
        "waiting",
        "later",
    }
    assert found(project, "hce") == found(project, "contrastive") == expected
    default.compact()
    default.revert(before)
    default.apply()
    other.apply()
    assert (
        found(project, "hce")
        == found(project, "contrastive")
        == expected - {"later", "waiting"} | {"new-2"}
    )
    assert list(problems(project)) == []
    for collection in (default, other):
        collection.ledger.close()


def test_a_later_ledger_is_refused_in_one_line_and_stays_as_it_is(tmp_path):
    project = unpacked(tmp_path, VERSIONS[-1])
    ledger = project.live / "ledger.sqlite"
    with closing(sqlite3.connect(ledger)) as connection, connection:
        connection.execute(f"UPDATE ledger_version SET version = {tables.VERSION + 1}")
    refused_by_all(project, f"version {tables.VERSION + 1}.*; update it$")
    with closing(sqlite3.connect(ledger)) as connection:
        assert connection.execute("SELECT version FROM ledger_version").fetchone() == (
            tables.VERSION + 1,
        )


def test_a_later_generation_is_refused_in_one_line_and_stays_as_it_is(tmp_path):
    project = unpacked(tmp_path, VERSIONS[-1])
    folder = LiveIndex(project).generation.folder
    write_json(folder / MANIFEST, read_json(folder / MANIFEST) | {"format": FORMAT + 1})
    before = sorted(map(str, project.live.rglob("*")))
    refused_by_all(project, f"format {FORMAT + 1}.*update Freshet$")
    with pytest.raises(FreshetError, match=f"format {FORMAT + 1}.*update Freshet$"):
        Searcher.open(project.live)
    assert sorted(map(str, project.live.rglob("*"))) == before
    assert json.loads((folder / MANIFEST).read_text())["format"] == FORMAT + 1
