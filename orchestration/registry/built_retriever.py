"""A finished build below `artifacts/`: its parts, whether they fit, the best on dev; and its model
in MLflow.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import freshet
import model_code
from model_code.collection.backup.backup import link
from model_code.collection.ledger.events import Position
from model_code.context import left_out_reason
from model_code.errors import FreshetError
from model_code.files import canonical_json, hash_path, read_json
from model_code.project import Project
from model_code.text.passages import TextRules
from orchestration import parameters
from orchestration.parameters import Parameters, evaluation_folder
from orchestration.pipeline import stage_key, stages
from orchestration.pipeline.repro import plan

PACKAGES = (
    "mlflow",
    "torch",
    "transformers",
    "safetensors",
    "numpy",
    "pandas",
    "pyarrow",
    "faiss-cpu",
    "faiss-gpu",
)
ARTIFACT = "retriever"
NOWHERE = Position()
PARTS = {
    "encoder": "encoder",
    "index": "index",
    "hierarchy": "hierarchy",
    "documents": "documents.parquet",
}
"""Which part of a build lies where in the model's artifact folder."""


@dataclass(frozen=True)
class BuiltRetriever:
    """One retriever's finished build: folders of stage outputs, documents' table, key, and hash of
    the corpus.

    text: by which rules it cut documents into passages, as JSON (see `TextRules`); snapshot: the
    position in the log of the documents that it was trained on.
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
    snapshot: Position = Position()


def log_retriever(build: BuiltRetriever) -> str:
    """Log `served_model.py` to the active MLflow run, with copies of the build and of `model_code`;
    returns its URI.
    """
    import mlflow  # late, see `versions`
    import pandas as pd
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema

    query, k = ColSpec("string", "query"), ParamSpec("k", "integer", 10)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / ARTIFACT  # MLflow stores it under this name
        folder.mkdir()
        for part, name in PARTS.items():  # as MLflow follows no symbolic links
            source = getattr(build, part)
            if source.is_dir():
                shutil.copytree(source, folder / name, copy_function=link)
            else:
                link(source, folder / name)
        return mlflow.pyfunc.log_model(
            name=ARTIFACT,
            python_model=str(Path(__file__).with_name("served_model.py")),
            code_paths=[str(Path(package.__file__).parent) for package in (freshet, model_code)],
            artifacts={ARTIFACT: str(folder)},
            signature=ModelSignature(inputs=Schema([query]), params=ParamSchema([k])),
            input_example=(pd.DataFrame({"query": ["split a string on whitespace"]}), {"k": 3}),
            pip_requirements=requirements(),
        ).model_uri


def requirements() -> list[str]:
    """The packages that a served retriever needs, pinned to what is installed here."""
    pins = []
    for package in PACKAGES:
        try:
            # "+cpu" is a build, not a release
            pins.append(f"{package}=={version(package).partition('+')[0]}")
        except PackageNotFoundError:
            continue
    return pins


def find_build(project: Project, retriever: str, snapshot: Position = NOWHERE) -> BuiltRetriever:
    """The build of `retriever` under `artifacts/`, trained on `snapshot`; FreshetError if a part is
    missing.
    """
    settings = parameters.load(project.params_file)
    evaluation, folder = _evaluation(settings, retriever), project.artifacts
    encoder, index = settings.build_folders(folder, retriever)
    parts = {
        "documents": folder / "corpus" / "documents.parquet",
        "hierarchy": folder / "hierarchy",
    }
    parts |= {
        "encoder": encoder,
        "index": index,
        "evaluation": evaluation_folder(folder, retriever),
    }
    if reason := left_out_reason(parts["evaluation"]):
        raise FreshetError(reason)
    for path in parts.values():
        if not path.exists():
            raise FreshetError(
                f"{path.relative_to(project.root)} is missing: run `freshet run {evaluation.address}`"
            )
    return BuiltRetriever(
        retriever=retriever,
        key=stage_key.read_stage_inputs(evaluation, project.root).key,
        corpus=hash_path(project.artifacts / "corpus"),
        text=canonical_json(
            vars(TextRules(settings.encoder.include_title, **dict(settings.passages)))
        ),
        snapshot=snapshot,
        **parts,
    )


def _evaluation(settings: Parameters, name: str) -> stages.Stage:
    """Return the stage that evaluates a system that can be registered.

    Raises:
        FreshetError: If the name is no baseline, retriever or fusion.
    """
    if name in parameters.BASELINES:
        address = "baselines"
    elif name in settings.retrievers:
        address = f"evaluate@{name}"
    elif name in settings.fusions:
        address = f"fuse@{name}"
    else:
        raise FreshetError(
            f"{name!r} is not a key under `retrievers:` or `fusions:` in params.yaml"
        )
    (stage,) = stages.find(address, stages.expand(settings.retrievers, settings.fusions))
    return stage


def require_current(project: Project, retrievers: Iterable[str]) -> None:
    """FreshetError unless each retriever's evaluation is of the files and settings of now, as DVC
    tells.

    Where a stage before it ran alone, or a setting changed, the scores are of another encoder than
    the one that is there.
    """
    settings = parameters.load(project.params_file)
    evaluations = list(dict.fromkeys(_evaluation(settings, name).address for name in retrievers))
    stale = next((stage for stage in plan(project, evaluations) if stage.action != "skip"), None)
    if stale is not None:
        raise FreshetError(
            f"what lies under artifacts/ is not of one build: {stale.address} is out of date ({stale.reasons[0]}); "
            f"run `freshet run {' '.join(evaluations)}`"
        )


def best_on_dev(project: Project, settings: Parameters) -> str:
    """The retriever with the highest dev value of the promotion metric, or the only one; test never
    chooses.

    Where nothing was trained it is the best baseline. Raises `FreshetError` if one of several is
    not evaluated or there are no dev queries to choose by.
    """
    names = [
        name
        for name in settings.built
        if not left_out_reason(evaluation_folder(project.artifacts, name))
    ]
    if not names:
        return best_untrained(project, settings)
    if len(names) == 1:
        return names[0]
    measured = {name: _on_dev(project, name) for name in names}
    if not all(dev.get("queries") for dev in measured.values()):
        raise FreshetError(
            "there are no dev queries to choose the best retriever by: name it yourself (`freshet register NAME`), "
            "or raise corpus.splits.dev_share in params.yaml"
        )
    return max(names, key=lambda name: (measured[name][settings.promotion.metric], name))


def best_untrained(project: Project, settings: Parameters) -> str:
    """The baseline with the highest dev value of the promotion metric where people judged dev, or
    the fusion.
    """
    metrics = {name: _on_dev(project, name) for name in parameters.BASELINES}
    if any(not dev.get("queries") for dev in metrics.values()):
        return parameters.BASELINES[-1]
    return max(metrics, key=lambda name: metrics[name][settings.promotion.metric])


def _on_dev(project: Project, name: str) -> dict[str, Any]:
    """What was measured of a system on dev."""
    path = evaluation_folder(project.artifacts, name) / "metrics.json"
    if not path.exists():
        raise FreshetError(f"{name} is not evaluated yet: run `freshet run`")
    return read_json(path)["dev"]
