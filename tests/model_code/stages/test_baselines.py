"""Guards the stage `baselines`: BM25 and the untrained encoder, on the same queries and texts as
every retriever; and BM25 over documents with generated queries, where a model writes any.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest

from model_code.context import StageContext
from model_code.corpus.tables import load_corpus, passage_texts
from model_code.encoding.encoder import Encoder
from model_code.encoding.settings import EncoderSettings
from model_code.errors import FreshetError
from model_code.evaluation.scores import check_comparable, load_scores
from model_code.evaluation.settings import EvaluationSettings
from model_code.files import hash_path, read_json
from model_code.retrieval.dense_index import DenseIndex
from model_code.retrieval.index_settings import Bm25Settings, KnownQuerySettings
from model_code.retrieval.kinds import open_retriever
from model_code.retriever_settings import FusionSettings
from model_code.stages import baselines, fuse
from tests.model_code.evaluation.tiny_corpus import (
    TEXTS,
    write_corpus,
    write_known_queries,
    write_pseudo_queries,
)
from tests.tiny_encoder import make_tiny_encoder


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    root = tmp_path_factory.mktemp("inputs")
    write_corpus(root / "corpus")
    write_pseudo_queries(root / "pseudo_queries")
    make_tiny_encoder(root / "base", TEXTS.values())
    encoder = Encoder.load(root / "base", max_tokens=32, precision="float32")
    passages = load_corpus(root / "corpus").passages
    vectors, tokens = encoder.encode_documents_with_signs(
        passage_texts(passages, include_title=True)
    )
    index = DenseIndex.build(
        vectors, passages["document_id"].tolist(), encoder.fingerprint(), token_signs=tokens
    )
    index.save(root / "base_index")
    return {name: root / name for name in ("corpus", "pseudo_queries", "base_index", "base")}


def run_stage(inputs, output, generators=("inverse_cloze",), **known_queries):
    output.mkdir()
    base = str(inputs["base"])
    encoder = EncoderSettings(
        base=base, max_tokens=32, include_title=True, precision="float32", device="cpu"
    )
    settings = {"encoder": encoder, "bm25": Bm25Settings(), "evaluation": EvaluationSettings()}
    settings["pseudo_queries.generators"] = generators
    for key, value in vars(KnownQuerySettings(**known_queries)).items():
        settings[f"known_queries.{key}"] = value
    return baselines.run(
        StageContext(
            root=output, inputs=inputs, output=output, settings=settings, checkpoints=output
        )
    )


@pytest.fixture(scope="module")
def made(inputs, tmp_path_factory):
    """The stage's report, and its folder."""
    output = tmp_path_factory.mktemp("made") / "baselines"
    return run_stage(inputs, output), output


def find_first_hit(run_file, query):
    """Return the first document that a run file has for a query."""
    lines = run_file.read_text().splitlines()
    return next(line.split()[2] for line in lines if line.startswith(f"{query} "))


def test_each_baseline_has_a_folder(made):
    _, output = made

    assert sorted(path.name for path in output.iterdir()) == [
        "bm25",
        "bm25_known",
        "headline",
        "untrained",
        "zero_shot",
    ]


def test_report_repeats_the_metrics_of_each_baseline(made):
    report, output = made

    for name, entry in report.items():
        metrics = dict(entry)
        for key in ("variants", "weights", "learned_by", "weights_on_dev", "known_words"):
            metrics.pop(key, None)
        assert metrics == read_json(output / name / "metrics.json")


def test_baselines_share_their_queries(made):
    report, output = made

    check_comparable([load_scores(output / name, "test") for name in report])
    for entry in report.values():
        assert entry["test"]["queries"] == 48


def test_bm25_finds_documents_by_their_own_words(made):
    report, _ = made

    assert report["bm25"]["test"]["hit@1"] == 1.0


def test_baselines_are_reproducible(inputs, made, tmp_path):
    _, output = made

    run_stage(inputs, tmp_path / "again")

    assert hash_path(tmp_path / "again") == hash_path(output)


