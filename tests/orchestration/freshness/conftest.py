"""A live collection of documents about the sea, of an encoder that also knows the words of another
subject.
"""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from model_code.corpus.tables import COLUMNS
from model_code.drift.calibration import Calibration
from model_code.files import write_text
from model_code.project import Project
from tests.model_code.evaluation.tiny_corpus import write_known_queries
from tests.orchestration.freshness.builds import make_build, open_build
from tests.orchestration.freshness.subjects import PARAMS, SEA, documents, queries

DRAWN: dict[tuple, np.ndarray] = {}


@pytest.fixture(scope="module", autouse=True)
def drawn_once():
    """Null distributions follow from reference, settings, scores and size alone: one draws them for
    all tests.
    """
    draw = Calibration._draw

    def once(self, measure, size):
        key = self.key, self.old(measure).tobytes(), measure.name, size
        if key not in DRAWN:
            DRAWN[key] = draw(self, measure, size)
        return DRAWN[key].copy()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Calibration, "_draw", once)
        yield


@pytest.fixture(scope="module")
def small_measures():
    """A reference of few documents, from which few batches are drawn."""
    with pytest.MonkeyPatch.context() as patch:
        for name, number in (("DRAWS", 99), ("LARGEST_BATCH", 40), ("REFERENCE_DOCUMENTS", 60)):
            patch.setattr(f"model_code.drift.settings.{name}", number)
        yield


@pytest.fixture
def own_measures(monkeypatch, small_measures):
    """The sizes that a project has by itself."""
    for name, number in (("DRAWS", 999), ("LARGEST_BATCH", 500), ("REFERENCE_DOCUMENTS", 2000)):
        monkeypatch.setattr(f"model_code.drift.settings.{name}", number)


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """A build of 150 documents about the sea."""
    return make_build(tmp_path_factory.mktemp("watched"), documents(SEA, 150, "sea", 0))


@pytest.fixture
def project(built, tmp_path, small_measures):
    """A project in which the build is live, and nothing has arrived yet."""
    open_build(tmp_path, built)
    return make_project(tmp_path)


@pytest.fixture
def unrefined(project):
    """Settings by which IncDSI does not refine documents, so that their own queries measure them."""
    params = {**PARAMS, "additions": {"refine": False}}
    write_text(project.params_file, json.dumps(params))


@pytest.fixture
def corpus(project):
    """The build's corpus; returns the texts of its queries."""
    return write_corpus(project)


def make_project(root):
    """A project with its settings, and nothing live."""
    write_text(root / "params.yaml", json.dumps(PARAMS))
    write_text(root / "dvc.yaml", "stages: {}")
    return Project(root)


def write_corpus(project):
    """Write 120 test queries of their documents' words and 10 for training.

    One more test query asks for a document that is not in the build.

    Returns:
        The texts of the first 130 queries.
    """
    texts = queries(SEA, 150, 0)[:130]
    tables = {name: [] for name in ("documents", "queries", "qrels", "passages", "pseudo_queries")}
    for number, text in enumerate(texts):
        document_id = f"sea-{number:03}"
        split = "test" if number < 120 else "train"
        tables["documents"].append({"document_id": document_id})
        tables["queries"].append({"query_id": str(number), "text": text})
        tables["qrels"].append(
            {"query_id": str(number), "document_id": document_id, "split": split, "relevance": 1}
        )
    tables["documents"].append({"document_id": "other"})
    tables["queries"].append({"query_id": "other", "text": "about something else"})
    tables["qrels"].append(
        {"query_id": "other", "document_id": "other", "split": "test", "relevance": 1}
    )

    corpus = project.artifacts / "corpus"
    corpus.mkdir(parents=True)
    (project.artifacts / "pseudo_queries").mkdir()
    for name, rows in tables.items():
        folder = corpus
        if name == "pseudo_queries":
            folder = project.artifacts / "pseudo_queries"
        table = pd.DataFrame(rows, columns=list(COLUMNS[name]))
        table.to_parquet(folder / f"{name}.parquet")
    write_known_queries(corpus)
    return texts
