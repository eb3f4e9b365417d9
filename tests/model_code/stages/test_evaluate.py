"""Guards the stage `evaluate`: a tiny encoder and its own index, the judge it uses, the refusal of
another index, and variants beside the main system whose hybrids are what BM25's run and the
retriever give.
"""

from __future__ import annotations

from dataclasses import replace

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
from model_code.retrieval.bm25_index import KnownWords
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


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Corpus, encoder and index in one folder."""
    root = tmp_path_factory.mktemp("inputs")
    write_corpus(root / "corpus")
    make_tiny_encoder(root / "trained" / "encoder", TEXTS.values())
    write_index(root, root / "trained" / "encoder", root / "index")
    write_bm25_runs(root / "baselines" / "bm25")
    names = ("corpus", "trained", "index", "baselines")
    return {name: root / name for name in names}


def write_bm25_runs(folder, splits=("dev", "test")):
    """A run that ranks a query's own document second; the first test query finds nothing."""
    folder.mkdir(parents=True)
    for split in ("dev", "gate", "test"):  # the gate has none
        names = DOCUMENTS[18:24] if split == "dev" else DOCUMENTS[1:]
        run = {
            f"{split}:{name}": [(DOCUMENTS[(DOCUMENTS.index(name) + 1) % 48], 2.0), (name, 1.0)]
            for name in names
        }
        write_run(folder / f"run.{split}.trec", run if split in splits else {}, "bm25")


def write_index(root, encoder_folder, target):
    encoder = Encoder.load(encoder_folder, max_tokens=32, precision="float32")
    passages = load_corpus(root / "corpus").passages
    vectors = encoder.encode(passage_texts(passages, include_title=False))
    DenseIndex.build(vectors, passages["document_id"].tolist(), encoder.fingerprint()).save(target)


ENCODER = EncoderSettings(
    base="unused", max_tokens=32, include_title=False, precision="float32", device="cpu"
)


def context(inputs, folder, **changes):
    settings = {"encoder": ENCODER, "evaluation": EvaluationSettings(**changes)}
    return StageContext(folder, inputs, folder, settings, folder, "hce")


def run_stage(inputs, output, **changes):
    output.mkdir()
    return evaluate.run(context(inputs, output, **changes))


def test_evaluation_is_complete_and_reproducible(inputs, tmp_path):
    report = run_stage(inputs, tmp_path / "hce")
    assert {key: report[key] for key in report if key != "variants"} == read_json(
        tmp_path / "hce" / "metrics.json"
    )
    assert report["dev"]["queries"] == 6
    assert report["test"]["queries"] == 48
    assert report["test"]["hit@10"] > 0.5
    assert list(report["variants"]) == ["rrf"]
    run = read_run(tmp_path / "hce" / "run.test.trec")
    assert len(run) == 48
    assert all(len(ranking) == 48 for ranking in run.values())
    run_stage(inputs, tmp_path / "again")
    assert hash_path(tmp_path / "again") == hash_path(tmp_path / "hce")


def test_corpus_without_judgements_is_not_scored(inputs, tmp_path):
    bare = inputs | {"corpus": write_corpus(tmp_path / "corpus", with_qrels=False)}
    with pytest.raises(FreshetError, match="made on other dev queries"):
        run_stage(bare, tmp_path / "refused")
    write_bm25_runs(tmp_path / "baselines" / "bm25", splits=())
    report = run_stage(bare | {"baselines": tmp_path / "baselines"}, tmp_path / "hce")
    assert report["dev"] == {"queries": 0}
    assert report["test"] == {"queries": 0}


def test_rrf_variant_fuses_bm25_and_the_retriever(inputs, tmp_path):
    run_stage(inputs, tmp_path / "hce", fusion_constant=5)
    folder, bm25 = tmp_path / "hce", inputs["baselines"] / "bm25"
    own, lexical = read_run(folder / "run.test.trec"), read_run(bm25 / "run.test.trec")
    fused = read_run(folder / "variants" / "rrf" / "run.test.trec")
    for query, ranking in own.items():
        expected = reciprocal_rank_fusion([ranking, lexical.get(query, [])], 100, constant=5)
        assert [document for document, _ in fused[query]] == [document for document, _ in expected]