def test_baselines_of_encoders_have_variants(made):
    report, _ = made

    assert "variants" not in report["bm25"]
    assert sorted(report["zero_shot"]["variants"]) == ["nearest_query", "rrf"]
    assert sorted(report["untrained"]["variants"]) == [
        "without_bm25_known",
        "without_headline",
        "without_zero_shot",
        "without_zero_shot.late",
    ]


def test_metrics_of_variants_are_written(made):
    _, output = made

    files = sorted((output / "zero_shot").rglob("metrics.json"))

    assert [read_json(path)["system"] for path in files] == [
        "zero_shot",
        "zero_shot.nearest_query",
        "zero_shot.rrf",
    ]


def test_nearest_query_variant_finds_only_what_its_query_asks_for(made):
    """Each of 18 training queries is asked again by a test query, and 30 documents have none."""
    report, _ = made

    metrics = report["zero_shot"]["variants"]["nearest_query"]["test"]

    assert metrics["hit@1"] == pytest.approx(18 / 48)
    assert metrics["R@100"] == pytest.approx(18 / 48)


def test_nearest_query_variant_needs_shared_documents(inputs, tmp_path):
    corpus = Path(shutil.copytree(inputs["corpus"], tmp_path / "corpus"))
    qrels = pd.read_parquet(corpus / "qrels.parquet")
    is_train = qrels["split"] == "train"
    is_shared = qrels["document_id"].isin(qrels.loc[is_train, "document_id"])
    qrels[is_train | ~is_shared].to_parquet(corpus / "qrels.parquet")

    report = run_stage({**inputs, "corpus": corpus}, tmp_path / "baselines")

    assert "nearest_query" not in report["zero_shot"]["variants"]


def test_generated_queries_count_as_words_of_their_documents(inputs, tmp_path):
    table = pd.read_parquet(inputs["pseudo_queries"] / "pseudo_queries.parquet")
    # The words of river-01 are generated for two other documents. Only those of the sequence model
    # count, so that river-00 is found first.
    words = f"{TEXTS['river-01']} " * 3
    rows = [
        ("d~1", "river-00", words, "sequence_to_sequence"),
        ("d~2", "music-00", words, "inverse_cloze"),
    ]
    more = pd.DataFrame(rows, columns=["query_id", "document_id", "text", "kind"])
    pseudo_queries = tmp_path / "queries"
    pseudo_queries.mkdir()
    pd.concat([table, more]).to_parquet(pseudo_queries / "pseudo_queries.parquet")

    report = run_stage(
        {**inputs, "pseudo_queries": pseudo_queries},
        tmp_path / "baselines",
        ("inverse_cloze", "sequence_to_sequence"),
    )

    assert list(report) == ["bm25", "zero_shot", "bm25_known", "untrained", "bm25_generated"]
    assert report["bm25"]["test"]["hit@1"] == 1.0
    assert report["bm25_generated"]["test"]["hit@1"] == pytest.approx(47 / 48)
    folder = tmp_path / "baselines" / "bm25_generated"
    assert read_json(folder / "metrics.json")["system"] == "bm25_generated"
    assert find_first_hit(folder / "run.test.trec", "test:river-01") == "river-00"


def test_weights_are_the_defaults_without_enough_dev_queries(made):
    report, _ = made

    assert list(report["untrained"]["weights"].items()) == [
        ("zero_shot", 1.0),
        ("bm25_known", 5.0),
        ("headline", 0.5),
        ("zero_shot.late", 1.0),
    ]


@pytest.mark.parametrize("name", ["bm25", "zero_shot", "untrained"])
def test_baseline_can_be_opened_and_searched(inputs, made, name):
    _, output = made
    build = output / name / "build"
    passages = load_corpus(inputs["corpus"]).passages["document_id"].tolist()

    retriever = open_retriever(build / "encoder", build / "index")
    (ranking,) = retriever.search([TEXTS["river-01"]], 1)

    best_document, _ = ranking[0]
    assert best_document == "river-01"
    assert retriever.fingerprint == read_json(build / "index" / "manifest.json")["fingerprint"]
    assert len(retriever.passage_vectors(passages)) == len(passages)


