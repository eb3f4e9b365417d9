"""Stage `comparison`: compare all systems on the same queries, as numbers and as a picture.

`freshet results` makes its report from the output of this stage. The state of the live collection
and the costs of systems are not in the output, because they do not follow from the stage's inputs.
"""

from __future__ import annotations

from typing import Any

from model_code.context import StageContext
from model_code.stages.stage import Stage, artifact_paths, code_paths

STAGE = Stage(
    name="comparison",
    description="All systems on the same queries: intervals, paired tests with Holm's "
    "correction, and a picture.",
    groups=("evaluation", "fusions", "retrievers", "seed"),
    inputs=artifact_paths("corpus", "baselines", evaluations="artifacts/evaluate"),
    output="artifacts/comparison",
    code=code_paths("corpus", "evaluation", "retrieval", "stages/system_comparison.py", "text"),
)
# Number of metrics in the picture, which has one panel for each metric.
MAX_PLOTTED_METRICS = 4


def run(context: StageContext) -> dict[str, Any]:
    """Compare the baselines, the retrievers and fusions of the settings, and the variants of each.

    A variant of the system `R` is called `R.NAME`. Systems called `R_seed1`, `R_seed2` and so on
    are further trainings of `R` with other random seeds; their scores are averaged with those of
    `R`. `inputs["baselines"]` and `inputs["evaluations"]` hold one evaluation folder per system.

    The stage writes `comparison.json` (see `system_comparison.compare`), `comparison.png`, and
    `metrics.json`. The last file has only a few numbers, so that `dvc metrics` stays readable.

    Returns:
        The best system, and the main metric of each system.
    """
    from model_code.evaluation.plots import systems_plot
    from model_code.evaluation.report import headline_metrics
    from model_code.files import write_json
    from model_code.stages.system_comparison import compare, select_headline, summarize

    comparison = compare(context)
    write_json(context.output / "comparison.json", comparison)
    write_json(context.output / "metrics.json", select_headline(comparison))
    if comparison["systems"]:
        metrics = headline_metrics(comparison)[:MAX_PLOTTED_METRICS]
        picture = systems_plot(comparison["systems"], metrics)
        (context.output / "comparison.png").write_bytes(picture)
    return summarize(comparison)


def check(context: StageContext) -> None:
    """Check that the comparison covers exactly the systems that were evaluated.

    This must hold for all queries together, and for each group of queries that is reported.

    The means in `metrics.json` must equal those in `comparison.json`. Without judged queries,
    nothing may be compared.
    """
    from model_code.checks.rules import require, require_files, require_same_names
    from model_code.evaluation.comparison import is_variant
    from model_code.evaluation.scores import evaluation_folders, strip_seed
    from model_code.files import read_json

    comparison = read_json(context.output / "comparison.json")
    headline = read_json(context.output / "metrics.json")
    has_judged_queries = comparison["queries"] > 0
    if not has_judged_queries:
        require(
            not comparison["systems"] and not headline,
            "no query is judged, so no system may be compared",
        )
        return
    require_files(context.output, ["comparison.png"])

    expected = set()
    for folder in evaluation_folders(context):
        expected.add(strip_seed(read_json(folder / "metrics.json")["system"]))
    main_metric = context.settings["evaluation"].main_metric
    _check_systems("comparison.json", comparison, expected, main_metric)
    for name, group in comparison["groups"].items():
        _check_systems(f"comparison.json, queries {name!r}", group, expected, main_metric)

    plain_systems = {name for name in expected if not is_variant(name)}
    require_same_names("metrics.json: the systems", headline, plain_systems)
    for name, values in headline.items():
        cells = comparison["systems"][name]
        means = {metric: cell["value"] for metric, cell in cells.items()}
        require(
            main_metric in values and values.items() <= means.items(),
            "metrics.json must hold the means of comparison.json",
        )


def _check_systems(
    place: str, comparison: dict[str, Any], expected: set[str], main_metric: str
) -> None:
    """Check the systems of a comparison, and that each mean lies within its interval.

    Each expected system must be there with the main metric, and no other system may be.
    """
    from model_code.checks.rules import require, require_same_names

    require_same_names(f"{place}: the systems that were evaluated", comparison["systems"], expected)
    for system, metrics in comparison["systems"].items():
        require(
            main_metric in metrics, f"{place}: {system} must have the main metric {main_metric}"
        )
        outside_interval = []
        for name, cell in metrics.items():
            is_inside = cell["low"] <= cell["value"] <= cell["high"]
            if not is_inside:
                outside_interval.append(name)
        require(
            not outside_interval,
            f"{place}: {system}: {', '.join(outside_interval)} must lie within its interval",
        )
