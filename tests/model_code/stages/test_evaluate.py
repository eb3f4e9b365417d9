"""Tests of the stage `evaluate`.

A tiny encoder is evaluated with its own index, and the index of another encoder is refused. Hybrids
are evaluated as variants beside the main system. A corpus whose documents hold their own queries is
searched without those lines.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from model_code.context import StageContext
from model_code.corpus.tables import load_corpus, passage_texts, strip_query_lines
from model_code.encoding.encoder import Encoder
from model_code.encoding.settings import EncoderSettings
from model_code.errors import FingerprintMismatch, FreshetError
from model_code.evaluation.runs import read_run, write_run
from model_code.evaluation.scores import check_comparable, load_scores
from model_code.evaluation.settings import EvaluationSettings
from model_code.evaluation.system_evaluation import reciprocal_rank_fusion
from model_code.files import hash_path, read_json
from model_code.retrieval import bm25
from model_code.retrieval.bm25 import Bm25Retriever
from model_code.retrieval.bm25_known import KnownWords
from model_code.retrieval.dense_index import DenseIndex
from model_code.retrieval.fused import FusedRetriever, Fusion, ScoreNormalizer
from model_code.retrieval.index_settings import Bm25Settings
from model_code.retrieval.indexed import NewPassages, RetrieverSegment
from model_code.retrieval.kinds import open_retriever
from model_code.stages import evaluate
from model_code.stages.evaluation_set import EvaluationSet, StrippedDocuments
from model_code.text.known_queries import KnownQuery, QuerySource
from tests.model_code.evaluation.tiny_corpus import DOCUMENTS, TEXTS, write_corpus
from tests.tiny_encoder import make_tiny_encoder

ENCODER = EncoderSettings(
    base="unused", max_tokens=32, include_title=False, precision="float32", device="cpu"
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """The folders of a corpus, an encoder, an index and the runs of BM25."""
    root = tmp_path_factory.mktemp("inputs")
    write_corpus(root / "corpus")
    make_tiny_encoder(root / "trained" / "encoder", TEXTS.values())
    write_index(root / "corpus", root / "trained" / "encoder", root / "index")
    write_bm25_runs(root / "baselines" / "bm25")
    names = ("corpus", "trained", "index", "baselines")
    return {name: root / name for name in names}


def write_bm25_runs(folder, splits=("dev", "test")):
    """Write runs that rank a query's own document second. The first test query finds nothing.

    The run of a split that is not in `splits` is empty. The gate has the same queries as the test.
    """
    folder.mkdir(parents=True)
    names_of_split = {"dev": DOCUMENTS[18:24], "gate": DOCUMENTS[1:], "test": DOCUMENTS[1:]}
    for split, names in names_of_split.items():
        run = {}
        if split in splits:
            for name in names:
                position = DOCUMENTS.index(name)
                next_document = DOCUMENTS[(position + 1) % 48]
                run[f"{split}:{name}"] = [(next_document, 2.0), (name, 1.0)]
        write_run(folder / f"run.{split}.trec", run, "bm25")


def write_index(corpus, encoder_folder, target):
    """Encode the passages of a corpus and save their index."""
    encoder = Encoder.load(encoder_folder, max_tokens=32, precision="float32")
    passages = load_corpus(corpus).passages
    vectors = encoder.encode_documents(passage_texts(passages, include_title=False))
    index = DenseIndex.build(vectors, passages["document_id"].tolist(), encoder.fingerprint())
    index.save(target)


def make_context(inputs, folder, **changes):
    """Make a context of the stage; `changes` are settings of the evaluation."""
    settings = {"encoder": ENCODER, "evaluation": EvaluationSettings(**changes)}
    return StageContext(folder, inputs, folder, settings, folder, "hce")


def run_stage(inputs, output, **changes):
    """Run the stage and return its report."""
    output.mkdir()
    return evaluate.run(make_context(inputs, output, **changes))


def with_input(inputs, name, folder):
    """Replace one of the inputs."""
    return {**inputs, name: folder}


def test_report_has_every_query(inputs, tmp_path):
    report = run_stage(inputs, tmp_path / "hce")

    assert report["dev"]["queries"] == 6
    assert report["test"]["queries"] == 48
    assert report["test"]["hit@10"] > 0.5
    assert list(report["variants"]) == ["rrf"]


def test_metrics_file_equals_the_report(inputs, tmp_path):
    report = run_stage(inputs, tmp_path / "hce")

    report.pop("variants")
    assert read_json(tmp_path / "hce" / "metrics.json") == report


def test_run_ranks_every_document(inputs, tmp_path):
    run_stage(inputs, tmp_path / "hce")

    run = read_run(tmp_path / "hce" / "run.test.trec")
    assert len(run) == 48
    assert all(len(ranking) == 48 for ranking in run.values())


def test_evaluation_is_reproducible(inputs, tmp_path):
    run_stage(inputs, tmp_path / "hce")
    run_stage(inputs, tmp_path / "again")

    assert hash_path(tmp_path / "again") == hash_path(tmp_path / "hce")


@pytest.fixture
def unjudged(inputs, tmp_path):
    """The inputs with a corpus without judgements."""
    return with_input(inputs, "corpus", write_corpus(tmp_path / "corpus", with_qrels=False))


def test_runs_of_other_queries_are_refused(unjudged, tmp_path):
    with pytest.raises(FreshetError, match="made on other dev queries"):
        run_stage(unjudged, tmp_path / "hce")


def test_corpus_without_judgements_is_not_scored(unjudged, tmp_path):
    write_bm25_runs(tmp_path / "baselines" / "bm25", splits=())

    report = run_stage(with_input(unjudged, "baselines", tmp_path / "baselines"), tmp_path / "hce")

    assert report["dev"] == {"queries": 0}
    assert report["test"] == {"queries": 0}


def test_rrf_variant_fuses_bm25_and_the_retriever(inputs, tmp_path):
    run_stage(inputs, tmp_path / "hce", fusion_constant=5)

    dense_run = read_run(tmp_path / "hce" / "run.test.trec")
    bm25_run = read_run(inputs["baselines"] / "bm25" / "run.test.trec")
    fused_run = read_run(tmp_path / "hce" / "variants" / "rrf" / "run.test.trec")
    for query, dense_ranking in dense_run.items():
        bm25_ranking = bm25_run.get(query, [])
        expected = reciprocal_rank_fusion([dense_ranking, bm25_ranking], 100, constant=5)
        assert documents_of(fused_run[query]) == documents_of(expected)


def documents_of(ranking):
    """Return the documents of a ranking, best first."""
    return [document for document, _ in ranking]


@pytest.fixture
def _backwards_variant(monkeypatch):
    """Let dense retrievers have a variant that reverses their rankings."""

    def variants(self):
        def search_backwards(texts, k):
            return [ranking[::-1] for ranking in self.search(texts, k)]

        return {"backwards": search_backwards}

    monkeypatch.setattr("model_code.retrieval.dense.DenseRetriever.variants", variants)


@pytest.mark.usefixtures("_backwards_variant")
def test_variants_of_the_retriever_are_evaluated(inputs, tmp_path):
    report = run_stage(inputs, tmp_path / "hce")

    backwards = report["variants"]["backwards"]
    assert sorted(report["variants"]) == ["backwards", "rrf"]
    assert backwards["test"]["nDCG@10"] < report["test"]["nDCG@10"]


@pytest.mark.usefixtures("_backwards_variant")
@pytest.mark.parametrize("name", ["backwards", "rrf"])
def test_variant_has_the_files_of_a_system(inputs, tmp_path, name):
    report = run_stage(inputs, tmp_path / "hce")

    folder = tmp_path / "hce" / "variants" / name
    variant_files = {path.name for path in folder.iterdir()}
    system_files = {path.name for path in (tmp_path / "hce").iterdir() if path.is_file()}
    assert variant_files == system_files
    assert read_json(folder / "metrics.json") == report["variants"][name]
    assert report["variants"][name]["system"] == f"hce.{name}"


@pytest.mark.usefixtures("_backwards_variant")
def test_variants_are_comparable(inputs, tmp_path):
    run_stage(inputs, tmp_path / "hce")

    folders = [path.parent for path in (tmp_path / "hce").rglob("metrics.json")]
    assert len(folders) == 3
    check_comparable([load_scores(folder, "test") for folder in folders])


def test_variants_can_be_turned_off(inputs, tmp_path):
    report = run_stage(inputs, tmp_path / "hce", variants=False)

    assert "variants" not in report
    assert not (tmp_path / "hce" / "variants").exists()


def test_index_of_another_encoder_is_refused(inputs, tmp_path):
    make_tiny_encoder(tmp_path / "other", TEXTS.values(), seed=1)
    write_index(inputs["corpus"], tmp_path / "other", tmp_path / "index")

    with pytest.raises(FingerprintMismatch):
        run_stage(with_input(inputs, "index", tmp_path / "index"), tmp_path / "hce")


# The line of a document that follows its query.
SECOND_LINE = "and {} word of what follows"


def query_of(name):
    """Return the query that a document begins with."""
    return f"{name} {name} who asks for {name}"


@pytest.fixture(scope="module")
def own_lines(tmp_path_factory):
    """The folders of a corpus whose documents begin with their queries.

    Training asks for the first 18 documents, the test for the last 24.
    """
    root = tmp_path_factory.mktemp("own_lines")
    corpus = root / "corpus"
    write_corpus(corpus)

    passages = pd.read_parquet(corpus / "passages.parquet")
    texts = []
    for name, text in TEXTS.items():
        texts.append(f"{query_of(name)}\n\n{SECOND_LINE.format(name)} {text}")
    passages["text"] = texts
    passages.to_parquet(corpus / "passages.parquet")
    passages.assign(fields="{}", date=None).to_parquet(corpus / "documents.parquet")

    qrels = pd.read_parquet(corpus / "qrels.parquet")
    is_test = qrels["split"] == "test"
    qrels = qrels[~is_test | qrels["document_id"].isin(DOCUMENTS[24:])]
    qrels.to_parquet(corpus / "qrels.parquet")
    queries = qrels.assign(text=[query_of(name) for name in qrels["document_id"]])
    queries = queries.drop(columns=["document_id", "relevance"])
    queries.to_parquet(corpus / "queries.parquet")

    make_tiny_encoder(root / "trained" / "encoder", passages["text"])
    write_index(corpus, root / "trained" / "encoder", root / "index")
    return {name: root / name for name in ("corpus", "trained", "index")}


def test_queries_that_are_lines_of_documents_are_left_out(own_lines, tmp_path):
    evaluation_set = EvaluationSet.load(make_context(own_lines, tmp_path))

    remaining = evaluation_set.without_query_lines(evaluation_set.judgements["test"])

    assert remaining.queries == {}


def test_queries_that_are_no_lines_are_kept(inputs, tmp_path):
    evaluation_set = EvaluationSet.load(make_context(inputs, tmp_path))
    judgements = evaluation_set.judgements["test"]

    remaining = evaluation_set.without_query_lines(judgements)

    assert remaining.qrels == judgements.qrels


def test_headlines_leave_out_query_lines(own_lines, tmp_path):
    evaluation_set = EvaluationSet.load(make_context(own_lines, tmp_path))
    stripped = evaluation_set.stripped.passages

    assert stripped.headlines.keys() == set(stripped.document_ids)
    for name, headline in stripped.headlines.items():
        assert query_of(name) not in headline
        assert SECOND_LINE.format(name) in headline


def test_documents_known_in_live_index_group_queries(inputs, tmp_path):
    evaluation_set = EvaluationSet.load(make_context(inputs, tmp_path))

    grouped = evaluation_set.with_known_documents([DOCUMENTS[-1]])

    # Each train query of the corpus repeats a test query, so it is not known.
    assert evaluation_set.judgements["test"].with_known == frozenset()
    assert grouped.judgements["test"].with_known == {f"test:{DOCUMENTS[-1]}"}


def build_bm25(passages, folder):
    """Build and open a BM25 retriever."""
    new_passages = NewPassages(passages["text"].tolist(), passages["document_id"].tolist())
    bm25.build_folders(new_passages, Bm25Settings(), folder / "encoder", folder / "index")
    return open_retriever(folder / "encoder", folder / "index")


def build_dense(inputs, passages, folder):
    """Build and open a retriever of the trained encoder."""
    encoder = Encoder.load(inputs["trained"] / "encoder", max_tokens=32, precision="float32")
    vectors = encoder.encode_documents(passages["text"].tolist())
    index = DenseIndex.build(vectors, passages["document_id"].tolist(), encoder.fingerprint())
    index.save(folder / "index")
    return open_retriever(inputs["trained"] / "encoder", folder / "index", ENCODER)


def build_retriever(kind, inputs, passages, folder):
    """Build and open a retriever of a kind."""
    if kind == "bm25":
        return build_bm25(passages, folder)

    dense = build_dense(inputs, passages, folder)
    if kind == "dense":
        return dense

    normalizer = ScoreNormalizer.fit(np.eye(dense.index.dimension, dtype=np.float32))
    components = {"hce": dense, "bm25": build_bm25(passages, folder / "words")}
    return FusedRetriever(components, Fusion({"hce": 1.0, "bm25": 2.0}, {"hce": normalizer}))


class SelfJudged(NamedTuple):
    """A corpus whose test queries are lines of their documents, and its retriever."""

    evaluation_set: EvaluationSet
    queries: list[str]
    # Passages of the judged documents, without the lines that are queries.
    judged_passages: pd.DataFrame
    retriever: Any
    folder: Path


@pytest.fixture
def self_judged(own_lines, tmp_path, kind):
    """A retriever of a kind that indexes the documents with their query lines."""
    evaluation_set = EvaluationSet.load(make_context(own_lines, tmp_path))
    corpus = load_corpus(own_lines["corpus"])
    folder = tmp_path / "whole"
    retriever = build_retriever(kind, own_lines, corpus.passages, folder)
    queries = list(evaluation_set.judgements["test"].queries.values())
    judged_passages = strip_query_lines(load_corpus(own_lines["corpus"])).passages[18:]
    return SelfJudged(evaluation_set, queries, judged_passages, retriever, folder)


every_kind = pytest.mark.parametrize("kind", ["dense", "bm25", "fused"])


@pytest.mark.parametrize("kind", ["bm25"])
def test_stripped_passages_hold_no_query(self_judged):
    for text in self_judged.judged_passages["text"]:
        assert not any(query in text for query in self_judged.queries)


@every_kind
def test_self_judged_corpus_is_ranked_without_query_lines(own_lines, self_judged, tmp_path, kind):
    """An index of the stripped texts alone gives the same rankings."""
    stripped_retriever = build_retriever(
        kind, own_lines, self_judged.judged_passages, tmp_path / "judged"
    )

    search = self_judged.evaluation_set.strip_query_lines(self_judged.retriever)
    rankings = search.search(self_judged.queries, 48)

    expected = stripped_retriever.search(self_judged.queries, 48)
    for ranking, expected_ranking in zip(rankings, expected, strict=True):
        assert documents_of(ranking) == documents_of(expected_ranking)


@pytest.mark.parametrize("kind", ["dense", "bm25"])
def test_self_judged_corpus_is_scored_without_query_lines(own_lines, self_judged, tmp_path, kind):
    """Scores of a fusion differ, because its normalizer is that of the whole index."""
    stripped_retriever = build_retriever(
        kind, own_lines, self_judged.judged_passages, tmp_path / "judged"
    )

    search = self_judged.evaluation_set.strip_query_lines(self_judged.retriever)
    rankings = search.search(self_judged.queries, 48)

    expected = stripped_retriever.search(self_judged.queries, 48)
    for ranking, expected_ranking in zip(rankings, expected, strict=True):
        scores = [score for _, score in ranking]
        expected_scores = [score for _, score in expected_ranking]
        assert scores == pytest.approx(expected_scores)


@every_kind
def test_stripping_leaves_the_index_unchanged(self_judged, kind):
    before = hash_path(self_judged.folder)

    search = self_judged.evaluation_set.strip_query_lines(self_judged.retriever)
    stripped_rankings = search.search(self_judged.queries, 48)

    assert hash_path(self_judged.folder) == before
    # The retriever that goes live still holds the query lines.
    live_rankings = self_judged.retriever.search(self_judged.queries, 1)
    assert live_rankings != [ranking[:1] for ranking in stripped_rankings]


def test_externally_judged_corpus_is_searched_unchanged(inputs, tmp_path):
    evaluation_set = EvaluationSet.load(make_context(inputs, tmp_path))
    retriever = build_bm25(load_corpus(inputs["corpus"]).passages, tmp_path)

    assert evaluation_set.strip_query_lines(retriever) is retriever


class KnownQueryCase(NamedTuple):
    """Stripped documents, and the segment of the whole ones."""

    stripped: StrippedDocuments
    segment: RetrieverSegment


@pytest.fixture
def known_query_case(tmp_path):
    """Document a contains its test query as a line, and knows another query."""
    known = {"a": [KnownQuery("a", "wipe the disk", QuerySource.QRELS)]}
    whole = NewPassages(["own line delete files", "list names"], ["a", "b"], known=known)
    known_words = KnownWords(1.0, in_length=True)
    retriever = Bm25Retriever.index(whole, Bm25Settings(language=None), known_words)
    segment = RetrieverSegment(retriever, retriever.segment.ids)
    stripped_passages = NewPassages(["delete files"], ["a"], known=known)
    stripped = StrippedDocuments(stripped_passages, frozenset(), tmp_path / "stripped")
    return KnownQueryCase(stripped, segment)


def test_stripped_lines_are_not_found(known_query_case):
    search = known_query_case.stripped.search_over([known_query_case.segment])

    assert search.search(["own line"], 9) == [[]]


def test_stripped_documents_keep_their_known_queries(known_query_case):
    search = known_query_case.stripped.search_over([known_query_case.segment])

    (ranking,) = search.search(["wipe disk"], 9)

    assert documents_of(ranking) == ["a"]


def test_forgotten_queries_are_not_found(known_query_case):
    segment = replace(known_query_case.segment, known={"a": []})

    search = known_query_case.stripped.search_over([segment])

    assert search.search(["wipe disk"], 9) == [[]]
