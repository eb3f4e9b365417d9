"""Release a finished build: register it, ask the gate, promote it, open it, and roll it back.

The champion is the version that is searched by default; MLflow marks it with the alias `champion`.
To open a version is to make its index live. A version is opened before the alias moves to it. A
failure before that move leaves the champion unchanged, and calling the function again completes
the release.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
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
from model_code.corpus.corpus_queries import KNOWN_QUERIES
from model_code.errors import FreshetError
from model_code.evaluation.promotion import Verdict
from model_code.project import Project
from model_code.settings import require
from model_code.text.passages import TextRules
from orchestration import parameters
from orchestration.registry import gate, history, versions
from orchestration.registry.built_retriever import (
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
    """A change of the alias `champion` that a person made in MLflow.

    Attributes:
        before: The version that Freshet made champion, if any.
        after: The version that has the alias now; None if the alias was deleted.
    """

    before: Version | None
    after: Version | None

    def __str__(self) -> str:
        return f"moved by hand from {self.before or 'none'} to {self.after or 'none'}"


@dataclass(frozen=True)
class PromotionResult:
    """The outcome of a promotion or rollback.

    Attributes:
        champion: The champion after the call, or None.
        passed: Whether the version that was to become champion is champion now.
        summary: The outcome in one line.
        already_champion: Whether this version was champion before the call, for example because an
            earlier promotion was interrupted after it moved the alias.
        verdict: Verdict of the gate on the version. None if it was not asked by this call.
    """

    champion: Version | None
    passed: bool
    summary: str
    already_champion: bool = False
    verdict: Verdict | None = None


def register(
    project: Project, retriever: str | None = None, snapshot: Position | None = None
) -> Version:
    """Register a finished build as challenger, the version that asks to be promoted.

    If a build is running, the function waits until it ends.

    Args:
        project: The project.
        retriever: The retriever to register; None for the best on dev.
        snapshot: The ledger position of the documents that it was trained on, if they came from a
            ledger.

    Raises:
        FreshetError: If a file of the build is missing or out of date.
    """
    settings = parameters.load(project.params_file)
    with project.lock():
        name = retriever or best_on_dev(project, settings)
        build = find_build(project, name, snapshot)
        # If the scores on dev choose the retriever, the scores of all retrievers must be current.
        compared = [retriever] if retriever else settings.built
        require_current(project, compared)
        return versions.register(project, build)


def promote_first_champion(project: Project) -> PromotionResult | None:
    """Make the best untrained system champion and live, if there is no champion yet.

    A corpus can therefore be searched as soon as it is encoded, and a trained retriever has a
    baseline to beat. The untrained systems are BM25, the base encoder and their fusion. They are
    compared on the split dev. If dev has no judged queries, the fusion becomes champion, because it
    is the most robust of them.

    Returns:
        The outcome; None if there is a champion, or if something else is live.
    """
    if versions.version_with_alias(project) is not None:
        return None

    with project.lock():
        name = best_untrained(project, parameters.load(project.params_file))
        require_current(project, [name])
        build = find_build(project, name)

        # An index may be live although there is no champion. If the live index comes from this same
        # build, an earlier call of this function was interrupted, and the promotion is completed
        # now. If it comes from another build, such as a restored backup, nothing is changed.
        live = _live_build_provenance(project)
        if live is not None and live.get("stage_key") != build.key:
            return None
        version = versions.register(project, build)
    return promote(project, challenger=version)


def promote(
    project: Project,
    rules: GateRules | None = None,
    challenger: Version | None = None,
    verdict: Verdict | None = None,
) -> PromotionResult:
    """Make the challenger champion and live if it passes the gate.

    Each verdict is appended to the history. If the challenger does not pass, the champion stays
    champion, and is opened if it is not live. If a person moved the alias `champion` in MLflow,
    this change is accepted or undone first (see `reconcile_alias`).

    Args:
        project: The project.
        rules: The rules of the gate. None: the project's rules.
        challenger: A version to judge instead of the one with the alias `challenger`, such as the
            version of a retrain. If it is refused, it keeps the alias `challenger`.
        verdict: The result of `judge`. None: the gate is asked now.

    Raises:
        FreshetError: If there is no challenger.
    """
    with open_registry(project) as registry:
        reconciled = reconcile_alias(project)
        has_candidate = challenger is not None or _has_challenger(registry)
        # A person's change of the alias is the whole promotion if no other version is to be judged.
        if reconciled is not None and not has_candidate:
            return reconciled
        if rules is None:
            rules = GateRules.load(project)
        result = _promote(project, registry, rules, challenger, verdict)

    # Open the champion if its index is not live. A retrain names its challenger, and leaves the
    # live index as it is.
    champion_stays = not result.passed and result.champion is not None
    if challenger is None and champion_stays and not _is_live(project, result.champion):
        open_version(project, result.champion)
    return result


def promote_manually(project: Project) -> PromotionResult:
    """Make the challenger champion and live, whatever the gate decides.

    This is recorded as if a person had moved the alias in MLflow.

    Raises:
        FreshetError: If there is no challenger, or `promotion.by_hand` is `refuse`.
    """
    with open_registry(project) as registry:
        reconciled = reconcile_alias(project)
        if reconciled is not None and not _has_challenger(registry):
            return reconciled

        candidate, champion = _candidate_and_champion(project, registry, None)
        rules = GateRules.load(project)
        require(
            rules.settings.by_hand == "follow",
            "promotion.by_hand is refuse, so a version is only promoted by the gate: "
            "set it to follow",
        )
        if candidate.is_same(champion):
            return _open_current_champion(project, candidate)

        change = ManualAliasChange(champion, candidate)
        verdict = _verdict_on_manual_change(candidate, champion, rules)
        return _follow_manual_change(project, registry, change, verdict)


def judge(
    project: Project, rules: GateRules | None = None, challenger: Version | None = None
) -> Verdict:
    """Return the verdict that `promote` would reach now, without changing anything.

    The arguments are those of `promote`.
    """
    with open_registry(project) as registry:
        candidate, champion = _candidate_and_champion(project, registry, challenger)
        if candidate.is_same(champion):
            return Verdict(True, (_already_champion(candidate),), queries=0, intervals=())
        return gate.judge_challenger(candidate, champion, rules or GateRules.load(project))


def rollback(project: Project) -> PromotionResult:
    """Make the previous champion live and champion again.

    If a person moved the alias `champion` in MLflow, this change is accepted or undone first (see
    `reconcile_alias`). If it is undone, nothing else is rolled back.

    Raises:
        FreshetError: If there is no previous champion.
    """
    with open_registry(project) as registry:
        reconciled = reconcile_alias(project)
        if reconciled is not None and not reconciled.passed:
            return reconciled

        champion = registry.version_with_alias(CHAMPION)
        previous = registry.version_with_alias(PREVIOUS)
        if champion is None or previous is None:
            raise FreshetError(
                "there is no previous champion to go back to; `freshet status` shows the versions"
            )

        open_version(project, previous)
        history.append(project, "rollback", champion.version, previous.version, None)
        registry.set_champion(previous)
        # The version may have been registered again, and a champion does not challenge itself.
        registry.remove_challenger(previous)
        summary = f"{previous} is the champion again, in place of {champion}"
        return PromotionResult(previous, True, summary)


def manual_alias_change(project: Project) -> ManualAliasChange | None:
    """Return the change of the alias `champion` that a person made in MLflow, or None.

    None is also returned if `reconcile_alias` has already accepted or undone the change.
    """
    before = versions.version_with_alias(project, RECORDED_CHAMPION)
    after = versions.version_with_alias(project, CHAMPION)
    if before is None:
        is_unchanged = after is None
    else:
        is_unchanged = before.is_same(after)
    if is_unchanged:
        return None

    # A promotion by Freshet may have been interrupted after it moved the alias. The history tells
    # it apart from a change by a person.
    last_change = _last_champion_change(project)
    if after is not None and last_change is not None:
        was_moved_by_freshet = last_change["to"] == after.version
        if was_moved_by_freshet:
            return None
    return ManualAliasChange(before, after)


def reconcile_alias(project: Project) -> PromotionResult | None:
    """Accept or undo a change of the alias `champion` that a person made in MLflow.

    A change is accepted if the gate passes the new version, or if `promotion.by_hand` is not
    `refuse`. The gate's verdict is appended to the history in both cases.

    Two changes are undone whatever the gate says. One is a deleted alias, because no version takes
    its place. The other is a move to another project's version, if this project had a champion.

    Returns:
        The outcome; None if no person moved the alias.
    """
    with open_registry(project) as registry:
        change = manual_alias_change(project)
        if change is None:
            _record_interrupted_promotion(registry)
            return None

        if change.after is None:
            return _put_alias_back(project, registry, change, None)

        rules = GateRules.load(project)
        verdict = _verdict_on_manual_change(change.after, change.before, rules)
        is_foreign = change.before is not None and change.after.is_foreign(project)
        is_refused = rules.settings.by_hand == "refuse" and not verdict.passed
        if is_refused and change.before is None:
            return _take_alias_away(project, registry, change.after, verdict)
        if is_foreign or is_refused:
            return _put_alias_back(project, registry, change, verdict)
        return _follow_manual_change(project, registry, change, verdict)


def open_champion(project: Project) -> Generation:
    """Make the champion's build live, if it is not live yet.

    If it is live, nothing is done. Changes that wait to become searchable are left for the next
    addition.

    Raises:
        FreshetError: If there is no champion.
    """
    champion = versions.version_with_alias(project)
    if champion is None:
        raise FreshetError("there is no champion to open: register and promote a retriever first")
    if _is_live(project, champion):
        return GenerationStore(project.live, champion.retriever).current()
    return open_version(project, champion)


def open_version(project: Project, version: Version) -> Generation:
    """Make a version's build live and searched by default, with all changes since its training.

    Nothing changes if the build is searched by default already.

    Raises:
        FreshetError: If another project registered the version.
    """
    versions.require_own_version(project, version)
    # The download locks the registry, and `open_build` then locks the live index. The download must
    # come first: a promotion holds the lock of the registry while it waits for the live index.
    files = versions.download_files(project, version)
    known_queries: Path | None = files / KNOWN_QUERIES
    if not known_queries.is_file():
        known_queries = None
    artifacts = BuildArtifacts(
        files / "encoder",
        files / "index",
        files / "documents.parquet",
        files / "hierarchy",
        known_queries,
    )
    provenance = {
        MODEL_VERSION: version.version,
        "stage_key": version.key,
        "mlflow_run": version.run_id,
    }
    text_rules = _text_rules(project, version)
    return open_build(
        project, version.retriever, artifacts, provenance, text_rules, version.snapshot
    )


def _promote(
    project: Project,
    registry: Registry,
    rules: GateRules,
    challenger: Version | None,
    verdict: Verdict | None,
) -> PromotionResult:
    """Ask the gate about a challenger, and make it champion and live, or record the refusal.

    Args:
        project: The project.
        registry: The open registry.
        rules: The rules of the gate.
        challenger: The version to judge. None: the version with the alias `challenger`.
        verdict: A verdict of the gate on this version. None: the gate is asked now.
    """
    candidate, champion = _candidate_and_champion(project, registry, challenger)
    if candidate.is_same(champion):
        return _open_current_champion(project, candidate)

    if verdict is None:
        verdict = gate.judge_challenger(candidate, champion, rules)
    reasons = "; ".join(verdict.statements)

    if verdict.passed:
        open_version(project, candidate)
        _make_champion(project, registry, candidate, champion, verdict, "promote")
        summary = f"{candidate} is the champion: {reasons}"
        return PromotionResult(candidate, True, summary, verdict=verdict)

    history.append(project, "refuse", _number(champion), candidate.version, asdict(verdict))
    registry.record_verdict(candidate, verdict)
    if challenger is None:
        summary = f"{candidate} stays challenger: {reasons}"
    else:
        summary = f"{candidate} is refused: {reasons}"
    return PromotionResult(champion, False, summary, verdict=verdict)


def _make_champion(
    project: Project,
    registry: Registry,
    candidate: Version,
    champion: Version | None,
    verdict: Verdict,
    action: str,
) -> None:
    """Record a change of the champion, and then move the alias to the new champion.

    The alias moves last. If the call is interrupted before, the old champion stays champion.
    """
    registry.record_predecessor(candidate, champion)
    history.append(project, action, _number(champion), candidate.version, asdict(verdict))
    registry.record_verdict(candidate, verdict)
    registry.set_champion(candidate)
    registry.remove_challenger(candidate)


def _open_current_champion(project: Project, champion: Version) -> PromotionResult:
    """Make the champion live, because the version to promote is the champion already."""
    open_version(project, champion)
    return PromotionResult(champion, True, _already_champion(champion), already_champion=True)


def _follow_manual_change(
    project: Project, registry: Registry, change: ManualAliasChange, verdict: Verdict
) -> PromotionResult:
    """Make the version to which a person moved the alias live, and record it as champion."""
    open_version(project, change.after)
    _make_champion(project, registry, change.after, change.before, verdict, "moved by hand")

    agreement = "with" if verdict.passed else "against"
    reasons = "; ".join(verdict.statements)
    summary = f"{change.after} is the champion, moved by hand, {agreement} the gate: {reasons}"
    return PromotionResult(change.after, True, summary)


def _put_alias_back(
    project: Project, registry: Registry, change: ManualAliasChange, verdict: Verdict | None
) -> PromotionResult:
    """Undo a person's change: make the version that was champion before live and champion again."""
    champion = change.before
    if not _is_live(project, champion):
        open_version(project, champion)

    verdict_values = None if verdict is None else asdict(verdict)
    history.append(project, "put back", champion.version, _number(change.after), verdict_values)
    registry.set_champion(champion)

    summary = f"{champion} is the champion again: {change}"
    # After a deleted alias, there is no version to judge.
    if change.after is not None:
        registry.remove_challenger(change.after)
        if verdict is not None:
            registry.record_verdict(change.after, verdict)
            summary += f" against the gate: {'; '.join(verdict.statements)}"
    return PromotionResult(champion, False, summary)


