"""From a finished build to what users search: register the best retriever, promote it, open its live collection."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from model_code.errors import FreshetError
from orchestration import parameters
from orchestration.ledgers import first_free_number
from orchestration.project import Project
from orchestration.registry import versions as registry
from orchestration.registry.finished_build import best_on_dev, find_build, require_current
from orchestration.registry.gate import Gate
from orchestration.registry.rescore import rescore
from orchestration.watermark import NOTHING, Watermark

if TYPE_CHECKING:
    from model_code.live.generation import Generation
    from model_code.live.text_rules import TextRules


def register(project: Project, retriever: str | None = None, watermark: Watermark = NOTHING) -> registry.Version:
    """Register `retriever`, or the best on dev, as challenger.

    watermark: the last event of the ledger that its documents hold. A build that runs is waited for. FreshetError if a
    part is missing or out of date.
    """
    settings = parameters.load(project.params_file)
    with project.lock():
        build = find_build(project, retriever or best_on_dev(project, settings), watermark)
        require_current(project, [retriever] if retriever else settings.retrievers)
        return registry.register(project, build)


def promote(project: Project) -> registry.Move:
    """Put the challenger before the gate; one that passes is live and champion.

    One that does not leaves the champion as it is; a champion that is not live is opened.
    """
    settings = parameters.load(project.params_file)
    gate = Gate(settings.promotion, settings.seed, partial(rescore, project))
    move = registry.promote(project, gate, partial(open_version, project))
    if not move.passed and move.champion is not None and not _is_live(project, move.champion):
        open_version(project, move.champion)
    return move


def rollback(project: Project) -> registry.Move:
    """Make the previous champion live and champion again."""
    return registry.rollback(project, partial(open_version, project))


def rollback_generation(project: Project, number: int, retriever: str | None = None) -> Generation:
    """Search generation `number` of a live retriever (the default one) again; what the ledger says follows.

    Documents that arrived since are rolled back: adding them again brings them back, and so does going forward again.
    """
    from orchestration.freshening import Freshener

    return Freshener(project, retriever).rollback(number)


def open_live(project: Project) -> Generation:
    """Open the champion's build as the live collection (see `open_version`)."""
    champion = registry.holder(project)
    if champion is None:
        raise FreshetError("there is no champion to open: register and promote a retriever first")
    return open_version(project, champion)


def open_version(project: Project, version: registry.Version) -> Generation:
    """Make a version's build what is searched, with all that arrived since it was made; nothing happens if it is."""
    from orchestration.opening import open_complete

    files = registry.files(project, version)  # not inside: a promotion holds the registry and waits for the writer
    return open_complete(project, version.retriever, partial(_candidate, project, version, files))


def _candidate(project: Project, version: registry.Version, files: Path) -> Generation:
    from model_code.live.collection import open_generation_zero

    return open_generation_zero(
        project.live.parent,
        version.retriever,
        encoder=files / "encoder",
        index=files / "index",
        documents=files / "documents.parquet",
        hierarchy=files / "hierarchy",
        provenance={"model_version": version.version, "stage_key": version.key, "mlflow_run": version.run_id},
        text=_text_rules(project, version),
        watermark=version.watermark.here(project),
        switch=False,
        first=first_free_number(project, version.retriever),
    )


def _text_rules(project: Project, version: registry.Version) -> TextRules:
    """Those that the version was built by; today's for a version of before they were kept."""
    from model_code.live.text_rules import TextRules

    if version.text:
        return TextRules.of(json.loads(version.text))
    settings = parameters.load(project.params_file)
    return TextRules.stated(settings.encoder.include_title, settings.passages)


def _is_live(project: Project, version: registry.Version) -> bool:
    """Whether the version's build is what is searched by default, with whatever was added to it.

    A False for a build that was registered twice does no harm: opening it changes nothing.
    """
    from model_code.live.collection import CURRENT, Collection, default_retriever

    if not (project.live / CURRENT).is_file() or default_retriever(project.live) != version.retriever:
        return False
    collection = Collection(project.live, version.retriever)
    known = {one.number: one for one in collection.generations()}
    number = collection.current_number()
    if number is None or number not in known:
        return False
    build = known.get(known[number].build)
    if build is None:  # deleted after a reclustering, which keeps the encoder
        return known[number].fingerprint == version.fingerprint
    return build.manifest["provenance"].get("model_version") == version.version
