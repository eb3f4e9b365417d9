"""Guards the stage `train`: tables become pairs, base vectors are used, outputs are pure, and it
says what it did.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from model_code.context import StageContext, left_out_reason
from model_code.encoding.encoder import Encoder
from model_code.encoding.settings import EncoderSettings
from model_code.errors import FreshetError, SettingsError
from model_code.files import hash_path, read_json
from model_code.hierarchy.build import build_hierarchy
from model_code.hierarchy.settings import HierarchySettings
from model_code.retrieval.dense_index import DenseIndex
from model_code.retriever_settings import FusionSettings, RetrieverSettings
from model_code.stages import evaluate, fuse, index, train
from model_code.stages.model_card import write_model_card
from model_code.training.settings import TrainingSettings
from model_code.training.tables import TrainingTables
from tests.tiny_encoder import make_tiny_encoder

WORDS = [f"word{i}" for i in range(30)]
SETTINGS = TrainingSettings(
    steps=4,
    batch_size=4,
    frozen_layers=1,
    learning_rate=1e-3,
    evaluate_every=2,
    log_every=2,
    checkpoint_every=2,
    document_max_tokens=64,
    min_judged_queries=0,
)


def make_corpus(folder: Path, qrels: bool) -> None:
    """Write 16 documents d00, d01, ... in reverse order, and a query and a pseudo-query of each.

    Every third document has two passages. The query of d05 also fits d06.
    """
    random = np.random.default_rng(0)
    numbers = list(reversed(range(16)))
    ids = [f"d{number:02}" for number in numbers]
    passages = []
    first_texts = []
    for number, document_id in zip(numbers, ids, strict=True):
        passage_count = 2 if number % 3 == 0 else 1
        texts = [" ".join(random.choice(WORDS, 6)) for _ in range(passage_count)]
        first_texts.append(texts[0])
        for ordinal, text in enumerate(texts):
            passages.append(
                {"document_id": document_id, "ordinal": ordinal, "text": text, "title": ""}
            )

    query_ids = [f"q{document_id}" for document_id in ids]
    queries = pd.DataFrame({"query_id": query_ids, "text": [text[:17] for text in first_texts]})
    queries["split"] = ["train"] * 10 + ["dev"] * 4 + ["test"] * 2
    judged = queries.assign(document_id=ids, relevance=1)
    also_relevant = judged[judged["document_id"] == "d05"].assign(document_id="d06")
    judged = pd.concat([judged, also_relevant])
    if not qrels:
        judged = judged.head(0)
    pseudo_queries = pd.DataFrame(
        {
            "query_id": [f"p{document_id}" for document_id in ids],
            "document_id": ids,
            "kind": "cloze",
            "text": [text[-17:] for text in first_texts],
        }
    )
    documents = pd.DataFrame({"document_id": ids, "text": ""})

    folder.mkdir(parents=True)
    documents.to_parquet(folder / "documents.parquet", index=False)
    pd.DataFrame(passages).to_parquet(folder / "passages.parquet", index=False)
    queries.to_parquet(folder / "queries.parquet", index=False)
    judged.to_parquet(folder / "qrels.parquet", index=False)
    pseudo_queries.to_parquet(folder / "pseudo_queries.parquet", index=False)


def make_inputs(root: Path, qrels: bool) -> None:
    """Write the outputs of the stages before `train`."""
    make_corpus(root / "corpus", qrels)
    make_tiny_encoder(root / "base", WORDS)
    passages = pd.read_parquet(root / "corpus" / "passages.parquet")
    encoder = Encoder.load(root / "base", 16, precision="float32", device="cpu")
    vectors = encoder.encode_documents(passages["text"].tolist())
    index = DenseIndex.build(vectors, passages["document_id"].tolist(), encoder.fingerprint())
    index.save(root / "base_index")
    (root / "hierarchy").mkdir()
    build_hierarchy(vectors, HierarchySettings(device="cpu"), 0).save(root / "hierarchy")


def make_context(tmp_path: Path, qrels: bool = True, **changes) -> StageContext:
    """Make a new context of the stage, and its inputs on the first call."""
    if not (tmp_path / "corpus").exists():
        make_inputs(tmp_path, qrels)
    inputs = {name: tmp_path / name for name in ("corpus", "base_index", "hierarchy")}
    inputs["pseudo_queries"] = tmp_path / "corpus"

    run_number = len(list(tmp_path.glob("run*")))
    output = tmp_path / f"run{run_number}" / "output"
    checkpoints = tmp_path / f"run{run_number}" / "checkpoints"
    output.mkdir(parents=True)
    checkpoints.mkdir()
    encoder = EncoderSettings(
        base=str(tmp_path / "base"), max_tokens=16, precision="float32", device="cpu"
    )
    settings = {
        "encoder": encoder,
        "hierarchy": HierarchySettings(device="cpu"),
        "retriever": RetrieverSettings(training=SETTINGS.replace(**changes)),
        "seed": 3,
    }
    return StageContext(tmp_path, inputs, output, settings, checkpoints, "hce")


def test_a_retriever_trains_its_own_base(tmp_path: Path):
    """Its vectors have another dimension than the centroids of the project's hierarchy."""
    context = make_context(tmp_path, hierarchy_weight=0.2, frozen_layers=None)
    own = make_tiny_encoder(tmp_path / "own", WORDS, hidden=16)
    context.settings["retriever"] = context.settings["retriever"].replace(base=str(own))

    report = train.run(context)

    trained = Encoder.load(context.output / "encoder", 16, precision="float32", device="cpu")
    assert trained.dimension == 16
    assert report["fingerprint"] == trained.fingerprint()
    assert "hierarchy_1" in read_json(context.output / "history.json")[1]
    assert "**Base**: own" in (context.output / "encoder/README.md").read_text()


