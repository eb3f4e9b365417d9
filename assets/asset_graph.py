"""The stage table as Dagster asset specs: keys, dependencies, descriptions, code versions and checks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import dagster as dg

from assets.catalogue import FAMILIES
from assets.family import Check
from model_code.files import hash_path, hash_text
from orchestration.pipeline.stages import Stage, upstream

LOCK_KEY = dg.AssetKey("corpus_lock")


def asset_key(stage: Stage) -> dg.AssetKey:
    """`corpus`, or `hce/encoder` for a stage that runs once per retriever."""
    noun = FAMILIES[stage.name].noun
    return dg.AssetKey([stage.retriever, noun] if stage.retriever else [noun])


def asset_spec(stage: Stage, table: Sequence[Stage], root: Path) -> dg.AssetSpec:
    """The asset of one stage; skippable, since a build may be asked for some of its assets only."""
    family = FAMILIES[stage.name]
    before = [asset_key(other) for other in upstream(stage, table)]
    return dg.AssetSpec(
        asset_key(stage),
        deps=before or [LOCK_KEY],
        description=stage.description,
        group_name=group_name(stage),
        kinds=set(family.kinds),
        code_version=code_version(stage, root),
        skippable=True,
        metadata={"stage": stage.address},
    )


def group_name(stage: Stage) -> str:
    """The family's group; each retriever has one of its own, such as `retriever_hce` (Dagster takes no hyphens)."""
    group = FAMILIES[stage.name].group
    return f"{group}_{stage.retriever.replace('-', '_')}" if stage.retriever else group


def code_version(stage: Stage, root: Path) -> str:
    """Hash of the stage's command and code, as short as a git commit."""
    return hash_text("".join([stage.command, *(hash_path(root / path) for path in stage.code_files)]))[:12]


def check_specs(stages: Iterable[Stage]) -> list[dg.AssetCheckSpec]:
    """The blocking checks of these stages' assets."""
    return [
        dg.AssetCheckSpec(check.name, asset=asset_key(stage), description=check.description, blocking=True)
        for stage in stages
        for check in checks_of(stage)
    ]


def checks_of(stage: Stage) -> tuple[Check, ...]:
    """The questions that are asked of a stage's finished output."""
    return FAMILIES[stage.name].all_checks
