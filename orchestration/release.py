"""From a finished build to what users search: register the best retriever, promote it, open its live collection."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model_code.errors import FreshetError
from model_code.files import read_json
from orchestration import parameters, registry, stage_key, stages
from orchestration.parameters import Parameters
from orchestration.project import Project


@dataclass(frozen=True)
class Build:
    """The folders of one retriever's finished build, and the key of its index stage."""

    retriever: str
    encoder: Path
    index: Path
    documents: Path
    hierarchy: Path
    evaluation: Path
    key: str


def find_build(project: Project, retriever: str) -> Build:
    """The build of `retriever` under `artifacts/`; raises `FreshetError` if a part is missing."""
    table = stages.expand(parameters.load(project.params_file).retrievers)
    by_address = {stage.address: stage for stage in table}
    if f"index@{retriever}" not in by_address:
        raise FreshetError(f"{retriever!r} is not a key under `retrievers:` in params.yaml")
    folder = project.artifacts
    build = Build(
        retriever=retriever,
        encoder=folder / "train" / retriever / "encoder",
        index=folder / "index" / retriever,
        documents=folder / "corpus" / "documents.parquet",
        hierarchy=folder / "hierarchy",
        evaluation=folder / "evaluate" / retriever,
        key=stage_key.read(by_address[f"evaluate@{retriever}"], project.root).key,
    )
    for path in (build.encoder, build.index, build.documents, build.hierarchy, build.evaluation):
        if not path.exists():
            raise FreshetError(f"{path.relative_to(project.root)} is missing: run `freshet run evaluate@{retriever}`")
    return build


def best_on_dev(project: Project, settings: Parameters) -> str:
    """The retriever with the highest dev value of the promotion metric; test is never looked at to choose."""
    values: dict[str, float] = {}
    for name in settings.retrievers:
        metrics = read_json(project.artifacts / "evaluate" / name / "metrics.json")
        values[name] = metrics["dev"][settings.promotion.metric]
    return max(values, key=lambda name: (values[name], name))
