"""What holds of the rows of benches, and tiny data for them: words, and a judged folder of
documents.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

COLUMNS = ["what", "ours", "peer", "ratio", "goal", "met"]
WORDS = [
    f"{a}{b}"
    for a in ("red", "blue", "old", "new", "wet", "dry", "big", "odd")
    for b in ("cat", "dog", "car")
]


def check(found: Iterable[dict[str, Any]]) -> None:
    """Every row has the agreed keys; ratio and verdict, where it has them, are computed from its
    numbers.
    """
    for line in found:
        assert list(line) == COLUMNS
        goal = line["goal"]
        if line["ours"] is None:
            assert goal.startswith("skipped: ")
            continue
        assert line["ratio"] == pytest.approx(line["ours"] / line["peer"])
        if goal == "-":
            assert line["met"] is None
        elif str(goal).startswith("<="):
            assert line["met"] is bool(line["ratio"] <= float(goal.split()[1]))
        else:
            assert line["met"] is bool(line["ratio"] >= float(str(goal).removeprefix(">= ")))


def write_beir(
    folder: Path, split: str, texts: Sequence[str], questions: Sequence[str], title: str = ""
) -> Path:
    """Documents d0, d1, ... of these texts, and for each a question q0, q1, ..., in BEIR layout."""
    documents = [{"_id": f"d{i}", "title": title, "text": text} for i, text in enumerate(texts)]
    queries = [{"_id": f"q{i}", "text": text} for i, text in enumerate(questions)]
    (folder / "qrels").mkdir(parents=True)
    for name, lines in (("corpus", documents), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    judged = "".join(f"q{i}\td{i}\t1\n" for i in range(len(queries)))
    (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    return folder
