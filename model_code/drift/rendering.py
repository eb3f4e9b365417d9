"""A drift report with its decision, as text for people and as values for programs."""

from __future__ import annotations

from typing import Any

from model_code.drift.ladder import Decision
from model_code.drift.measured import Measured
from model_code.drift.report import Report

HEADER = ("measure", "value", "", "threshold", "without drift (1 % - median - 99 %)", "p", "")


def report_dict(report: Report, decision: Decision | None = None) -> dict[str, Any]:
    """Report and decision as JSON-able values."""
    return {"report": report.as_dict(), "decision": decision.as_dict() if decision else None}


def report_text(report: Report, decision: Decision | None = None) -> str:
    """Every value beside its threshold and its null distribution, what was not measured and why, and the decision."""
    lines = [_head(report), *_table(report.measures)]
    lines += [f"compared with: {report.reference}"] * bool(report.reference)
    why = {(one.scope, one.why): [] for one in report.unmeasured}
    for one in report.unmeasured:
        why[one.scope, one.why].append(one.name)
    lines += [f"not measured ({scope}): {', '.join(names)}: {reason}" for (scope, reason), names in why.items()]
    return "\n".join([*lines, *_decided(decision)]) + "\n"


def _head(report: Report) -> str:
    window = f", {report.window_documents} in the last {report.batches} batches" if report.batches > 1 else ""
    chance = f"false alarms of the whole report: at most {report.alpha:.0%}"
    asked = f" and {report.queries} logged queries" if report.queries else ""
    return f"drift of {report.documents} documents{asked}{window}; {chance}"


def _decided(decision: Decision | None) -> list[str]:
    if decision is None:
        return []
    held = f" (called for: {decision.wanted})" if decision.wanted != decision.action else ""
    dry = ", a dry run" if decision.dry_run else ""
    return [f"decision: {decision.action}{held}{dry}", *(f"  - {reason}" for reason in decision.reasons)]


def _table(measures: tuple[Measured, ...]) -> list[str]:
    rows = [HEADER, *map(_row, measures)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADER))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _row(one: Measured) -> tuple[str, ...]:
    null = " - ".join(f"{one.null[q]:.4f}" for q in ("0.01", "0.5", "0.99")) if one.null else "a limit"
    p = f"{one.detail['p']:.4f}" if "p" in one.detail else ""
    sign = ">" if one.tail == "high" else "<"
    state = "TRIPPED" if one.tripped else "suspected" if one.suspected else ""
    return (one.label, f"{one.value:.4f}", sign, f"{one.threshold:.4f}", null, p, state)
