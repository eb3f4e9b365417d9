"""A finished build below `artifacts/`: its parts, whether they are of one build, and the best on dev."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from model_code.errors import FreshetError
from model_code.files import canonical_json, hash_path, read_json
from orchestration import parameters
from orchestration.parameters import Parameters
from orchestration.pipeline import stage_key, stages
from orchestration.pipeline.plan import plan
from orchestration.project import Project
from orchestration.registry.registered_model import Build
from orchestration.watermark import NOTHING, Watermark


def find_build(project: Project, retriever: str, watermark: Watermark = NOTHING) -> Build:
    """The build of `retriever` under `artifacts/`; raises `FreshetError` if a part is missing.

    watermark: the last event of the ledger that its documents hold.
    """
    from model_code.live.text_rules import TextRules

    settings = parameters.load(project.params_file)
    table = {stage.address: stage for stage in stages.expand(settings.retrievers)}
    if f"evaluate@{retriever}" not in table:
        raise FreshetError(f"{retriever!r} is not a key under `retrievers:` in params.yaml")
    parts = _parts(project.artifacts, retriever)
    for path in parts.values():
        if not path.exists():
            raise FreshetError(f"{path.relative_to(project.root)} is missing: run `freshet run evaluate@{retriever}`")
    return Build(
        retriever=retriever,
        key=stage_key.read(table[f"evaluate@{retriever}"], project.root).key,
        corpus=hash_path(project.artifacts / "corpus"),
        text=canonical_json(TextRules.stated(settings.encoder.include_title, settings.passages).facts()),
        watermark=watermark,
        **parts,
    )


def _parts(folder: Path, retriever: str) -> dict[str, Path]:
    return {
        "encoder": folder / "train" / retriever / "encoder",
        "index": folder / "index" / retriever / "index",
        "documents": folder / "corpus" / "documents.parquet",
        "hierarchy": folder / "hierarchy",
        "evaluation": folder / "evaluate" / retriever,
    }


def require_current(project: Project, retrievers: Iterable[str]) -> None:
    """FreshetError unless each retriever's evaluation is of the files and settings of now, as DVC tells.

    Where a stage before it ran alone, or a setting changed, the scores are of another encoder than the one that is
    there.
    """
    evaluations = [f"evaluate@{retriever}" for retriever in retrievers]
    stale = next((one for one in plan(project, evaluations) if one.action != "skip"), None)
    if stale is not None:
        raise FreshetError(
            f"what lies under artifacts/ is not of one build: {stale.address} is out of date ({stale.reasons[0]}); "
            f"run `freshet run {' '.join(evaluations)}`"
        )


def best_on_dev(project: Project, settings: Parameters) -> str:
    """The retriever with the highest dev value of the promotion metric, or the only one; test never chooses.

    Raises `FreshetError` if one of several is not evaluated or there are no dev queries to choose by.
    """
    names = list(settings.retrievers)
    if len(names) == 1:
        return names[0]
    values = {name: _dev_value(project, name, settings.promotion.metric) for name in names}
    return max(names, key=lambda name: (values[name], name))


def _dev_value(project: Project, retriever: str, metric: str) -> float:
    path = project.artifacts / "evaluate" / retriever / "metrics.json"
    if not path.exists():
        raise FreshetError(f"{retriever} is not evaluated yet: run `freshet run evaluate@{retriever}`")
    evaluation = read_json(path)
    if not evaluation["dev"].get("queries"):
        share = "corpus.splits" if evaluation["source"] == "qrels" else "pseudo_queries"
        raise FreshetError(
            "there are no dev queries to choose the best retriever by: name it yourself (`freshet register NAME`), "
            f"or raise {share}.dev_share in params.yaml"
        )
    return evaluation["dev"][metric]
