"""Guards the second judgement of a champion: on today's queries, by what users search, without what
it has not got.
"""

from __future__ import annotations

import json
import shutil

import pandas as pd
import pytest

from benchmarks.opened_build import open_generation_zero
from model_code.collection.generations.generation_builder import GenerationBuilder
from model_code.corpus.tables import load_corpus, passage_texts
from model_code.encoding.encoder import Encoder
from model_code.evaluation.scores import SystemScores, load_gate_scores, load_scores
from model_code.files import read_json, write_json, write_text
from model_code.hierarchy.tree import DOCUMENT_IDS
from model_code.project import Project
from model_code.retrieval.dense_index import DenseIndex
from model_code.text.documents import Document
from model_code.text.passages import TextRules
from orchestration.registry import versions
from orchestration.registry.gate import (
    JUDGED_BY_TEST_SPLIT,
    NO_JUDGED_QUERIES,
    GateRules,
    judge_challenger,
    live_searcher,
    rescore_champion,
)
from tests.model_code.collection.laws import up_to
from tests.model_code.evaluation.tiny_corpus import (
    TEXTS,
    write_corpus,
    write_hierarchy,
    write_pseudo_queries,
)
from tests.tiny_encoder import make_tiny_encoder

PARAMS = """\
retrievers: {hce: {}}
evaluation: {metrics: [hit@1, nDCG@10]}
promotion: {metric: nDCG@10, protected: [hit@1]}
"""
INDEXED = 47  # of the 48 documents: the last one came after the champion was built


@pytest.fixture
def project(tmp_path):
    artifacts = tmp_path / "artifacts"
    write_corpus(artifacts / "corpus")
    write_pseudo_queries(artifacts / "pseudo_queries")
    write_hierarchy(artifacts / "hierarchy")
    write_text(tmp_path / "params.yaml", PARAMS)
    encoder = Encoder.load(
        make_tiny_encoder(tmp_path / "build" / "encoder", TEXTS.values()), device="cpu"
    )
    passages = load_corpus(artifacts / "corpus").passages.head(INDEXED)
    vectors = encoder.encode(passage_texts(passages, include_title=False))
    index = DenseIndex.build(vectors, passages["document_id"].tolist(), encoder.fingerprint())
    index.save(tmp_path / "build" / "index")
    write_json(tmp_path / "build" / "hierarchy" / DOCUMENT_IDS, passages["document_id"].tolist())
    return Project(tmp_path)


@pytest.fixture
def champion(project, monkeypatch):
    """A champion whose registered files are those of the build."""
    monkeypatch.setattr(versions, "download_files", lambda project, version: project.root / "build")
    fingerprint = read_json(project.root / "build" / "index" / "manifest.json")["fingerprint"]
    return versions.Version("7", "hce", "k" * 64, fingerprint, "c" * 64, "run")


def test_it_is_scored_on_every_query_of_today(project, champion):
    folder = rescore_champion(project, champion)
    scores = load_scores(folder, "test").values
    assert len(scores) == 48
    assert scores["hit@1"].drop("test:engine-11").mean() > 0.5
    assert not scores.loc["test:engine-11", ["hit@1", "nDCG@10"]].any(), (
        "it cannot find what it has not got"
    )


def test_the_live_generation_is_what_counts_without_what_the_challenger_could_not_know(
    project, champion
):
    assert live_searcher(project, champion) is None, "its registered build is searched then"
    tree = project.root / "tree"
    shutil.copytree(project.artifacts / "hierarchy", tree)
    document_ids = load_corpus(project.artifacts / "corpus").passages["document_id"].tolist()
    (tree / DOCUMENT_IDS).write_text(json.dumps(document_ids))
    encoder = Encoder.load(project.root / "build" / "encoder", device="cpu")
    vectors = encoder.encode(list(TEXTS.values()))
    DenseIndex.build(vectors, document_ids, encoder.fingerprint()).save(project.root / "grown")
    generation = open_generation_zero(
        project.root,
        "hce",
        encoder=project.root / "build" / "encoder",
        index=project.root / "grown",
        documents=project.artifacts / "corpus" / "documents.parquet",
        hierarchy=tree,
        provenance={},
        text=TextRules(include_title=False, words=0, stride=1),
    )
    assert live_searcher(project, champion).generation.number == generation.number
    scores = load_scores(rescore_champion(project, champion), "test").values
    assert scores.loc["test:engine-11", "nDCG@10"] > 0
    newcomer = Document("newcomer", "", TEXTS["engine-11"])
    GenerationBuilder(project.live, "hce").apply([newcomer], up_to(1), provenance={})
    found = live_searcher(project, champion).search(TEXTS["engine-11"], k=3)
    assert "newcomer" in [hit.document_id for hit in found]
    rows = (rescore_champion(project, champion) / "run.test.trec").read_text().splitlines()
    assert rows
    assert not any(" newcomer " in row for row in rows)


def judged(project, monkeypatch, split, old, queries=80):
    """The verdict on hce, twice as good as `old` on so many queries, and that where there is no
    champion.
    """
    values = pd.DataFrame(
        {"nDCG@10": [0.2, 0.9] * 40, "hit@1": [0.0, 1.0] * 40}, [f"q{i}" for i in range(80)]
    )
    scores = {
        name: SystemScores(name, split, values[:queries] * share)
        for name, share in (("hce", 1.0), (old, 0.5))
    }
    monkeypatch.setattr(versions, "load_scores", lambda project, version: scores[version.retriever])
    trained, before = (
        versions.Version(str(i), name, "k", "f", "c", "run") for i, name in enumerate(scores)
    )
    return (
        judge_challenger(trained, champion, GateRules.of(project)) for champion in (before, None)
    )


@pytest.mark.parametrize(
    ("queries", "old", "refused"),
    [(0, "untrained", True), (80, "untrained", False), (0, "contrastive", True)],
)
def test_where_nobody_judged_nothing_takes_the_champions_place(
    project, monkeypatch, queries, old, refused
):
    verdict, _ = judged(project, monkeypatch, "test", old, queries)
    assert verdict.passed is not refused
    assert (verdict.reasons == (NO_JUDGED_QUERIES,)) is refused


@pytest.mark.parametrize("split", ["gate", "test"])
def test_a_verdict_by_test_queries_says_so(project, monkeypatch, split):
    verdict, first = judged(project, monkeypatch, split, "bm25")
    assert verdict.passed
    assert (JUDGED_BY_TEST_SPLIT in verdict.reasons) is (split == "test")
    assert JUDGED_BY_TEST_SPLIT not in first.reasons, "nothing was compared"


def test_the_gate_has_queries_of_its_own(project, champion):
    """No test query is looked at where it has any, and all of them where it has none."""
    folder = rescore_champion(project, champion)
    assert load_gate_scores(folder).split == "test"
    corpus = load_corpus(project.artifacts / "corpus")
    kept = corpus.queries["query_id"].isin(corpus.queries["query_id"].sort_values().head(9))
    for name in ("queries", "qrels"):
        table = getattr(corpus, name)
        own = table["query_id"].isin(corpus.queries["query_id"][kept])
        table.assign(split=table["split"].mask(own, "gate")).to_parquet(
            project.artifacts / "corpus" / f"{name}.parquet"
        )
    scores = load_gate_scores(rescore_champion(project, champion))
    assert scores.split == "gate"
    assert set(scores.values.index) == set(corpus.queries["query_id"][kept])
