"""What is built, who is champion, what is live and how fresh it is, as plain values and as text."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from model_code.collection.generations.generation_store import (
    GenerationStore,
    default_retriever,
    retrievers,
)
from model_code.collection.index.status import live_status, live_status_lines
from model_code.errors import Damaged, FreshetError
from model_code.project import Project
from orchestration import parameters
from orchestration.pipeline import dvc, stages
from orchestration.pipeline.ingest import read_lock
from orchestration.registry import history, release, versions
from orchestration.running_service import service_registration

ALIASES = (versions.CHAMPION, versions.CHALLENGER, versions.PREVIOUS)


def project_status(project: Project) -> dict[str, Any]:
    """The state of the project; reads only, and says null or an empty list for what is not there
    yet.

    Raises `FreshetError` if a lock is not whole.
    """
    settings = parameters.load(project.params_file)
    addresses = [stage.address for stage in stages.expand(settings.retrievers, settings.fusions)]
    done = dvc.stages_that_ran(project.root)
    return {
        "corpus": read_lock(project),
        "stages": {address: "built" if address in done else "not built" for address in addresses},
        **{
            role: version and asdict(version)
            for role in ALIASES
            for version in [versions.version_with_alias(project, role)]
        },
        "moved_by_hand": str(moved) if (moved := release.manual_alias_change(project)) else None,
        "live": _live(project),
        "service": service_registration(project.state),
        "moves": history.read(project)[-5:],
    }


def _live(project: Project) -> list[dict[str, Any]]:
    """The current generation of each live collection, the one that is searched by default first."""
    names, default, torn = retrievers(project.live), None, None
    try:
        default = default_retriever(project.live) if names else None
    except Damaged as error:
        torn = str(error)
    return [
        _live_retriever(project, name, name == default, torn)
        for name in sorted(names, key=lambda name: (name != default, name))
    ]


def _live_retriever(project: Project, name: str, default: bool, torn: str | None) -> dict[str, Any]:
    """What there is to say of a live retriever; `problem`: which file is torn or lost, None where
    all is there.
    """
    status = dict.fromkeys(("generation", "documents", "fingerprint", "freshness"))
    status |= {"retriever": name, "default": default, "problem": torn}
    try:
        generation = GenerationStore(project.live, name).current()
        status |= {"generation": generation.number}
        status |= {key: generation.manifest[key] for key in ("documents", "fingerprint")}
        status["freshness"] = live_status(project, name)
    except FreshetError as error:
        status["problem"] = str(error)
    return status


def status_text(status: dict[str, Any]) -> str:
    """The status in a few lines."""
    corpus = status["corpus"]
    built = [address for address, state in status["stages"].items() if state == "built"]
    source = (
        f"{corpus['source']}, content {corpus['content_hash'][:12]}"
        if corpus
        else "not ingested yet"
    )
    lines = [
        f"corpus      {source}",
        f"stages      {len(built)} of {len(status['stages'])} built (freshet plan says what is out of date)",
    ]
    for alias in ALIASES:
        version = status[alias]
        lines.append(
            f"{alias:11} "
            + (f"version {version['version']} ({version['retriever']})" if version else "none")
        )
        if alias == versions.CHAMPION and status["moved_by_hand"]:
            lines.append(
                f"            {status['moved_by_hand']}; freshet promote settles it, or freshet ui by itself"
            )
    if not status["live"]:
        lines.append("live        nothing (freshet promote opens the champion)")
    for live in status["live"]:
        there = live["documents"] is not None
        facts = (
            f" generation {live['generation']}, {live['documents']:,} documents" if there else ""
        )
        lines.append(
            f"live        {live['retriever']}{facts}{', searched by default' * live['default']}"
        )
        if live["freshness"]:
            lines += live_status_lines(live["freshness"], live["default"])
        lines += [f"problem     {live['problem']}"] if live.get("problem") else []
    if status["service"]:
        lines.append(f"service     {status['service']['url']}")
    return "\n".join(lines)
