"""`corpus.lock.json`: what was ingested, by content. The corpus stage refuses a source that changed since."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_code.corpus.settings import CorpusSettings
from model_code.corpus.sources.base import Source, open_source
from model_code.errors import FreshetError


def make_lock(settings: CorpusSettings, root: Path) -> dict[str, Any]:
    """The content of `corpus.lock.json` for the source as it is now: `source`, `versions`, `watermark`, `content_hash`.

    Cheap (it hashes files, or asks the hub for a commit), pure (no time or absolute path), equal for equal content.
    """
    return {"source": settings.source, **open_source(settings, root).describe()}


def locked_source(settings: CorpusSettings, root: Path, lock: Mapping[str, Any]) -> Source:
    """Open the source that `lock` describes; raise `FreshetError` if it is another one, or no longer the same."""
    if lock.get("source") != settings.source:
        raise FreshetError(
            f"corpus.lock.json was made from {lock.get('source')!r}, but corpus.source in params.yaml is "
            f"{settings.source!r}. Run `freshet ingest` to lock the new source."
        )
    source = open_source(settings, root, lock)
    now = source.describe()
    asked = now.get("settings")
    if now["content_hash"] != lock.get("content_hash") or asked != lock.get("settings", asked):  # older locks have none
        raise FreshetError(
            f"the source changed since `freshet ingest`{_difference(lock, now)}. Builds read only what the lock names: "
            "run `freshet ingest` again to accept the change."
        )
    return source


def _difference(lock: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """In words, which setting, version or file is another one than the lock's; empty where the lock does not tell."""
    for kind in ("settings", "versions", "files"):
        before, after = lock.get(kind), now.get(kind)
        if not isinstance(before, Mapping) or not isinstance(after, Mapping):
            continue
        changed = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
        if changed:
            name = changed[0]
            return f" ({name}: {before.get(name) or 'absent'} -> {after.get(name) or 'absent'})"
    return ""
