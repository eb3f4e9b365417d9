"""The state of a project, as plain values and as text.

MLflow, DVC and torch are not imported: they would make `freshet status` take seconds.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

from freshet.results import SourceState
from model_code.collection.generations.generation_store import (
    GenerationStore,
    default_retriever,
    retrievers,
)
from model_code.collection.index.reading_notes_file import read_reading_notes
from model_code.collection.index.status import live_status, live_status_lines
from model_code.collection.sync.named_sources import source_states
from model_code.corpus.reading_notes import note_lines, notes_from_json, notes_to_json
from model_code.errors import Damaged, FreshetError
from model_code.project import Project
from orchestration import parameters
from orchestration.cli.sources import source_line
from orchestration.freshness.judged_pairs import count_judgements
from orchestration.pipeline import dvc, stages
from orchestration.pipeline.ingest import read_lock
from orchestration.registry import history
from orchestration.registry.read_only import read_roles
from orchestration.registry.shadow_record import load_record
from orchestration.registry.versions import (
    CHALLENGER,
    CHAMPION,
    PREVIOUS,
    RECORDED_CHAMPION,
    ROLES,
    Version,
)
from orchestration.running_service import service_registration

SHOWN_ROLES = (CHAMPION, CHALLENGER, PREVIOUS)
# Number of the latest promotions and rollbacks in the state.
MAX_PAST_MOVES = 5
# State of a stage that a changed setting or source runs again.
OUT_OF_DATE = "out of date"
# Width of the column of labels in the text, in characters.
LABEL_WIDTH = 12
# An error of the registry is cut to this length. SQLAlchemy's errors have many lines.
MAX_REASON_CHARACTERS = 300


def project_status(project: Project) -> dict[str, Any]:
    """Return the state of a project without changing anything.

    The keys are the fields of `freshet status --json`. Parts that do not exist yet are None or
    empty. A part that cannot be read names its problem, and the other parts are still returned.

    Raises:
        FreshetError: If `dvc.lock` or `corpus.lock.json` is damaged.
    """
    versions, problem = _read_versions(project)
    status: dict[str, Any] = {
        "corpus": read_lock(project),
        "judgements": None,
        "stages": _stage_states(project),
    }
    if status["corpus"] is not None:
        status["judgements"] = _judgement_counts(project)
    for role in SHOWN_ROLES:
        version = versions[role]
        status[role] = None if version is None else asdict(version)
    status["registry_problem"] = problem
    status["moved_by_hand"] = None
    if problem is None:
        status["moved_by_hand"] = _manual_alias_change(project, versions)
    status["shadow"] = _shadow_finding(project, versions[CHALLENGER])
    status["live"] = _live_retrievers(project)
    status["sources"], status["sources_problem"] = _source_states(project)
    status["service"] = service_registration(project.state)
    status["reading_notes"] = notes_to_json(read_reading_notes(project))
    status["moves"] = history.read(project)[-MAX_PAST_MOVES:]
    return status


def _judgement_counts(project: Project) -> dict[str, Any]:
    """Count the judged queries.

    If a file is damaged, the text that `freshet status` shows is the error in place of counts.
    """
    try:
        return count_judgements(project).as_dict()
    except FreshetError as error:
        return {"text": f"cannot be counted: {error}"}


def _stage_states(project: Project) -> dict[str, str]:
    """Return whether each stage is built, out of date or not built, by its address.

    A changed setting or source makes a stage out of date. A change of the code is not noticed,
    because comparing it would take seconds.
    """
    settings = parameters.load(project.params_file)
    finished = dvc.stages_that_ran(project.root)
    changed = dvc.changed_stages(project.root, parameters.read_mapping(project.params_file))
    states = {}
    for stage in stages.expand(settings.retrievers, settings.fusions):
        # A restored backup and a new clone have `dvc.lock`, and no outputs.
        has_output = (project.root / stage.output).exists()
        if stage.address not in finished or not has_output:
            states[stage.address] = "not built"
        elif stage.address in changed:
            states[stage.address] = OUT_OF_DATE
        else:
            states[stage.address] = "built"
    return states


def _read_versions(project: Project) -> tuple[dict[str, Version | None], str | None]:
    """Read which model version is champion, challenger and so on.

    Returns:
        The version in each role; None for a role that no version has.
        The reason why the registry cannot be read; None if it can.
    """
    try:
        return read_roles(project), None
    # MLflow raises its own errors, and those of requests and SQLAlchemy. None of them may hide the
    # rest of the state, which does not depend on the registry. The text shows the error.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        return dict.fromkeys(ROLES), reason[:MAX_REASON_CHARACTERS]


def _manual_alias_change(project: Project, versions: dict[str, Version | None]) -> str | None:
    """Describe how a person moved the champion's alias in MLflow; None if nobody did."""
    champion = versions[CHAMPION]
    recorded = versions[RECORDED_CHAMPION]
    if champion is None and recorded is None:
        return None
    if champion is not None and champion.is_same(recorded):
        return None

    # A person rarely moves the alias. Only this case pays for the slow import of the registry.
    from orchestration.registry import release

    change = release.manual_alias_change(project)
    return None if change is None else str(change)


def _shadow_finding(project: Project, challenger: Version | None) -> dict[str, Any] | None:
    """Return what shadow mode found about the challenger; None if it did not compare it.

    In shadow mode, the challenger answers a share of the live queries, and nobody sees its answers.
    """
    if challenger is None:
        return None
    record = load_record(project, challenger.version)
    return None if record is None else record.as_dict()


