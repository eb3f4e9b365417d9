"""What is remembered of additions to live generations that are gone: `.freshet/additions` keeps a folder per base."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from model_code.additions.store import store_of, token_of
from model_code.live.collection import Collection, retrievers
from orchestration.live.additions import folder_of, settings_of
from orchestration.live.ledger import WRITER_LOCK
from orchestration.project import Project, file_lock

STORE = re.compile(r".+-[0-9a-f]{16}")  # the name of a store: the retriever's, and a hash of what it stands for


def unneeded_stores(project: Project) -> list[Path]:
    """The stores that no generation stands on, and that none would go on with by today's settings, by name."""
    stores = [path for path in sorted(folder_of(project).glob("*")) if STORE.fullmatch(path.name) and path.is_dir()]
    if not stores:
        return []
    spans = settings_of(project).spans
    generations = [one for name in retrievers(project.live) for one in Collection(project.live, name).generations()]
    next_ones = {store_of(folder_of(project), one, spans).folder for one in generations}
    tokens = {token for one in generations if (token := token_of(one)) is not None}
    return [path for path in stores if path not in next_ones and not any((path / token).is_dir() for token in tokens)]


def free_store(project: Project, path: Path) -> None:
    """Delete a store, unless a writer needs it by now."""
    with file_lock(project.live / WRITER_LOCK):
        if path in unneeded_stores(project):
            shutil.rmtree(path)
