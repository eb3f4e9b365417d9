"""From a finished build to what users search: registered as challenger, judged by the gate,
promoted, opened, undone.

A version is searchable before the alias `champion` moves to it: whatever fails or is cut off until
then leaves the champion as it was, and the same call again does the rest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from model_code.collection.generations.build import BuildArtifacts
from model_code.collection.generations.generation import Generation
from model_code.collection.generations.generation_store import (
    CURRENT,
    GenerationStore,
    default_retriever,
)
from model_code.collection.index.builds import MODEL_VERSION, open_build
from model_code.collection.ledger.events import Position
from model_code.errors import FreshetError
from model_code.evaluation.promotion import Verdict
from model_code.project import Project
from model_code.settings import require
from model_code.text.passages import TextRules
from orchestration import parameters
from orchestration.registry import gate, history, versions
from orchestration.registry.built_retriever import (
    NOWHERE,
    best_on_dev,
    best_untrained,
    find_build,
    require_current,
)
from orchestration.registry.gate import GateRules
from orchestration.registry.versions import (
    CHALLENGER,
    CHAMPION,
    PREVIOUS,
    RECORDED_CHAMPION,
    Registry,
    Version,
    open_registry,
)


@dataclass(frozen=True)
class ManualAliasChange:
    """The alias `champion` is not where Freshet put it: from which version, and to which (None: it
    was deleted).
    """

    before: Version | None
    after: Version | None

    def __str__(self) -> str:
        return f"moved by hand from {self.before or 'none'} to {self.after or 'none'}"


@dataclass(frozen=True)
class PromotionResult:
    """What a promotion or rollback came to: the champion now, whether that was the wish, and one
    line to show.

    already_champion: it was so already, by a promotion before, which may have been cut off behind its last
    step here.
    """

    champion: Version | None
    passed: bool
    summary: str
    already_champion: bool = False


def register(
    project: Project, retriever: str | None = None, snapshot: Position = NOWHERE
) -> Version:
    """Register `retriever`, or the best on dev, as challenger, trained on `snapshot`; a build that
    runs is waited for.

    FreshetError if a part is missing or out of date.
    """
    settings = parameters.load(project.params_file)
    with project.lock():
        build = find_build(project, retriever or best_on_dev(project, settings), snapshot)
        require_current(project, [retriever] if retriever else settings.built)
        return versions.register(project, build)


def promote_first_champion(project: Project) -> PromotionResult | None:
    """Make the best untrained system champion and live; None where there is a champion, or
    something else is live.

    So a corpus can be searched once it is encoded, and what is trained has something to beat. BM25,
    the base encoder and their fusion are compared on dev where people judged it; else the fusion is
    taken, which is the safest of them.
    """
    if versions.version_with_alias(project) is not None:
        return None
    with project.lock():
        name = best_untrained(project, parameters.load(project.params_file))
        require_current(project, [name])
        build = find_build(project, name)
        # without a champion also what a promotion left that was cut off, and goes on
        live = _searched_build(project)
        if live is not None and live.get("stage_key") != build.key:
            return None  # something else, such as a restored backup
        version = versions.register(project, build)
    return promote(project, challenger=version)


def promote(
    project: Project,
    rules: GateRules | None = None,
    challenger: Version | None = None,
    verdict: Verdict | None = None,
) -> PromotionResult:
    """Make the challenger champion and live if the gate passes it; each verdict is a line of the
    history.

    One that does not pass leaves the champion as it is; a champion that is not live is opened.
    rules: the project's by default. challenger: a version that need not have the alias, such as a
    retrain's; refused, it is no challenger any more. verdict: what `judge` found, if it was asked.
    An alias that was moved by hand is settled first.
    """
    with open_registry(project) as registry:
        settled = reconcile_alias(project)
        if (
            settled is not None
            and challenger is None
            and registry.version_with_alias(CHALLENGER) is None
        ):
            return settled
        move = _promote(project, registry, rules or GateRules.of(project), challenger, verdict)
    if (
        challenger is None
        and not move.passed
        and move.champion is not None
        and not _is_live(project, move.champion)
    ):
        open_version(project, move.champion)
    return move


def promote_manually(project: Project) -> PromotionResult:
    """Make the challenger champion and live whatever the gate says, as if the alias had been moved
    to it in MLflow.
    """
    with open_registry(project) as registry:
        settled = reconcile_alias(project)
        if settled is not None and registry.version_with_alias(CHALLENGER) is None:
            return settled
        (candidate, champion), rules = _candidates(project, registry, None), GateRules.of(project)
        require(
            rules.settings.by_hand == "follow",
            "promotion.by_hand is refuse: the gate alone makes a champion",
        )
        if candidate.is_same(champion):
            open_version(project, candidate)
            return PromotionResult(candidate, True, _already(candidate), already_champion=True)
        return _follow(
            project,
            registry,
            ManualAliasChange(champion, candidate),
            _verdict_by_hand(candidate, champion, rules),
        )


def _promote(
    project: Project,
    registry: Registry,
    rules: GateRules,
    challenger: Version | None,
    verdict: Verdict | None,
) -> PromotionResult:
    candidate, champion = _candidates(project, registry, challenger)
    if candidate.is_same(champion):
        open_version(project, candidate)
        return PromotionResult(candidate, True, _already(candidate), already_champion=True)
    verdict = verdict or gate.judge_challenger(candidate, champion, rules)
    why = "; ".join(verdict.reasons)
    if verdict.passed:
        open_version(project, candidate)
        _make_champion(project, registry, candidate, champion, verdict, "promote")
        return PromotionResult(candidate, True, f"{candidate} is the champion: {why}")
    history.append(
        project, "refuse", champion and champion.version, candidate.version, asdict(verdict)
    )
    registry.record_verdict(candidate, verdict)
    if challenger is None:
        return PromotionResult(champion, False, f"{candidate} stays challenger: {why}")
    registry.remove_challenger(challenger)
    return PromotionResult(champion, False, f"{candidate} is refused: {why}")


def _make_champion(
    project: Project,
    registry: Registry,
    candidate: Version,
    champion: Version | None,
    verdict: Verdict,
    action: str,
) -> None:
    registry.record_predecessor(candidate, champion)
    history.append(
        project, action, champion and champion.version, candidate.version, asdict(verdict)
    )
    registry.record_verdict(candidate, verdict)
    registry.set_champion(candidate)
    registry.remove_challenger(candidate)


def manual_alias_change(project: Project) -> ManualAliasChange | None:
    """How a person moved the alias `champion` in MLflow, if live has not followed yet and nothing
    has put it back.
    """
    before, after = (
        versions.version_with_alias(project, RECORDED_CHAMPION),
        versions.version_with_alias(project),
    )
    if before.is_same(after) if before else after is None:
        return None
    last_move = next(
        (
            line
            for line in reversed(history.read(project))
            if line["action"] in history.CHAMPION_CHANGES
        ),
        None,
    )
    if after is not None and last_move is not None and last_move["to"] == after.version:
        # a move of ours that was cut off behind the alias, or of before the tag was kept
        return None
    return ManualAliasChange(before, after)


def reconcile_alias(project: Project) -> PromotionResult | None:
    """Follow an alias that was moved by hand, or put it back, as `promotion.by_hand` says; None
    where it was not moved.

    The gate's verdict is a line of the history either way. An alias that was deleted comes back, as
    no version takes its place.
    """
    with open_registry(project) as registry:
        moved = manual_alias_change(project)
        if moved is None:
            champion = registry.version_with_alias(CHAMPION)
            if champion and not champion.is_same(registry.version_with_alias(RECORDED_CHAMPION)):
                registry.set_champion(champion)
            return None
        rules, after = GateRules.of(project), moved.after
        verdict = _verdict_by_hand(after, moved.before, rules) if after else None
        foreign = after is not None and moved.before is not None and after.is_foreign(project)
        refused = foreign or (
            rules.settings.by_hand == "refuse" and verdict is not None and not verdict.passed
        )
        go_on = _follow if verdict and not refused else _put_back
        return go_on(project, registry, moved, verdict)


def _follow(
    project: Project, registry: Registry, moved: ManualAliasChange, verdict: Verdict
) -> PromotionResult:
    after = moved.after
    open_version(project, after)
    _make_champion(project, registry, after, moved.before, verdict, "moved by hand")
    gate_said = f"{'with' if verdict.passed else 'against'} the gate: {'; '.join(verdict.reasons)}"
    return PromotionResult(after, True, f"{after} is the champion, moved by hand, {gate_said}")


def _put_back(
    project: Project, registry: Registry, moved: ManualAliasChange, verdict: Verdict | None
) -> PromotionResult:
    before, after = moved.before, moved.after
    if not _is_live(project, before):
        open_version(project, before)
    history.append(
        project, "put back", before.version, after and after.version, verdict and asdict(verdict)
    )
    registry.set_champion(before)
    if after is not None:
        registry.remove_challenger(after)
    if after is not None and verdict is not None:
        registry.record_verdict(after, verdict)
    why = f" against the gate: {'; '.join(verdict.reasons)}" if verdict else ""
    return PromotionResult(before, False, f"{before} is the champion again: {moved}{why}")


def _verdict_by_hand(candidate: Version, champion: Version | None, rules: GateRules) -> Verdict:
    """The gate's verdict; where it cannot judge, as the scores are of other queries, that is
    against the move.
    """
    try:
        versions.require_own_version(rules.project, candidate)
        return gate.judge_challenger(candidate, champion, rules)
    except FreshetError as error:
        return Verdict(False, (f"the gate cannot judge: {error}",), queries=0, intervals=())


def judge(
    project: Project, rules: GateRules | None = None, challenger: Version | None = None
) -> Verdict:
    """What `promote` would decide now; nothing is moved."""
    with open_registry(project) as registry:
        candidate, champion = _candidates(project, registry, challenger)
        if candidate.is_same(champion):
            return Verdict(True, (_already(candidate),), queries=0, intervals=())
        return gate.judge_challenger(candidate, champion, rules or GateRules.of(project))


def rollback(project: Project) -> PromotionResult:
    """Make the previous champion live and champion again; raises `FreshetError` if there is none.

    An alias that was moved by hand is settled first; one that was put back by that has been rolled
    back.
    """
    with open_registry(project) as registry:
        settled = reconcile_alias(project)
        if settled is not None and not settled.passed:
            return settled
        champion, previous = (
            registry.version_with_alias(CHAMPION),
            registry.version_with_alias(PREVIOUS),
        )
        if champion is None or previous is None:
            raise FreshetError(
                "there is no previous champion to go back to; `freshet status` shows the versions"
            )
        open_version(project, previous)
        history.append(project, "rollback", champion.version, previous.version, None)
        registry.set_champion(previous)
        return PromotionResult(
            previous, True, f"{previous} is the champion again, in place of {champion}"
        )


def _candidates(
    project: Project, registry: Registry, challenger: Version | None
) -> tuple[Version, Version | None]:
    """Who asks to be champion, and who is; the champion itself where nobody else does."""
    champion = registry.version_with_alias(CHAMPION)
    candidate = challenger or registry.version_with_alias(CHALLENGER) or champion
    if candidate is None:
        raise FreshetError(
            "there is no challenger: register a built retriever first (`freshet register`)"
        )
    versions.require_own_version(project, candidate)
    return candidate, champion


def _already(champion: Version) -> str:
    return f"{champion} is the champion already: nothing to promote"


def open_champion(project: Project) -> Generation:
    """Open the champion's build as the live collection (see `open_version`)."""
    champion = versions.version_with_alias(project)
    if champion is None:
        raise FreshetError("there is no champion to open: register and promote a retriever first")
    # then whatever waits is for the next addition, and nothing is copied
    if _is_live(project, champion):
        return GenerationStore(project.live, champion.retriever).current()
    return open_version(project, champion)


