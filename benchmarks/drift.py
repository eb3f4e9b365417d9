"""Measure false alarms and detections of the drift check on batches of real documents.

A drift check compares a batch of new documents with a reference, a sample of old ones. Here the
reference consists of docstrings of some packages. A batch mixes other docstrings of these packages
with a growing share of shifted documents. The shift is one of:

- docstrings of neighbouring packages,
- jargon that the encoder has never seen: neighbouring docstrings and their summaries with exchanged
  letters,
- documents of `tldr` and `scifact`, if `FRESHET_DATA` names a folder of data sets. In that case
  there is a second reference: early pages of tldr, with its latest pages as the shift.

Each document comes with a query that people wrote, which is its summary or a judged query. It gets
one more query that is cut out of its text. The drift check is compared with a customary rule: a
population stability index (PSI) above .2 requires retraining.

Harm is the loss of mean reciprocal rank of new documents against old ones, by the written queries.
Retraining is due if the harm is at least `HARM`. With scores of this spread, it is the smallest
loss that 100 documents with one query each show with probability .95. A row also reports how often
each kind of query alone reported harm.

Old documents are ranked among the reference alone, whereas a drift report ranks them together with
the new ones. Harm therefore looks slightly larger here (by .008 for 100 docstrings).
"""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.drift_batches import (
    CellCounts,
    StudyPlan,
    Vectors,
    calibrate,
    cut_queries,
    encode,
    judge,
    mix_batch,
    studies,
)
from benchmarks.encoding import BASE
from model_code.files import atomic_write

# Shares of shifted documents in a batch.
SHARES = (0.1, 0.25, 0.5, 1.0)
# Loss of mean reciprocal rank from which a retrain must be requested.
HARM = 0.15
# Loss of mean reciprocal rank from which a retrain may be requested.
MIN_LOSS = 0.01
# Largest accepted share of wrong decisions.
MAX_WRONG_SHARE = 0.05
# Quantile of the normal distribution for intervals of 95 %.
Z_95 = 1.959964
# Title of each panel of the picture by the decision that it counts.
DECISION_TITLES = {"alarm": "some measure alarms", "retrain": "a retrain is called for"}

# A cell of the table: reference, source of the shifted documents, and their share.
CellKey = tuple[str, str, float]


def rows(
    data: Path | None = None,
    base: str | Path = BASE,
    plan: StudyPlan | None = None,
    output: Path | None = None,
) -> list[dict[str, Any]]:
    """Report the share of correctly judged batches for each shift, with its 95 % interval.

    Args:
        data: Folder of data sets. None takes the folder in `FRESHET_DATA`, if it is set.
        base: Encoder of the documents.
        plan: Size of the simulation.
        output: Folder for drift_curve.csv and .png. None takes the folder in
            `FRESHET_BENCH_OUTPUT`, if it is set.
    """
    from model_code.encoding.encoder import Encoder

    if plan is None:
        plan = StudyPlan()
    if data is None:
        data = _folder_in_environment("FRESHET_DATA")
    if output is None:
        output = _folder_in_environment("FRESHET_BENCH_OUTPUT")

    encoder = Encoder.load(base, plan.max_tokens, for_search=True)
    cells: dict[CellKey, CellCounts] = {}
    for study in studies(data, plan):
        shifted = {}
        for source, pairs in study.elsewhere.items():
            shifted[source] = encode(encoder, cut_queries(pairs))
        home = encode(encoder, cut_queries(study.home))
        for (source, share), cell in simulate(home, shifted, plan).items():
            cells[study.name, source, share] = cell

    if output is not None:
        write_curve(output / "drift_curve.csv", cells)
        draw(output / "drift_curve.png", output / "drift_curve.csv")
    return [_row(key, cell) for key, cell in cells.items()]