def _live_retrievers(project: Project) -> list[dict[str, Any]]:
    """Return the state of each live retriever, the default one first."""
    names = retrievers(project.live)
    default = None
    problem = None
    if names:
        try:
            default = default_retriever(project.live)
        except Damaged as error:
            problem = str(error)

    ordered_names = sorted(names)
    if default in ordered_names:
        ordered_names.remove(default)
        ordered_names.insert(0, default)
    states = []
    for name in ordered_names:
        is_default = name == default
        states.append(_live_retriever(project, name, is_default, problem))
    return states


def _live_retriever(
    project: Project, name: str, is_default: bool, problem: str | None
) -> dict[str, Any]:
    """Return the state of a live retriever.

    Args:
        project: The project.
        name: Name of the retriever.
        is_default: Whether searches use this retriever by default.
        problem: Error about the file that names the default retriever; None if it is intact.
    """
    state: dict[str, Any] = {
        "generation": None,
        "documents": None,
        "fingerprint": None,
        "freshness": None,
        "retriever": name,
        "default": is_default,
        "problem": problem,
    }
    try:
        generation = GenerationStore(project.live, name).current()
        state["generation"] = generation.number
        state["documents"] = generation.manifest["documents"]
        state["fingerprint"] = generation.manifest["fingerprint"]
        state["freshness"] = live_status(project, name)
    except FreshetError as error:
        state["problem"] = str(error)
    return state


def status_text(status: dict[str, Any]) -> str:
    """Return the state of a project as a few lines of text."""
    lines = [_corpus_line(status["corpus"])]
    if status["judgements"] is not None:
        lines.append(_line("judgements", status["judgements"]["text"]))
    lines.append(_stages_line(status["stages"]))
    if status["registry_problem"]:
        lines.append(_line("versions", f"unknown: {status['registry_problem']}"))
    else:
        lines += _version_lines(status)

    if status["shadow"]:
        lines.append(_line("shadow", status["shadow"]["text"]))
    if not status["live"]:
        lines.append(_line("live", "nothing; freshet promote opens the champion"))
    for retriever in status["live"]:
        lines += _retriever_lines(retriever)
    lines += _source_lines(status["sources"], status["sources_problem"])
    lines += _reading_note_lines(status["reading_notes"])
    if status["service"]:
        lines.append(_line("service", status["service"]["url"]))
    return "\n".join(lines)


def _source_states(project: Project) -> tuple[list[dict[str, Any]], str | None]:
    """Return the states of all sources, and the error if they cannot be read, or None."""
    try:
        return [asdict(state) for state in source_states(project)], None
    except FreshetError as error:
        return [], str(error)


def _source_lines(sources: list[dict[str, Any]], problem: str | None) -> list[str]:
    """Return a line for each source; no line if there is only the project's own one."""
    if problem is not None:
        return [_line("source", f"unknown: {problem}")]
    if len(sources) == 1:
        return []
    return [_line("source", source_line(SourceState(**source))) for source in sources]


def _reading_note_lines(values: list[dict[str, Any]]) -> list[str]:
    """Return lines about parts of files that were not read; no line if all were read."""
    notes = notes_from_json(values)
    if not notes:
        return []
    files = len({note.file for note in notes})
    unit = "file has" if files == 1 else "files have"
    first_line = _line("files", f"{files:,} {unit} notes from reading:")
    return [first_line, *note_lines(notes, " " * LABEL_WIDTH)]


def _line(label: str, text: str) -> str:
    """Return a line whose text begins at the same column as that of the other lines."""
    return f"{label:{LABEL_WIDTH}}{text}"


def _corpus_line(corpus: dict[str, Any] | None) -> str:
    """Describe the corpus's source in `corpus.lock.json`: its kind and the hash of its content."""
    if corpus is None:
        return _line("corpus", "not ingested yet")
    return _line("corpus", f"{corpus['source']}, content {corpus['content_hash'][:12]}")


def _stages_line(states: dict[str, str]) -> str:
    """Count the stages that are built and out of date."""
    counts = Counter(states.values())
    text = f"{counts['built']} of {len(states)} built"
    if counts[OUT_OF_DATE]:
        text += f", {counts[OUT_OF_DATE]} out of date"
    return _line("stages", f"{text} (freshet plan shows which are out of date)")


def _version_lines(status: dict[str, Any]) -> list[str]:
    """Return a line for champion, challenger and previous champion.

    A line below the champion tells if a person has moved its alias in MLflow.
    """
    lines = []
    for role in SHOWN_ROLES:
        version = status[role]
        text = "none"
        if version is not None:
            text = f"version {version['version']} ({version['retriever']})"
        lines.append(_line(role, text))
        if role == CHAMPION and status["moved_by_hand"]:
            remedy = "freshet promote settles this, and so does a sensor of freshet ui"
            lines.append(_line("", f"{status['moved_by_hand']}; {remedy}"))
    return lines


def _retriever_lines(retriever: dict[str, Any]) -> list[str]:
    """Return the lines about a live retriever: its generation, its backlog, and a problem."""
    text = retriever["retriever"]
    if retriever["documents"] is not None:
        text += f" generation {retriever['generation']}, {retriever['documents']:,} documents"
    if retriever["default"]:
        text += ", searched by default"

    lines = [_line("live", text)]
    if retriever["freshness"]:
        lines += live_status_lines(retriever["freshness"], retriever["default"])
    if retriever.get("problem"):
        lines.append(_line("problem", retriever["problem"]))
    return lines
