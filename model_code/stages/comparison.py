"""The stage `comparison`: all systems on the same queries, as numbers and as a picture.

`freshet results` makes the report of it, beside what is live and what systems cost, which are no
functions of inputs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model_code.context import StageContext, left_out_reason
from model_code.corpus.tables import Corpus, load_corpus
from model_code.evaluation.comparison import (
    compare_systems,
    is_variant,
    most_changed_queries,
    query_groups,
)
from model_code.evaluation.plots import systems_plot
from model_code.evaluation.report import headline_metrics
from model_code.evaluation.runs import read_run
from model_code.evaluation.scores import (
    SystemScores,
    average_over_seeds,
    evaluation_folders,
    load_scores,
)
from model_code.files import write_json

SHOWN = 3  # documents of a ranking in the report
NOTHING: dict[str, Any] = {
    "split": "test",
    "queries": 0,
    "systems": {},
    "differences": [],
    "groups": {},
    "examples": {},
}


def run(context: StageContext) -> dict[str, Any]:
    """Compare the baselines (folders below `inputs["baselines"]`) with the settings' retrievers and
    fusions.

    The variants that lie in a system's evaluation folder are systems, too, called `R.NAME`.
    `R_seed1` and so on are further trainings of `R`, and one row with it. `inputs["evaluations"]`
    holds one evaluation folder for each of them; `inputs["corpus"]` tells which test queries have
    unseen documents. `comparison.json` is what `comparison.compare_systems` returns on the test
    queries (on dev, if there are none), with "groups" holding the same for parts of them, and
    "examples" queries won and lost.
    """
    comparison = compare(context)
    write_json(context.output / "comparison.json", comparison)
    write_json(context.output / "metrics.json", _headline(comparison))
    if comparison["systems"]:
        picture = systems_plot(comparison["systems"], headline_metrics(comparison)[:4])
        (context.output / "comparison.png").write_bytes(picture)
    return _summary(comparison)


def compare(context: StageContext) -> dict[str, Any]:
    """The content of `comparison.json`."""
    settings, seed = context.settings["evaluation"], context.settings["seed"]
    systems, corpus = _load_systems(context), load_corpus(context.inputs["corpus"])
    named = (*context.settings["retrievers"], *context.settings["fusions"])
    folders = {name: context.inputs["evaluations"] / name for name in named}
    facts = {
        "left_out": {
            name: reason for name, folder in folders.items() if (reason := left_out_reason(folder))
        },
        "main_metric": settings.main_metric,
        "documents": len(corpus.documents),
        "confidence": settings.confidence,
        "seeds": {system.system: len(system.seeds) for system in systems if system.seeds},
    }
    if not systems:
        return facts | NOTHING
    groups = query_groups(corpus.qrels, systems[0].split, systems[0].values.index)
    parts = {
        "groups": {
            name: compare_systems(
                [system.restrict_to(queries) for system in systems], settings, seed
            )
            for name, queries in groups.items()
        },
        "examples": _examples(context, systems, corpus, settings.main_metric),
    }
    return facts | compare_systems(systems, settings, seed) | parts


def _examples(
    context: StageContext, systems: list[SystemScores], corpus: Corpus, metric: str
) -> dict[str, Any]:
    """What the best system found for the queries that it won and lost by most against the next
    best, and what that one found; none with a single system. A relevant document is marked where
    the corpus's qrels name it.
    """
    plain = [scores for scores in systems if not is_variant(scores.system)]
    ranked = sorted(plain, key=lambda scores: (-scores.values[metric].mean(), scores.system))
    if len(ranked) < 2:
        return {}
    pair = ranked[:2]
    runs = {
        scores.system: read_run(_folder(context, scores.system) / f"run.{scores.split}.trec")
        for scores in pair
    }
    texts = dict(zip(corpus.queries["query_id"], corpus.queries["text"], strict=True))
    relevant = set(zip(corpus.qrels["query_id"], corpus.qrels["document_id"], strict=True))

    def row(query: str, difference: float) -> dict[str, Any]:
        first = {
            name: [
                [document, (query, document) in relevant]
                for document, _ in run.get(query, [])[:SHOWN]
            ]
            for name, run in runs.items()
        }
        return {"query": texts.get(query, query), "difference": difference, "first": first}

    outcomes = {
        name: [row(*each) for each in queries]
        for name, queries in most_changed_queries(*pair, metric).items()
    }
    return {"system": pair[0].system, "reference": pair[1].system} | outcomes


def _folder(context: StageContext, system: str) -> Path:
    folder = context.inputs["evaluations"] / system
    return folder if folder.is_dir() else context.inputs["baselines"] / system


def _load_systems(context: StageContext) -> list[SystemScores]:
    """Each system, over its seeds, on the split to report: test if it has queries, else dev; []
    without any.
    """
    for split in ("test", "dev"):
        systems = [load_scores(folder, split) for folder in evaluation_folders(context)]
        if systems[0].queries:
            return average_over_seeds(systems)
    return []


def _headline(comparison: dict[str, Any]) -> dict[str, dict[str, float]]:
    """System -> metric -> mean, few enough to read in `dvc metrics`: the main metric of each, and
    all of the best's.

    Variants are left out, as they are never registered.
    """
    main = comparison["main_metric"]
    systems = {
        name: metrics for name, metrics in comparison["systems"].items() if not is_variant(name)
    }
    best = max(systems, key=lambda name: systems[name][main]["value"], default=None)
    return {
        name: {
            metric: cell["value"]
            for metric, cell in metrics.items()
            if metric == main or name == best
        }
        for name, metrics in systems.items()
    }


def _summary(comparison: dict[str, Any]) -> dict[str, Any]:
    main = comparison["main_metric"]
    values = {name: metrics[main]["value"] for name, metrics in comparison["systems"].items()}
    facts = {key: comparison[key] for key in ("split", "queries", "main_metric")}
    return facts | {
        "best": max(values, key=lambda name: values[name], default=None),
        "values": values,
    }