def test_base_and_start_exclude_each_other():
    with pytest.raises(SettingsError, match="base is a and start is b, but training begins with"):
        RetrieverSettings(training=SETTINGS.replace(start="b"), base="a")


def test_training_writes_report_encoder_and_model_card(
    tmp_path: Path,
):
    context = make_context(tmp_path)
    (tmp_path / "base" / "README.md").write_text(
        "---\nlanguage: en\nlicense: apache-2.0\ntags:\n- a\n---\n# Base\n"
    )
    report = train.run(context)
    history = read_json(context.output / "history.json")

    assert {
        key: report[key] for key in ("supervision", "supervised_pairs", "unsupervised_pairs")
    } == {"supervision": "joint", "supervised_pairs": 10, "unsupervised_pairs": 16}
    assert report["dev_queries"] == 4
    assert report["steps"] == 4
    assert report["pairs_seen"] == 16
    assert [row["step"] for row in history] == [0, 2, 4]
    assert report["start_dev"] == history[0]["nDCG@10"]
    assert report["best_dev"] == max(row["nDCG@10"] for row in history)

    saved = Encoder.load(context.output / "encoder", 16, precision="float32", device="cpu")
    assert saved.fingerprint() == report["fingerprint"]

    card = (context.output / "encoder" / "README.md").read_text()
    head = yaml.safe_load(card.split("---\n")[1])

    assert head["base_model"] == "base"
    assert head["license"] == "apache-2.0"
    assert "16 documents in 22 passages; 10 pairs that people judged and" in card

    low, high = report["best_dev_interval"]
    assert low <= report["best_dev"] <= high
    # Four queries say little.
    assert low < high
    assert (
        f"nDCG@10 {report['best_dev']:.3f} [{low:.3f}, {high:.3f}] (95 % over queries) on 4 dev "
        "queries" in card
    )

    settings = json.loads(card.split("```")[1].removeprefix("json"))
    assert settings["retriever"]["training"]["steps"] == 4
    assert settings["encoder"]["max_tokens"] == 16
    assert str(tmp_path) not in card

    outside = pytest.importorskip("sentence_transformers").SentenceTransformer(
        str(context.output / "encoder")
    )
    assert outside.encode(["word1"]).shape == (1, 32)