def _take_alias_away(
    project: Project, registry: Registry, version: Version, verdict: Verdict
) -> PromotionResult:
    """Undo a person's first choice of a champion, because the gate refuses the version.

    There was no champion before, so the alias is removed instead of moved back.
    """
    history.append(project, "put back", None, version.version, asdict(verdict))
    registry.remove_champion()
    registry.record_verdict(version, verdict)
    reasons = "; ".join(verdict.reasons)
    summary = f"there is no champion: the alias was moved by hand to {version}, but {reasons}"
    return PromotionResult(None, False, summary)


def _verdict_on_manual_change(
    candidate: Version, champion: Version | None, rules: GateRules
) -> Verdict:
    """Return the gate's verdict on a version to which a person moved the alias.

    If the gate cannot judge the version, the verdict does not pass. This happens, for example, if
    its scores belong to other queries.
    """
    try:
        versions.require_own_version(rules.project, candidate)
        return gate.judge_challenger(candidate, champion, rules)
    except FreshetError as error:
        return Verdict(False, (f"the gate cannot judge: {error}",), queries=0, intervals=())


def _record_interrupted_promotion(registry: Registry) -> None:
    """Complete a promotion that was interrupted after it moved the alias.

    The registered model also records which version Freshet made champion last. This record is
    brought up to date.
    """
    champion = registry.version_with_alias(CHAMPION)
    if champion is None:
        return
    if not champion.is_same(registry.version_with_alias(RECORDED_CHAMPION)):
        registry.set_champion(champion)


