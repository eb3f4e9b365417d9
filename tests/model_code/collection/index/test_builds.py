"""Guards what is ready as soon as a build is live."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from model_code.collection.generations.build import BuildArtifacts
from model_code.collection.index.builds import open_build
from model_code.collection.index.live_index import additions_folder
from model_code.collection.ledger.events import Position
from model_code.corpus.known_queries import KNOWN_QUERIES, CorpusQueries
from model_code.files import MANIFEST
from model_code.project import Project
from model_code.text.known_queries import KnownQuery, QuerySource
from tests.disk import skip_fsync
from tests.model_code.collection import laws

QUERY = KnownQuery("d01", "word3 word9", QuerySource.QRELS)


@pytest.mark.parametrize(
    ("known", "settings", "caches"),
    [((QUERY,), "{}", 1), ((), "{}", 0), ((QUERY,), "{additions: {refine: false}}", 0)],
)
def test_first_addition_needs_no_preparation(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    known: tuple[KnownQuery, ...],
    settings: str,
    caches: int,
) -> None:
    for variable in ("FRESHET_LEDGER", "FRESHET_STATE"):
        monkeypatch.delenv(variable, raising=False)
    skip_fsync(monkeypatch)
    laws.make_encoder("dense", tmp_path / "encoder")
    laws.open_build("bm25_fusion", tmp_path, tmp_path / "encoder", laws.OLD)
    shutil.rmtree(tmp_path / "live")
    (tmp_path / "params.yaml").write_text(settings)
    (tmp_path / "dvc.yaml").touch()
    build = tmp_path / "build"
    CorpusQueries(known).save(build / KNOWN_QUERIES)
    artifacts = BuildArtifacts(
        build / "encoder",
        build / "index",
        build / "documents.parquet",
        build / "hierarchy",
        build / KNOWN_QUERIES,
    )
    project = Project(tmp_path)

    open_build(project, "r", artifacts, {}, laws.RULES, Position())

    assert len(list(additions_folder(project).glob(f"*/{MANIFEST}"))) == caches
