"""Guards what is ready as soon as a build is live."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from model_code.collection.generations.build import BuildArtifacts
from model_code.collection.generations.live_queries import live_known_queries
from model_code.collection.index.builder_factory import additions_folder
from model_code.collection.index.builds import open_build
from model_code.collection.index.project_ledger import open_ledger
from model_code.collection.ledger.events import Feedback, Opinion, Position
from model_code.corpus.corpus_queries import KNOWN_QUERIES, CorpusQueries
from model_code.files import MANIFEST
from model_code.project import Project
from model_code.text.known_queries import KnownQuery, QuerySource
from tests.disk import skip_fsync
from tests.model_code.collection import laws

QUERY = KnownQuery("d01", "word3 word9", QuerySource.QRELS)


def make_artifacts(
    root: Path, monkeypatch: pytest.MonkeyPatch, known: tuple[KnownQuery, ...], settings: str
) -> BuildArtifacts:
    """Make a project with a build of a fusion that is not live yet."""
    for variable in ("FRESHET_LEDGER", "FRESHET_STATE"):
        monkeypatch.delenv(variable, raising=False)
    skip_fsync(monkeypatch)
    laws.make_encoder("dense", root / "encoder")
    laws.open_build("bm25_fusion", root, root / "encoder", laws.OLD)
    shutil.rmtree(root / "live")
    (root / "params.yaml").write_text(settings)
    (root / "dvc.yaml").touch()
    build = root / "build"
    CorpusQueries(known).save(build / KNOWN_QUERIES)
    return BuildArtifacts(
        build / "encoder",
        build / "index",
        build / "documents.parquet",
        build / "hierarchy",
        build / KNOWN_QUERIES,
    )


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
    artifacts = make_artifacts(tmp_path, monkeypatch, known, settings)
    project = Project(tmp_path)

    open_build(project, "r", artifacts, {}, laws.RULES, Position())

    assert len(list(additions_folder(project).glob(f"*/{MANIFEST}"))) == caches


def test_opened_build_knows_feedback_and_no_forgotten_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build knows neither, and no change of a document may follow for a long time."""
    artifacts = make_artifacts(tmp_path, monkeypatch, (QUERY,), "{}")
    project = Project(tmp_path)
    with open_ledger(project) as ledger:
        ledger.record_feedback(Feedback("word9 word5", "d02", Opinion.UP))
        ledger.forget_query(QUERY.text)
        position = ledger.position()

    generation = open_build(project, "r", artifacts, {}, laws.RULES, position)
    again = open_build(project, "r", artifacts, {}, laws.RULES, position)

    known = live_known_queries(generation)
    assert {name: [query.text for query in queries] for name, queries in known.items()} == {
        "d02": ["word9 word5"]
    }
    assert live_known_queries(again) == known