def test_retriever_variants_are_comparable_and_optional(inputs, tmp_path, monkeypatch):
    def backwards(self):
        return {"backwards": lambda texts, k: [r[::-1] for r in self.search(texts, k)]}

    monkeypatch.setattr("model_code.retrieval.dense.DenseRetriever.variants", backwards)
    report = run_stage(inputs, tmp_path / "hce")
    assert sorted(report["variants"]) == ["backwards", "rrf"]
    assert report["variants"]["backwards"]["test"]["nDCG@10"] < report["test"]["nDCG@10"]
    for name, variant in report["variants"].items():
        folder = tmp_path / "hce" / "variants" / name
        assert variant == read_json(folder / "metrics.json")
        assert variant["system"] == f"hce.{name}"
        own_files = {path.name for path in (tmp_path / "hce").iterdir() if path.is_file()}
        assert {path.name for path in folder.iterdir()} == own_files
    check_comparable(
        [load_scores(path.parent, "test") for path in (tmp_path / "hce").rglob("metrics.json")]
    )
    assert "variants" not in run_stage(inputs, tmp_path / "alone", variants=False)
    assert not (tmp_path / "alone" / "variants").exists()


def test_another_encoders_index_is_refused(inputs, tmp_path):
    make_tiny_encoder(tmp_path / "other", TEXTS.values(), seed=1)
    write_index(inputs["corpus"].parent, tmp_path / "other", tmp_path / "index")
    with pytest.raises(FingerprintMismatch):
        run_stage(inputs | {"index": tmp_path / "index"}, tmp_path / "hce")


SECOND = "and {} word of what follows"


@pytest.fixture(scope="module")
def own_lines(tmp_path_factory):
    """The same, of documents that begin with their queries: train asks for the first 18, test for
    the last 24.
    """
    root = tmp_path_factory.mktemp("own_lines")
    write_corpus(root / "corpus")
    passages = pd.read_parquet(root / "corpus" / "passages.parquet")
    passages["text"] = [
        f"{ask(name)}\n\n{SECOND.format(name)} {text}" for name, text in TEXTS.items()
    ]
    passages.to_parquet(root / "corpus" / "passages.parquet")
    passages.assign(fields="{}", date=None).to_parquet(root / "corpus" / "documents.parquet")
    qrels = pd.read_parquet(root / "corpus" / "qrels.parquet")
    qrels = qrels[(qrels["split"] != "test") | qrels["document_id"].isin(DOCUMENTS[24:])]
    qrels.to_parquet(root / "corpus" / "qrels.parquet")
    queries = qrels.assign(text=[ask(name) for name in qrels["document_id"]])
    queries.drop(columns=["document_id", "relevance"]).to_parquet(
        root / "corpus" / "queries.parquet"
    )
    make_tiny_encoder(root / "trained" / "encoder", passages["text"])
    write_index(root, root / "trained" / "encoder", root / "index")
    return {name: root / name for name in ("corpus", "trained", "index")}


def ask(name):
    return f"{name} {name} who asks for {name}"


def test_queries_that_are_no_lines_are_told_apart(own_lines, inputs, tmp_path):
    """All test queries of the first corpus are lines of their documents."""
    lines = EvaluationSet.load(context(own_lines, tmp_path))
    natural = EvaluationSet.load(context(inputs, tmp_path))

    assert lines.without_query_lines(lines.judgements["test"]).queries == {}
    expected = natural.judgements["test"]
    assert natural.without_query_lines(expected).qrels == expected.qrels


