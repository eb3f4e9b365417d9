"""Guards how challenger and champion are compared: on today's queries, as users search."""

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
from model_code.files import hash_path, read_json, write_json, write_text
from model_code.hierarchy.tree import DOCUMENT_IDS
from model_code.incdsi.fused_builder import FusedIncDsiBuilder
from model_code.incdsi.settings import AdditionSettings
from model_code.project import Project
from model_code.retrieval.dense_index import DenseIndex
from model_code.text.documents import Document
from model_code.text.passages import TextRules
from orchestration.registry import gate, versions
from orchestration.registry.gate import (
    JUDGED_BY_TEST_SPLIT,
    NO_JUDGED_QUERIES,
    GateRules,
    judge_challenger,
    open_live_searcher,
    rescore_champion,
)
from orchestration.registry.shadow_record import ShadowRecord, save_record
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
# Of the 48 documents the last one arrived after the champion was built.
CHAMPION_DOCUMENTS = 47
LATE_QUERY = "test:engine-11"
LATE_TEXT = TEXTS["engine-11"]


@pytest.fixture
def project(tmp_path):
    """A corpus of 48 documents, and a build of 47 of them."""
    artifacts = tmp_path / "artifacts"
    write_corpus(artifacts / "corpus")
    write_pseudo_queries(artifacts / "pseudo_queries")
    write_hierarchy(artifacts / "hierarchy")
    write_text(tmp_path / "params.yaml", PARAMS)

    build = tmp_path / "build"
    encoder = Encoder.load(make_tiny_encoder(build / "encoder", TEXTS.values()), device="cpu")
    passages = load_corpus(artifacts / "corpus").passages.head(CHAMPION_DOCUMENTS)
    document_ids = passages["document_id"].tolist()
    vectors = encoder.encode_documents(passage_texts(passages, include_title=False))
    DenseIndex.build(vectors, document_ids, encoder.fingerprint()).save(build / "index")
    write_json(build / "hierarchy" / DOCUMENT_IDS, document_ids)
    return Project(tmp_path)


@pytest.fixture
def champion(project, monkeypatch):
    """A champion whose registered files are those of the build."""

    def download_files(project, version):
        return project.root / "build"

    monkeypatch.setattr(versions, "download_files", download_files)
    manifest = read_json(project.root / "build" / "index" / "manifest.json")
    return versions.Version("7", "hce", "k" * 64, manifest["fingerprint"], "c" * 64, "run")


@pytest.fixture
def live_champion(project, champion):
    """The champion, live with all 48 documents."""
    hierarchy = project.root / "tree"
    shutil.copytree(project.artifacts / "hierarchy", hierarchy)
    document_ids = load_corpus(project.artifacts / "corpus").passages["document_id"].tolist()
    (hierarchy / DOCUMENT_IDS).write_text(json.dumps(document_ids))

    encoder = Encoder.load(project.root / "build" / "encoder", device="cpu")
    vectors = encoder.encode_documents(list(TEXTS.values()))
    DenseIndex.build(vectors, document_ids, encoder.fingerprint()).save(project.root / "grown")
    open_generation_zero(
        project.root,
        "hce",
        encoder=project.root / "build" / "encoder",
        index=project.root / "grown",
        documents=project.artifacts / "corpus" / "documents.parquet",
        hierarchy=hierarchy,
        provenance={},
        text=TextRules(include_title=False, words=0, stride=1),
    )
    return champion


def test_champion_is_scored_on_every_query(project, champion):
    scores = load_scores(rescore_champion(project, champion), "test").values

    assert len(scores) == 48
    assert scores["hit@1"].drop(LATE_QUERY).mean() > 0.5


def test_missing_document_counts_as_not_found(project, champion):
    scores = load_scores(rescore_champion(project, champion), "test").values

    assert scores.loc[LATE_QUERY, "hit@1"] == 0
    assert scores.loc[LATE_QUERY, "nDCG@10"] == 0


