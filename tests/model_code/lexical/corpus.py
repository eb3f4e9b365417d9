"""A corpus of 24 documents, with everything that the stages of a retriever read.

The queries use other words than the documents.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from model_code.context import StageContext
from model_code.encoding.encoder import Encoder
from model_code.encoding.settings import EncoderSettings
from model_code.hierarchy.build import build_hierarchy
from model_code.hierarchy.settings import HierarchySettings
from model_code.lexical.settings import LexicalSettings
from model_code.retriever_settings import RetrieverSettings
from model_code.training.settings import TrainingSettings
from tests.model_code.lexical.example import SETTINGS as LEXICAL
from tests.model_code.lexical.example import make_masked_model
from tests.tiny_encoder import make_tiny_encoder

WORDS = [f"word{i}" for i in range(40)]
TRAINING = TrainingSettings(
    min_judged_queries=0,
    steps=4,
    batch_size=4,
    frozen_layers=1,
    learning_rate=1e-3,
    hierarchy_weight=0.0,
    negatives="bm25",
    evaluate_every=2,
    log_every=2,
    checkpoint_every=2,
    supervision="supervised",
    document_max_tokens=64,
)


def make_corpus(folder: Path) -> None:
    """Write 24 documents d00, d01, ... of six words; every third has two passages.

    The query of a document consists of two words of its first passage.
    """
    random = np.random.default_rng(0)
    numbers = range(24)
    ids = [f"d{number:02}" for number in numbers]
    rows = []
    queries = []
    for number, document_id in zip(numbers, ids, strict=True):
        passage_count = 2 if number % 3 == 0 else 1
        texts = [" ".join(random.choice(WORDS, 6)) for _ in range(passage_count)]
        queries.append(" ".join(texts[0].split()[:2]))
        for ordinal, text in enumerate(texts):
            rows.append({"document_id": document_id, "ordinal": ordinal, "text": text, "title": ""})

    query_table = pd.DataFrame({"query_id": [f"q{name}" for name in ids], "text": queries})
    query_table["split"] = ["train"] * 16 + ["dev"] * 6 + ["test"] * 2
    qrels = query_table.assign(document_id=ids, relevance=1)
    documents = pd.DataFrame({"document_id": ids, "text": ""})
    pseudo_queries = pd.DataFrame(
        {
            "query_id": ["p"],
            "document_id": ["d00"],
            "kind": ["cloze"],
            "text": ["word1"],
            "split": ["train"],
        }
    )

    folder.mkdir(parents=True)
    documents.to_parquet(folder / "documents.parquet", index=False)
    pd.DataFrame(rows).to_parquet(folder / "passages.parquet", index=False)
    query_table.to_parquet(folder / "queries.parquet", index=False)
    qrels.to_parquet(folder / "qrels.parquet", index=False)
    pseudo_queries.to_parquet(folder / "pseudo_queries.parquet", index=False)


def make_inputs(root: Path, head: str) -> None:
    """Write the corpus, a base encoder and the hierarchy below `root`."""
    make_corpus(root / "corpus")
    if head == "mlm":
        make_masked_model(root / "base")
    else:
        make_tiny_encoder(root / "base", WORDS)

    encoder = Encoder.load(root / "base", 16, precision="float32", device="cpu")
    passages = pd.read_parquet(root / "corpus" / "passages.parquet")
    vectors = encoder.encode_documents(passages["text"].tolist())
    (root / "hierarchy").mkdir()
    build_hierarchy(vectors, HierarchySettings(device="cpu"), 0).save(root / "hierarchy")


def make_context(
    tmp_path: Path, lexical: LexicalSettings = LEXICAL, head: str = "closed_form", **changes: object
) -> StageContext:
    """Make a context of the stages `train` and `index`, and its inputs on the first call.

    Args:
        tmp_path: Folder of the inputs and of one folder per run.
        lexical: Settings of the lexical encoder.
        head: `mlm` for a base encoder with its own head, else `closed_form`.
        changes: Settings of training that differ from TRAINING.
    """
    corpus = tmp_path / "corpus"
    if not corpus.exists():
        make_inputs(tmp_path, head)

    run_number = len(list(tmp_path.glob("run*")))
    output = tmp_path / f"run{run_number}" / "output"
    checkpoints = tmp_path / f"run{run_number}" / "checkpoints"
    output.mkdir(parents=True)
    checkpoints.mkdir()
    encoder = EncoderSettings(
        base=str(tmp_path / "base"), max_tokens=16, precision="float32", device="cpu"
    )
    retriever = RetrieverSettings(
        training=TRAINING.replace(**changes), kind="lexical", lexical=lexical
    )
    settings = {"encoder": encoder, "retriever": retriever, "known_queries.use": False, "seed": 3}
    inputs = {"corpus": corpus, "pseudo_queries": corpus, "hierarchy": tmp_path / "hierarchy"}
    return StageContext(tmp_path, inputs, output, settings, checkpoints, "svdr")
