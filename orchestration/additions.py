"""How documents are added to the project's live collection: the settings, the writer, and tuning on what is live."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model_code.additions.settings import AdditionSettings
from model_code.errors import FreshetError
from model_code.files import read_json, write_json
from model_code.live.generation import Generation
from model_code.progress import silent
from orchestration import parameters
from orchestration.project import Project

if TYPE_CHECKING:
    from model_code.incdsi.tuning import TuningReport
    from model_code.live.searcher import Searcher
    from model_code.live.writer import LiveWriter

BEST = "best.json"
OLD_SAMPLE = 2000  # old documents whose queries are searched in every trial


def folder_of(project: Project) -> Path:
    """Where the project remembers additions."""
    return project.state / "additions"


def settings_of(project: Project) -> AdditionSettings:
    """The group `additions` of `params.yaml`."""
    return parameters.load(project.params_file).additions


def writer_of(project: Project, retriever: str, pointer: str = "current") -> LiveWriter:
    """The writer of a retriever's live collection; plain where the settings leave encodings as they are.

    pointer: see `Collection`.
    """
    from model_code.additions.writer import RefiningWriter
    from model_code.live.writer import LiveWriter

    chosen = resolved(project, settings_of(project), retriever)
    if not chosen.changes_vectors:
        return LiveWriter(project.live, retriever, pointer=pointer)
    return RefiningWriter(project.live, retriever, chosen, folder_of(project), pointer=pointer)


def resolved(project: Project, own: AdditionSettings, retriever: str) -> AdditionSettings:
    """`own`, or where these say `use: tuned` the best settings that were found for this retriever.

    A later build keeps them: margins are in deviations of its own scores. FreshetError if nothing was tuned, or for
    another retriever or other spans.
    """
    if own.use == "these":
        return own
    file = folder_of(project) / BEST
    found = read_json(file) if file.is_file() else None
    if found is None or (found["retriever"], found["spans"]) != (retriever, own.spans):
        why = "nothing was tuned yet" if found is None else "what was tuned is another retriever, or with other spans"
        raise FreshetError(f"additions.use is tuned, but {why}: run freshet tune-additions, or set use to these")
    return replace(own, **found["settings"])


def statuses_of(project: Project, generation: Generation) -> dict[str, str]:
    """The name of the IncDSI `Status` of each document that was added by refinement, for the drift measure."""
    from model_code.additions.statuses import statuses

    return statuses(folder_of(project), generation, settings_of(project).spans)


def tune(project: Project, documents: int, trials: int, seed: int = 0) -> tuple[TuningReport, dict[str, Any]]:
    """Take `documents` out of what is live, try ways of adding them again, and keep the best one in `best.json`.

    Returns all trials, and what was written. The live collection is only read.
    """
    from model_code.additions.leave_out import chosen, leave_out, live_texts
    from model_code.additions.memory import store_of
    from model_code.incdsi.tuning import tune as try_all
    from model_code.live.searcher import Searcher

    searcher, own = Searcher.open(project.live), settings_of(project)
    texts = {key: text for key, (_, text) in live_texts(searcher).items()}
    held = chosen(list(texts), documents, "held out")
    others = chosen([key for key in texts if key not in set(held)], OLD_SAMPLE, "old")
    asked = _queries(project, {key: texts[key] for key in (*held, *others)})
    store = store_of(folder_of(project), searcher.generation, own.spans)
    state, split = leave_out(searcher, store, own.spans, held, asked)
    report = try_all(state, split, own.incdsi, trials, seed)
    counts = {"documents": len(held), "old_queries": len(split.old_queries), "new_queries": len(split.new_queries)}
    best = _best(report, searcher, own) | {"split": counts | {"trials": trials, "seed": seed}}
    write_json(folder_of(project) / BEST, best)
    return report, best


def _best(report: TuningReport, searcher: Searcher, own: AdditionSettings) -> dict[str, Any]:
    names = ("name", "old", "new", "score", "statuses")
    return {
        "retriever": searcher.generation.retriever,
        "generation": searcher.generation.number,
        "fingerprint": searcher.generation.fingerprint,
        "spans": own.spans,
        "settings": asdict(report.best.settings),
        "found": {name: getattr(report.best, name) for name in names},
        "plain": {name: getattr(report.trials[0], name) for name in names},
        "old_before": report.old_before,
    }


def _queries(project: Project, texts: Mapping[str, str]) -> dict[str, Sequence[str]]:
    """Queries by document, from the generator that the project holds out for measuring."""
    from model_code.queries.generators import make_generator

    chosen = parameters.load(project.params_file)
    generator = make_generator(chosen.pseudo_queries.held_out_generator, chosen.pseudo_queries)
    found: dict[str, list[str]] = {}
    for query in generator.generate(texts, chosen.seed, folder_of(project) / "queries", silent):
        found.setdefault(query.document_id, []).append(query.text)
    return dict(found)
