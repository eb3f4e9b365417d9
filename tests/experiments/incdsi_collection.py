"""A tiny judged collection in BEIR layout with dates, and its encoding, for the tests of IncDSI's protocol."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from experiments.incdsi_frontier.encoded import Encoded, encode
from experiments.incdsi_frontier.pages import Pages
from tests.tiny_encoder import make_tiny_encoder

WORDS = [f"word{i}" for i in range(40)]
OLD, NEW = 30, 30
DAY = "2025-01-01"


def write_collection(root: Path) -> Path:
    """Later documents come first in the file, two share a title, and p30 has no train query."""
    random = np.random.default_rng(0)
    (root / "qrels").mkdir(parents=True)
    documents, queries, qrels = [], [], {"train": [], "dev": [], "test": []}
    for number in range(OLD + NEW)[::-1]:
        own = random.choice(WORDS, 8, replace=False)
        date = f"{2024 if number < OLD else 2025}-01-{number % 28 + 1:02d}"
        title = f"title{number // 2}"
        documents.append({"_id": f"p{number}", "title": title, "text": " ".join(own), "date": date})
        for split in qrels:
            if split == "train" and number == OLD:
                continue
            queries.append({"_id": f"{split}{number}", "text": " ".join(random.choice(own, 3))})
            qrels[split].append(f"{split}{number}\tp{number}\t1")
    for name, rows in (("corpus", documents), ("queries", queries)):
        (root / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for split, rows in qrels.items():
        (root / "qrels" / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]))
    return root


def make_base(root: Path) -> Path:
    """An encoder that knows the collection's words."""
    return make_tiny_encoder(root / "encoder", WORDS)


def encoded_collection(root: Path) -> Encoded:
    """The collection, split by date, encoded."""
    return encode(Pages.read(write_collection(root / "beir"), DAY), make_base(root), 32)
