"""The champion judged again on today's corpus: its registered scores are of the corpus that it was built on."""

from __future__ import annotations

import shutil
from pathlib import Path

from model_code.live.collection import Collection
from model_code.live.generation import ENCODER, INDEX
from model_code.retrievers.kinds import open_retriever
from model_code.stages.context import StageContext
from orchestration import parameters, registry
from orchestration.project import Project

INPUTS = ("corpus", "pseudo_queries", "hierarchy")


def rescore(project: Project, champion: registry.Version) -> Path:
    """Evaluate the champion as users search it on the judged queries under `artifacts/`; returns the scores' folder.

    That is its live generation, or its registered build if it is not live. Documents that it has not got yet, it
    cannot find: that counts, since the challenger would find them.
    """
    from model_code.stages.evaluate import Bench

    settings = parameters.load(project.params_file)
    folder = served(project, champion)
    output = project.state / "rescored" / champion.version
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    context = StageContext(
        root=project.root,
        inputs={name: project.artifacts / name for name in INPUTS},
        output=output,
        settings={"evaluation": settings.evaluation},
        checkpoints=output,
    )
    retriever = open_retriever(folder / ENCODER, folder / INDEX)
    bench = Bench.load(context)
    bench.evaluate(champion.retriever, bench.search(retriever.search), output)
    return output


def served(project: Project, champion: registry.Version) -> Path:
    """The folder that holds the champion's encoder and index as they are searched now."""
    collection = Collection(project.live, champion.retriever)
    if collection.current_number() is not None and collection.current().fingerprint == champion.fingerprint:
        return collection.current().folder
    return registry.files(project, champion)
