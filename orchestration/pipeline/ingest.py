"""Lock the source of the corpus: hash its content and write the hash to `corpus.lock.json`.

The stage `corpus` depends on this file. A change of the source reaches a build only after the
source is locked again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model_code.corpus.judgement_file import JUDGEMENT_LOCK, judgement_hash
from model_code.corpus.sources.base import make_source_lock
from model_code.errors import FreshetError
from model_code.files import read_json, write_json
from model_code.project import Project
from orchestration import parameters


def ingest(project: Project) -> dict[str, Any]:
    """Hash the source, write `corpus.lock.json` if its content changed, and return the content.

    The file is not written without a change, so that no stage runs again without a reason.
    """
    settings = parameters.load(project.params_file)
    with project.lock():
        lock = make_source_lock(settings.corpus, project.root)
        _set_judgement_hash(lock, project)
        if _read_json_or_none(project.corpus_lock) != lock:
            write_json(project.corpus_lock, lock)
    return lock


def adopt_synced_source(project: Project) -> bool:
    """Lock the source if it is the same as at the last `freshet sync`.

    A sync makes the documents of the source searchable, so the user has accepted them already. If
    the source changed after the sync, nothing is locked, and the user has to call `freshet ingest`.

    Returns:
        Whether the lock changed.
    """
    # Imported here because it imports the live index, which `freshet status` does not need.
    from model_code.collection.sync.sync import synced_source_file

    synced = _read_json_or_none(synced_source_file(project))
    lock = read_lock(project)
    if synced is None or lock is None:
        return False
    is_locked_already = lock["content_hash"] == synced["content_hash"]
    if is_locked_already:
        return False

    settings = parameters.load(project.params_file)
    current = make_source_lock(settings.corpus, project.root)
    has_changed_since_sync = current["content_hash"] != synced["content_hash"]
    if has_changed_since_sync:
        return False
    ingest(project)
    return True


def lock_judgements(project: Project) -> None:
    """Write the hash of `judgements.jsonl` to `corpus.lock.json`, so that builds accept the file.

    The rest of the lock is not changed, so no other change of the source is accepted. If there is
    no lock yet, nothing is written: the first ingest will hash the judgements too.
    """
    with project.lock():
        lock = read_lock(project)
        if lock is None:
            return
        before = dict(lock)
        _set_judgement_hash(lock, project)
        if lock != before:
            write_json(project.corpus_lock, lock)


def _set_judgement_hash(lock: dict[str, Any], project: Project) -> None:
    """Set the hash of `judgements.jsonl` in a lock, or remove it if there is no such file."""
    value = judgement_hash(project.judgements)
    lock.pop(JUDGEMENT_LOCK, None)
    if value is not None:
        lock[JUDGEMENT_LOCK] = value


def read_lock(project: Project) -> dict[str, Any] | None:
    """Return the content of `corpus.lock.json`, or None before the first ingest.

    `freshet ingest` writes this file with a hash of the corpus's source, such as a folder of files.
    A build refuses a source whose hash differs, so no change of the source is used unnoticed.

    Raises:
        FreshetError: If the file is cut off, or lacks the name or the hash of the source.
    """
    if not project.corpus_lock.exists():
        return None
    lock = _read_json_or_none(project.corpus_lock)
    if not isinstance(lock, dict) or not {"source", "content_hash"} <= lock.keys():
        raise FreshetError(
            f"{project.corpus_lock.name} is damaged: run `freshet ingest`, which writes it again"
        )
    return lock


def _read_json_or_none(path: Path) -> Any:
    """Return the JSON in a file, or None if it is missing, cut off or has conflict markers."""
    try:
        return read_json(path)
    except (FileNotFoundError, ValueError):
        return None
