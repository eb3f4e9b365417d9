"""Stage `fuse`, once per fusion: several finished retrievers as one, with weights learned on dev, and evaluated.

Output: an evaluation folder like that of `evaluate`, and below `build/` the retriever that was evaluated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from model_code.context import StageContext, leave_out, left_out
from model_code.corpus.tables import Judgements
from model_code.evaluation.metrics import Run, evaluate_run
from model_code.evaluation.system_evaluation import sample_queries
from model_code.manifest import add_facts
from model_code.retrievers.fused import (
    FusedSearch,
    Fusion,
    Scale,
    build_folders,
    sorted_candidates,
)
from model_code.retrievers.kinds import PRECISION, open_retriever
from model_code.retrievers.settings import FusionSettings
from model_code.stages.evaluate import Bench

BUILD = "build"  # in an evaluation folder: the retriever, where no other stage leaves one
GRID = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0)
WORDS = 3.0  # weight of all parts that match words, where dense ones together weigh 1 and nothing is judged
LEAST, MOST = 30, 1000  # judged dev queries that weights are learned from
Folders = tuple[Path, Path]  # of an encoder and an index


def run(context: StageContext) -> dict[str, Any]:
    """Fuse the parts that `settings["fusion"]` names, found in `trained`, `indexes` and `baselines`; evaluate it."""
    settings: FusionSettings = context.settings["fusion"]
    for name in settings.of:
        if reason := left_out(context.inputs["trained"] / name):
            return leave_out(context.output, reason)
    parts = {name: _folders(context, name) for name in settings.of}
    return fuse(Bench.load(context), str(context.name), parts, settings, context, context.output)


def _folders(context: StageContext, part: str) -> Folders:
    build = context.inputs["baselines"] / part / BUILD
    if build.is_dir():
        return build / "encoder", build / "index"
    return context.inputs["trained"] / part / "encoder", context.inputs["indexes"] / part / "index"


def fuse(
    bench: Bench, name: str, parts: Mapping[str, Folders], settings: FusionSettings, context: StageContext, output: Path
) -> dict[str, Any]:
    """Build the fusion of opened `parts` below `output`, evaluate it there, and return its report."""
    opened = {part: open_retriever(*folders, settings=context.settings["encoder"]) for part, folders in parts.items()}
    scales = {part: Scale.of(own.dense.index.vectors) for part, own in opened.items() if own.dense is not None}
    judged = {part: bench.held_out(own) for part, own in opened.items()}
    fusion = Fusion(settings.weights or default_weights(settings.of, scales), scales, settings.depth, settings.feedback)
    learned = not settings.weights and can_learn(bench.judgements["dev"])
    if learned:
        metric, dev = bench.settings.main_metric, sample_queries(bench.judgements["dev"], MOST)
        fusion = learn_weights(FusedSearch(judged, fusion), dev, metric)
    encoder, index = output / BUILD / "encoder", output / BUILD / "index"
    build_folders(parts, fusion, encoder, index)
    add_facts(index, {PRECISION: context.settings["encoder"].precision})
    report = bench.evaluate(name, bench.search(FusedSearch(judged, fusion).search), output)
    return report | {"weights": dict(fusion.weights), "learned": learned}


def default_weights(parts: tuple[str, ...], scales: Mapping[str, Scale]) -> dict[str, float]:
    """1 shared by the dense parts and `WORDS` shared by the others.

    >>> default_weights(("hce", "bm25"), {"hce": None})
    {'hce': 1.0, 'bm25': 3.0}
    """
    dense = len(scales) or 1
    words = len(parts) - len(scales) or 1
    return {part: 1 / dense if part in scales else WORDS / words for part in parts}


def can_learn(dev: Judgements) -> bool:
    """Whether there are enough queries that people judged; a weight from 30 is nearly as good as from all."""
    return dev.source == "qrels" and len(dev.queries) >= LEAST


def learn_weights(search: FusedSearch, dev: Judgements, metric: str) -> Fusion:
    """The fusion whose weights, of a small grid, give the highest mean of `metric` on judged queries.

    The first part keeps its weight, and the others are tried one after the other, twice where there are several.
    """
    scored = list(_scored(search, dev))
    weights, parts = dict(search.fusion.weights), list(search.parts)[1:]
    for part in parts * min(2, len(parts)):
        tried = {weight: _mean(scored, weights | {part: weight}, dev, metric) for weight in {*GRID, weights[part]}}
        weights[part] = max(tried, key=lambda weight: (round(tried[weight], 4), -abs(weight - weights[part]), -weight))
    return replace(search.fusion, weights=weights)


Scored = tuple[str, list[str], dict[str, np.ndarray]]
"""A query's id, its candidates, and each part's scores of them, of one scale."""


def _scored(search: FusedSearch, dev: Judgements) -> Iterator[Scored]:
    queries = search.encode_queries(list(dev.queries.values()))
    names = sorted_candidates(search.candidates(queries, search.fusion.depth))
    yield from zip(dev.queries, names, search.part_scores(queries, names), strict=True)


def _mean(scored: list[Scored], weights: Mapping[str, float], dev: Judgements, metric: str) -> float:
    run: Run = {query: _ranking(documents, scores, weights) for query, documents, scores in scored}
    values = evaluate_run(run, dev.qrels, [metric])[metric]
    return sum(values.values()) / len(values)


def _ranking(
    documents: list[str], scores: Mapping[str, np.ndarray], weights: Mapping[str, float]
) -> list[tuple[str, float]]:
    total = sum(weights[part] * own for part, own in scores.items())
    return [(documents[i], float(total[i])) for i in np.argsort(-total, kind="stable").tolist()]
