"""Search a built project for fifty questions in people's words.

`python -m experiments.people_ask.run PROJECT` needs `freshet demo` in the folder PROJECT and writes
`result.json` here. It reports the share with an answer in the first 1 and 3, by system. An answer
counts under any name of its document; a name without a document counts for no system. Documents are
complete, as in the live collection.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from model_code.collection.generations.searcher import Searcher
from model_code.corpus.tables import load_corpus
from model_code.files import read_json, write_json
from model_code.retrieval.kinds import open_retriever

HERE = Path(__file__).parent
ALIASES = re.compile(r"\n\nAlso called ([\w., ]+)\.\Z")
UNTRAINED = ("bm25", "zero_shot", "untrained")


def main(project: Path) -> dict[str, Any]:
    """Write the share of questions with an answer in the first 1 and 3.

    Also write each system's first three documents.
    """
    questions = json.loads((HERE / "questions.json").read_text())
    names = _names(project)
    accepted = [{names[name] for name in answers if name in names} for _, answers in questions]
    builds = {name: project / "artifacts" / "baselines" / name / "build" for name in UNTRAINED}
    systems = {
        name: open_retriever(folder / "encoder", folder / "index")
        for name, folder in builds.items()
    }
    live = Searcher.open(project / "live")
    systems[f"promoted ({live.generation.retriever})"] = live.retriever
    texts, report = [text for text, _ in questions], {}
    for name, retriever in systems.items():
        found = [[document for document, _ in ranking] for ranking in retriever.search(texts, 3)]
        shares = {
            f"first {k}": sum(
                bool(right & set(own[:k])) for right, own in zip(accepted, found, strict=True)
            )
            / len(texts)
            for k in (1, 3)
        }
        report[name] = shares | {"found": dict(zip(texts, found, strict=True))}
    lock = read_json(project / "corpus.lock.json")
    return {
        "questions": len(texts),
        "documents": len(set(names.values())),
        "corpus": lock["versions"],
        "systems": report,
    }


def _names(project: Path) -> dict[str, str]:
    """Return the id of the document of every name."""
    documents = load_corpus(project / "artifacts" / "corpus").documents
    names = {}
    for document, text in zip(documents["document_id"], documents["text"], strict=True):
        also = ALIASES.search(text)
        names |= dict.fromkeys(also[1].split(", ") if also else (), document)
    return names | {document: document for document in documents["document_id"]}


if __name__ == "__main__":
    result = main(Path(sys.argv[1]))
    write_json(HERE / "result.json", result)
    for system, shares in result["systems"].items():
        print(f"{system:20} {shares['first 1']:.2f} {shares['first 3']:.2f}")
