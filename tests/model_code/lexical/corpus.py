"""A corpus of 24 documents whose queries use other words, with everything that the stages of a
retriever read.
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
    """24 documents d00, d01, ... of six words; every third has two passages. Two words of each are
    its queries.
    """
    random = np.random.default_rng(0)
    ids = [f"d{i:02}" for i in range(24)]
    rows = [
        (i, part, " ".join(random.choice(WORDS, 6)))
        for i in ids
        for part in range(1 + (int(i[1:]) % 3 == 0))
    ]
    passages = pd.DataFrame(rows, columns=["document_id", "ordinal", "text"]).assign(title="")
    first = passages.drop_duplicates("document_id").set_index("document_id")["text"]
    queries = pd.DataFrame(
        {"query_id": [f"q{i}" for i in ids], "text": [" ".join(first[i].split()[:2]) for i in ids]}
    )
    queries["split"] = ["train"] * 16 + ["dev"] * 6 + ["test"] * 2
    folder.mkdir(parents=True)
    pd.DataFrame({"document_id": ids, "text": ""}).to_parquet(
        folder / "documents.parquet", index=False
    )
    passages.to_parquet(folder / "passages.parquet", index=False)
    queries.to_parquet(folder / "queries.parquet", index=False)
    queries.assign(document_id=ids, relevance=1).to_parquet(folder / "qrels.parquet", index=False)
    pseudo = {
        "query_id": ["p"],
        "document_id": ["d00"],
        "kind": ["cloze"],
        "text": ["word1"],
        "split": ["train"],
    }
    pd.DataFrame(pseudo).to_parquet(folder / "pseudo_queries.parquet", index=False)


def make_context(
    tmp_path: Path, lexical: LexicalSettings = LEXICAL, head: str = "closed_form", **changes: object
):
    """A context of the stages `train` and `index`, its inputs made on the first call."""
    corpus, base = tmp_path / "corpus", tmp_path / "base"
    if not corpus.exists():
        make_corpus(corpus)
        (make_masked_model if head == "mlm" else lambda folder: make_tiny_encoder(folder, WORDS))(
            base
        )
        vectors = Encoder.load(base, 16, precision="float32", device="cpu").encode(
            pd.read_parquet(corpus / "passages.parquet")["text"].tolist()
        )
        (tmp_path / "hierarchy").mkdir()
        build_hierarchy(vectors, HierarchySettings(device="cpu"), 0).save(tmp_path / "hierarchy")
    run = tmp_path / f"run{len(list(tmp_path.glob('run*')))}"
    for name in ("output", "checkpoints"):
        (run / name).mkdir(parents=True)
    settings = {
        "encoder": EncoderSettings(
            base=str(base), max_tokens=16, precision="float32", device="cpu"
        ),
        "retriever": RetrieverSettings(
            training=TRAINING.replace(**changes), kind="lexical", lexical=lexical
        ),
        "known_queries.use": False,
        "seed": 3,
    }
    inputs = {"corpus": corpus, "pseudo_queries": corpus, "hierarchy": tmp_path / "hierarchy"}
    return StageContext(tmp_path, inputs, run / "output", settings, run / "checkpoints", "svdr")