@pytest.fixture(scope="module")
def run_fuse(inputs, made, tmp_path_factory):
    """A function that runs the stage `fuse` on bm25, zero_shot and `hce`.

    `hce` is the encoder of zero_shot, as if it were trained.
    """
    _, output_of_baselines = made
    root = tmp_path_factory.mktemp("fused")
    build = output_of_baselines / "zero_shot" / "build"
    shutil.copytree(build / "encoder", root / "train" / "hce" / "encoder")
    shutil.copytree(build / "index", root / "index" / "hce" / "index")
    inputs_of_fuse = {
        **inputs,
        "baselines": output_of_baselines,
        "trained": root / "train",
        "indexes": root / "index",
    }
    encoder = EncoderSettings(
        base=str(inputs["base"]), max_tokens=32, precision="float32", device="cpu"
    )

    def run(output, use=False, **fusion):
        output.mkdir()
        settings = {
            "encoder": encoder,
            "evaluation": EvaluationSettings(),
            "fusion": FusionSettings(**fusion),
            "known_queries.use": use,
        }
        context = StageContext(output, inputs_of_fuse, output, settings, output, "fused")
        report = fuse.run(context)
        fuse.check(context)
        return report

    return run


def test_fusion_scores_do_not_depend_on_component_names(made, run_fuse, tmp_path):
    report, _ = made

    fused = run_fuse(tmp_path / "fused", of=("hce", "bm25"))

    assert fused["test"] == report["untrained"]["test"]
    assert fused["weights"] == {"hce": 1.0, "bm25": 5.0, "hce.late": 1.0}
    assert list(fused["variants"]) == ["without_bm25", "without_hce.late"]


def test_component_of_weight_zero_changes_nothing(made, run_fuse, tmp_path):
    report, _ = made

    fused = run_fuse(tmp_path / "fused", of=("hce", "bm25"), weights={"hce": 1.0, "bm25": 0.0})

    assert fused["test"]["nDCG@10"] == report["zero_shot"]["test"]["nDCG@10"]


def test_variant_without_late_interaction_is_the_fusion_without_it(run_fuse, tmp_path):
    with_late = run_fuse(tmp_path / "fused", of=("hce", "bm25"))

    without = run_fuse(tmp_path / "pair", of=("hce", "bm25"), weights={"hce": 1.0, "bm25": 5.0})

    assert with_late["variants"]["without_hce.late"]["test"] == without["test"]


def test_fusion_of_two_has_no_variants(run_fuse, tmp_path):
    """Without one of two components, the other is a system of its own."""
    fused = run_fuse(tmp_path / "fused", of=("hce", "bm25"), weights={"hce": 1.0, "bm25": 0.0})

    assert "variants" not in fused


def test_late_interaction_without_tokens_is_refused(run_fuse, tmp_path):
    weights = {"hce": 1.0, "bm25": 1.0, "bm25.late": 1.0}
    refusal = "fusions.fused weighs bm25.late, but that component's index keeps no tokens"

    with pytest.raises(FreshetError, match=refusal):
        run_fuse(tmp_path / "fused", of=("hce", "bm25"), weights=weights)


def test_fusion_variants_leave_out_one_component(run_fuse, tmp_path):
    weights = {"hce": 1.0, "zero_shot": 0.0, "bm25": 0.5}

    fused = run_fuse(tmp_path / "three", of=tuple(weights), weights=weights)
    pair = run_fuse(tmp_path / "pair", of=("hce", "bm25"), weights={"hce": 1.0, "bm25": 0.5})

    variants = fused["variants"]
    assert list(variants) == ["without_hce", "without_zero_shot", "without_bm25"]
    assert variants["without_zero_shot"]["test"] == pair["test"]
    files = (tmp_path / "three" / "variants").rglob("metrics.json")
    systems = {read_json(path)["system"] for path in files}
    assert systems == {f"fused.{name}" for name in variants}


