"""Test the GPU measurements at a tiny size on the CPU.

Run: python -m pytest tests/benchmarks/test_gpu.py
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks.gpu import agreement, pack, scale, squad
from benchmarks.gpu.inputs import SquadInput, load_candidates, unpack_encoder
from model_code.errors import FreshetError
from tests.tiny_encoder import make_tiny_encoder

DOCUMENTS = 40
WORDS = [f"{first}{second}" for first in ("ba", "ce", "di", "fo") for second in "klmnprst"]
# Libraries of Freshet that the machine with the GPU has not.
MISSING = (
    "dagster",
    "mlflow",
    "dvc",
    "datasets",
    "faiss",
    "pandera",
    "great_expectations",
    "typer",
)


def write_lines(file: Path, rows: list[dict[str, object]]) -> None:
    """Write compressed JSON lines."""
    with gzip.open(file, "wt", encoding="utf-8") as lines:
        for row in rows:
            lines.write(json.dumps(row) + "\n")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed folder of made-up documents with a tiny encoder."""
    folder = tmp_path_factory.mktemp("gpu")
    data = folder / "data"
    (data / "qrels-seen").mkdir(parents=True)
    rng = np.random.default_rng(0)
    documents = []
    queries = []
    qrels = {"train": [], "dev": [], "test": []}
    for number in range(DOCUMENTS):
        words = rng.choice(WORDS, 8)
        documents.append({"_id": f"d{number:03d}", "title": words[0], "text": " ".join(words)})
        for split in qrels:
            query = f"{split}{number:03d}"
            text = " ".join(rng.permutation(words)[:4])
            queries.append({"_id": query, "text": text, "answers": [f"{words[1]} {words[2]}"]})
            qrels[split].append(f"{query}\td{number:03d}\t1")
    write_lines(data / "corpus.jsonl.gz", documents)
    write_lines(data / "queries.jsonl.gz", queries)
    for split, lines in qrels.items():
        content = "\n".join(["query-id\tcorpus-id\tscore", *lines])
        (data / "qrels-seen" / f"{split}.tsv").write_text(content + "\n", encoding="utf-8")

    encoder = make_tiny_encoder(folder / "tiny", WORDS, max_tokens=128)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pack, "locate_model", lambda base: encoder)
        pack.pack(data, folder / "packed", wheels=False)
    return folder / "packed"


@pytest.fixture(scope="module")
def data(packed: Path) -> SquadInput:
    return SquadInput.load(packed)


def test_pack_refuses_a_folder_that_exists(packed: Path):
    with pytest.raises(FreshetError, match="exists"):
        pack.pack(packed, packed)


def test_candidates_leave_out_the_relevant_document(packed: Path, data: SquadInput):
    candidates = load_candidates(packed, len(data.splits["train"]))
    for row, (_, document, _) in zip(candidates, data.splits["train"], strict=True):
        assert document not in row.tolist()


def test_cpu_agrees_with_itself(packed: Path, data: SquadInput, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(agreement, "SETTINGS", agreement.SETTINGS.replace(batch_size=8))
    measured = agreement.measure(unpack_encoder(packed), data)
    assert measured["float32"]["relative difference of the loss"] == 0
    assert measured["float32"]["within bounds"]


def test_trainings_are_compared(packed: Path, data: SquadInput):
    saved = []
    shared = {**squad.SHARED, "batch_size": 8, "epochs": 1, "negatives_depth": 5}
    candidates = load_candidates(packed, len(data.splits["train"]))

    result = squad.measure(
        unpack_encoder(packed),
        data,
        candidates,
        packed,
        time.monotonic() + 600,
        lambda name, measured: saved.append(name),
        shared,
        workers=1,
    )

    trainings = len(squad.TRAININGS) * len(squad.SEEDS)
    assert len(result["trainings"]) == trainings
    assert saved == ["squad"] * trainings
    assert set(result["test"]) >= {"bm25", "encoder as it comes"}
    assert len(result["differences"]) == len(squad.TRAININGS) - 1


def test_nothing_is_trained_without_time(packed: Path, data: SquadInput):
    candidates = load_candidates(packed, len(data.splits["train"]))
    shared = {**squad.SHARED, "batch_size": 8}

    result = squad.measure(
        unpack_encoder(packed), data, candidates, packed, 0.0, print, shared, workers=0
    )

    assert result["trainings"] == {}


def test_made_up_vectors_are_clustered():
    measured = scale.measure_clustering(vectors=500)
    assert measured["nodes by level"] == [8, 63]


def test_measurements_need_no_other_library():
    program = f"""
import sys
import benchmarks.gpu.run, benchmarks.gpu.squad, benchmarks.gpu.agreement
import benchmarks.gpu.scale, benchmarks.gpu.speed, benchmarks.incdsi
found = sorted(set({MISSING!r}) & set(sys.modules))
sys.exit(f"imported: {{found}}" if found else 0)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