def test_corpus_without_qrels_trains_on_pseudo_queries(
    tmp_path: Path,
):
    context = make_context(tmp_path, qrels=False)
    report = train.run(context)

    assert report["supervision"] == "unsupervised"
    assert report["dev_queries"] == 0
    assert report["best_dev"] is None
    assert report["supervised_pairs"] == 0
    assert report["unsupervised_pairs"] == 16

    card = (context.output / "encoder" / "README.md").read_text()
    assert "**Results**: none" in card
    assert "license: unknown" in card

    of_another_kind = {"documents": 0, "anything": 1}
    write_model_card(context, of_another_kind)
    card = (context.output / "encoder" / "README.md").read_text()

    assert "16 documents in 22 passages.\n- **Results**: none on dev queries.\n" in card
    with pytest.raises(FreshetError, match="no training qrels; set supervision"):
        train.run(make_context(tmp_path, supervision="supervised"))


@pytest.mark.parametrize(("qrels", "known"), [(True, 10), (False, 0)])
def test_too_few_judgements_skip_training_and_later_stages(tmp_path: Path, qrels: bool, known: int):
    context = make_context(tmp_path, qrels, min_judged_queries=11)
    report = train.run(context)

    assert f"hce is not trained: {known} training queries" in report["left_out"]
    assert left_out_reason(context.output) == report["left_out"]
    assert left_out_reason(tmp_path) is None

    (tmp_path / "all").mkdir()
    context.output.rename(tmp_path / "all" / "hce")
    settings = {"fusion": FusionSettings(of=("bm25", "hce")), "known_queries.use": True}
    for stage, trained in ((index, "all/hce"), (evaluate, "all/hce"), (fuse, "all")):
        output = tmp_path / stage.__name__
        after = StageContext(
            tmp_path, {"trained": tmp_path / trained}, output, settings, tmp_path, "hce"
        )
        assert stage.run(after) == report
        assert left_out_reason(output) == report["left_out"]

    # The next stage depends on the folder.
    assert (tmp_path / index.__name__ / "index").is_dir()

    expected = set() if qrels else {"left_out"}
    assert (
        train.run(make_context(tmp_path, qrels, min_judged_queries=10)).keys() & {"left_out"}
        == expected
    )


def test_equal_inputs_give_equal_bytes(tmp_path: Path):
    outputs = []
    for _ in range(2):
        context = make_context(tmp_path, cotraining=True)
        train.run(context)
        outputs.append(hash_path(context.output))

    assert outputs[0] == outputs[1]


def test_training_judgements_become_pairs_with_best_passage(tmp_path: Path):
    context = make_context(tmp_path)
    tables = TrainingTables.load(context)
    data = tables.training_data(SETTINGS)
    passages = pd.read_parquet(context.inputs["corpus"] / "passages.parquet")
    queries = pd.read_parquet(context.inputs["corpus"] / "queries.parquet").set_index("text")[
        "query_id"
    ]
    for query, passage, relevant in zip(
        data.supervised.queries, data.supervised.passages, data.supervised.relevant, strict=True
    ):
        row = passages.iloc[passage]
        assert f"q{row['document_id']}" == queries[query]
        # The query was cut from the first passage.
        assert row["ordinal"] == 0
        assert relevant == {tables.number[row["document_id"]]}
    dev = tables.dev_evaluator(SETTINGS, seed=0)
    both = {str(tables.number["d05"]): 1, str(tables.number["d06"]): 1}

    # The query of d05 is a dev query with two answers.
    assert both in dev.qrels.values()


@pytest.mark.parametrize(
    ("supervision", "supervised", "unsupervised"),
    [("supervised", 10, 0), ("unsupervised", 0, 16), ("joint", 10, 16)],
)
def test_supervision_chooses_the_pairs(
    tmp_path: Path, supervision: str, supervised: int, unsupervised: int
):
    tables = TrainingTables.load(make_context(tmp_path))

    data = tables.training_data(SETTINGS.replace(supervision=supervision))

    assert len(data.supervised) == supervised
    assert len(data.unsupervised) == unsupervised


