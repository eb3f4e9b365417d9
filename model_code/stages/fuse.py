"""Stage `fuse`, once per fusion: several finished retrievers as one, with learned weights, and
evaluated.

Weights are learned on dev queries that people judged. Where there are too few, they stay as they
are by default: titles and first sentences of documents, asked as if they were queries, chose no
better (`experiments/untrained_weights`).

Output: an evaluation folder like that of `evaluate`, and below `build/` the retriever that was
evaluated. `variants/` tells the share of each part and of late interaction: the fusion without it,
with weights of its own, if that is one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from model_code.context import StageContext, left_out_reason, mark_left_out
from model_code.corpus.tables import Judgements
from model_code.errors import FreshetError
from model_code.evaluation.metrics import Run, evaluate_run
from model_code.evaluation.scores import VARIANTS_FOLDER
from model_code.evaluation.system_evaluation import sample_queries
from model_code.files import add_to_manifest
from model_code.retrieval.fused import (
    FusedSearch,
    Fusion,
    ScoreNormalizer,
    build_folders,
    leave_one_out,
)
from model_code.retrieval.indexed import IndexedRetriever
from model_code.retrieval.kinds import PRECISION, open_retriever
from model_code.retrieval.protocol import LATE_SUFFIX, Retriever
from model_code.retriever_settings import FusionSettings
from model_code.stages.evaluate import EvaluationSet

BUILD = "build"  # in an evaluation folder: the retriever, where no other stage leaves one
GRID = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0)
# what parts of a kind weigh together, until that is learned
SHARED = {"dense": 1.0, "words": 5.0, "late": 1.0}
LEAST, MOST = 30, 1000  # queries that weights are learned from
Folders = tuple[Path, Path]  # of an encoder and an index


def run(context: StageContext) -> dict[str, Any]:
    """Fuse the parts that `settings["fusion"]` names, found in `trained`, `indexes` and
    `baselines`; evaluate it.
    """
    settings: FusionSettings = context.settings["fusion"]
    for name in settings.of:
        if reason := left_out_reason(context.inputs["trained"] / name):
            return mark_left_out(context.output, reason)
    parts = {name: _folders(context, name) for name in settings.of}
    return fuse(
        EvaluationSet.load(context), str(context.name), parts, settings, context, context.output
    )


def _folders(context: StageContext, part: str) -> Folders:
    build = context.inputs["baselines"] / part / BUILD
    if build.is_dir():
        return build / "encoder", build / "index"
    return context.inputs["trained"] / part / "encoder", context.inputs["indexes"] / part / "index"


def fuse(
    bench: EvaluationSet,
    name: str,
    parts: Mapping[str, Folders],
    settings: FusionSettings,
    context: StageContext,
    output: Path,
) -> dict[str, Any]:
    """Build the fusion of `parts` below `output`, evaluate it there and without each part, and
    return its report.
    """
    opened = {
        part: open_retriever(*folders, settings=context.settings["encoder"])
        for part, folders in parts.items()
    }
    judged = {part: bench.strip_own_queries(retriever) for part, retriever in opened.items()}
    dense = {
        part: retriever.dense for part, retriever in opened.items() if retriever.dense is not None
    }
    late = [part + LATE_SUFFIX for part, retriever in dense.items() if retriever.index.tokens]
    names = [*settings.weights] or [*settings.of, *late]
    if missing := [part for part in names if part.endswith(LATE_SUFFIX) and part not in late]:
        raise FreshetError(
            f"fusions.{name} weighs {missing[0]}, but that part's index keeps no tokens; leave it out"
        )
    weigh = partial(_weighted_fusion, bench, opened, judged, settings)
    fusion, learned_by = weigh(names)
    subsets = leave_one_out(list(fusion.weights)) if bench.settings.variants else {}
    ablations = {f"without_{part}": weigh(subset)[0] for part, subset in subsets.items()}
    encoder, index = output / BUILD / "encoder", output / BUILD / "index"
    build_folders(parts, fusion, encoder, index)
    add_to_manifest(index, {PRECISION: context.settings["encoder"].precision})
    report = bench.evaluate(name, bench.search(FusedSearch(judged, fusion).search), output)
    report |= {"weights": dict(fusion.weights), "learned_by": learned_by}
    variants = {}
    for without, ablation in ablations.items():
        runs = bench.search(FusedSearch(judged, ablation).search)
        variants[without] = bench.evaluate(
            f"{name}.{without}", runs, output / VARIANTS_FOLDER / without
        )
    return report | ({"variants": variants} if variants else {})


def _weighted_fusion(
    bench: EvaluationSet,
    opened: Mapping[str, IndexedRetriever],
    judged: Mapping[str, Retriever],
    settings: FusionSettings,
    names: Sequence[str],
) -> tuple[Fusion, str | None]:
    """The fusion of `names`, and who taught it its weights; None: they are the settings' or the
    default ones.
    """
    dense = {part: opened[part].dense for part in opened if part in names}
    scales = {
        part: ScoreNormalizer.fit(retriever.index.vectors)
        for part, retriever in dense.items()
        if retriever is not None
    }
    weights = {name: settings.weights.get(name, 0.0) for name in names}
    weights = weights if any(weights.values()) else default_weights(names, scales)
    fusion = Fusion(weights, scales, settings.depth, settings.feedback)
    dev = bench.judgements["dev"]
    if settings.weights or dev.source != "qrels" or len(dev.queries) < LEAST:
        return fusion, None
    queries = sample_queries(dev, MOST)  # a weight from 30 is nearly as good as from all
    return learn_weights(
        FusedSearch(judged, fusion), queries, bench.settings.main_metric
    ), dev.source


def default_weights(
    names: Sequence[str], scales: Mapping[str, ScoreNormalizer]
) -> dict[str, float]:
    """What dense parts, parts that match words, and late interaction weigh together, shared by
    those that there are.

    >>> default_weights(("hce", "bm25", "hce.late"), {"hce": None})
    {'hce': 1.0, 'bm25': 5.0, 'hce.late': 1.0}
    """
    kinds = {
        name: "dense" if name in scales else "late" if name.endswith(LATE_SUFFIX) else "words"
        for name in names
    }
    shared = Counter(kinds.values())
    return {name: SHARED[kind] / shared[kind] for name, kind in kinds.items()}


def learn_weights(search: FusedSearch, dev: Judgements, metric: str) -> Fusion:
    """The fusion whose weights, of a small grid, give the highest mean of `metric` on judged
    queries.

    The first part keeps its weight, and the others are tried one after the other, twice where there
    are several. Late interaction begins at 0, moves where that gains more than its standard error,
    and is left out if it stays there.
    """
    queries = search.encode_queries(list(dev.queries.values()))
    scores = search.component_scores(queries, queries.candidates)
    scored, weights = (
        list(zip(dev.queries, queries.candidates, scores, strict=True)),
        dict(search.fusion.weights),
    )
    late, parts = [name for name in weights if name.endswith(LATE_SUFFIX)], list(weights)[1:]
    weights |= dict.fromkeys(late, 0.0)
    for part in parts * min(2, len(parts)):
        tried = {
            weight: _values(scored, weights | {part: weight}, dev, metric)
            for weight in {*GRID, weights[part]}
        }
        means = {weight: round(float(values.mean()), 4) for weight, values in tried.items()}
        best = max(tried, key=lambda weight: (means[weight], -abs(weight - weights[part]), -weight))
        gains = tried[best] - tried[weights[part]]
        if part not in late or gains.mean() > gains.std() / len(gains) ** 0.5:
            weights[part] = best
    nonzero = {name: weight for name, weight in weights.items() if weight or name not in late}
    return replace(search.fusion, weights=nonzero)


Scored = tuple[str, list[str], dict[str, np.ndarray]]
"""A query's id, its candidates, and each part's scores of them, of one scale."""


def _values(
    scored: list[Scored], weights: Mapping[str, float], dev: Judgements, metric: str
) -> np.ndarray:
    """The metric of each query (q,)."""
    run: Run = {}
    for query, documents, scores in scored:
        total = sum(weights[part] * part_scores for part, part_scores in scores.items())
        run[query] = [
            (documents[i], float(total[i])) for i in np.argsort(-total, kind="stable").tolist()
        ]
    return np.array(list(evaluate_run(run, dev.qrels, [metric])[metric].values()))
