"""A corpus of 24 documents, in the format of the stages' outputs.

Queries use other words than documents, so that only a trained retriever finds their documents.
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
# ask7 asks for word7.
ASKS = [f"ask{i}" for i in range(60)]
IDS = [f"d{i:02}" for i in range(24)]
# Documents of two passages.
LONG = ("d03", "d09")
# A document without training queries.
QUIET = "d23"
# The words of each document's queries, as spans of the document's words.
SPANS = {"train": [(0, 3), (2, 5)], "dev": [(1, 4)], "test": [(0, 5)]}
TRAINING = TrainingSettings(
    min_judged_queries=0,
    hierarchy_weight=0.0,
    frozen_layers=1,
    learning_rate=1e-3,
    checkpoint_every=3,
    log_every=2,
)
# The rules by which the passages of the corpus were cut.
RULES = TextRules(include_title=False, words=4, stride=3)
ENCODER = {"max_tokens": 16, "precision": "float32", "device": "cpu"}


def make_context(
    root: Path, document_vectors: DocumentVectorSettings, **changes: Any
) -> StageContext:
    """Return a new training context below `root` with `changes` of `TRAINING`; inputs are kept."""
    if not (root / "corpus").exists():
        _make_inputs(root)
    output = root / f"output{len(list(root.glob('output*')))}"
    output.mkdir()
    retriever = RetrieverSettings(
        training=TRAINING.replace(**changes), kind="dsi", document_vectors=document_vectors
    )
    settings = {
        "encoder": EncoderSettings(base=str(root / "base"), **ENCODER),
        "retriever": retriever,
        "index": IndexSettings(),
        "evaluation": EvaluationSettings(variants=False),
        "seed": 3,
    }
    names = ("corpus", "pseudo_queries", "base_index", "hierarchy")
    inputs = {name: root / name for name in names}
    return StageContext(root, inputs, output, settings, root / "checkpoints" / output.name, "dsi")


def run_index(training: StageContext, output: Path) -> StageContext:
    """Run the stage `index` on the output of `training` and return its context."""
    output.mkdir()
    inputs = dict(training.inputs)
    inputs["trained"] = training.output
    indexing = replace(training, inputs=inputs, output=output)
    index.run(indexing)
    return indexing


def go_live(root: Path, training: StageContext, indexing: StageContext) -> Generation:
    """Open the live collection "dsi" of a trained and indexed retriever below `root`."""
    return open_generation_zero(
        root,
        "dsi",
        encoder=training.output / "encoder",
        index=indexing.output / "index",
        documents=training.inputs["corpus"] / "documents.parquet",
        hierarchy=training.inputs["hierarchy"],
        provenance={},
    )


def texts() -> dict[str, str]:
    """Return the text of each document."""
    rng = np.random.default_rng(0)
    return {name: " ".join(rng.choice(WORDS, 6, replace=False)) for name in IDS}


def _make_inputs(root: Path) -> None:
    passages = _passages()
    queries = _queries()
    trained_queries = queries[queries["split"] == "train"]
    also_relevant = trained_queries[trained_queries["document_id"] == "d05"]
    judgements = pd.concat([queries, also_relevant.assign(document_id="d06")])
    documents = pd.DataFrame({"document_id": IDS, "title": IDS, "text": list(texts().values())})
    tables = {
        "documents": documents.assign(fields="{}", date=None),
        "passages": passages,
        "queries": queries.drop(columns="document_id"),
        "qrels": judgements.drop(columns="text").assign(relevance=1),
    }
    corpus = root / "corpus"
    corpus.mkdir(parents=True)
    for name, table in tables.items():
        table.to_parquet(corpus / f"{name}.parquet", index=False)
    write_known_queries(corpus)

    (root / "pseudo_queries").mkdir()
    pseudo_queries = _pseudo_queries()
    pseudo_queries.to_parquet(root / "pseudo_queries" / "pseudo_queries.parquet", index=False)

    _make_models(root, passages)


def _passages() -> pd.DataFrame:
    rows = []
    for name, text in texts().items():
        rows.append((name, 0, "", text))
        if name in LONG:
            rows.append((name, 1, "", f"more {text}"))
    return pd.DataFrame(rows, columns=["document_id", "ordinal", "title", "text"])


def _queries() -> pd.DataFrame:
    rows = []
    for split, spans in SPANS.items():
        for name in IDS:
            rows += [(split, name, _ask(name, *span)) for span in spans]
    queries = pd.DataFrame(rows, columns=["split", "document_id", "text"])
    queries["query_id"] = [f"q{i:03}" for i in range(len(queries))]
    is_left_out = (queries["document_id"] == QUIET) & (queries["split"] == "train")
    return queries[~is_left_out]


def _pseudo_queries() -> pd.DataFrame:
    names = IDS[:20]
    columns = {
        "query_id": [f"p{name}" for name in names],
        "document_id": names,
        "text": [_ask(name, 3, 6) for name in names],
    }
    return pd.DataFrame(columns).assign(kind="inverse_cloze")


def _make_models(root: Path, passages: pd.DataFrame) -> None:
    make_tiny_encoder(root / "base", [*WORDS, *ASKS, "more"])
    encoder = Encoder.load(root / "base", **ENCODER)
    vectors = encoder.encode_documents(passages["text"].tolist())
    document_ids = passages["document_id"].tolist()
    index = DenseIndex.build(vectors, document_ids, encoder.fingerprint())
    index.save(root / "base_index")

    (root / "hierarchy").mkdir()
    build_hierarchy(vectors, HierarchySettings(device="cpu"), 0).save(root / "hierarchy")
    write_json(root / "hierarchy" / DOCUMENT_IDS, document_ids)


def _ask(name: str, first: int, end: int) -> str:
    """Return the query that asks for a span of a document's words."""
    words = texts()[name].replace("word", "ask").split()
    return " ".join(words[first:end])
