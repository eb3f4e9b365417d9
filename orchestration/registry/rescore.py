"""The champion judged again on today's corpus: its registered scores are of the corpus that it was built on."""

from __future__ import annotations

import shutil
from pathlib import Path

from model_code.context import StageContext
from model_code.live.collection import Collection
from model_code.live.documents import read_columns
from model_code.live.generation import DOCUMENTS, ENCODER, INDEX
from model_code.live.searcher import Searcher
from model_code.retriever import Search
from model_code.retrievers.kinds import open_retriever
from orchestration import parameters
from orchestration.project import Project
from orchestration.registry import versions as registry

INPUTS = ("corpus", "pseudo_queries", "hierarchy")


def rescore(project: Project, champion: registry.Version) -> Path:
    """Evaluate the champion as users search it on the judged queries under `artifacts/`; returns the scores' folder.

    That is its live generation, or its registered build if it is not live. Documents that it has not got yet, it
    cannot find: that counts, since the challenger would find them. Those that only it has, which arrived after the
    challenger's corpus was taken, are left out of its rankings.
    """
    output = project.state / "rescored" / champion.version
    return score(project, champion.retriever, _search(project, champion), output)


def score(project: Project, system: str, search: Search, output: Path) -> Path:
    """Evaluate `search` on the judged queries under `artifacts/`; returns the scores' folder, `output`."""
    from model_code.stages.evaluate import Bench

    settings = parameters.load(project.params_file)
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    context = StageContext(
        root=project.root,
        inputs={name: project.artifacts / name for name in INPUTS},
        output=output,
        settings={"evaluation": settings.evaluation},
        checkpoints=output,
    )
    bench = Bench.load(context)
    bench.evaluate(system, bench.search(search), output)
    return output


def served(project: Project, champion: registry.Version) -> Searcher | None:
    """The champion's live collection as it is searched now; None if the champion is not live."""
    collection = Collection(project.live, champion.retriever)
    if collection.current_number() is None or collection.current().fingerprint != champion.fingerprint:
        return None
    return Searcher.open(project.live, champion.retriever)


def _search(project: Project, champion: registry.Version) -> Search:
    live = served(project, champion)
    if live is None:
        files = registry.files(project, champion)
        return open_retriever(files / ENCODER, files / INDEX).search
    return search_within(project, live)


def search_within(project: Project, live: Searcher) -> Search:
    """What is live, with rankings of the documents under `artifacts/` alone."""
    (known,) = read_columns(project.artifacts / "corpus" / DOCUMENTS, "document_id")
    found = {document for view in live.views for document in view.document_ids()}
    shared = None if found <= set(known) else found & set(known)
    return lambda texts, k: live.retriever.search(texts, k, shared)