def test_step_0_reuses_vectors_of_base_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    encode = Encoder._encode
    text_counts = []

    def count_and_encode(
        encoder: Encoder, forward: object, texts: list[str], *arguments: object, **options: object
    ) -> np.ndarray:
        text_counts.append(len(texts))
        return encode(encoder, forward, texts, *arguments, **options)

    context = make_context(tmp_path, evaluate_every=None)
    monkeypatch.setattr(Encoder, "_encode", count_and_encode)
    train.run(context)

    # Dev queries are encoded at step 0, and passages and dev queries at the end.
    assert text_counts == [4, 22, 4]


def test_step_0_ignores_vectors_of_another_encoder(tmp_path: Path):
    expected = train.run(make_context(tmp_path, evaluate_every=None))["start_dev"]
    index = DenseIndex.load(tmp_path / "base_index")
    shuffled = DenseIndex.build(index.vectors[::-1], index.document_ids, "another fingerprint")
    shuffled.save(tmp_path / "base_index")

    report = train.run(make_context(tmp_path, evaluate_every=None))

    assert report["start_dev"] == expected


def test_training_goes_on_from_a_trained_encoder(tmp_path: Path):
    """Without a learning rate it ends where it began, and the step-0 metric is that of the encoder
    it began with.
    """
    first = make_context(tmp_path)
    trained = train.run(first)
    (first.output / "encoder").rename(tmp_path / "trained")
    still = train.run(make_context(tmp_path, start="trained", learning_rate=0.0))

    assert still["fingerprint"] == trained["fingerprint"]
    assert still["start_dev"] == pytest.approx(trained["best_dev"])


def test_plain_contrastive_training_reads_no_hierarchy(tmp_path: Path):
    context = make_context(tmp_path, hierarchy_weight=0.0, negatives="bm25")
    (tmp_path / "hierarchy").rename(tmp_path / "gone")

    assert train.run(context)["steps"] == 4


def test_self_judged_training_starts_without_query_lines(
    tmp_path: Path,
) -> None:
    """Else the untrained encoder is seen to find each dev query in the very document that still
    begins with it.
    """
    context = make_context(tmp_path, evaluate_every=None)
    corpus = context.inputs["corpus"]
    passages = pd.read_parquet(corpus / "passages.parquet")
    queries = pd.read_parquet(corpus / "queries.parquet").set_index("query_id")["text"]
    texts = []
    for passage in passages.to_dict("records"):
        text = passage["text"]
        if passage["ordinal"] == 0:
            query = queries[f"q{passage['document_id']}"]
            text = f"{query}\n\n{text}"
        texts.append(text)
    passages["text"] = texts
    passages.to_parquet(corpus / "passages.parquet", index=False)
    documents = pd.read_parquet(corpus / "documents.parquet").set_index("document_id")
    documents["text"] = passages.drop_duplicates("document_id").set_index("document_id")["text"]
    documents.reset_index().to_parquet(corpus / "documents.parquet", index=False)
    encoder = Encoder.load(context.settings["encoder"].base, 16, precision="float32", device="cpu")
    vectors = encoder.encode_documents(passages["text"].tolist())
    DenseIndex.build(vectors, passages["document_id"].tolist(), encoder.fingerprint()).save(
        tmp_path / "base_index"
    )
    report = train.run(context)
    tables = TrainingTables.load(context)
    evaluator = tables.dev_evaluator(SETTINGS, 3)
    asked_for = encoder.encode_queries(evaluator.queries)
    judged = evaluator.score(asked_for, encoder.encode_documents(evaluator.texts))

    assert report["start_dev"] == pytest.approx(judged)
    # Otherwise the test shows nothing.
    assert judged < evaluator.score(asked_for, vectors[evaluator.rows])
