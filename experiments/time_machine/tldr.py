"""The stream of tldr pages, which arrive by months.

The data set is in BEIR layout. Its documents have dates.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from experiments.time_machine.docstrings import is_in_share
from experiments.time_machine.stream import (
    KNOWN,
    TESTED,
    Batch,
    Stream,
    StreamQuery,
    Text,
    group_by_period,
)
from model_code.corpus.cleaning import clean_line, clean_text


def make_tldr_stream(folder: Path, settings: Mapping[str, Any]) -> Stream:
    """Return the stream of pages. Pages only arrive; they do not change and are not removed.

    A query is first asked when its page arrives. Train queries are known, test queries are tested,
    and dev queries are left out.

    Args:
        folder: Folder with `corpus.jsonl.gz`, `queries.jsonl.gz` and `qrels/`.
        settings: `start_date`, the first day of the stream. `step_months`, the length of a step.
            `share`, the share of the pages that are read. The share of their train queries that are
            known.
    """
    start: dict[str, Text] = {}
    months: dict[str, dict[str, Text]] = {}
    dates: dict[str, str] = {}
    for row in _read_rows(folder / "corpus.jsonl.gz"):
        if not is_in_share(row["_id"], settings["share"]):
            continue
        date = row["date"][:10]
        dates[row["_id"]] = date
        text = Text(clean_line(row["title"]), clean_text(row["text"]))
        if date <= settings["start_date"]:
            start[row["_id"]] = text
        else:
            months.setdefault(date[:7], {})[row["_id"]] = text

    batches: list[Batch] = []
    for month, puts in sorted(months.items()):
        last_date = max(dates[page] for page in puts)
        batches.append(Batch(month, last_date, puts, removals=()))
    steps = group_by_period(batches, settings["step_months"])

    step_of_page = dict.fromkeys(start, 0)
    for number, step in enumerate(steps, start=1):
        for batch in step.batches:
            step_of_page.update(dict.fromkeys(batch.puts, number))
    queries = list(_queries(folder, step_of_page, settings["known_share"]))
    return Stream("tldr", settings["start_date"], start, steps, queries)


def _queries(
    folder: Path, step_of_page: Mapping[str, int], known_share: float
) -> Iterator[StreamQuery]:
    """Yield the queries for the pages that are read.

    These are all test queries, and a share of the train queries.
    """
    texts = {row["_id"]: row["text"] for row in _read_rows(folder / "queries.jsonl.gz")}
    for split, role in (("train", KNOWN), ("test", TESTED)):
        with (folder / "qrels" / f"{split}.tsv").open(encoding="utf-8") as stream:
            for row in csv.DictReader(stream, delimiter="\t"):
                query_id = row["query-id"]
                page = row["corpus-id"]
                is_left_out = role == KNOWN and not is_in_share(query_id, known_share)
                if page not in step_of_page or is_left_out:
                    continue
                text = clean_line(texts[query_id])
                answers = frozenset([page])
                yield StreamQuery(query_id, text, answers, step_of_page[page], role, "example")


def _read_rows(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        for line in stream:
            yield json.loads(line)
