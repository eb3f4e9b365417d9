"""The stage `evaluate`: search the judged queries with a trained retriever and score what it finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from model_code.context import StageContext, leave_out, left_out
from model_code.corpus.tables import Judgements, judged, load_corpus
from model_code.errors import FreshetError
from model_code.evaluation.metrics import Run
from model_code.evaluation.runs import read_run
from model_code.evaluation.scores import SPLITS, VARIANTS
from model_code.evaluation.settings import EvaluationSettings
from model_code.evaluation.system_evaluation import (
    Nodes,
    Search,
    document_nodes,
    evaluate_system,
    retriever_runs,
    sampled,
    search_splits,
)
from model_code.hierarchy.tree import Hierarchy
from model_code.retriever import Retriever
from model_code.retrievers.kinds import open_retriever


def run(context: StageContext) -> dict[str, Any]:
    """Open what lies in `inputs["trained"]` and `inputs["index"]`, evaluate it, return the means of each split.

    Writes the evaluation folder and, below `variants/`, one per variant; the hybrids among them take BM25's runs from
    `inputs["baselines"]`.
    """
    if reason := left_out(context.inputs["trained"]):
        return leave_out(context.output, reason)
    bench = Bench.load(context)
    folders = context.inputs["trained"] / "encoder", context.inputs["index"]
    retriever = open_retriever(*folders, settings=context.settings["encoder"])
    bm25 = bench.read_runs(context.inputs["baselines"] / "bm25")
    return bench.evaluate_retriever(str(context.name), retriever, bm25, context.output)


@dataclass(frozen=True)
class Bench:
    """What every system is evaluated on: the judged queries of dev and test, and each document's nodes."""

    judgements: Mapping[str, Judgements]
    nodes: Nodes
    settings: EvaluationSettings

    @classmethod
    def load(cls, context: StageContext) -> Bench:
        """Read the corpus, the pseudo-queries and the hierarchy."""
        corpus = load_corpus(context.inputs["corpus"])
        pseudo_queries = pd.read_parquet(context.inputs["pseudo_queries"] / "pseudo_queries.parquet")
        settings = context.settings["evaluation"]
        judgements = sampled({split: judged(corpus, pseudo_queries, split) for split in SPLITS}, settings)
        hierarchy = Hierarchy.load(context.inputs["hierarchy"])
        return cls(judgements, document_nodes(hierarchy, corpus.passages["document_id"].tolist()), settings)

    def search(self, search: Search) -> dict[str, Run]:
        """The system's run on each split."""
        return search_splits(search, self.judgements, self.settings.depth)

    def evaluate(self, system: str, runs: Mapping[str, Run], output: Path) -> dict[str, Any]:
        """Write an evaluation folder; returns the content of its metrics.json."""
        output.mkdir(parents=True, exist_ok=True)
        return evaluate_system(system, runs, self.judgements, self.nodes, self.settings, output)

    def evaluate_retriever(
        self, system: str, retriever: Retriever, bm25: Mapping[str, Run], output: Path
    ) -> dict[str, Any]:
        """`evaluate` for a retriever and, unless the settings say no, its variants, which the result has beside it."""
        variants = retriever_runs(retriever, bm25, self.judgements, self.settings)
        _, runs = next(variants)
        report = self.evaluate(system, runs, output)
        reports = {
            name: self.evaluate(f"{system}.{name}", runs, output / VARIANTS / str(name)) for name, runs in variants
        }
        return report | ({"variants": reports} if reports else {})

    def read_runs(self, folder: Path) -> dict[str, Run]:
        """The runs of an evaluation folder; FreshetError if they are on other queries."""
        runs = {}
        for split, judged_queries in self.judgements.items():
            run = read_run(folder / f"run.{split}.trec")
            unknown = sorted(run.keys() - judged_queries.queries.keys())
            if unknown:
                raise FreshetError(f"{folder} was made on other {split} queries, such as {unknown[0]!r}; run it again")
            runs[split] = {query: run.get(query, []) for query in judged_queries.queries}
        return runs
