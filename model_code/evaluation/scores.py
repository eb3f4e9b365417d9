"""The score of a system for each query and metric, read from evaluation folders."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from model_code.context import StageContext, left_out_reason
from model_code.corpus.settings import GATE
from model_code.errors import FreshetError
from model_code.files import read_json

# Number of decimals of written scores. 10^-6 is much smaller than any interval, and much larger
# than rounding errors of sums, so that written files do not depend on them.
SCORE_DECIMALS = 6
EVALUATED_SPLITS = ("dev", GATE, "test")
# Name of the variant that fuses a retriever's run with that of BM25 by reciprocal rank fusion.
RRF = "rrf"
# The subfolder of a system's evaluation folder that holds the evaluation folders of its variants.
VARIANTS_FOLDER = "variants"
# Two groups of queries: those with a relevant document that has known queries, and all others.
WITH_KNOWN = "with_known"
WITHOUT_KNOWN = "without_known"
# The baseline that looks up known queries: BM25 that adds their words to their documents.
BM25_KNOWN = "bm25_known"


@dataclass(frozen=True)
class SystemScores:
    """The scores of a system on one split.

    Attributes:
        system: Name of the system.
        split: The split of judged queries that was evaluated, such as test.
        values: One row per query, in ascending order of ids, and one column per metric.
        seeds: `values` of each training, if `values` is the mean over several trainings. Otherwise
            empty.
        with_known: Ids of the queries with a relevant document that has a known query, which is a
            query that the document is known to answer. Memorising can raise scores on these
            queries. On all others, only generalisation can.
    """

    system: str
    split: str
    values: pd.DataFrame
    seeds: tuple[pd.DataFrame, ...] = ()
    with_known: frozenset[str] = frozenset()

    def runs(self, metrics: Sequence[str]) -> np.ndarray:
        """Return the scores of each training of the system, (trainings, queries, metrics)."""
        tables = self.seeds or (self.values,)
        return np.stack([table[list(metrics)].to_numpy() for table in tables])

    @property
    def queries(self) -> int:
        """Number of judged queries."""
        return len(self.values)

    def restrict_to(self, query_ids: Iterable[str]) -> SystemScores:
        """Return the scores of the given queries. Queries without scores are ignored."""
        values = self.values[self.values.index.isin(list(query_ids))]
        seeds = tuple(table.loc[values.index] for table in self.seeds)
        return replace(self, values=values, seeds=seeds)

    def by_known_queries(self) -> dict[str, SystemScores]:
        """Return the scores of the queries in `with_known`, and those of all others.

        A group without queries is left out.
        """
        others = set(self.values.index) - self.with_known
        groups = {
            WITH_KNOWN: self.restrict_to(self.with_known),
            WITHOUT_KNOWN: self.restrict_to(others),
        }
        return {name: scores for name, scores in groups.items() if scores.queries}


def load_scores(folder: Path, split: str) -> SystemScores:
    """Read one split of an evaluation folder.

    A split without judged queries has zero rows.
    """
    summary = read_json(folder / "metrics.json")
    table = pd.read_parquet(folder / "scores.parquet")
    table = table[table["split"] == split]

    values = table.pivot(index="query_id", columns="metric", values="value")
    # `pivot` sorts the metrics: restore the order in which they were written.
    metrics = list(dict.fromkeys(table["metric"]))
    values = values[metrics].rename_axis(columns=None)
    with_known = frozenset(table.loc[table[WITH_KNOWN].astype(bool), "query_id"])
    return SystemScores(summary["system"], split, values, with_known=with_known)


def load_gate_scores(folder: Path) -> SystemScores:
    """Read the scores for the gate, from the split gate, or from test if gate has no queries."""
    scores = load_scores(folder, GATE)
    if scores.queries:
        return scores
    return load_scores(folder, "test")


def evaluation_folders(context: StageContext) -> list[Path]:
    """Return the evaluation folders of all systems, each followed by the folders of its variants.

    Systems are the baselines, and the retrievers and fusions of the settings that were not left
    out.
    """
    folders = [path.parent for path in sorted(context.inputs["baselines"].glob("*/metrics.json"))]
    for name in (*context.settings["retrievers"], *context.settings["fusions"]):
        folder = context.inputs["evaluations"] / name
        if not left_out_reason(folder):
            folders.append(folder)

    with_variants: list[Path] = []
    for folder in folders:
        with_variants.append(folder)
        variants = sorted(folder.glob(f"{VARIANTS_FOLDER}/*/metrics.json"))
        with_variants.extend(path.parent for path in variants)
    return with_variants


def check_comparable(systems: Sequence[SystemScores]) -> None:
    """Check that all systems were scored on the same queries with the same metrics.

    Raises:
        FreshetError: If two systems differ in split, queries or metrics.
    """
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
                f"{pair} were scored on different queries ({len(unshared)} are not shared, such as "
                f"{unshared[0]!r}); a paired comparison needs the same ones: evaluate both again"
            )
        missing = sorted(set(first.values.columns) ^ set(other.values.columns))
        if missing:
            raise FreshetError(
                f"{pair} do not share the metrics {', '.join(missing)}; evaluate both again"
            )


# The suffix is at the end of a system's name, or before the dot of a variant's name.
SEED_SUFFIX = re.compile(r"_seed\d+(?=\.|$)")


def strip_seed(system: str) -> str:
    """Return a system's name without the suffix of its training seed.

    >>> strip_seed("hce_seed1.rrf"), strip_seed("hce")
    ('hce.rrf', 'hce')
    """
    return SEED_SUFFIX.sub("", system)


def average_over_seeds(scores: Iterable[SystemScores]) -> list[SystemScores]:
    """Average the scores of each query over the trainings of a system.

    Trainings of one system are keys under `retrievers:` that differ only in the suffix `_seedN` and
    in `seed_offset`. A test on the result compares means over trainings, query by query.

    Raises:
        FreshetError: If trainings of one system were scored on different queries or metrics.
    """
    runs_by_system: dict[str, list[SystemScores]] = {}
    for run in scores:
        runs_by_system.setdefault(strip_seed(run.system), []).append(run)

    averaged = []
    for system, runs in runs_by_system.items():
        check_comparable(runs)
        if len(runs) == 1:
            averaged.append(replace(runs[0], system=system))
            continue
        tables = tuple(run.values for run in runs)
        mean = sum(tables[1:], start=tables[0]) / len(tables)
        averaged.append(replace(runs[0], system=system, values=mean, seeds=tables))
    return averaged
