"""Summarize the measurements of all seeds: means, differences to retraining, and costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from experiments.time_machine.stream import Stream
from model_code.evaluation.significance import MIN_SEEDS, interval_over_seeds

RETRAIN = "retrain"
MEANS = ("everything", "arrived", "just_arrived", "changelog")
CONFIDENCE = 0.95
# Number of steps from which an interval is computed.
MIN_STEPS = 2
# Smallest cost that is divided by, in seconds.
SMALLEST_COST = 1e-9

Rows = Sequence[Mapping[str, Any]]


def summarize(
    stream: Stream, measured: Mapping[str, Mapping[str, Rows]], labels: Mapping[str, str]
) -> dict[str, Any]:
    """Return the result of a stream as plain JSON.

    Args:
        stream: The stream.
        measured: Measurements by seed and policy.
        labels: Names of the policies in the picture.
    """
    seeds = sorted(measured, key=int)
    reached = trim(measured)
    summary: dict[str, Any] = {}
    for policy in labels:
        policy_seeds = [seed for seed in seeds if policy in measured[seed]]
        if not policy_seeds:
            continue
        row = summarize_policy([reached[seed][policy] for seed in policy_seeds])
        summary[policy] = row

        # Policies are compared with retraining by the seeds that both have.
        common_seeds = [seed for seed in policy_seeds if RETRAIN in measured[seed]]
        if not common_seeds or policy == RETRAIN:
            continue
        rows_by_seed = [reached[seed][policy] for seed in common_seeds]
        retrain_rows = [reached[seed][RETRAIN] for seed in common_seeds]
        row["less retrain"] = {
            name: compare(rows_by_seed, retrain_rows, name) for name in ("everything", "arrived")
        }
        share = mean_cost(rows_by_seed) / max(mean_cost(retrain_rows), SMALLEST_COST)
        row["share of its seconds"] = round(share, 4)
    return {
        "stream": stream.name,
        "documents": [len(documents) for documents in stream.states()],
        "queries": len(stream.queries),
        "steps": min(len(rows) for rows in reached[seeds[0]].values()) - 1,
        "trainings": len(seeds),
        "labels": dict(labels),
        "summary": summary,
        "seeds": {seed: dict(measured[seed]) for seed in seeds},
    }


def summarize_policy(rows_by_seed: Sequence[Rows]) -> dict[str, Any]:
    """Return means over all steps after the first day, and the total work per replay.

    Args:
        rows_by_seed: Measurements of each seed, the first day first.
    """
    later = []
    for rows in rows_by_seed:
        later.extend(rows[1:])
    values: dict[str, Any] = {"trainings": len(rows_by_seed)}
    for name in MEANS:
        numbers = [row[name] for row in later if row[name] is not None]
        values[name] = round(float(np.mean(numbers)), 4) if numbers else None
    values["seconds"] = round(mean_cost(rows_by_seed), 1)
    values["stale hits"] = round(sum(row["stale_hits"] for row in later) / len(rows_by_seed), 1)
    values["missing"] = round(float(np.mean([row["missing"] for row in later])), 1)
    lags = [row["lag_seconds"] for row in later]
    # A step without a lag has documents that are not searchable.
    has_lags = all(lag is not None for lag in lags)
    values["lag seconds"] = round(float(np.mean(lags)), 2) if has_lags else None
    return values


def trim(measured: Mapping[str, Mapping[str, Rows]]) -> dict[str, dict[str, Rows]]:
    """Return only the measurements of steps that all replays have reached, by seed and policy."""
    lengths = [len(rows) for policies in measured.values() for rows in policies.values()]
    steps = min(lengths)
    trimmed: dict[str, dict[str, Rows]] = {}
    for seed, policies in measured.items():
        trimmed[seed] = {policy: rows[:steps] for policy, rows in policies.items()}
    return trimmed


def mean_cost(rows_by_seed: Sequence[Rows]) -> float:
    """Return the mean processor seconds of a replay, without the build of the first day."""
    total = 0.0
    for rows in rows_by_seed:
        total += sum(row["seconds"] for row in rows[1:])
    return total / len(rows_by_seed)


def compare(rows_by_seed: Sequence[Rows], others: Sequence[Rows], name: str) -> dict[str, Any]:
    """Return the mean difference to another policy, paired over seeds and steps, and its interval.

    With at least `MIN_SEEDS` seeds, the interval is over steps and seeds. With fewer seeds, it is
    Student's t interval over steps. It then holds for these trainings only, because another seed
    may give other results. The interval over steps is returned in any case.

    Args:
        rows_by_seed: Measurements of each seed.
        others: Measurements of the other policy with the same seeds.
        name: The value that is compared.
    """
    difference_rows = []
    for rows, other_rows in zip(rows_by_seed, others, strict=True):
        pairs = zip(rows[1:], other_rows[1:], strict=True)
        difference_rows.append([row[name] - other[name] for row, other in pairs])
    # The shape is (seeds, steps).
    differences = np.array(difference_rows)
    seeds, steps = differences.shape

    over_steps = _interval_over_steps(differences.mean(axis=0))
    interval = over_steps
    over = f"{steps} steps, {_count_trainings(seeds)}"
    if steps >= MIN_STEPS and seeds >= MIN_SEEDS:
        low, high = interval_over_seeds(differences[:, :, None], confidence=CONFIDENCE, lowest=-1)
        interval = [float(low[0]), float(high[0])]
        over = f"{steps} steps and {seeds} trainings"
    return {
        "difference": round(float(differences.mean()), 4),
        "interval": _round(interval),
        "over": over,
        "interval over steps": _round(over_steps),
    }


def _interval_over_steps(differences: np.ndarray) -> list[float] | None:
    """Return Student's t interval of the mean difference over steps, None for a single step.

    Args:
        differences: Difference of each step, the mean over the trainings, (n,).
    """
    steps = len(differences)
    if steps < MIN_STEPS:
        return None
    mean = float(differences.mean())
    standard_error = differences.std(ddof=1) / steps**0.5
    half_width = float(stats.t.ppf((1 + CONFIDENCE) / 2, steps - 1) * standard_error)
    return [mean - half_width, mean + half_width]


def _round(interval: Sequence[float] | None) -> list[float] | None:
    """Return the bounds of an interval with four decimals."""
    return None if interval is None else [round(bound, 4) for bound in interval]


def result_tables(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the tables of the page: one for each stream that was replayed."""
    return "\n".join(stream_table(name, result) for name, result in results.items())


