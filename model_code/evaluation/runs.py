"""TREC run files, the format that trec_eval, ir_measures and ranx read.

trec_eval ignores the rank column. It sorts by score, as a 32-bit float, and orders equal scores by
*descending* document id. Our rankings order equal scores by ascending id. So the written scores
decrease strictly from rank to rank. A score that equals the one before it is lowered by the
smallest step of a 32-bit float. trec_eval then uses exactly our order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import csv

from model_code.errors import FreshetError
from model_code.evaluation.metrics import Run
from model_code.files import write_text

COLUMNS = ("query_id", "q0", "document_id", "rank", "score", "tag")


def write_run(path: Path, run: Run, tag: str) -> None:
    """Write `query Q0 document rank score tag` lines, queries in ascending order of ids.

    Args:
        path: File to write.
        run: The rankings.
        tag: Name of the system.

    Raises:
        FreshetError: If a score is not finite.
    """
    escaped_tag = escape_id(tag)
    lines = []
    for query_id in sorted(run):
        prefix = f"{escape_id(query_id)} Q0"
        documents = [escape_id(document_id) for document_id, _ in run[query_id]]
        scores = strictly_decreasing([score for _, score in run[query_id]])
        for i, document in enumerate(documents):
            rank = i + 1
            lines.append(f"{prefix} {document} {rank} {scores[i]:.9g} {escaped_tag}\n")
    write_text(path, "".join(lines))


def strictly_decreasing(scores: Sequence[float]) -> list[float]:
    """Return scores as 32-bit floats, each of them lowered below its predecessor if necessary.

    Raises:
        FreshetError: If a score is not finite.

    >>> strictly_decreasing([2.0, 2.0, 1.0])
    [2.0, 1.9999998807907104, 1.0]
    """
    if not np.isfinite(scores).all():
        raise FreshetError(
            "a run has a score that is no finite number; the "
            "encoder or index that gave it is broken"
        )
    strict = np.asarray(scores, dtype=np.float32)
    for i in range(1, len(strict)):
        if strict[i] >= strict[i - 1]:
            strict[i] = np.nextafter(strict[i - 1], np.float32(-np.inf))
    return strict.tolist()


def read_run_frame(path: Path) -> pd.DataFrame:
    """Read the lines of a run in their order.

    Hundreds of thousands of lines are read in a fraction of a second.

    Returns:
        The columns of `COLUMNS`: ids and tag as categories, rank as int64, score as float32.

    Raises:
        FreshetError: If the file is not a TREC run.
    """
    if not path.stat().st_size:
        # The run of a split without queries is empty, and the CSV reader raises an error for it.
        types = dict.fromkeys(COLUMNS, "category")
        types["rank"] = "int64"
        types["score"] = "float32"
        return pd.DataFrame(columns=list(COLUMNS)).astype(types)

    names = pa.dictionary(pa.int32(), pa.string())
    column_types = dict.fromkeys(COLUMNS, names)
    column_types["rank"] = pa.int64()
    column_types["score"] = pa.float64()
    try:
        table = csv.read_csv(
            path,
            read_options=csv.ReadOptions(column_names=list(COLUMNS)),
            parse_options=csv.ParseOptions(
                delimiter=" ", quote_char=False, double_quote=False, escape_char=False
            ),
            convert_options=csv.ConvertOptions(
                column_types=column_types, strings_can_be_null=False, null_values=[]
            ),
        )
    except pa.ArrowInvalid as error:
        raise FreshetError(
            f"{path} is no TREC run of {len(COLUMNS)} fields a line: {error}"
        ) from None

    frame: pd.DataFrame = table.to_pandas().astype({"score": np.float32})
    for name in ("query_id", "document_id"):
        ids = [unquote(value) for value in frame[name].cat.categories]
        frame[name] = frame[name].cat.rename_categories(ids)
    return frame


def read_run(path: Path) -> dict[str, list[tuple[str, float]]]:
    """Read a run in trec_eval's order: score descending, then document id descending."""
    frame = read_run_frame(path)
    rows = zip(frame["query_id"], frame["document_id"], frame["score"], strict=True)
    run: dict[str, list[tuple[str, float]]] = {}
    for query, document, score in rows:
        run.setdefault(query, []).append((document, float(score)))
    for ranking in run.values():
        ranking.sort(key=lambda hit: (hit[1], hit[0]), reverse=True)
    return run


def escape_id(name: str) -> str:
    """Percent-encode white space and %, which would break a space-separated line.

    Other ids stay as they are. `urllib.parse.unquote` is the inverse.

    >>> escape_id("my notes/100%.md")
    'my%20notes/100%25.md'
    """

    def encode(match: re.Match[str]) -> str:
        return "".join(f"%{byte:02X}" for byte in match[0].encode())

    return re.sub(r"[\s%]", encode, name)
