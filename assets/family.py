"""What one artifact family is called in Dagster, where it stands, and what its page shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model_code.context import StageContext
from model_code.files import read_json


@dataclass(frozen=True)
class Check:
    """A question about a finished artifact: `ask(context)` returns whether it holds and what was seen.

    `context.output` is the artifact, the rest what its stage was given.
    """

    name: str
    description: str
    ask: Callable[[StageContext], tuple[bool, Mapping[str, Any]]]


@dataclass(frozen=True)
class AssetFamily:
    """One stage's assets: `noun` names the thing that exists afterwards; a per-retriever one is `[retriever, noun]`.

    `preview(folder)` returns the metadata of a finished artifact: Markdown texts under names. `checks` are asked beside
    the stage's contract, which every family has.
    """

    stage: str
    noun: str
    group: str
    kinds: frozenset[str]
    preview: Callable[[Path], Mapping[str, str]] = lambda folder: {}
    checks: tuple[Check, ...] = ()

    @property
    def all_checks(self) -> tuple[Check, ...]:
        """The contract first."""
        return (contract_check(self.stage), *self.checks)


def contract_check(stage: str) -> Check:
    """The stage's contract as a check: the very function that the runner asked before the artifact was in place."""

    def ask(context: StageContext) -> tuple[bool, Mapping[str, Any]]:
        from model_code.contracts import registry
        from model_code.errors import FreshetError

        try:
            registry.check(stage, context)
        except FreshetError as error:
            return False, {"violation": str(error), "what to do": _made_again(stage, context.name)}
        return True, {}

    return Check("contract_holds", "What lies in place keeps the contract of its stage.", ask)


def _made_again(stage: str, retriever: str | None) -> str:
    """DVC takes it for up to date, as a stage runs only if its own code or inputs changed, and contracts are neither.

    >>> _made_again("train", "hce")
    'Made before this rule, or damaged: dvc repro --force --single-item train@hce makes it again, and nothing else.'
    """
    address = f"{stage}@{retriever}" if retriever else stage
    again = f"dvc repro --force --single-item {address} makes it again, and nothing else."
    return f"Made before this rule, or damaged: {again}"


def report_of(folder: Path) -> dict[str, Any]:
    """The stage's own report."""
    return read_json(folder / "report.json")


def markdown_table(rows: list[Mapping[str, Any]], width: int = 90) -> str:
    """Rows as a Markdown table, long cells cut at `width` characters.

    >>> print(markdown_table([{"id": "a", "title": "b|c"}]))
    | id | title |
    |---|---|
    | a | b/c |
    """
    if not rows:
        return "(no rows)"
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    for row in rows:
        lines.append("| " + " | ".join(_cell(row.get(name, ""), width) for name in names) + " |")
    return "\n".join(lines)


def _cell(value: Any, width: int) -> str:
    text = str(value).replace("|", "/").replace("\n", " ")
    return text if len(text) <= width else text[: width - 1] + "…"


def first_rows(path: Path, columns: list[str], count: int = 5) -> str:
    """The first rows of a Parquet table as Markdown."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:  # by batches: a whole column of texts may be gigabytes
        first = next(file.iter_batches(count, columns=columns), None)
    return markdown_table(first.to_pylist() if first else [])


def picture(name: str, png: bytes) -> str:
    """A PNG as inline Markdown, so that it shows wherever the UI runs."""
    import base64

    return f"![{name}](data:image/png;base64,{base64.b64encode(png).decode()})"
