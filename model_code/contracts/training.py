"""Contracts of what training leaves: a learning curve and a model that its loader can read, per kind of retriever."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from model_code.context import StageContext
from model_code.contracts.encoder_folder import check_encoder, check_sequence_model
from model_code.contracts.frames import validate
from model_code.contracts.known import passage_documents
from model_code.contracts.rules import WHOLE, require, require_files, require_finite, require_same, require_shape
from model_code.dsi.folder import DocumentVectors
from model_code.evaluation.plots import metrics_among
from model_code.files import read_json

if TYPE_CHECKING:
    import pandera.pandas as pa


def check_query_generator(context: StageContext) -> None:
    """A curve and a model if one was to be trained; else neither, so that nobody takes it for one."""
    model, history = context.output / "model", context.output / "history.json"
    if context.settings["pseudo_queries.training"].base is None:
        require(not model.exists() and not history.exists(), "no generator is trained, so model/ must not be there")
        return
    check_history(history)
    check_sequence_model(model)


def check_train(context: StageContext) -> None:
    """The curve, the encoder's folder, and what the retriever's kind has beside it."""
    retriever = context.settings["retriever"]
    check_history(context.output / "history.json")
    check_encoder(context.output / "encoder", retriever.kind, separate=retriever.encoders == "separate")
    if retriever.kind == "dsi":
        _check_document_vectors(context.output / "document_vectors", set(passage_documents(context.inputs["corpus"])))
    if (context.output / "first_stage.json").exists():
        check_history(context.output / "first_stage.json")


def check_history(path: Path) -> None:
    """Rows of rising steps, one of them with a loss, every value a finite number: what MLflow and the plots draw."""
    require_files(path.parent, [path.name])
    rows: list[Mapping[str, Any]] = read_json(path)
    require(len(rows) > 0, f"{path.name} must hold at least one row")
    table = pd.DataFrame(rows)
    for name in map(str, table):  # a column is empty where nothing was logged; what is there must be a number
        given = [name in row for row in rows]
        rule = f"{path.name}: {name} must be a number where it is given, but it is null or NaN"
        require(bool(table.loc[given, name].notna().all()), rule)
    validate(_history_schema(path.name, [str(name) for name in table]), table)


def _history_schema(file: str, names: Iterable[str]) -> pa.DataFrameSchema:
    import pandera.pandas as pa

    finite, share = pa.Check(np.isfinite, error="finite numbers"), pa.Check.in_range(0, WHOLE)
    logged = {"loss", *names} - {"step"}
    metrics = set(metrics_among(logged))
    columns = {
        name: pa.Column(float, [finite, share] if name in metrics else [finite], nullable=True, coerce=True)
        for name in sorted(logged)
    }
    rising = pa.Check(lambda steps: steps.diff().fillna(1) > 0, error="steps that rise from row to row")
    return pa.DataFrameSchema({"step": pa.Column(int, [pa.Check.ge(0), rising]), **columns}, name=file)


def _check_document_vectors(folder: Path, documents: set[str]) -> None:
    """One vector and one representative per initial document."""
    require_files(folder, ["manifest.json"])
    trained = DocumentVectors.load(folder)
    require_same("document_vectors/ must have a vector of each initial document", trained.document_ids, documents)
    require(len(trained.document_ids) == len(documents), "document_vectors/ names a document twice")
    shape = (len(documents), trained.vectors.shape[-1])
    arrays = {"vectors.npy": trained.vectors, "representatives.npy": trained.representatives.vectors}
    for name, array in arrays.items():
        require_shape(f"document_vectors/{name}", array, shape)
        require_finite(f"document_vectors/{name}", array)
    require_shape("document_vectors/query_counts.npy", trained.representatives.counts, shape[:1])
    require(bool((trained.representatives.counts >= 0).all()), "document_vectors/query_counts.npy must not be negative")
    scales = (trained.logit_scale, trained.encoding_scale)
    require(all(np.isfinite(scale) and scale > 0 for scale in scales), "document_vectors/: scales must be above 0")