def ask_about_others(folder, splits):
    """Make each query of some splits three new words, so that no text has its words."""
    queries = pd.read_parquet(folder / "queries.parquet")
    is_asked = queries["split"].isin(splits)
    numbers = queries["query_id"].str.split(":").str[1]
    queries.loc[is_asked, "text"] = "ask about " + numbers[is_asked].str.replace("-", "")
    queries.to_parquet(folder / "queries.parquet")
    write_known_queries(folder)


def test_known_queries_help_documents_that_were_asked(inputs, tmp_path):
    """Test queries repeat words of train queries, but not their texts."""
    corpus = Path(shutil.copytree(inputs["corpus"], tmp_path / "corpus"))
    ask_about_others(corpus, ["train", "test"])
    queries = pd.read_parquet(corpus / "queries.parquet")
    is_test = queries["split"] == "test"
    queries.loc[is_test, "text"] = "please " + queries.loc[is_test, "text"]
    queries.to_parquet(corpus / "queries.parquet")
    write_known_queries(corpus)

    report = run_stage({**inputs, "corpus": corpus}, tmp_path / "baselines", weight=1.0)

    assert report["bm25"]["test"]["hit@1"] == 0
    assert report["bm25_known"]["test"]["hit@1"] == pytest.approx(18 / 48)
    groups = report["bm25_known"]["groups"]["test"]
    assert groups["with_known"]["hit@1"] == 1
    assert groups["without_known"]["hit@1"] == 0
    assert report["bm25_known"]["known_words"]["weight"] == 1.0


def test_queries_that_judge_are_no_words_whatever_their_id(inputs, tmp_path):
    """Every train query repeats a test query word by word, apart from case and punctuation."""
    corpus = Path(shutil.copytree(inputs["corpus"], tmp_path / "corpus"))
    ask_about_others(corpus, ["train", "test"])
    queries = pd.read_parquet(corpus / "queries.parquet")
    is_train = queries["split"] == "train"
    queries.loc[is_train, "text"] = queries.loc[is_train, "text"].str.upper() + "?"
    queries.to_parquet(corpus / "queries.parquet")
    write_known_queries(corpus)

    report = run_stage({**inputs, "corpus": corpus}, tmp_path / "baselines", weight=1.0)

    assert report["bm25_known"]["test"]["hit@1"] == 0


def test_fusion_takes_known_queries_if_they_are_used(made):
    report, output = made

    assert "bm25_known" in report["untrained"]["weights"]
    assert "bm25" not in report["untrained"]["weights"]
    index = output / "untrained" / "build" / "index"
    assert (index / "bm25_known" / "known").is_dir()


def test_fusion_takes_plain_bm25_if_known_queries_are_unused(inputs, tmp_path):
    report = run_stage(inputs, tmp_path / "unused", use=False)

    assert "bm25" in report["untrained"]["weights"]
    assert "bm25_known" not in report["untrained"]["weights"]


def open_baseline(output, name):
    """Open the build of a baseline."""
    build = output / name / "build"
    return open_retriever(build / "encoder", build / "index")


def test_plain_bm25_never_knows_queries(made):
    _, output = made

    plain = open_baseline(output, "bm25")

    assert plain.words is None
    assert plain.known_segment is None


def test_train_queries_that_repeat_test_queries_are_not_known(made):
    _, output = made

    retriever = open_baseline(output, "bm25_known")

    assert len(retriever.known_segment.queries.ids) == 0


def test_fusion_of_trained_retriever_takes_known_queries(run_fuse, tmp_path):
    fused = run_fuse(tmp_path / "fused", use=True, of=("hce", "bm25"))

    assert fused["weights"] == {"hce": 1.0, "bm25_known": 5.0, "hce.late": 1.0}