def open_version(project: Project, version: Version) -> Generation:
    """Make a version's build what is searched, with all that arrived since it was made; nothing
    happens if it is.
    """
    versions.require_own_version(project, version)
    # not inside: a promotion holds the registry and waits for the writer
    files = versions.download_files(project, version)
    parts = BuildArtifacts(
        files / "encoder", files / "index", files / "documents.parquet", files / "hierarchy"
    )
    provenance = {
        MODEL_VERSION: version.version,
        "stage_key": version.key,
        "mlflow_run": version.run_id,
    }
    text = _text_rules(project, version)
    return open_build(project, version.retriever, parts, provenance, text, version.snapshot)


def _text_rules(project: Project, version: Version) -> TextRules:
    """Those that the version was built by; today's for a version of before they were kept."""
    if version.text:
        return TextRules(**json.loads(version.text))
    settings = parameters.load(project.params_file)
    return TextRules(settings.encoder.include_title, **dict(settings.passages))


def _is_live(project: Project, version: Version) -> bool:
    """Whether the version's build is what is searched by default, with whatever was added to it.

    A False for a build that was registered twice does no harm: opening it changes nothing.
    """
    build = _searched_build(project)
    return build is not None and build.get(MODEL_VERSION) == version.version


def _searched_build(project: Project) -> Mapping[str, Any] | None:
    """What was said of the build that is searched by default; None where nothing is live."""
    if not (project.live / CURRENT).is_file():
        return None
    collection = GenerationStore(project.live, default_retriever(project.live))
    generations, number = (
        {each.number: each for each in collection.generations()},
        collection.current_number(),
    )
    build = generations.get(generations[number].build) if number in generations else None
    return {} if build is None else build.manifest["provenance"]
