"""Guards the stage `evaluate`: a tiny encoder and its own index, the judge it uses, the refusal of another index."""

from __future__ import annotations

import pytest

from model_code.corpus.tables import load_corpus, passage_texts
from model_code.encoding.encoder import Encoder
from model_code.encoding.settings import EncoderSettings
from model_code.errors import FingerprintMismatch
from model_code.evaluation.run_files import read_run
from model_code.evaluation.settings import EvaluationSettings
from model_code.files import hash_path, read_json
from model_code.index.dense_index import DenseIndex
from model_code.stages import evaluate
from model_code.stages.context import StageContext
from tests.model_code.evaluation.tiny_corpus import TEXTS, write_corpus, write_hierarchy, write_pseudo_queries
from tests.tiny_encoder import make_tiny_encoder


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Corpus, pseudo-queries, hierarchy, encoder and index in one folder."""
    root = tmp_path_factory.mktemp("inputs")
    write_corpus(root / "corpus")
    write_pseudo_queries(root / "pseudo_queries")
    write_hierarchy(root / "hierarchy")
    make_tiny_encoder(root / "encoder", TEXTS.values())
    write_index(root, root / "encoder", root / "index")
    return {name: root / name for name in ("corpus", "pseudo_queries", "hierarchy", "encoder", "index")}


def write_index(root, encoder_folder, target):
    encoder = Encoder.load(encoder_folder, max_tokens=32, precision="float32")
    passages = load_corpus(root / "corpus").passages
    vectors = encoder.encode(passage_texts(passages, include_title=False))
    DenseIndex.build(vectors, passages["document_id"].tolist(), encoder.fingerprint()).save(target)


def run_stage(inputs, output, **changes):
    output.mkdir()
    encoder = EncoderSettings(base="unused", max_tokens=32, include_title=False, precision="float32", device="cpu")
    context = StageContext(
        root=output, inputs=inputs, output=output, checkpoints=output, name="hce",
        settings={"encoder": encoder, "evaluation": EvaluationSettings(**changes)},
    )  # fmt: skip
    return evaluate.run(context)


def test_the_folder_and_the_report(inputs, tmp_path):
    report = run_stage(inputs, tmp_path / "hce")
    assert report == read_json(tmp_path / "hce" / "metrics.json")
    assert (report["system"], report["source"]) == ("hce", "qrels")
    assert (report["dev"]["queries"], report["test"]["queries"]) == (6, 48)
    assert report["test"]["hit@10"] > 0.5
    assert report["test"]["level@1"] >= report["test"]["level@2"] >= report["test"]["hit@1"]
    run = read_run(tmp_path / "hce" / "run.test.trec")
    assert len(run) == 48
    assert all(len(ranking) == 48 for ranking in run.values())


def test_equal_inputs_give_equal_bytes(inputs, tmp_path):
    run_stage(inputs, tmp_path / "one")
    run_stage(inputs, tmp_path / "two")
    assert hash_path(tmp_path / "one") == hash_path(tmp_path / "two")


def test_a_corpus_without_qrels_is_judged_by_pseudo_queries(inputs, tmp_path):
    bare = inputs | {"corpus": write_corpus(tmp_path / "corpus", with_qrels=False)}
    report = run_stage(bare, tmp_path / "hce")
    assert report["source"] == "pseudo-queries"
    assert (report["dev"]["queries"], report["test"]["queries"]) == (5, 10)


def test_another_encoders_index_is_refused(inputs, tmp_path):
    make_tiny_encoder(tmp_path / "other", TEXTS.values(), seed=1)
    write_index(inputs["corpus"].parent, tmp_path / "other", tmp_path / "index")
    with pytest.raises(FingerprintMismatch):
        run_stage(inputs | {"index": tmp_path / "index"}, tmp_path / "hce")