def test_headlines_leave_out_query_lines(own_lines, tmp_path):
    bench = EvaluationSet.load(context(own_lines, tmp_path))

    headlines = bench.stripped.passages.headlines

    assert headlines.keys() == set(bench.stripped.passages.document_ids)
    for name, headline in headlines.items():
        assert ask(name) not in headline
        assert SECOND.format(name) in headline


@pytest.mark.parametrize("kind", ["dense", "bm25", "fused"])
def test_self_judged_corpus_is_searched_without_query_lines(own_lines, tmp_path, kind):
    """An index of the judged texts alone gives the same scores."""
    bench, whole = (
        EvaluationSet.load(context(own_lines, tmp_path)),
        load_corpus(own_lines["corpus"]).passages,
    )
    judged_passages = strip_query_lines(load_corpus(own_lines["corpus"])).passages[18:]
    asked = list(bench.judgements["test"].queries.values())
    assert not any(text in passage for text in asked for passage in judged_passages["text"])
    retriever, expected = (
        build(kind, own_lines, table, tmp_path / name)
        for name, table in [("whole", whole), ("judged", judged_passages)]
    )
    before = hash_path(tmp_path / "whole")
    found, wanted = bench.strip_query_lines(retriever).search(asked, 48), expected.search(asked, 48)
    assert [[name for name, _ in own] for own in found] == [
        [name for name, _ in own] for own in wanted
    ]
    if kind != "fused":  # whose scale is that of what is built
        assert [score for own in found for _, score in own] == pytest.approx(
            [s for own in wanted for _, s in own]
        )
    assert hash_path(tmp_path / "whole") == before
    assert retriever.search(asked, 1) != [own[:1] for own in found], "what goes live is whole"


def build(kind, inputs, passages, folder):
    texts, ids = passages["text"].tolist(), passages["document_id"].tolist()
    if kind == "bm25":
        bm25.build_folders(
            NewPassages(texts, ids), Bm25Settings(), folder / "encoder", folder / "index"
        )
        return open_retriever(folder / "encoder", folder / "index")
    encoder = Encoder.load(inputs["trained"] / "encoder", max_tokens=32, precision="float32")
    DenseIndex.build(encoder.encode(texts), ids, encoder.fingerprint()).save(folder / "index")
    dense = open_retriever(inputs["trained"] / "encoder", folder / "index", ENCODER)
    if kind == "dense":
        return dense
    words = build("bm25", inputs, passages, folder / "words")
    scale = ScoreNormalizer.fit(np.eye(dense.index.dimension, dtype=np.float32))
    return FusedRetriever(
        {"hce": dense, "bm25": words}, Fusion({"hce": 1.0, "bm25": 2.0}, {"hce": scale})
    )


def test_externally_judged_corpus_is_searched_unchanged(inputs, tmp_path):
    bench = EvaluationSet.load(context(inputs, tmp_path))
    retriever = build("bm25", inputs, load_corpus(inputs["corpus"]).passages, tmp_path)
    assert bench.strip_query_lines(retriever) is retriever


def test_stripped_documents_keep_their_known_queries(tmp_path):
    """Document a contains its test query as a line, and knows another query."""
    known = {"a": [KnownQuery("a", "wipe the disk", QuerySource.QRELS)]}
    settings, words = Bm25Settings(language=None), KnownWords(1.0, in_length=True)
    whole = NewPassages(["own line delete files", "list names"], ["a", "b"], known=known)
    retriever = Bm25Retriever.index(whole, settings, words)
    segment = RetrieverSegment(retriever, retriever.segment.ids)
    passages = NewPassages(["delete files"], ["a"], known=known)
    stripped = StrippedDocuments(passages, frozenset(), tmp_path / "stripped")

    search = stripped.search_over([segment]).search
    assert search(["own line", "wipe disk"], 9)[0] == []
    assert [document for document, _ in search(["wipe disk"], 9)[0]] == ["a"]

    forgetful = replace(segment, known={"a": []})
    assert stripped.search_over([forgetful]).search(["wipe disk"], 9) == [[]]
