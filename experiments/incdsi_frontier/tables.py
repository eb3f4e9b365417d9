"""Results of the experiment as Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from experiments.incdsi_frontier.ablations import AblationResult
from experiments.incdsi_frontier.frontier import Point
from experiments.incdsi_frontier.gates import MAX_COST, Difference, EqualLossComparison
from experiments.incdsi_frontier.ranks import Quality


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table.

    >>> print(markdown(["a", "b"], [["1", "2"]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in rows:
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def steps_table(points: Sequence[Point]) -> str:
    """Return the table of every method after each number of additions.

    Its columns are the quality of old documents, that of new documents, and the deviation of the
    latter over orders of arrival.
    """
    head = [
        "way of adding",
        "chosen for",
        "added",
        "orders",
        "old hit@1, hit@10, MRR@10",
        "new hit@1, hit@10, MRR@10",
        "deviation of new MRR@10",
    ]
    return markdown(head, [_step_cells(point) for point in points])


def _step_cells(point: Point) -> list[str]:
    """Return the cells of one point. A deviation needs several orders."""
    deviation = f"{point.deviations.mrr_at_10:.3f}" if point.orders > 1 else ""
    return [
        point.method,
        point.chosen_for,
        str(point.added),
        str(point.orders),
        quality(point.old),
        quality(point.new),
        deviation,
    ]


def ablation_table(changed: str, rows: Sequence[AblationResult]) -> str:
    """Return the table of the choices for one setting, each compared with the last choice."""
    head = [
        changed,
        "old hit@1, hit@10, MRR@10",
        "new hit@1, hit@10, MRR@10",
        "old MRR@10 less the last",
        "new",
        "ms",
    ]
    reference = rows[-1]
    lines = []
    for row in rows:
        old, new = row.qualities
        old_change, new_change = row.difference_to(reference)
        milliseconds = f"{row.seconds * 1e3:.1f}"
        lines.append(
            [
                row.choice,
                quality(old),
                quality(new),
                str(old_change),
                str(new_change),
                milliseconds,
            ]
        )
    return markdown(head, lines)


def quality(measures: Quality) -> str:
    """Return hit@1, hit@10 and MRR@10 as text.

    >>> quality(Quality(0.25, 0.5, 0.375))
    '.250, .500, .375'
    """
    values = (measures.hit_at_1, measures.hit_at_10, measures.mrr_at_10)
    return ", ".join(f"{value:.3f}".removeprefix("0") for value in values)


def cost_table(costs: Mapping[str, Difference]) -> str:
    """Return the table of costs for old documents, and whether they meet the requirement."""
    head = [
        "added by",
        "old hit@1 after retraining on all less that after adding",
        f"at most {MAX_COST:.2f}",
    ]
    lines = []
    for name, cost in costs.items():
        verdict = "met" if cost.mean <= MAX_COST else "NOT met"
        lines.append([name, str(cost), verdict])
    return markdown(head, lines)


def equal_loss_table(comparisons: Sequence[EqualLossComparison]) -> str:
    """Return the table that compares our method with the paper's at equal loss of old documents."""
    head = [
        "the paper's old MRR@10",
        "its new MRR@10",
        "ours at the same old MRR@10 less that",
        "met",
    ]
    lines = []
    for comparison in comparisons:
        change = str(comparison.change)
        if not comparison.reached:
            change += " (ours keeps less of old documents)"
        verdict = "yes" if comparison.met else "NO"
        lines.append([f"{comparison.old:.3f}", f"{comparison.new:.3f}", change, verdict])
    return markdown(head, lines)
