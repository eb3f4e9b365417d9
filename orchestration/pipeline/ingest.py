"""Look at the corpus's source and write `corpus.lock.json`, the one file through which stages see
that source.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model_code.corpus.sources.base import make_source_lock
from model_code.errors import FreshetError
from model_code.files import read_json, write_json
from model_code.project import Project
from orchestration import parameters


def ingest(project: Project) -> dict[str, Any]:
    """Renew the lock; the file is written only if something changed, so that nothing runs again for
    nothing.
    """
    settings = parameters.load(project.params_file)
    with project.lock():
        lock = make_source_lock(settings.corpus, project.root)
        if _parsed(project.corpus_lock) != lock:
            write_json(project.corpus_lock, lock)
    return lock


def read_lock(project: Project) -> dict[str, Any] | None:
    """What `corpus.lock.json` holds; None before the first ingest, `FreshetError` if it holds no
    lock.
    """
    if not project.corpus_lock.exists():
        return None
    lock = _parsed(project.corpus_lock)
    if not isinstance(lock, dict) or not {"source", "content_hash"} <= lock.keys():
        raise FreshetError(
            f"{project.corpus_lock.name} is not whole: run `freshet ingest`, which writes it anew"
        )
    return lock


def _parsed(path: Path) -> Any:
    """The JSON in the file; None if there is none, or the file is cut off or holds a merge's
    markers.
    """
    try:
        return read_json(path)
    except (FileNotFoundError, ValueError):
        return None
