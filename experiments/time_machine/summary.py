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
        own_seeds = [seed for seed in seeds if policy in measured[seed]]
        if not own_seeds:
            continue
        summary[policy] = summarize_policy([reached[seed][policy] for seed in own_seeds])
        common = [seed for seed in own_seeds if RETRAIN in measured[seed]]
        if not common or policy == RETRAIN:
            continue
        rows_by_seed = [reached[seed][policy] for seed in common]
        others = [reached[seed][RETRAIN] for seed in common]
        summary[policy]["less retrain"] = {
            name: compare(rows_by_seed, others, name) for name in ("everything", "arrived")
        }
        share = mean_cost(rows_by_seed) / max(mean_cost(others), 1e-9)
        summary[policy]["share of its seconds"] = round(share, 4)
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
    later = [row for rows in rows_by_seed for row in rows[1:]]
    values: dict[str, Any] = {"trainings": len(rows_by_seed)}
    for name in MEANS:
        numbers = [row[name] for row in later if row[name] is not None]
        values[name] = round(float(np.mean(numbers)), 4) if numbers else None
    values["seconds"] = round(mean_cost(rows_by_seed), 1)
    values["stale hits"] = round(sum(row["stale_hits"] for row in later) / len(rows_by_seed), 1)
    values["missing"] = round(float(np.mean([row["missing"] for row in later])), 1)
    lags = [row["lag_seconds"] for row in later]
    is_found = all(lag is not None for lag in lags)
    values["lag seconds"] = round(float(np.mean(lags)), 2) if is_found else None
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
    return sum(row["seconds"] for rows in rows_by_seed for row in rows[1:]) / len(rows_by_seed)


def compare(rows_by_seed: Sequence[Rows], others: Sequence[Rows], name: str) -> dict[str, Any]:
    """Return the mean difference to another policy, paired over seeds and steps, and its interval.

    With at least `MIN_SEEDS` seeds, the interval is over steps and seeds. With fewer seeds, it is
    Student's t interval over steps. It then holds for these trainings only, because another seed
    may give other results.

    Args:
        rows_by_seed: Measurements of each seed.
        others: Measurements of the other policy with the same seeds.
        name: The value that is compared.
    """
    differences = np.array(
        [
            [row[name] - other[name] for row, other in zip(rows[1:], other_rows[1:], strict=True)]
            for rows, other_rows in zip(rows_by_seed, others, strict=True)
        ]
    )
    seeds, steps = differences.shape
    interval: list[float] | None = None
    over = f"{steps} steps, {'one training' if seeds == 1 else f'{seeds} trainings'}"
    if steps >= MIN_STEPS and seeds >= MIN_SEEDS:
        low, high = interval_over_seeds(differences[:, :, None], confidence=CONFIDENCE, lowest=-1)
        interval = [float(low[0]), float(high[0])]
        over = f"{steps} steps and {seeds} trainings"
    elif steps >= MIN_STEPS:
        by_step = differences.mean(axis=0)
        error = by_step.std(ddof=1) / steps**0.5
        half_width = float(stats.t.ppf((1 + CONFIDENCE) / 2, steps - 1) * error)
        interval = [float(by_step.mean()) - half_width, float(by_step.mean()) + half_width]
    if interval is not None:
        interval = [round(bound, 4) for bound in interval]
    return {
        "difference": round(float(differences.mean()), 4),
        "interval": interval,
        "over": over,
    }


def result_tables(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the tables of the page: one for each stream that was replayed."""
    return "\n".join(stream_table(name, result) for name, result in results.items())


def stream_table(name: str, result: Mapping[str, Any]) -> str:
    """Return the table of a stream."""
    trainings = result["trainings"]
    seeds = "one training" if trainings == 1 else f"{trainings} trainings"
    documents = result["documents"]
    lines = [
        f"**{name}**: {documents[0]:,} documents become {documents[result['steps']]:,} in "
        f"{result['steps']} steps; {result['queries']:,} queries in all; {seeds}",
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


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _difference(values: Mapping[str, Any] | None) -> str:
    if values is None:
        return ""
    if values["interval"] is None:
        return f"{values['difference']:+.3f}"
    low, high = values["interval"]
    return f"{values['difference']:+.3f} [{low:+.3f}, {high:+.3f}]"
