"""Results of IncDSI's protocol as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from experiments.incdsi_frontier.ablations import Ablated
from experiments.incdsi_frontier.frontier import Point
from experiments.incdsi_frontier.gates import COST, Difference, Matched
from experiments.incdsi_frontier.ranks import Quality


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table.

    >>> print(markdown(["a", "b"], [["1", "2"]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def steps_table(points: Sequence[Point]) -> str:
    """Return every way of adding after each number of additions.

    Columns are old documents, new documents, and the deviation of the new ones.
    """
    head = [
        "way of adding",
        "chosen for",
        "added",
        "orders",
        "old hit@1, hit@10, MRR@10",
        "new hit@1, hit@10, MRR@10",
    ]
    return markdown([*head, "deviation of new MRR@10"], map(_step, points))


def _step(point: Point) -> list[str]:
    values = [point.method, point.chosen_for, str(point.added), str(point.orders)]
    deviation = f"{point.deviations.mrr_at_10:.3f}" if point.orders > 1 else ""
    return [*values, quality(point.old), quality(point.new), deviation]


def ablation_table(changed: str, rows: Sequence[Ablated]) -> str:
    """Return the choices of one setting, compared with the last choice."""
    head = [
        changed,
        "old hit@1, hit@10, MRR@10",
        "new hit@1, hit@10, MRR@10",
        "old MRR@10 less the last",
        "new",
        "ms",
    ]
    return markdown(
        head,
        (
            [*_ablated(row), *map(str, row.less(rows[-1])), f"{row.seconds * 1e3:.1f}"]
            for row in rows
        ),
    )


def _ablated(row: Ablated) -> list[str]:
    return [row.choice, *map(quality, row.qualities)]


def quality(of: Quality) -> str:
    """Return hit@1, hit@10 and MRR@10 as text.

    >>> quality(Quality(0.25, 0.5, 0.375))
    '.250, .500, .375'
    """
    return ", ".join(
        f"{value:.3f}".removeprefix("0") for value in (of.hit_at_1, of.hit_at_10, of.mrr_at_10)
    )


def cost_table(costs: Mapping[str, Difference]) -> str:
    """Return the requirement on the cost of adding to old documents, and other settings' costs."""
    head = [
        "added by",
        "old hit@1 after retraining on all less that after adding",
        f"at most {COST:.2f}",
    ]
    return markdown(
        head,
        (
            [name, str(cost), "met" if cost.mean <= COST else "NOT met"]
            for name, cost in costs.items()
        ),
    )


def matched_table(found: Sequence[Matched]) -> str:
    """Return the comparison with the paper's form at matched loss of old documents."""
    head = [
        "the paper's old MRR@10",
        "its new MRR@10",
        "ours at the same old MRR@10 less that",
        "met",
    ]
    return markdown(head, map(_matched, found))


def _matched(one: Matched) -> list[str]:
    change = str(one.change) if one.reached else f"{one.change} (ours keeps less of old documents)"
    return [f"{one.old:.3f}", f"{one.new:.3f}", change, "yes" if one.met else "NO"]
