"""TREC run files, the format that trec_eval, ir_measures and ranx read.

trec_eval ignores the rank column: it sorts by score, as a 32-bit float, and breaks ties by document
id, *descending*. Our rankings break ties by id ascending, so a run is written with scores that fall
strictly from rank to rank: a tied score is lowered by the smallest step of a 32-bit float.
trec_eval then sees exactly our order.
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
    """Write `query Q0 document rank score tag` lines, queries by id; `tag` names the system."""
    lines, tag = [], escape_id(tag)
    for query_id in sorted(run):
        scores = strictly_decreasing([score for _, score in run[query_id]])
        prefix = f"{escape_id(query_id)} Q0"
        for rank, ((document_id, _), score) in enumerate(
            zip(run[query_id], scores, strict=True), start=1
        ):
            lines.append(f"{prefix} {escape_id(document_id)} {rank} {score:.9g} {tag}\n")
    write_text(path, "".join(lines))


def strictly_decreasing(scores: Sequence[float]) -> list[float]:
    """Scores as 32-bit floats that fall strictly: each at most the next float below its
    predecessor.

    >>> strictly_decreasing([2.0, 2.0, 1.0])
    [2.0, 1.9999998807907104, 1.0]
    """
    if not np.isfinite(scores).all():
        raise FreshetError(
            "a run has a score that is no finite number; the encoder or index that gave it is broken"
        )
    strict = np.asarray(scores, dtype=np.float32)
    for i in range(1, len(strict)):
        if strict[i] >= strict[i - 1]:
            strict[i] = np.nextafter(strict[i - 1], np.float32(-np.inf))
    return strict.tolist()


def read_run_frame(path: Path) -> pd.DataFrame:
    """A run's lines in their order; ids and tag as categories, ranks int64, scores float32.
    FreshetError if it is none.

    Hundreds of thousands of lines are read in a fraction of a second.
    """
    if not path.stat().st_size:  # nothing is found where nothing is asked
        return pd.DataFrame(columns=list(COLUMNS)).astype(
            dict.fromkeys(COLUMNS, "category") | {"rank": "int64", "score": "float32"}
        )
    names = pa.dictionary(pa.int32(), pa.string())
    kinds = dict.fromkeys(COLUMNS, names) | {"rank": pa.int64(), "score": pa.float64()}
    try:
        table = csv.read_csv(
            path,
            read_options=csv.ReadOptions(column_names=list(COLUMNS)),
            parse_options=csv.ParseOptions(
                delimiter=" ", quote_char=False, double_quote=False, escape_char=False
            ),
            convert_options=csv.ConvertOptions(
                column_types=kinds, strings_can_be_null=False, null_values=[]
            ),
        )
    except pa.ArrowInvalid as error:
        raise FreshetError(
            f"{path} is no TREC run of {len(COLUMNS)} fields a line: {error}"
        ) from None
    frame: pd.DataFrame = table.to_pandas().astype({"score": np.float32})
    for name in ("query_id", "document_id"):
        frame[name] = frame[name].cat.rename_categories(
            [unquote(value) for value in frame[name].cat.categories]
        )
    return frame


def read_run(path: Path) -> dict[str, list[tuple[str, float]]]:
    """Read a run in the order trec_eval gives it: score descending, then document id descending."""
    frame = read_run_frame(path)
    run: dict[str, list[tuple[str, float]]] = {}
    for query, document, score in zip(
        frame["query_id"], frame["document_id"], frame["score"], strict=True
    ):
        run.setdefault(query, []).append((document, float(score)))
    for ranking in run.values():
        ranking.sort(key=lambda hit: (hit[1], hit[0]), reverse=True)
    return run


def escape_id(name: str) -> str:
    """Percent-encode what would break a space-separated line; ids without white space and % stay as
    they are.

    `urllib.parse.unquote` is the inverse.

    >>> escape_id("my notes/100%.md")
    'my%20notes/100%25.md'
    """
    return re.sub(
        r"[\s%]", lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), name
    )