def _candidate_and_champion(
    project: Project, registry: Registry, challenger: Version | None
) -> tuple[Version, Version | None]:
    """Return the version to judge, and the champion.

    If there is no challenger, both are the champion.
    """
    champion = registry.version_with_alias(CHAMPION)
    candidate = challenger or registry.version_with_alias(CHALLENGER) or champion
    if candidate is None:
        raise FreshetError(
            "there is no challenger: register a built retriever first (`freshet register`)"
        )
    versions.require_own_version(project, candidate)
    return candidate, champion


def _has_challenger(registry: Registry) -> bool:
    return registry.version_with_alias(CHALLENGER) is not None


def _last_champion_change(project: Project) -> dict[str, Any] | None:
    """Return the last line of the history that made another version champion, or None."""
    for line in reversed(history.read(project)):
        if line["action"] in history.CHAMPION_CHANGES:
            return line
    return None


def _already_champion(champion: Version) -> str:
    return f"{champion} is the champion already: nothing to promote"


def _number(version: Version | None) -> str | None:
    return None if version is None else version.version


def _text_rules(project: Project, version: Version) -> TextRules:
    """Return the rules by which the version's build cut documents into passages.

    If the registration was interrupted before it recorded the rules, the current settings are used.
    """
    if version.text:
        return TextRules(**json.loads(version.text))
    settings = parameters.load(project.params_file)
    return TextRules(settings.encoder.include_title, **dict(settings.passages))


def _is_live(project: Project, version: Version) -> bool:
    """Return whether the index that is searched by default began with the version's build.

    Documents may have been added to the index since then. A build can be registered as two
    versions. The function then returns True only for the version that was opened. This does no
    harm, because opening the other version changes nothing.
    """
    provenance = _live_build_provenance(project)
    return provenance is not None and provenance.get(MODEL_VERSION) == version.version


def _live_build_provenance(project: Project) -> Mapping[str, Any] | None:
    """Return the provenance of the build that is searched by default: its version and stage key.

    Returns:
        The provenance. None if nothing is live. Empty if the first generation of the build, which
        records the provenance, was deleted.
    """
    if not (project.live / CURRENT).is_file():
        return None

    store = GenerationStore(project.live, default_retriever(project.live))
    generations = {generation.number: generation for generation in store.generations()}
    current = generations.get(store.current_number())
    # `build` is the number of the first generation of the build.
    if current is None or current.build not in generations:
        return {}
    return generations[current.build].manifest["provenance"]
