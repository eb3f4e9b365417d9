"""The stage `evaluate`: search the judged queries with a trained retriever and score what it finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from model_code.corpus.tables import judged, load_corpus
from model_code.encoding.encoder import Encoder
from model_code.evaluation.level_accuracy import document_nodes
from model_code.evaluation.scores import SPLITS
from model_code.evaluation.system_evaluation import Search, evaluate_system
from model_code.hierarchy.tree import Hierarchy
from model_code.index.dense_index import DenseIndex
from model_code.stages.context import StageContext


def run(context: StageContext) -> dict[str, Any]:
    """Read `inputs["encoder"]` and `inputs["index"]`, write the evaluation folder, return the means of each split."""
    encoder = Encoder.from_settings(context.settings["encoder"], context.inputs["encoder"])
    search = dense_search(encoder, context.inputs["index"])
    return evaluate_searches(context, {str(context.name): (search, context.output)})[str(context.name)]


def dense_search(encoder: Encoder, index_folder: Path) -> Search:
    """Search by text with an encoder and the index of its vectors; `FingerprintMismatch` if they are not its own."""
    index, fingerprint = DenseIndex.load(index_folder), encoder.fingerprint()
    return lambda texts, k: index.search(encoder.encode(texts), k, fingerprint)


def evaluate_searches(context: StageContext, searches: dict[str, tuple[Search, Path]]) -> dict[str, dict[str, Any]]:
    """Evaluate systems, given as name -> (search, output folder), on the corpus's judged dev and test queries."""
    corpus = load_corpus(context.inputs["corpus"])
    pseudo_queries = pd.read_parquet(context.inputs["pseudo_queries"] / "pseudo_queries.parquet")
    judgements = {split: judged(corpus, pseudo_queries, split) for split in SPLITS}
    hierarchy = Hierarchy.load(context.inputs["hierarchy"])
    nodes = document_nodes(hierarchy, corpus.passages["document_id"].tolist())
    settings = context.settings["evaluation"]
    return {
        name: evaluate_system(name, search, judgements, nodes, settings, output)
        for name, (search, output) in searches.items()
    }
