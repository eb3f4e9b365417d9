"""How documents are added to the project's live collection: the settings, the writer, and tuning on what is live."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model_code.additions.settings import AdditionSettings
from model_code.files import read_json, write_json
from model_code.live.generation import Generation
from model_code.progress import silent
from orchestration import parameters
from orchestration.project import Project

if TYPE_CHECKING:
    from model_code.incdsi.tuning import TuningReport
    from model_code.live.searcher import Searcher
    from model_code.live.writer import LiveWriter

log = logging.getLogger(__name__)
BEST = "best"  # a folder with a file per retriever; best.json, of one retriever only, in projects of earlier versions
OLD_SAMPLE = 2000  # old documents whose queries are searched in every trial


def folder_of(project: Project) -> Path:
    """Where the project remembers additions."""
    return project.state / "additions"


def settings_of(project: Project) -> AdditionSettings:
    """The group `additions` of `params.yaml`."""
    return parameters.load(project.params_file).additions


def best_file(project: Project, retriever: str) -> Path:
    """Where the best settings that were found for a retriever are kept."""
    return folder_of(project) / BEST / f"{retriever}.json"


def writer_of(project: Project, retriever: str) -> LiveWriter:
    """The writer of a retriever's live collection; plain where the settings leave encodings as they are.

    A retriever that `untuned` names is warned of in the log.
    """
    from model_code.live.writer import LiveWriter

    own = settings_of(project)
    if (why := untuned(project, own, retriever)) is not None:
        log.warning(why)
    chosen = resolved(project, own, retriever)
    if not chosen.changes_vectors:
        return LiveWriter(project.live, retriever)
    from model_code.additions.writer import RefiningWriter  # with all of IncDSI

    return RefiningWriter(project.live, retriever, chosen, folder_of(project))


def resolved(project: Project, own: AdditionSettings, retriever: str) -> AdditionSettings:
    """`own`, or where these say `use: tuned` the best settings that were found for this retriever, unless it is
    `untuned`: then `own`, so that neither it nor another one has to wait.

    A later build keeps them: margins are in deviations of its own scores.
    """
    if own.use == "these" or untuned(project, own, retriever) is not None:
        return own
    return own.replace(**_best_of(project, retriever)["settings"])


def untuned(project: Project, own: AdditionSettings, retriever: str) -> str | None:
    """Why a retriever gets `own` although these say `use: tuned`, and what to do; None where it does not."""
    found = _best_of(project, retriever)
    if own.use == "these" or (found and found["spans"] == own.spans):
        return None
    what = f"that was with spans {found['spans']}, not {own.spans}" if found else "nothing was tuned"
    return (
        f"additions.use is tuned, but for {retriever} {what}: until freshet tools tune --retriever {retriever}, "
        "its documents are added by the settings in params.yaml"
    )


def _best_of(project: Project, retriever: str) -> dict[str, Any] | None:
    for file in (best_file(project, retriever), folder_of(project) / f"{BEST}.json"):
        if file.is_file() and (found := read_json(file))["retriever"] == retriever:
            return found
    return None


def statuses_of(project: Project, generation: Generation) -> dict[str, str]:
    """The name of the IncDSI `Status` of each document that was added by refinement, for the drift measure."""
    from model_code.additions.store import statuses

    return statuses(folder_of(project), generation, settings_of(project).spans)


def tune(
    project: Project, documents: int, trials: int, seed: int = 0, retriever: str | None = None
) -> tuple[TuningReport, dict[str, Any]]:
    """Take `documents` out of what is live, try ways of adding them again, and keep the best one in `best_file`.

    retriever: a live one; None: the one that is searched by default. Returns all trials, and what was written. The live
    collection is only read. FreshetError if the retriever is not live.
    """
    from model_code.additions.leave_out import chosen, leave_out, live_texts
    from model_code.additions.store import store_of
    from model_code.incdsi.tuning import tune as try_all
    from model_code.live.searcher import Searcher

    searcher, own = Searcher.open(project.live, retriever), settings_of(project)
    texts = {key: text for key, (_, text) in live_texts(searcher).items()}
    held = chosen(list(texts), documents, "held out")
    others = chosen([key for key in texts if key not in set(held)], OLD_SAMPLE, "old")
    asked = _queries(project, {key: texts[key] for key in (*held, *others)})
    store = store_of(folder_of(project), searcher.generation, own.spans)
    state, split = leave_out(searcher, store, own.spans, held, asked)
    report = try_all(state, split, own.incdsi, trials, seed)
    counts = {"documents": len(held), "old_queries": len(split.old_queries), "new_queries": len(split.new_queries)}
    best = _best(report, searcher, own) | {"split": counts | {"trials": trials, "seed": seed}}
    write_json(best_file(project, best["retriever"]), best)
    return report, best


def _best(report: TuningReport, searcher: Searcher, own: AdditionSettings) -> dict[str, Any]:
    names = ("name", "old", "new", "score", "statuses")
    return {
        "retriever": searcher.generation.retriever,
        "generation": searcher.generation.number,
        "fingerprint": searcher.generation.fingerprint,
        "spans": own.spans,
        "settings": report.best.settings.model_dump(),
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
