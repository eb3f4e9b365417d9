"""For which added documents a model has still to write queries, and with which model."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from model_code.files import canonical_json, hash_path, hash_text, read_json
from model_code.queries.generators import TRAINED_FOLDER
from model_code.queries.pseudo_query import seed_of
from model_code.queries.settings import TRAINED, PseudoQuerySettings
from orchestration import parameters
from orchestration.ledgers import existing_ledger
from orchestration.project import Project
from orchestration.watching.batches import trained_until

if TYPE_CHECKING:
    from model_code.ledger.records import Unwritten
    from model_code.live.generation import Generation

UNCHANGED = "unchanged"  # the ledger's remark on a document of the corpus that was sent again as it is


@dataclass(frozen=True)
class Author:
    """The model that writes: its settings and seed, the folder of one that was trained here, and the name of it all.

    name: 16 hexadecimal digits of everything that what it writes depends on.
    """

    settings: PseudoQuerySettings
    seed: int
    trained: Path
    name: str


def author_of(project: Project) -> Author:
    """The one that `additions.written_queries` describes; its seed draws other queries than training and drift have."""
    stated = parameters.load(project.params_file)
    model = replace(
        stated.pseudo_queries.sequence_to_sequence, per_document=stated.additions.written_queries.per_document
    )
    settings, trained = replace(stated.pseudo_queries, sequence_to_sequence=model), trained_folder(project)
    seed = seed_of(stated.seed, "written queries")
    facts = {one: value for one, value in asdict(model).items() if one != "batch_size"} | {"seed": seed}
    facts |= {"weights": _weights(trained)} if model.model == TRAINED else {}
    return Author(settings, seed, trained, hash_text(canonical_json(facts))[:16])


def trained_folder(project: Project) -> Path:
    """Where the model lies that the project's stage query_generator trained, if it did."""
    return project.artifacts / "query_generator" / TRAINED_FOLDER


def why_none(project: Project, generation: Generation) -> str | None:
    """Why no queries are written for what is added to a live collection, and what to do; None where they are."""
    from orchestration.additions import resolved

    stated = parameters.load(project.params_file)
    if stated.additions.written_queries.generator is None:
        return (
            "no model writes queries: set additions.written_queries.generator to sequence_to_sequence, and "
            "additions.refine to true"
        )
    kind = kind_of(generation)
    if kind == "lexical":
        return f"{generation.retriever} is of kind lexical: it finds documents by their own tokens, and uses no queries"
    if not resolved(project, stated.additions, generation.retriever).uses_queries:
        return (
            f"additions.use is tuned, and what was found best for {generation.retriever} is a vector that no query "
            "changes: set it to these, with refine true, or tune again"
        )
    if stated.pseudo_queries.sequence_to_sequence.model == TRAINED and not trained_folder(project).is_dir():
        return (
            f"{trained_folder(project)} is missing: the model that writes is not trained; freshet run query_generator"
        )
    return None


def kind_of(generation: Generation) -> str:
    """The kind of the retriever of a generation."""
    from model_code.live.generation import INDEX
    from model_code.manifest import MANIFEST

    return str(read_json(generation.sibling(generation.base) / INDEX / MANIFEST)["kind"])


def unwritten(project: Project, generation: Generation, author: Author, again: bool = False) -> list[Unwritten]:
    """The documents added since the training that have no queries of their own and none by the author, oldest first.

    again: see `Ledger.unwritten`. A text that the build was trained on has a vector that was learned, and so has a
    document of the corpus that was sent again as it is.
    """
    from model_code.live.trained import trained_documents

    ledger = existing_ledger(project, generation.retriever)
    if ledger is None:
        return []
    try:
        found = ledger.unwritten(author.name, trained_until(generation), again)
    finally:
        ledger.close()
    if not any(one.reason == UNCHANGED for one in found):
        return found
    trained = trained_documents(generation)
    return [one for one in found if one.reason != UNCHANGED or one.document_id not in trained]


def _weights(folder: Path) -> str:
    """The hash of a model's folder, read anew only when a file of it is another."""
    stamp = [(path.name, path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(folder.glob("*"))]
    return _hash_of(folder, tuple(stamp))


@lru_cache(maxsize=4)
def _hash_of(folder: Path, stamp: tuple[tuple[str, int, int], ...]) -> str:
    return hash_path(folder)
