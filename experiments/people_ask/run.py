"""Search docstrings for fifty questions that are asked in people's own words.

`python -m experiments.people_ask.run PROJECT` needs a project in the folder PROJECT in which
`freshet demo` has run. It writes `result.json` here: the shares of questions with an answer among
the first 1 and 3 documents, by system. With `--words`, only BM25 is measured, with and without
known queries. The project then needs only the stage `corpus`, and other systems keep their result.

Answers are names of functions. A document may have several names, and any of them counts. A name
that no document has cannot be found by any system. Documents are complete, as in the live
collection.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.known_words import WordSearch
from model_code.collection.generations.searcher import Searcher
from model_code.corpus.tables import load_corpus
from model_code.files import read_json, write_json
from model_code.retrieval.kinds import open_retriever
from model_code.retrieval.protocol import Retriever
from model_code.retriever_settings import BM25, BM25_KNOWN
from orchestration import parameters

HERE = Path(__file__).parent
# Last line of a document that has other names.
ALIASES = re.compile(r"\n\nAlso called ([\w., ]+)\.\Z")
UNTRAINED = (BM25, BM25_KNOWN, "zero_shot", "untrained")


def measure(project: Path, systems: Mapping[str, Retriever]) -> dict[str, Any]:
    """Search for all questions with each system.

    Args:
        project: Folder of the project.
        systems: The systems by name.

    Returns:
        The shares of questions with an answer among the first 1 and 3 documents, and the first
        three documents for each question, by system.
    """
    questions = json.loads((HERE / "questions.json").read_text())
    texts = [text for text, _ in questions]
    documents_by_name = _documents_by_name(project)
    answers = []
    for _, names in questions:
        answers.append({documents_by_name[name] for name in names if name in documents_by_name})

    report = {}
    for system, retriever in systems.items():
        hits = []
        for ranking in retriever.search(texts, 3):
            hits.append([document_id for document_id, _ in ranking])
        report[system] = {
            "first 1": _share_answered(answers, hits, 1),
            "first 3": _share_answered(answers, hits, 3),
            "found": dict(zip(texts, hits, strict=True)),
        }

    lock = read_json(project / "corpus.lock.json")
    return {
        "questions": len(texts),
        "documents": len(set(documents_by_name.values())),
        "corpus": lock["versions"],
        "systems": report,
    }


def open_systems(project: Path) -> dict[str, Retriever]:
    """Open the baselines and the retriever of the live collection."""
    systems: dict[str, Retriever] = {}
    for name in UNTRAINED:
        build = project / "artifacts" / "baselines" / name / "build"
        systems[name] = open_retriever(build / "encoder", build / "index")
    live = Searcher.open(project / "live")
    systems[f"promoted ({live.generation.retriever})"] = live.retriever
    return systems


def open_word_search(project: Path, checkpoints: Path) -> dict[str, Retriever]:
    """Open BM25 with and without known queries over the complete documents of a corpus.

    Args:
        project: Folder of the project, in which the stage `corpus` has run.
        checkpoints: Folder for the indexes with which dev queries choose how known queries count.
    """
    groups = parameters.load(project / "params.yaml")
    searches = WordSearch.open(project / "artifacts" / "corpus", groups, checkpoints)
    return {BM25: searches.plain, BM25_KNOWN: searches.known}


def _share_answered(
    answers: Sequence[set[str]], hits: Sequence[Sequence[str]], count: int
) -> float:
    """Return the share of questions with an answer among the first `count` hits."""
    answered = 0
    for question_answers, question_hits in zip(answers, hits, strict=True):
        if not question_answers.isdisjoint(question_hits[:count]):
            answered += 1
    return answered / len(answers)


def _documents_by_name(project: Path) -> dict[str, str]:
    """Return the id of the document of every name."""
    documents = load_corpus(project / "artifacts" / "corpus").documents
    document_of_name = {}
    for document_id, text in zip(documents["document_id"], documents["text"], strict=True):
        aliases = ALIASES.search(text)
        if aliases is not None:
            for alias in aliases[1].split(", "):
                document_of_name[alias] = document_id
    # An id names its own document, even if another document has it as an alias.
    for document_id in documents["document_id"]:
        document_of_name[document_id] = document_id
    return document_of_name


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure a project, and write the result."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("project", type=Path, help="folder of the project")
    parser.add_argument("--words", action="store_true", help="measure only BM25")
    options = parser.parse_args(arguments)

    path = HERE / "result.json"
    if options.words:
        with tempfile.TemporaryDirectory() as folder:
            systems = open_word_search(options.project, Path(folder))
            measured = measure(options.project, systems)
        result = read_json(path)
        result["systems"].update(measured["systems"])
    else:
        result = measure(options.project, open_systems(options.project))
    write_json(path, result)
    for system, shares in result["systems"].items():
        print(f"{system:20} {shares['first 1']:.2f} {shares['first 3']:.2f}")


if __name__ == "__main__":
    main()
