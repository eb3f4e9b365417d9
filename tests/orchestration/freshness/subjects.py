"""Documents of two subjects, and adding them to a project."""

from __future__ import annotations

import random

from model_code.collection.index.live_index import LiveIndex

SEA = [
    "wave",
    "tide",
    "harbour",
    "sail",
    "anchor",
    "gull",
    "reef",
    "current",
    "deck",
    "mast",
    "rope",
    "keel",
]
SPACE = [
    "orbit",
    "comet",
    "lunar",
    "rocket",
    "galaxy",
    "probe",
    "star",
    "crater",
    "solar",
    "nebula",
    "dust",
    "ring",
]
PARAMS = {
    "retrievers": {"hce": {"min_judged_queries": 0}},
    "encoder": {"include_title": False},
    "drift": {"alpha": 0.15, "minimum_batch": 20},
}


def documents(words, count, name, seed):
    """Documents of eight words each, by id."""
    draw = random.Random(seed)
    return {f"{name}-{i:03}": " ".join(draw.sample(words, 8)) for i in range(count)}


def queries(words, count, seed):
    """The first words of the documents that the same seed gives."""
    return [" ".join(text.split()[:6]) for text in documents(words, count, "q", seed).values()]


def add(project, texts, asked=None):
    """Add documents, with the queries that they come with by id, and return the ledger."""
    collection = LiveIndex(project)
    rows = []
    for name, text in texts.items():
        row = {"id": name, "title": name, "text": text}
        if asked:
            row["queries"] = asked[name]
        rows.append(row)
    collection.receive(rows, "test")
    collection.apply()
    return collection.ledger


def others(texts):
    """For each document, by id, a query of the words of another subject: the documents' own do not
    find them.
    """
    return dict(zip(texts, [[text] for text in queries(SPACE, len(texts), 9)], strict=True))
