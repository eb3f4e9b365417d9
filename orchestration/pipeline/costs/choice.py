"""Which system to choose, by what matters most; computed from the comparison, never written by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestration.pipeline.costs.compare import CostComparison, Costs


@dataclass(frozen=True)
class Choice:
    """`system` is the one to take for `goal`; `value` says in words what it reaches."""

    goal: str
    system: str
    value: str


def choices(comparison: CostComparison) -> list[Choice]:
    """One choice per goal, where there is something to go by; ties go to the more effective system."""
    metric, split, systems = comparison.metric, comparison.split, comparison.systems
    best = max(systems, key=lambda one: one.value)
    near = [one for one in systems if one.value >= best.low]
    found = [
        _choice(f"best {metric} on {split}", systems, lambda one: -one.value, lambda one: f"{one.value:.3f}"),
        _choice(f"best {metric} on dev", systems, lambda one: _negative(one.dev), lambda one: f"{one.dev:.3f}"),
        _choice("fastest query", systems, lambda one: one.p50_ms, lambda one: f"{one.p50_ms:.1f} ms at the median"),
        _choice("smallest index", systems, lambda one: one.bytes_per_document, _bytes),
        _choice("soonest searchable", systems, lambda one: one.searchable_seconds, _searchable),
        _choice(
            "fastest query within the best one's interval", near, lambda one: one.p50_ms,
            lambda one: f"{one.p50_ms:.1f} ms, {metric} {one.value:.3f}",
        ),
        _choice(
            "smallest index within the best one's interval", near, lambda one: one.bytes_per_document,
            lambda one: f"{_bytes(one)}, {metric} {one.value:.3f}",
        ),
    ]  # fmt: skip
    return [choice for choice in found if choice]


def _choice(
    goal: str, systems: Sequence[Costs], cost: Callable[[Costs], float | None], say: Callable[[Costs], str]
) -> Choice | None:
    """The system of least cost among those whose cost is known."""
    known = [(value, -one.value, i) for i, one in enumerate(systems) if (value := cost(one)) is not None]
    if not known:
        return None
    chosen = systems[min(known)[2]]
    return Choice(goal, chosen.system, say(chosen))


def _negative(value: float | None) -> float | None:
    return None if value is None else -value


def _bytes(one: Costs) -> str:
    return f"{one.bytes_per_document:,.0f} bytes per document"


def _searchable(one: Costs) -> str:
    return f"after {one.searchable_seconds:,.1f} s of training and indexing"
