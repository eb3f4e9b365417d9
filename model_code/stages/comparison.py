"""The stage `comparison`: all systems on the same queries, as numbers (JSON, CSV), tables (Markdown, HTML), plots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model_code.context import StageContext, left_out
from model_code.corpus.tables import Corpus, load_corpus
from model_code.errors import FreshetError
from model_code.evaluation import plots
from model_code.evaluation.comparison import (
    FAMILY,
    compare_groups,
    compare_systems,
    is_variant,
    query_groups,
    telling_queries,
)
from model_code.evaluation.plots import History, Picture, level_table, recall_table, training_table
from model_code.evaluation.report import headline_metrics, make_report
from model_code.evaluation.runs import read_run
from model_code.evaluation.scores import SystemScores, load_all_scores
from model_code.files import read_json, write_json, write_text

SHOWN = 3  # documents of a ranking in the report


def run(context: StageContext) -> dict[str, Any]:
    """Compare the baselines (folders below `inputs["baselines"]`) with the settings' retrievers and fusions.

    The variants that lie in a system's evaluation folder are systems, too, called `R.NAME`.
    `inputs["evaluations"]` holds one evaluation folder for each of them and `inputs["histories"]` one `history.json`;
    `inputs["corpus"]` tells which test queries have unseen documents.
    `comparison.json` is what `comparison.compare_systems` returns on the test queries (on dev, if there are none), with
    "groups" and "dev" holding the same for parts of them and for the dev queries, and "examples" queries won and lost.
    """
    comparison = compare(context)
    histories = {name: read_json(context.inputs["histories"] / name / "history.json") for name in _retrievers(context)}
    pictures = _pictures(comparison, histories)
    report = make_report(comparison, pictures)
    write_json(context.output / "comparison.json", comparison)
    write_json(context.output / "metrics.json", _headline(comparison))
    write_text(context.output / "comparison.md", report.markdown())
    write_text(context.output / "comparison.html", report.html())
    for picture in pictures:
        (context.output / f"{picture.name}.png").write_bytes(picture.png)
    _write_tables(comparison, histories, context.output)
    return _summary(comparison)


def compare(context: StageContext) -> dict[str, Any]:
    """The content of `comparison.json`."""
    settings, seed = context.settings["evaluation"], context.settings["seed"]
    systems, dev = _load_systems(context)
    corpus, first = load_corpus(context.inputs["corpus"]), systems[0]
    qrels = corpus.qrels
    groups = query_groups(qrels, first.split, first.values.index) if first.source == "qrels" else {}
    folders = {name: context.inputs["evaluations"] / name for name in _named(context)}
    facts = {
        "left_out": {name: reason for name, folder in folders.items() if (reason := left_out(folder))},
        "main_metric": settings.main_metric,
        "documents": len(corpus.documents),
        "confidence": settings.confidence,
        "bootstrap_samples": settings.bootstrap_samples,
        "permutations": settings.permutations,
        "family": FAMILY,
    }
    return (
        facts
        | compare_systems(systems, settings, seed)
        | {
            "groups": compare_groups(systems, groups, settings, seed),
            "dev": compare_systems(dev, settings, seed) if dev else {},
            "examples": _examples(context, systems, corpus, settings.main_metric),
        }
    )


def _examples(context: StageContext, systems: list[SystemScores], corpus: Corpus, metric: str) -> dict[str, Any]:
    """What the best system found for the queries that it won and lost by most against the next best, and what that
    one found; none with a single system. A relevant document is marked where the corpus's qrels name it."""
    ranked = sorted(
        (one for one in systems if not is_variant(one.system)), key=lambda one: (-one.values[metric].mean(), one.system)
    )
    if len(ranked) < 2:
        return {}
    pair = ranked[:2]
    runs = {one.system: read_run(_folder(context, one.system) / f"run.{one.split}.trec") for one in pair}
    texts = dict(zip(corpus.queries["query_id"], corpus.queries["text"], strict=True))
    relevant = set(zip(corpus.qrels["query_id"], corpus.qrels["document_id"], strict=True))

    def row(query: str, difference: float) -> dict[str, Any]:
        first = {
            name: [[document, (query, document) in relevant] for document, _ in run.get(query, [])[:SHOWN]]
            for name, run in runs.items()
        }
        return {"query": texts.get(query, query), "difference": difference, "first": first}

    told = telling_queries(*pair, metric)
    return {"system": pair[0].system, "reference": pair[1].system} | {
        name: [row(*one) for one in part] for name, part in told.items()
    }


