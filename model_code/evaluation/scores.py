"""One system's score for each query and metric, as it is kept in an evaluation folder and compared
with others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from model_code.context import StageContext, left_out_reason
from model_code.corpus.settings import GATE
from model_code.errors import FreshetError
from model_code.files import read_json

# of values that are written down; far below any interval, far above the rounding of sums
SCORE_DECIMALS = 6
EVALUATED_SPLITS = ("dev", GATE, "test")
RRF = "rrf"  # the variant that fuses a retriever's run with BM25's by reciprocal ranks
# the folder, in a system's evaluation folder, that holds those of its variants
VARIANTS_FOLDER = "variants"


@dataclass(frozen=True)
class SystemScores:
    """Scores of a system on `split`: `values` has one row per query (ascending ids) and one column
    per metric.
    """

    system: str
    split: str
    values: pd.DataFrame
    # `values` of each training seed, where they are the mean over several
    seeds: tuple[pd.DataFrame, ...] = ()

    def runs(self, metrics: Sequence[str]) -> np.ndarray:
        """The scores of each seed, (seeds, queries, metrics)."""
        return np.stack([run[list(metrics)].to_numpy() for run in self.seeds or (self.values,)])

    @property
    def queries(self) -> int:
        """Number of judged queries."""
        return len(self.values)

    def only(self, query_ids: Sequence[str]) -> SystemScores:
        """The scores on a part of the queries."""
        values = self.values[self.values.index.isin(list(query_ids))]
        seeds = tuple(run.loc[values.index] for run in self.seeds)
        return SystemScores(self.system, self.split, values, seeds)


def load_scores(folder: Path, split: str) -> SystemScores:
    """Read one split of an evaluation folder; a split without judged queries gives zero rows."""
    summary = read_json(folder / "metrics.json")
    long = pd.read_parquet(folder / "scores.parquet")
    long = long[long["split"] == split]
    values = long.pivot(index="query_id", columns="metric", values="value")
    # in the order written, which pivot sorts away
    values = values[list(dict.fromkeys(long["metric"]))]
    return SystemScores(summary["system"], split, values.rename_axis(columns=None))


def load_gate_scores(folder: Path) -> SystemScores:
    """`load_scores` of the queries that promotions are judged by: the gate's own, or the test
    queries without any.
    """
    gate = load_scores(folder, GATE)
    return gate if gate.queries else load_scores(folder, "test")


def evaluation_folders(context: StageContext) -> list[Path]:
    """The evaluation folders of the baselines and of the settings' retrievers and fusions, each
    followed by those of its variants; none of what was left out.
    """
    folders = [path.parent for path in sorted(context.inputs["baselines"].glob("*/metrics.json"))]
    built = [
        context.inputs["evaluations"] / name
        for name in (*context.settings["retrievers"], *context.settings["fusions"])
    ]
    folders += [folder for folder in built if not left_out_reason(folder)]
    variants = f"{VARIANTS_FOLDER}/*/metrics.json"
    return [
        path.parent
        for folder in folders
        for path in (folder / "metrics.json", *sorted(folder.glob(variants)))
    ]


def check_comparable(systems: Sequence[SystemScores]) -> None:
    """Refuse systems not scored on the same queries by the same metrics."""
    first = systems[0]
    for other in systems[1:]:
        pair = f"{first.system!r} and {other.system!r}"
        if first.split != other.split:
            raise FreshetError(
                f"{pair} were scored on different splits, {first.split} and {other.split}"
            )
        if not first.values.index.equals(other.values.index):
            unshared = first.values.index.symmetric_difference(other.values.index)
            raise FreshetError(
                f"{pair} were scored on different queries ({len(unshared)} are not shared, such as {unshared[0]!r}); "
                "a paired comparison needs the same ones: evaluate both again"
            )
        missing = sorted(set(first.values.columns) ^ set(other.values.columns))
        if missing:
            raise FreshetError(
                f"{pair} do not share the metrics {', '.join(missing)}; evaluate both again"
            )


SEED = re.compile(r"_seed\d+(?=\.|$)")  # before the dot that a variant's name follows


def strip_seed(system: str) -> str:
    """What a system is whatever its training seed.

    >>> strip_seed("hce_seed1.rrf"), strip_seed("hce")
    ('hce.rrf', 'hce')
    """
    return SEED.sub("", system)


def average_over_seeds(scores: Iterable[SystemScores]) -> list[SystemScores]:
    """Each system once, whose keys under `retrievers:` differ in `_seedN` at their end (and in
    `seed_offset`).

    A query's score is the mean over the seeds. Intervals on the result are over queries and seeds;
    tests are over queries, for the mean of these seeds.
    """
    groups: dict[str, list[SystemScores]] = {}
    for run in scores:
        groups.setdefault(strip_seed(run.system), []).append(run)
    averaged = []
    for system, runs in groups.items():
        check_comparable(runs)
        total = sum((run.values for run in runs[1:]), start=runs[0].values)
        seeds = tuple(run.values for run in runs[1:] and runs)
        averaged.append(SystemScores(system, runs[0].split, total / len(runs), seeds))
    return averaged
