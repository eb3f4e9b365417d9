"""Checks of model folders and training curves.

Models are read without torch, because the import of torch takes longer than all checks together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pandera.pandas as pa
from safetensors import SafetensorError, safe_open

from model_code.checks.rules import require, require_files, require_finite
from model_code.checks.tables import MAX_SHARE, validate
from model_code.evaluation.metrics import filter_metrics
from model_code.files import read_json

# Files of a model that `AutoModel.from_pretrained` loads.
TRANSFORMER_FILES = (
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)
# Further files of a folder that sentence-transformers loads.
LAYOUT_FILES = (
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
)


def check_model(folder: Path, names: Iterable[str]) -> None:
    """Require the named files, and check that all safetensors files have finite numbers.

    Args:
        folder: Folder of the model.
        names: Names of files that must exist and not be empty.
    """
    require_files(folder, names)
    for path in sorted(folder.rglob("*.safetensors")):
        name = path.relative_to(folder.parent).as_posix()
        try:
            _check_tensors(path, name)
        except SafetensorError as error:
            require(False, f"{name} cannot be read: {error}")


def _check_tensors(path: Path, name: str) -> None:
    """Require finite numbers in all floating-point arrays of a safetensors file.

    Args:
        path: The file.
        name: Name of the file, for the message.
    """
    with safe_open(path, framework="numpy") as weights:
        tensor_names = list(weights.keys())
        for tensor in tensor_names:
            is_floating_point = weights.get_slice(tensor).get_dtype().startswith("F")
            if is_floating_point:
                require_finite(f"{name}: {tensor}", weights.get_tensor(tensor))


def check_history(path: Path) -> None:
    """Check a training curve, which MLflow and the plots draw.

    Steps must rise from row to row, at least one row has a loss, and every value is a finite
    number.
    """
    require_files(path.parent, [path.name])
    rows: list[Mapping[str, Any]] = read_json(path)
    require(
        bool(rows), f"{path.name} has no rows: it must have at least one with `step` and `loss`"
    )
    table = pd.DataFrame(rows)
    names = {name for row in rows for name in row}

    # A row of the curve may lack a value, such as a metric that was not evaluated at its step. A
    # value that is there must be a number.
    for name in sorted(names):
        has_value = [name in row for row in rows]
        is_number = table.loc[has_value, name].notna()
        require(
            bool(is_number.all()),
            f"{path.name}: {name} must be a number where it is given, but it is null or NaN",
        )
    validate(_history_schema(path.name, names), table)


def _history_schema(file_name: str, names: set[str]) -> pa.DataFrameSchema:
    """Return the schema of a training curve: rising steps, finite values, and metrics up to 1.

    Args:
        file_name: Name of the file, for messages.
        names: Names of the values that any row has.
    """
    is_finite = pa.Check(np.isfinite, error="finite numbers")
    is_share = pa.Check.in_range(0, MAX_SHARE)
    metrics = filter_metrics(names)

    columns = {
        "step": pa.Column(
            int, [pa.Check.ge(0), pa.Check(_rises, error="steps that rise from row to row")]
        )
    }
    for name in sorted({"loss", *names} - {"step"}):
        checks = [is_finite]
        if name in metrics:
            checks.append(is_share)
        columns[name] = pa.Column(float, checks, nullable=True, coerce=True)
    return pa.DataFrameSchema(columns, name=file_name)


def _rises(steps: pd.Series) -> pd.Series:
    """Return whether each step is above the one before. The first step has none, and passes."""
    is_above_last: pd.Series = steps.diff().fillna(1) > 0
    return is_above_last