def simulate(
    home: Vectors, elsewhere: Mapping[str, Vectors], plan: StudyPlan
) -> dict[tuple[str, float], CellCounts]:
    """Run drift checks on batches without a shift, and on batches with each share of each source.

    Args:
        home: Documents without a shift. The reference is drawn from them.
        elsewhere: Shifted documents by source.
        plan: Size of the simulation.

    Returns:
        Results by source and share of shifted documents. The key ("none", 0) has the batches
        without a shift. Batches of one split have no document in common there.
    """
    cells: dict[tuple[str, float], CellCounts] = {("none", 0.0): CellCounts()}
    for split in range(plan.splits + plan.more_splits):
        random = np.random.default_rng(split)
        order = random.permutation(len(home.documents))
        reference = home[np.sort(order[: plan.reference])]
        new = home[order[plan.reference :]]
        references = calibrate(reference, plan)

        # Cut the new documents into batches without a shift. A rest smaller than a batch is unused.
        for start in range(0, len(new.documents) - plan.batch + 1, plan.batch):
            batch = new[start : start + plan.batch]
            judge(references, reference.documents, batch, cells["none", 0.0])

        # The remaining splits have batches without a shift only.
        if split >= plan.splits:
            continue
        for source, vectors in elsewhere.items():
            for share in SHARES:
                cell = cells.setdefault((source, share), CellCounts())
                for _ in range(plan.repeats):
                    batch = mix_batch(new, vectors, share, plan.batch, random)
                    judge(references, reference.documents, batch, cell)
    return cells


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson 1927).

    For shares of 0 and 1 it still has a width, unlike the interval of the normal approximation.

    >>> [round(bound, 3) for bound in wilson(10, 10)]
    [0.722, 1.0]
    """
    share = successes / trials
    scale = 1 + Z_95**2 / trials
    middle = (share + Z_95**2 / (2 * trials)) / scale
    variance = share * (1 - share) / trials + (Z_95 / (2 * trials)) ** 2
    half_width = Z_95 / scale * np.sqrt(variance)
    low = max(0.0, float(middle - half_width))
    high = min(1.0, float(middle + half_width))
    return low, high


def write_curve(path: Path, cells: Mapping[CellKey, CellCounts]) -> None:
    """Write the shares of alarms and retrains of each cell as CSV, with 95 % intervals."""
    count_names = [counts.name for counts in fields(CellCounts)]
    header = ["reference", "source", "share", "batches", *count_names]
    header.extend(["alarm_low", "alarm_high", "retrain_low", "retrain_high"])
    with atomic_write(path) as temporary_path, temporary_path.open("w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(header)
        for key, cell in cells.items():
            numbers = [float(np.mean(values)) for values in astuple(cell)]
            numbers.extend(wilson(sum(cell.alarm), len(cell.alarm)))
            numbers.extend(wilson(sum(cell.retrain), len(cell.retrain)))
            formatted = [f"{number:.4f}" for number in numbers]
            writer.writerow([*key, len(cell.harm), *formatted])


def _row(key: CellKey, cell: CellCounts) -> dict[str, Any]:
    """Return the row of one cell, with the share of correct decisions.

    Without a shift, every alarm is wrong. With a shift, a retrain is right if the harm is above
    `MIN_LOSS`, and wrong otherwise. The row has no goal if the harm is between `MIN_LOSS` and
    `HARM`, because 100 documents are too few to find such a small loss reliably.
    """
    study, source, share = key
    harm = float(np.mean(cell.harm))
    if share == 0:
        shift = "no shift"
        our_decisions = cell.alarm
        retrain_is_due = False
        correct_decision = "no alarm"
    else:
        shift = f"{share:.0%} {source}"
        our_decisions = cell.retrain
        retrain_is_due = harm > MIN_LOSS
        correct_decision = "retrained" if retrain_is_due else "not retrained"
    our_correct = np.array(our_decisions) == retrain_is_due
    peer_correct = np.array(cell.customary) == retrain_is_due

    queries = (
        f"called by made queries {np.mean(cell.by_made):.2f}, by asked {np.mean(cell.by_asked):.2f}"
    )
    low, high = wilson(int(our_correct.sum()), len(our_correct))
    label = (
        f"{study}: {shift}, harm {harm:+.2f} ({queries}), alarm {np.mean(cell.alarm):.2f}: "
        f"{correct_decision}, of {len(our_correct)} batches [{low:.3f}, {high:.3f}]"
    )

    ours = float(our_correct.mean())
    peer = float(peer_correct.mean())
    ratio = ours / peer if peer else None
    goal: float | str = 1 - MAX_WRONG_SHARE
    met: bool | None = ours >= 1 - MAX_WRONG_SHARE
    loss_is_too_small_to_find = retrain_is_due and harm < HARM
    if loss_is_too_small_to_find:
        goal = "-"
        met = None
    return {
        "what": label,
        "ours": ours,
        "peer": peer,
        "ratio": ratio,
        "goal": goal,
        "met": met,
    }


def _folder_in_environment(variable: str) -> Path | None:
    """Return the folder that an environment variable names, or None if it is not set."""
    folder = os.environ.get(variable)
    return Path(folder) if folder else None


def draw(path: Path, curve: Path) -> None:
    """Draw the shares of alarms and retrains, and the harm, against the share of shifted documents.

    The picture has a panel for each, and in each panel a line for each source. Shares have 95 %
    intervals. The first point of each line belongs to the batches without a shift.

    Args:
        path: PNG file to write.
        curve: File that `write_curve` wrote.
    """
    from matplotlib.figure import Figure

    with curve.open(newline="") as stream:
        lines = list(csv.DictReader(stream))
    unshifted = {line["reference"]: line for line in lines if line["source"] == "none"}
    lines_by_curve: dict[tuple[str, str], list[dict[str, str]]] = {}
    for line in lines:
        if line["source"] != "none":
            lines_by_curve.setdefault((line["reference"], line["source"]), []).append(line)

    figure = Figure(figsize=(12, 4), layout="constrained")
    alarm_axes, retrain_axes, harm_axes = figure.subplots(1, 3)
    decision_axes = {"alarm": alarm_axes, "retrain": retrain_axes}
    for (reference, source), shifted in lines_by_curve.items():
        label = source if reference in source else f"{reference} and {source}"
        curve_lines = [unshifted[reference], *shifted]
        shares = _numbers(curve_lines, "share")
        # The first panel chooses the colour of a source, and the others use it, too.
        color = None
        for decision, axes in decision_axes.items():
            rates = _numbers(curve_lines, decision)
            (plotted,) = axes.plot(shares, rates, marker="o", label=label, color=color)
            color = plotted.get_color()
            low = _numbers(curve_lines, f"{decision}_low")
            high = _numbers(curve_lines, f"{decision}_high")
            axes.fill_between(shares, low, high, alpha=0.12, color=color)
        harm_axes.plot(shares, _numbers(curve_lines, "harm"), marker="o", color=color)

    for decision, axes in decision_axes.items():
        axes.axhline(MAX_WRONG_SHARE, color="0.5", linestyle="--", linewidth=1)
        axes.set(ylim=(-0.03, 1.03), ylabel="share of batches", title=DECISION_TITLES[decision])
    harm_axes.axhline(0, color="0.5", linewidth=1)
    harm_axes.set(title="harm: loss of MRR@10")
    for axes in (alarm_axes, retrain_axes, harm_axes):
        axes.set(xlabel="share of the batch from elsewhere")
        axes.grid(alpha=0.3)
    handles, labels = alarm_axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)

    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary_path:
        figure.savefig(temporary_path, format="png", dpi=110)


def _numbers(lines: Sequence[Mapping[str, str]], column: str) -> list[float]:
    """Return the numbers in one column of the CSV's lines."""
    return [float(line[column]) for line in lines]
