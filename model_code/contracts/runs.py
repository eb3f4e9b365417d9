"""Contract of a TREC run file, read as a data frame: hundreds of thousands of lines in a fraction of a second."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from model_code.contracts.frames import validate
from model_code.contracts.rules import require
from model_code.evaluation.runs import escape, unescape

if TYPE_CHECKING:
    import pandera.pandas as pa

COLUMNS = ("query_id", "q0", "document_id", "rank", "score", "tag")
Known = Collection[str]


def check_run(path: Path, system: str, queries: Known, documents: Known, depth: int) -> None:
    """Ranks from 1 without a gap, at most `depth`, scores that fall; each query and document known, none twice."""
    require(path.is_file(), f"{path.name} is missing")
    if path.stat().st_size:  # nothing is found where nothing is asked
        validate(_schema(path.name, system, queries, documents, depth), read_frame(path))


def read_frame(path: Path) -> pd.DataFrame:
    """A run's lines in their order; ids and tag as categories, ranks int64, scores float32."""
    import pyarrow as pa
    from pyarrow import csv

    names = pa.dictionary(pa.int32(), pa.string())
    kinds = dict.fromkeys(("query_id", "q0", "document_id", "tag"), names) | {"rank": pa.int64(), "score": pa.float64()}
    table = csv.read_csv(
        path,
        read_options=csv.ReadOptions(column_names=list(COLUMNS)),
        parse_options=csv.ParseOptions(delimiter=" ", quote_char=False, double_quote=False, escape_char=False),
        convert_options=csv.ConvertOptions(column_types=kinds, strings_can_be_null=False, null_values=[]),
    )
    frame: pd.DataFrame = table.to_pandas().astype({"score": np.float32})
    for name in ("query_id", "document_id"):
        frame[name] = frame[name].cat.rename_categories([unescape(value) for value in frame[name].cat.categories])
    return frame


def _schema(name: str, system: str, queries: Known, documents: Known, depth: int) -> pa.DataFrameSchema:
    import pandera.pandas as pa

    return pa.DataFrameSchema(
        {
            "query_id": pa.Column(None, _known(queries, "a judged query")),
            "q0": pa.Column(None, _known(["Q0"], "Q0")),
            "document_id": pa.Column(None, _known(documents, "an initial document")),
            "rank": pa.Column("int64", pa.Check.le(depth)),
            "score": pa.Column("float32", pa.Check(np.isfinite, error="finite")),
            "tag": pa.Column(None, _known([escape(system)], "the name of the system")),
        },
        checks=[
            pa.Check(_ranks_in_order, error="ranks of a query must be 1, 2, 3, ..., one line after the other"),
            pa.Check(_scores_fall, error="scores of a query must fall from rank to rank"),
        ],
        unique=["query_id", "document_id"],
        name=name,
    )


def _known(names: Known, what: str) -> pa.Check:
    """Asks each category once, not each line."""
    import pandera.pandas as pa

    def known(series: pd.Series) -> pd.Series:
        return pd.Series(series.cat.categories.isin(list(names))[series.cat.codes], index=series.index)

    return pa.Check(known, error=what)


def _ranks_in_order(frame: pd.DataFrame) -> pd.Series:
    return frame["rank"] == frame.groupby("query_id", observed=True, sort=False).cumcount() + 1


def _scores_fall(frame: pd.DataFrame) -> pd.Series:
    """trec_eval sorts by score, and breaks ties by document id, descending: a tie would be another ranking."""
    steps = frame.groupby("query_id", observed=True, sort=False)["score"].diff()
    return steps.isna() | (steps < 0)
