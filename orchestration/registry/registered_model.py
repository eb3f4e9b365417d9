"""A finished build logged to MLflow as a model that can be loaded and served where the project is not."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

from orchestration.watermark import Watermark

PACKAGES = ("mlflow", "torch", "transformers", "safetensors", "numpy", "pandas", "pyarrow", "faiss-cpu", "faiss-gpu")
ARTIFACT = "retriever"
PARTS = {"encoder": "encoder", "index": "index", "hierarchy": "hierarchy", "documents": "documents.parquet"}
"""Which part of a build lies where in the model's artifact folder."""


@dataclass(frozen=True)
class Build:
    """One retriever's finished build: folders of stage outputs, documents' table, key, and hash of the corpus.

    text: by which rules it cut documents into passages, as JSON (see `live.text_rules`); watermark: the last event of
    the ledger that its documents hold.
    """

    retriever: str
    encoder: Path
    index: Path
    documents: Path
    hierarchy: Path
    evaluation: Path
    key: str
    corpus: str
    text: str
    watermark: Watermark = Watermark()


def log_retriever(build: Build) -> str:
    """Log `served_model.py` to the active MLflow run, with copies of the build and of `model_code`; returns its URI."""
    import mlflow
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema

    import model_code

    query, k = ColSpec("string", "query"), ParamSpec("k", "integer", 10)
    with tempfile.TemporaryDirectory() as temporary, warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*An input example was not provided")  # the signature says it all
        folder = Path(temporary) / ARTIFACT  # MLflow stores it under this name
        folder.mkdir()
        for part, name in PARTS.items():
            _link(getattr(build, part), folder / name)
        return mlflow.pyfunc.log_model(
            name=ARTIFACT,
            python_model=str(Path(__file__).with_name("served_model.py")),
            code_paths=[str(Path(model_code.__file__).parent)],
            artifacts={ARTIFACT: str(folder)},
            signature=ModelSignature(inputs=Schema([query]), params=ParamSchema([k])),
            pip_requirements=requirements(),
        ).model_uri


def _link(source: Path, target: Path) -> None:
    """Show `source` under another name without copying it where that is possible; MLflow follows no symbolic links."""
    if source.is_dir():
        target.mkdir()
        for child in source.iterdir():
            _link(child, target / child.name)
        return
    try:
        os.link(source.resolve(), target)
    except OSError:  # another disk, or one without links
        shutil.copyfile(source, target)


def requirements() -> list[str]:
    """The packages that a served retriever needs, pinned to what is installed here."""
    from importlib.metadata import PackageNotFoundError, version

    pins = []
    for package in PACKAGES:
        try:
            pins.append(f"{package}=={version(package).partition('+')[0]}")  # "+cpu" is a build, not a release
        except PackageNotFoundError:
            continue
    return pins