def test_registered_build_is_searched_if_not_live(project, champion):
    assert open_live_searcher(project, champion) is None


def test_live_generation_is_scored(project, live_champion):
    assert open_live_searcher(project, live_champion).generation.number == 0

    scores = load_scores(rescore_champion(project, live_champion), "test").values

    assert scores.loc[LATE_QUERY, "nDCG@10"] > 0


def test_search_and_groups_leave_feedback_out(project, live_champion, monkeypatch):
    with_feedback = {}

    def record_groups(generation, held_out, **options):
        with_feedback["groups"] = options["with_feedback"]
        return frozenset()

    def record_search(searcher, held_out, folder, **options):
        with_feedback["search"] = options["with_feedback"]
        return searcher.segments_without(held_out)

    monkeypatch.setattr(gate, "documents_with_known_queries", record_groups)
    monkeypatch.setattr(gate, "judging_segments", record_search)

    rescore_champion(project, live_champion)

    assert with_feedback == {"groups": False, "search": False}


def test_documents_unknown_to_challenger_are_left_out(project, live_champion):
    newcomer = Document("newcomer", "", LATE_TEXT)
    GenerationBuilder(project.live, "hce").apply([newcomer], up_to(1), provenance={})
    hits = open_live_searcher(project, live_champion).search(LATE_TEXT, k=3)
    assert "newcomer" in [hit.document_id for hit in hits]

    folder = rescore_champion(project, live_champion)

    run = (folder / "run.test.trec").read_text()
    assert run
    assert " newcomer " not in run


def test_vector_solved_for_a_judging_query_is_not_scored(project, live_champion):
    query = load_corpus(project.artifacts / "corpus").judgements("test").queries[LATE_QUERY]
    unlike = Document("engine-11", "", TEXTS["river-03"], queries=(query,))
    eager = AdditionSettings(gamma1=9.0, lambda1=0.99, lambda2=1e-3)
    builder = FusedIncDsiBuilder(project.live, "hce", eager, project.root / "additions")
    builder.apply([unlike], up_to(1), {})
    (hit,) = open_live_searcher(project, live_champion).search(query, k=1)
    assert hit.document_id == "engine-11"

    scores = load_scores(rescore_champion(project, live_champion), "test").values

    assert scores.loc[LATE_QUERY, "hit@1"] == 0


def judge(project, monkeypatch, split="test", retriever="untrained", queries=80, champion=True):
    """Judge hce, which is twice as good as the champion `retriever` on this many queries."""
    query_ids = [f"q{i}" for i in range(80)]
    values = pd.DataFrame({"nDCG@10": [0.2, 0.9] * 40, "hit@1": [0.0, 1.0] * 40}, query_ids)
    scores = {
        "hce": SystemScores("hce", split, values[:queries]),
        retriever: SystemScores(retriever, split, values[:queries] * 0.5),
    }

    def load_version_scores(project, version):
        return scores[version.retriever]

    monkeypatch.setattr(versions, "load_scores", load_version_scores)
    trained = versions.Version("0", "hce", "k", "f", "c", "run")
    before = versions.Version("1", retriever, "k", "f", "c", "run") if champion else None
    return judge_challenger(trained, before, GateRules.load(project))


def test_better_challenger_passes(project, monkeypatch):
    assert judge(project, monkeypatch).passed


@pytest.mark.parametrize("retriever", ["untrained", "contrastive"])
def test_no_champion_is_replaced_without_judged_queries(project, monkeypatch, retriever):
    verdict = judge(project, monkeypatch, retriever=retriever, queries=0)

    assert not verdict.passed
    assert verdict.reasons == (NO_JUDGED_QUERIES,)


@pytest.mark.parametrize(("split", "is_noted"), [("gate", False), ("test", True)])
def test_verdict_on_test_queries_is_noted(project, monkeypatch, split, is_noted):
    verdict = judge(project, monkeypatch, split=split)

    assert verdict.passed
    assert (JUDGED_BY_TEST_SPLIT in verdict.reasons) == is_noted