def stream_table(name: str, result: Mapping[str, Any]) -> str:
    """Return the table of a stream."""
    trainings = _count_trainings(result["trainings"])
    documents = result["documents"]
    lines = [
        f"**{name}**: {documents[0]:,} documents become {documents[result['steps']]:,} in "
        f"{result['steps']} steps; {result['queries']:,} queries in all; {trainings}",
        "",
        "| policy | trainings | nDCG@10 | arrived documents | changelog entries | less retraining "
        "| stale hits | processor s | of retraining | lag, s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for policy, row in result["summary"].items():
        difference = row.get("less retrain", {}).get("everything")
        share = ""
        if "share of its seconds" in row:
            share = f"{row['share of its seconds']:.0%}"
        lag = "never"
        if row["lag seconds"] is not None:
            lag = f"{row['lag seconds']:.1f}"
        cells = [
            result["labels"][policy],
            str(row["trainings"]),
            _number(row["everything"]),
            _number(row["arrived"]),
            _number(row["changelog"]),
            _difference(difference),
            f"{row['stale hits']:,.0f}",
            f"{row['seconds']:,.0f}",
            share,
            lag,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _count_trainings(count: int) -> str:
    return "one training" if count == 1 else f"{count} trainings"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _difference(values: Mapping[str, Any] | None) -> str:
    """Return a difference to retraining with its interval, if it has one."""
    if values is None:
        return ""
    if values["interval"] is None:
        return f"{values['difference']:+.3f}"
    low, high = values["interval"]
    return f"{values['difference']:+.3f} [{low:+.3f}, {high:+.3f}]"
