"""From a finished build to what users search: register the best retriever, promote it, open its live collection."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from model_code.errors import FreshetError
from model_code.files import hash_path, read_json
from orchestration import parameters, registry, stage_key, stages
from orchestration.gate import Gate
from orchestration.ledgers import first_free_number
from orchestration.parameters import Parameters
from orchestration.project import Project
from orchestration.registered_model import Build
from orchestration.rescore import rescore

if TYPE_CHECKING:
    from model_code.live.generation import Generation


def register(project: Project, retriever: str | None = None) -> registry.Version:
    """Register `retriever`, or the best on dev, as challenger."""
    settings = parameters.load(project.params_file)
    return registry.register(project, find_build(project, retriever or best_on_dev(project, settings)))


def promote(project: Project) -> registry.Move:
    """Put the challenger before the gate; one that passes is champion and live."""
    settings = parameters.load(project.params_file)
    move = registry.promote(project, Gate(settings.promotion, settings.seed, partial(rescore, project)))
    if move.passed:
        open_live(project)
    return move


def rollback(project: Project) -> registry.Move:
    """Make the previous champion champion and live again."""
    move = registry.rollback(project)
    open_live(project)
    return move


def rollback_generation(project: Project, number: int, retriever: str | None = None) -> Generation:
    """Search generation `number` of a live retriever (the default one) again; what the ledger says follows.

    Documents that arrived since are rolled back: adding them again brings them back, and so does going forward again.
    """
    from orchestration.freshening import Freshener

    return Freshener(project, retriever).rollback(number)


def open_live(project: Project, watermark: int = 0) -> Generation:
    """Open the champion's build as the live collection, with all that arrived since it was made; nothing happens if it
    is the one that is live.

    watermark: the last event of the ledger whose documents it was built with.
    """
    from orchestration.opening import open_complete

    champion = registry.holder(project)
    if champion is None:
        raise FreshetError("there is no champion to open: register and promote a retriever first")
    return open_complete(project, champion.retriever, partial(_candidate, project, champion, watermark))


def _candidate(project: Project, champion: registry.Version, watermark: int) -> Generation:
    from model_code.live.collection import open_generation_zero
    from model_code.live.text_rules import TextRules

    files, settings = registry.files(project, champion), parameters.load(project.params_file)
    return open_generation_zero(
        project.live.parent,
        champion.retriever,
        encoder=files / "encoder",
        index=files / "index",
        documents=files / "documents.parquet",
        hierarchy=files / "hierarchy",
        provenance={"model_version": champion.version, "stage_key": champion.key, "mlflow_run": champion.run_id},
        text=TextRules.stated(settings.encoder.include_title, settings.passages),
        watermark=watermark,
        switch=False,
        first=first_free_number(project, champion.retriever),
    )


def find_build(project: Project, retriever: str) -> Build:
    """The build of `retriever` under `artifacts/`; raises `FreshetError` if a part is missing."""
    table = {stage.address: stage for stage in stages.expand(parameters.load(project.params_file).retrievers)}
    if f"evaluate@{retriever}" not in table:
        raise FreshetError(f"{retriever!r} is not a key under `retrievers:` in params.yaml")
    folder = project.artifacts
    parts: dict[str, Path] = {
        "encoder": folder / "train" / retriever / "encoder",
        "index": folder / "index" / retriever / "index",
        "documents": folder / "corpus" / "documents.parquet",
        "hierarchy": folder / "hierarchy",
        "evaluation": folder / "evaluate" / retriever,
    }
    for path in parts.values():
        if not path.exists():
            raise FreshetError(f"{path.relative_to(project.root)} is missing: run `freshet run evaluate@{retriever}`")
    key = stage_key.read(table[f"evaluate@{retriever}"], project.root).key
    return Build(retriever=retriever, key=key, corpus=hash_path(folder / "corpus"), **parts)


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