def test_finding_of_shadow_mode_decides_nothing(project, monkeypatch):
    without = judge(project, monkeypatch)
    record = ShadowRecord("0", "hce", "untrained", "f", queries=9, overlap=0.9, rbo=0.9, losses=9)
    save_record(project, record)

    verdict = judge(project, monkeypatch)

    assert verdict.passed
    assert verdict.reasons == without.reasons
    assert verdict.findings == (f"shadow mode: {record.text}",)
    assert verdict.statements[0] == verdict.reasons[0]
    assert verdict.statements[-len(verdict.findings) :] == verdict.findings
    assert without.findings == ()


def evaluate_known(project, challenger, known):
    """Write the evaluations of `hce` and `bm25_known` on ten gate queries, four of them asked.

    Args:
        project: The project.
        challenger: Score of hce for each query, for documents with and without known queries.
        known: The same scores of bm25_known.
    """
    for system, (asked, unasked) in (("hce", challenger), ("bm25_known", known)):
        folder = project.artifacts / "baselines" / system
        folder.mkdir(parents=True)
        rows = []
        for number in range(10):
            for metric in ("nDCG@10", "hit@1"):
                is_asked = number < 4
                value = asked if is_asked else unasked
                rows.append((f"q{number}", "gate", metric, value, is_asked))
        columns = ["query_id", "split", "metric", "value", "with_known"]
        pd.DataFrame(rows, columns=columns).to_parquet(folder / "scores.parquet")
        write_json(folder / "metrics.json", {"system": system})


@pytest.mark.parametrize("is_same_corpus", [True, False])
def test_groups_below_known_queries_are_found(project, monkeypatch, is_same_corpus):
    evaluate_known(project, challenger=(0.6, 0.7), known=(0.8, 0.5))
    scores = load_gate_scores(project.artifacts / "baselines" / "hce")
    monkeypatch.setattr(versions, "load_scores", lambda project, version: scores)
    corpus = hash_path(project.artifacts / "corpus") if is_same_corpus else "another"
    challenger = versions.Version("0", "hce", "k", "f", corpus, "run")

    verdict = judge_challenger(challenger, None, GateRules.load(project))

    assert verdict.passed
    finding = (
        "below bm25_known on documents with known queries: nDCG@10 0.6000 against 0.8000 "
        "(4 queries)"
    )
    assert verdict.findings == ((finding,) if is_same_corpus else ())
    assert (finding in verdict.statements) == is_same_corpus


def test_finding_is_shown_without_judged_queries(project, monkeypatch):
    save_record(project, ShadowRecord("0", "hce", "untrained", "f", queries=9))

    verdict = judge(project, monkeypatch, queries=0)

    assert not verdict.passed
    assert len(verdict.findings) == 1


def test_finding_about_another_champion_is_not_shown(project, monkeypatch):
    save_record(project, ShadowRecord("0", "hce", "untrained", "another encoder", queries=9))

    assert judge(project, monkeypatch).findings == ()


def test_first_champion_needs_no_note(project, monkeypatch):
    verdict = judge(project, monkeypatch, split="test", champion=False)

    assert JUDGED_BY_TEST_SPLIT not in verdict.reasons


def test_test_queries_are_used_without_gate_queries(project, champion):
    assert load_gate_scores(rescore_champion(project, champion)).split == "test"


def test_gate_queries_replace_test_queries(project, champion):
    corpus = load_corpus(project.artifacts / "corpus")
    gate_ids = set(corpus.queries["query_id"].sort_values().head(9))
    for name in ("queries", "qrels"):
        table = getattr(corpus, name)
        splits = table["split"].mask(table["query_id"].isin(gate_ids), "gate")
        table.assign(split=splits).to_parquet(project.artifacts / "corpus" / f"{name}.parquet")

    scores = load_gate_scores(rescore_champion(project, champion))

    assert scores.split == "gate"
    assert set(scores.values.index) == gate_ids