def _folder(context: StageContext, system: str) -> Path:
    own = context.inputs["evaluations"] / system
    return own if own.is_dir() else context.inputs["baselines"] / system


def _retrievers(context: StageContext) -> list[str]:
    return [name for name in context.settings["retrievers"] if not left_out(context.inputs["histories"] / name)]


def _named(context: StageContext) -> tuple[str, ...]:
    """The retrievers and fusions of the settings, left out or not."""
    return *context.settings["retrievers"], *context.settings["fusions"]


def _load_systems(context: StageContext) -> tuple[list[SystemScores], list[SystemScores]]:
    """Each system's scores on the split to report, test if it has queries and else dev, and on dev beside test."""
    evaluations = [path.parent for path in sorted(context.inputs["baselines"].glob("*/metrics.json"))]
    built = [context.inputs["evaluations"] / name for name in _named(context)]
    evaluations += [folder for folder in built if not left_out(folder)]
    test, dev = (
        [scores for folder in evaluations for scores in load_all_scores(folder, split)] for split in ("test", "dev")
    )
    if test[0].queries:
        return test, dev if dev[0].queries else []
    if dev[0].queries:
        return dev, []
    raise FreshetError("no judged dev or test queries: give the corpus qrels, or raise pseudo_queries' held-out share")


def _pictures(comparison: dict[str, Any], histories: dict[str, History]) -> list[Picture]:
    systems, main, lines = comparison["systems"], comparison["main_metric"], _without_variants(comparison)
    drawn = [
        plots.metrics_plot(systems, headline_metrics(main, list(next(iter(systems.values()))))),
        plots.differences_plot(comparison["differences"], main),
        plots.recall_plot(lines),
        plots.levels_plot(lines),
        plots.training_plot(histories, list(systems)),
    ]
    return [picture for picture in drawn if picture]


def _without_variants(comparison: dict[str, Any]) -> dict[str, Any]:
    """What lines are drawn for: each variant as one more would hide the others."""
    return {name: metrics for name, metrics in comparison["systems"].items() if not is_variant(name)}


def _headline(comparison: dict[str, Any]) -> dict[str, dict[str, float]]:
    """System -> metric -> mean, few enough to read in `dvc metrics`: the main metric of each, and all of the best's.

    Variants are left out, as they are never registered.
    """
    main, systems = comparison["main_metric"], _without_variants(comparison)
    best = max(systems, key=lambda name: systems[name][main]["value"])
    return {
        name: {metric: cell["value"] for metric, cell in metrics.items() if metric == main or name == best}
        for name, metrics in systems.items()
    }


def _write_tables(comparison: dict[str, Any], histories: dict[str, History], output: Path) -> None:
    tables = {
        "recall": recall_table(_without_variants(comparison)),
        "levels": level_table(_without_variants(comparison)),
        "training": training_table(histories),
    }
    for name, table in tables.items():
        table.to_csv(output / f"{name}.csv", index=False, lineterminator="\n")


def _summary(comparison: dict[str, Any]) -> dict[str, Any]:
    main = comparison["main_metric"]
    values = {name: metrics[main]["value"] for name, metrics in comparison["systems"].items()}
    facts = {key: comparison[key] for key in ("split", "source", "queries", "main_metric")}
    return facts | {"best": max(values, key=lambda name: values[name]), "values": values}
