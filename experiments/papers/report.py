"""Write the results as tables: the difference of each row from its control, and the paper's claim.

The control of a part is the retriever that its other retrievers are compared with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

METRIC = "nDCG@10"
# With fewer seeds, no interval is computed, because it would be too wide to be useful.
MIN_SEEDS = 3
CONFIDENCE = 0.95


def result_tables(settings: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """Return the table of the corpora, and a table for each part that has results."""
    blocks = [_corpora_table(result["references"])]
    for part, part_settings in settings["parts"].items():
        rows = {}
        for key, row in result["rows"].items():
            row_part, _, key_in_part = key.partition("/")
            if row_part == part:
                rows[key_in_part] = row
        if rows:
            blocks.append(_part_table(part, part_settings, PartResults(part_settings, rows)))
    return "\n".join(blocks)


class PartResults:
    """The rows of a part, and their differences from the control.

    Args:
        settings: The settings of the part.
        rows: Results by corpus, name and seed, joined by slashes.
    """

    def __init__(self, settings: Mapping[str, Any], rows: Mapping[str, Any]) -> None:
        self.settings = settings
        self.rows = rows

    def values(self, corpus: str, name: str, split: str, metric: str = METRIC) -> dict[int, float]:
        """Return the metric of each seed that was measured.

        Args:
            corpus: Name of the corpus.
            name: Name of the retriever.
            split: "dev" or "test".
            metric: Name of the metric.
        """
        values = {}
        for seed in self.settings["seeds"]:
            row = self.rows.get(f"{corpus}/{name}/{seed}")
            if row is not None:
                values[seed] = row[split][metric]
        return values

    def differences(self, corpus: str, name: str) -> list[float]:
        """Return the difference in nDCG@10 on test to the control, for each seed of both."""
        values = self.values(corpus, name, "test")
        control = self.values(corpus, self.settings["control"], "test")
        return [values[seed] - control[seed] for seed in values if seed in control]

    def mean_differences(self, name: str) -> list[float]:
        """Return the difference to the control for each seed, as a mean over all corpora.

        Seeds that were not measured on all corpora are left out.
        """
        by_seed = []
        for seed in self.settings["seeds"]:
            by_corpus = []
            for corpus in self.settings["corpora"]:
                value = self.values(corpus, name, "test").get(seed)
                control = self.values(corpus, self.settings["control"], "test").get(seed)
                if value is not None and control is not None:
                    by_corpus.append(value - control)
            if len(by_corpus) == len(self.settings["corpora"]):
                by_seed.append(float(np.mean(by_corpus)))
        return by_seed

    def preferred(self) -> str | None:
        """Return the retriever with the best mean on dev; None if some results are missing."""
        means = {}
        for name in self.settings["retrievers"]:
            values: list[float] = []
            for corpus in self.settings["corpora"]:
                values.extend(self.values(corpus, name, "dev").values())
            if len(values) < len(self.settings["corpora"]) * len(self.settings["seeds"]):
                return None
            means[name] = float(np.mean(values))
        return max(means, key=lambda name: means[name])


def student_interval(differences: Sequence[float]) -> tuple[float, float] | None:
    """Return Student's t interval of the mean of one difference per seed; None below three seeds.

    >>> low, high = student_interval([0.01, 0.02, 0.03])
    >>> round(low, 4), round(high, 4)
    (-0.0048, 0.0448)
    """
    if len(differences) < MIN_SEEDS:
        return None
    mean = float(np.mean(differences))
    standard_error = float(stats.sem(differences))
    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(differences) - 1))
    half_width = standard_error * quantile
    return mean - half_width, mean + half_width


def _corpora_table(references: Mapping[str, Any]) -> str:
    """Return the table of the corpora, with BM25 and the base encoder as references."""
    lines = [
        "| corpus | documents | train, dev, test queries | bm25 | zero_shot |",
        "|---|---|---|---|---|",
    ]
    for name, row in references.items():
        counts = [row["queries"][split] for split in ("train", "dev", "test")]
        queries = ", ".join(f"{count:,}" for count in counts)
        bm25 = _short(row["bm25"]["test"][METRIC])
        zero_shot = _short(row["zero_shot"]["test"][METRIC])
        lines.append(f"| {name} | {row['documents']:,} | {queries} | {bm25} | {zero_shot} |")
    return "\n".join(lines) + "\n"


def _part_table(part: str, settings: Mapping[str, Any], results: PartResults) -> str:
    """Return the table of a part: each retriever on each corpus, and its difference to the control.

    Args:
        part: Name of the part.
        settings: Settings of the part.
        results: Results of the part.
    """
    control = settings["control"]
    lines = [
        f"**{part}**. The paper: {settings['claim']}.",
        "",
        f"| corpus | row | seeds | dev | test | hit@1 | less {control} |",
        "|---|---|---|---|---|---|---|",
    ]
    for corpus in settings["corpora"]:
        for name in settings["retrievers"]:
            dev = results.values(corpus, name, "dev")
            if not dev:
                continue
            test = _mean(results.values(corpus, name, "test"))
            hit_at_1 = _mean(results.values(corpus, name, "test", "hit@1"))
            difference = "" if name == control else _difference(results.differences(corpus, name))
            lines.append(
                f"| {corpus} | {name} | {len(dev)} | {_mean(dev)} | {test} | {hit_at_1} "
                f"| {difference} |"
            )
            lines.extend(_variant_lines(corpus, name, results))

    if len(settings["corpora"]) > 1:
        for name in settings["retrievers"]:
            differences = results.mean_differences(name)
            if name != control and differences:
                lines.append(
                    f"| all | {name} | {len(differences)} | | | | {_difference(differences)} |"
                )
    preferred = results.preferred()
    if preferred is not None and len(settings["retrievers"]) > 2:
        lines.extend(["", f"Dev prefers `{preferred}`."])
    levels = _level_lines(settings, results)
    return "\n".join([*lines, *levels]) + "\n"


def _variant_lines(corpus: str, name: str, results: PartResults) -> list[str]:
    """Return a line for each variant of the search, with the encoder of the first seed."""
    first_seed = results.settings["seeds"][0]
    row = results.rows.get(f"{corpus}/{name}/{first_seed}")
    if row is None:
        return []
    lines = []
    for variant, metrics in row["variants"].items():
        cells = [_short(metrics["dev"][METRIC]), _short(metrics["test"][METRIC])]
        cells.append(_short(metrics["test"]["hit@1"]))
        lines.append(f"| {corpus} | {name}.{variant} | 1 | {' | '.join(cells)} | |")
    return lines


def _level_lines(settings: Mapping[str, Any], results: PartResults) -> list[str]:
    """Return the table of the hierarchy losses at the beginning and the end of training."""
    lines = []
    for name in settings["retrievers"]:
        changes = []
        for corpus in settings["corpora"]:
            row = results.rows.get(f"{corpus}/{name}/{settings['seeds'][0]}")
            if row is None or "hierarchy_1" not in row["first_losses"]:
                continue
            levels = [level for level in row["first_losses"] if level.startswith("hierarchy_")]
            first = " ".join(f"{row['first_losses'][level]:.2f}" for level in levels)
            last = " ".join(f"{row['last_losses'][level]:.2f}" for level in levels)
            changes.append(f"{corpus} {first} to {last}")
        if changes:
            lines.append(f"| {name} | {'; '.join(changes)} |")
    if not lines:
        return []
    head = ["", "| row | loss of each level, first to last steps, first seed |", "|---|---|"]
    return [*head, *lines]


def _mean(values: Mapping[int, float]) -> str:
    return _short(float(np.mean(list(values.values()))))


def _difference(differences: Sequence[float]) -> str:
    """Return the mean of one difference per seed, with its interval if there are enough seeds."""
    if not differences:
        return ""
    mean = _signed(float(np.mean(differences)))
    interval = student_interval(differences)
    if interval is None:
        return f"{mean}, one training" if len(differences) == 1 else mean
    low, high = interval
    return f"{mean} [{_signed(low)}, {_signed(high)}]"


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("0.", ".")


def _short(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")
