"""Look at the corpus's source and write `corpus.lock.json`, the one file through which stages see that source."""

from __future__ import annotations

from typing import Any

from model_code.files import read_json, write_json
from orchestration import parameters
from orchestration.project import Project


def ingest(project: Project) -> dict[str, Any]:
    """Renew the lock; the file is written only if something changed, so that nothing runs again for nothing."""
    from model_code.corpus.lock import make_lock

    settings = parameters.load(project.params_file)
    with project.lock():
        lock = make_lock(settings.corpus, project.root)
        if not project.corpus_lock.exists() or read_json(project.corpus_lock) != lock:
            write_json(project.corpus_lock, lock)
    return lock
