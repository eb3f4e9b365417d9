"""A corpus of 24 documents, as the stages leave it, whose queries use other words: only what is
learned finds them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.opened_build import open_generation_zero
from model_code.collection.generations.generation import Generation
from model_code.context import StageContext
from model_code.dsi.settings import DocumentVectorSettings
from model_code.encoding.encoder import Encoder
from model_code.encoding.settings import EncoderSettings
from model_code.evaluation.settings import EvaluationSettings
from model_code.files import write_json
from model_code.hierarchy.build import build_hierarchy
from model_code.hierarchy.settings import HierarchySettings
from model_code.hierarchy.tree import DOCUMENT_IDS
from model_code.retrieval.dense_index import DenseIndex
from model_code.retrieval.index_settings import IndexSettings
from model_code.retriever_settings import RetrieverSettings
from model_code.stages import index
from model_code.text.passages import TextRules
from model_code.training.settings import TrainingSettings
from tests.model_code.evaluation.tiny_corpus import write_known_queries
from tests.tiny_encoder import make_tiny_encoder

WORDS = [f"word{i}" for i in range(60)]
ASKS = [f"ask{i}" for i in range(60)]  # ask7 asks for word7
IDS = [f"d{i:02}" for i in range(24)]
LONG = ("d03", "d09")  # of two passages
QUIET = "d23"  # has no query in training
SPANS = {"train": [(0, 3), (2, 5)], "dev": [(1, 4)], "test": [(0, 5)]}
TRAINING = TrainingSettings(
    min_judged_queries=0,
    hierarchy_weight=0.0,
    frozen_layers=1,
    learning_rate=1e-3,
    checkpoint_every=3,
    log_every=2,
)
RULES = TextRules(include_title=False, words=4, stride=3)  # as the corpus was cut by hand
ENCODER = {"max_tokens": 16, "precision": "float32", "device": "cpu"}


def make_context(root: Path, own: DocumentVectorSettings, **changes: Any) -> StageContext:
    """Return a new training context below `root` with `changes` of `TRAINING`; inputs are kept."""
    if not (root / "corpus").exists():
        _make_inputs(root)
    names = ("corpus", "pseudo_queries", "base_index", "hierarchy")
    output = root / f"output{len(list(root.glob('output*')))}"
    output.mkdir()
    settings = {
        "encoder": EncoderSettings(base=str(root / "base"), **ENCODER),
        "retriever": RetrieverSettings(
            training=TRAINING.replace(**changes), kind="dsi", document_vectors=own
        ),
        "index": IndexSettings(),
        "evaluation": EvaluationSettings(variants=False),
        "seed": 3,
    }
    inputs = {name: root / name for name in names}
    return StageContext(root, inputs, output, settings, root / "checkpoints" / output.name, "dsi")


def run_index(training: StageContext, output: Path) -> StageContext:
    """The context of a finished `index` of what `training` left."""
    output.mkdir()
    indexing = replace(
        training, inputs=training.inputs | {"trained": training.output}, output=output
    )
    index.run(indexing)
    return indexing


def go_live(root: Path, training: StageContext, indexing: StageContext) -> Generation:
    """Open the live collection "dsi" of a trained and indexed one below `root`."""
    models = {"encoder": training.output / "encoder", "index": indexing.output / "index"}
    documents, hierarchy = (
        training.inputs["corpus"] / "documents.parquet",
        training.inputs["hierarchy"],
    )
    return open_generation_zero(
        root, "dsi", **models, documents=documents, hierarchy=hierarchy, provenance={}
    )


def texts() -> dict[str, str]:
    """The words of each document."""
    random = np.random.default_rng(0)
    return {name: " ".join(random.choice(WORDS, 6, replace=False)) for name in IDS}


def _make_inputs(root: Path) -> None:
    rows = [(name, ordinal) for name in IDS for ordinal in range(2 if name in LONG else 1)]
    passages = pd.DataFrame(rows, columns=["document_id", "ordinal"]).assign(title="")
    passages["text"] = [
        texts()[name] if not ordinal else f"more {texts()[name]}" for name, ordinal in rows
    ]
    documents = pd.DataFrame({"document_id": IDS, "title": IDS, "text": list(texts().values())})
    spans = [(split, name, span) for split in SPANS for name in IDS for span in SPANS[split]]
    queries = pd.DataFrame(
        [(s, n, _ask(n, *span)) for s, n, span in spans], columns=["split", "document_id", "text"]
    )
    queries["query_id"] = [f"q{i:03}" for i in range(len(queries))]
    queries = queries[(queries["document_id"] != QUIET) | (queries["split"] != "train")]
    also = queries[(queries["document_id"] == "d05") & (queries["split"] == "train")].assign(
        document_id="d06"
    )
    pseudo = pd.DataFrame({"query_id": [f"p{name}" for name in IDS[:20]], "document_id": IDS[:20]})
    pseudo["text"] = [_ask(name, 3, 6) for name in IDS[:20]]
    folders = {"corpus": {}, "pseudo_queries": {}}
    folders["corpus"]["documents"] = documents.assign(fields="{}", date=None)
    folders["corpus"] |= {"passages": passages, "queries": queries.drop(columns="document_id")}
    folders["corpus"]["qrels"] = pd.concat([queries, also]).drop(columns="text").assign(relevance=1)
    folders["pseudo_queries"]["pseudo_queries"] = pseudo.assign(kind="inverse_cloze")
    for folder, tables in folders.items():
        (root / folder).mkdir(parents=True)
        for name, table in tables.items():
            table.to_parquet(root / folder / f"{name}.parquet", index=False)
    write_known_queries(root / "corpus")
    _make_models(root, passages)


def _make_models(root: Path, passages: pd.DataFrame) -> None:
    make_tiny_encoder(root / "base", [*WORDS, *ASKS, "more"])
    encoder = Encoder.load(root / "base", **ENCODER)
    vectors = encoder.encode(passages["text"].tolist())
    DenseIndex.build(vectors, passages["document_id"].tolist(), encoder.fingerprint()).save(
        root / "base_index"
    )
    (root / "hierarchy").mkdir()
    build_hierarchy(vectors, HierarchySettings(device="cpu"), 0).save(root / "hierarchy")
    write_json(root / "hierarchy" / DOCUMENT_IDS, passages["document_id"].tolist())


def _ask(name: str, first: int, end: int) -> str:
    return " ".join(texts()[name].replace("word", "ask").split()[first:end])
