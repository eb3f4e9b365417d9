"""Guards identities: after random edits of two sources with copies, links and renames, the index
holds what a fresh build would hold, and no document moves whose file nobody touched.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from model_code.collection.index.live_index import LiveIndex
from model_code.collection.sync.sync import sync
from model_code.corpus.clean_rows import clean_rows
from model_code.corpus.settings import CorpusSettings
from model_code.corpus.source_ids import name_documents
from model_code.corpus.sources.base import open_source
from model_code.text.documents import Document
from tests.live_example import collection_of, make_project

SCRIPTS = 10
SEEDS = [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 100))]
MAX_EDITS = 5
WORDS = ["moss", "fern", "oak", "bark", "root", "leaf"]
# Names that are equal for a reader, in other folders, or signs of ids.
NAMES = ["a.md", "A.md", "é.md", "e\u0301.md", "10:30.md", "wiki:a.md", "x\\y.txt", "z.txt"]
FOLDERS = ["", "deep", "deep/er", "Deep", "copy"]


@pytest.fixture
def live(tmp_path):
    root = tmp_path / "project"
    root.mkdir()
    project = make_project(root)
    project.params_file.write_text("{corpus: {path: notes}, retrievers: {hce: {}}}\n")
    for folder in (root / "notes", tmp_path / "wiki"):
        folder.mkdir()
    return collection_of(project)


@pytest.mark.parametrize("seed", SEEDS)
def test_edit_scripts_of_two_sources_move_no_document(live, seed):
    draw = random.Random(seed)
    folders = {None: live.project.root / "notes", "wiki": live.project.root.parent / "wiki"}
    follow(live, folders)
    for number in range(SCRIPTS):
        before = {name: read_files(folder) for name, folder in folders.items()}
        events_before = live.ledger.position().event
        for _ in range(draw.randint(1, MAX_EDITS)):
            edit(draw.choice(list(folders.values())), draw)

        follow(live, folders)

        built = build_all(folders)
        assert live.content_hashes() == {
            document_id: document.content_hash for document_id, document in built.items()
        }, number
        present = live.present_documents(built)
        assert {key: one.text for key, one in present.items()} == {
            key: one.text for key, one in built.items()
        }, number
        untouched: set[str] = set()
        for name, folder in folders.items():
            after = read_files(folder)
            same = {path for path, data in after.items() if before[name].get(path) == data}
            untouched.update(build_documents(folder, name, same))
        changed = {event.document_id for event in events_since(live, events_before)}
        assert not untouched & changed, number


def follow(live: LiveIndex, folders: dict[str | None, Path]) -> None:
    sync(live, force=True)
    sync(live, str(folders["wiki"]), force=True, name="wiki")


def events_since(live: LiveIndex, event: int):
    return live.ledger_view.events(event + 1, live.ledger.position().event)


def edit(folder: Path, draw: random.Random) -> None:
    """Change one file or folder at random."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() or path.is_symlink()]
    folders = [path for path in sorted(folder.rglob("*")) if path.is_dir()]
    place = folder / draw.choice(FOLDERS)
    target = place / draw.choice(NAMES)
    kind = draw.choice(
        [
            "write",
            "write",
            "write",
            "delete",
            "rename",
            "copy",
            "link",
            "copy folder",
            "move folder",
        ]
    )
    place.mkdir(parents=True, exist_ok=True)
    if kind == "write" or not files:
        target.unlink(missing_ok=True)
        target.write_text(" ".join(draw.choices(WORDS, k=draw.choice([1, 2]))))
        return

    file = draw.choice(files)
    if kind == "delete":
        file.unlink()
    elif kind == "rename":
        os.replace(file, target)
    elif kind == "copy" and file.is_file() and not target.exists():
        shutil.copyfile(file, target)
    elif kind == "link" and not target.exists() and not target.is_symlink():
        target.symlink_to(os.path.relpath(file, place))
    elif folders:
        other = draw.choice(folders)
        copy = folder / draw.choice(["a copy", "zz"])
        if copy.exists() or other == copy:
            shutil.rmtree(copy, ignore_errors=True)
        elif kind == "copy folder":
            shutil.copytree(other, copy, symlinks=True)
        else:
            other.rename(copy)


def read_files(folder: Path) -> dict[str, bytes]:
    """The content of each document file, by its name."""
    source = open_source(CorpusSettings(source="folder", path=str(folder)), folder)
    return {name: path.read_bytes() for name, path in source.files.items()}


def build_all(folders: dict[str | None, Path]) -> dict[str, Document]:
    """The documents that fresh builds of all sources make."""
    documents: dict[str, Document] = {}
    for name, folder in folders.items():
        documents.update(build_documents(folder, name, read_files(folder).keys()))
    return documents


def build_documents(folder: Path, name: str | None, files) -> dict[str, Document]:
    source = open_source(CorpusSettings(source="folder", path=str(folder)), folder)
    settings = CorpusSettings(path=str(folder))
    rows = clean_rows([source.read(file) for file in sorted(files)], settings, unique_ids=True)
    if name is not None:
        rows = name_documents(rows, name)
    documents = {document.document_id: document for document in rows.documents}
    if name is None:
        # The named source owns these ids.
        return {key: one for key, one in documents.items() if not key.startswith("wiki:")}
    return documents
