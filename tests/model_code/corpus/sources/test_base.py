"""Guards what sources share: one that changed since it was locked is refused."""

from __future__ import annotations

import json
from importlib import import_module

import pytest

from model_code.corpus.settings import SOURCES, CorpusSettings
from model_code.corpus.sources.base import make_source_lock, open_locked_source
from model_code.errors import FreshetError, SettingsError

LOCKED = [{"_id": "1", "text": "moss"}]


def test_source_classes_exist_and_require_paths():
    for kind, source in SOURCES.items():
        module, _, name = source.reader.partition(":")
        assert {"describe", "rows"} <= set(dir(getattr(import_module(module), name)))
        if source.needs_path:
            with pytest.raises(SettingsError, match="path is missing"):
                CorpusSettings(source=kind)


def beir_settings(path: str = "data", **more) -> CorpusSettings:
    return CorpusSettings(source="beir", path=path, **more)


def test_source_lock_does_not_depend_on_location(tmp_path, write_beir):
    write_beir(tmp_path / "here" / "data", LOCKED)
    write_beir(tmp_path / "there/deep" / "data", LOCKED)

    here = make_source_lock(beir_settings(), tmp_path / "here")
    there = make_source_lock(beir_settings(), tmp_path / "there/deep")

    assert there == here
    assert {"source", "versions", "watermark", "content_hash"} <= here.keys()


def test_source_lock_holds_no_absolute_path(tmp_path, write_beir):
    write_beir(tmp_path / "here" / "data", LOCKED)
    relative = make_source_lock(beir_settings(), tmp_path / "here")

    absolute = make_source_lock(beir_settings(str(tmp_path / "here/data")), tmp_path)

    assert absolute == relative
    assert str(tmp_path) not in json.dumps(absolute)


def test_changed_source_is_refused_with_remedy(tmp_path, write_beir):
    write_beir(tmp_path / "data", LOCKED)
    lock = make_source_lock(beir_settings(), tmp_path)
    with pytest.raises(
        FreshetError, match="corpus.source in params.yaml is 'installed_packages'.*freshet ingest"
    ):
        open_locked_source(CorpusSettings(), tmp_path, lock)
    write_beir(tmp_path / "data", [*LOCKED, {"_id": "2", "text": "fern"}])
    with pytest.raises(
        FreshetError, match=r"changed since `freshet ingest` \(corpus.jsonl: .* -> .*\).*again"
    ):
        open_locked_source(beir_settings(), tmp_path, lock)
    write_beir(tmp_path / "data", LOCKED, [{"_id": "q", "text": "?"}], {"test": [("q", "1", 1)]})
    with pytest.raises(FreshetError, match=r"qrels/test.tsv: absent -> "):
        open_locked_source(beir_settings(), tmp_path, lock)
