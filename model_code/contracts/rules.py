"""What contracts share: rules that are told in one line, and checks of data frames."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

import numpy as np
import pandas as pd
import pandera.pandas as pa
from pandera.errors import SchemaError, SchemaErrors

from model_code.errors import FreshetError

ROUNDING = 1e-3  # of a unit vector's norm: half-precision encoders normalise in float32
# numbers that are looked at in one go, so that an index larger than the memory can be checked
PIECE = 4_194_304
# the most that a share may be: nDCG's equal sums, added in another order, differ in the last bit
WHOLE = 1 + 1e-9


def require(holds: bool, broken: str) -> None:
    """FreshetError with the line `broken`, which names the file and the rule, unless the rule
    holds.
    """
    if not holds:
        raise FreshetError(broken)


def require_files(folder: Path, names: Iterable[str]) -> None:
    """FreshetError if one of the files below `folder` is missing or empty."""
    lacking = [
        name
        for name in names
        if not (folder / name).is_file() or not (folder / name).stat().st_size
    ]
    require(not lacking, f"{folder.name}/ must hold {', '.join(lacking)}: missing or empty")


def require_same(rule: str, names: Collection[str], expected: Collection[str]) -> None:
    """FreshetError unless both hold the same names; it says one that is missing and one too many."""
    lacking, extra = sorted(set(expected) - set(names)), sorted(set(names) - set(expected))
    differences = [f"{len(lacking):,} missing, such as {lacking[0]!r}"] if lacking else []
    differences += [f"{len(extra):,} unknown, such as {extra[0]!r}"] if extra else []
    require(not differences, f"{rule}: {'; '.join(differences)}")


def require_finite(name: str, numbers: np.ndarray) -> None:
    """FreshetError if an array of any shape, memory-mapped or not, holds an infinite number or none
    at all.
    """
    flat = numbers.reshape(-1)
    starts = range(0, len(flat), PIECE)
    sound = all(np.isfinite(flat[start : start + PIECE]).all() for start in starts)
    require(sound, f"{name} must be finite numbers, but some are infinite or NaN")


def require_unit(name: str, vectors: np.ndarray) -> None:
    """FreshetError if a row (n, H), memory-mapped or not, has another norm than 1, or none."""
    rows = max(1, PIECE // max(1, vectors.shape[1]))
    for start in range(0, len(vectors), rows):
        far = float(np.abs(np.linalg.norm(vectors[start : start + rows], axis=1) - 1).max())
        require(
            far <= ROUNDING,
            f"{name} must have unit norm; one after row {start} is off by {far:.3g}",
        )


SHOWN_ROWS = 3


def validate(schema: pa.DataFrameSchema, table: pd.DataFrame) -> None:
    """FreshetError that names the schema, the first broken rule and the first rows that break it."""
    try:
        schema.validate(table)
    except (SchemaError, SchemaErrors) as error:
        first = getattr(error, "schema_errors", [error])[0]
    else:
        return
    rule, cases = str(getattr(first.check, "error", first.check)), first.failure_cases
    # of a column: no row is to blame
    if not isinstance(cases, pd.DataFrame) or cases["index"].isna().all():
        case = cases if isinstance(cases, str) else cases["failure_case"].iloc[0]
        columns = ", ".join(schema.columns)
        raise FreshetError(
            f"the table {schema.name} breaks its contract: {rule}, {case!r}; its columns are {columns}"
        )
    if first.schema is not schema:
        rule, rows = f"{first.schema.name} breaks {rule}", cases.set_index("index")["failure_case"]
    else:  # over several columns: all of it
        rule = (
            f"{' and '.join(schema.unique)} must be unique"
            if rule == "multiple_fields_uniqueness"
            else rule
        )
        rows = table.loc[sorted(set(cases["index"]))].astype(str).agg(" ".join, axis=1)
    require_none(str(schema.name), rule, rows)


def require_none(table: str, rule: str, rows: pd.Series) -> None:
    """FreshetError if any row of the table breaks the rule; `rows`: their values under their
    numbers.
    """
    first = "; ".join(f"row {index}: {value!r}" for index, value in rows.head(SHOWN_ROWS).items())
    require(
        rows.empty,
        f"the table {table} breaks its contract in {len(rows):,} rows: {rule}. First: {first}",
    )


def passage_documents(corpus: Path) -> list[str]:
    """The document of each passage, in the order of their table."""
    documents: list[str] = pd.read_parquet(corpus / "passages.parquet", columns=["document_id"])[
        "document_id"
    ].tolist()
    return documents
