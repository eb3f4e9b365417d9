"""Pack everything that the measurements read into one small folder.

The folder travels to the machine with the GPU. It holds the base encoder in half precision, the
texts and judgements of SQuAD, BM25's candidates for negatives, and wheels of the few libraries that
the machine lacks. Large parts are compressed with LZMA.
"""

from __future__ import annotations

import gzip
import json
import lzma
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save

from benchmarks.gpu.inputs import (
    BM25_FILE,
    CANDIDATES_FILE,
    CORPUS_FILE,
    ENCODER_FOLDER,
    WEIGHTS_FILE,
    WHEELS_FOLDER,
    JudgedQuery,
    SquadInput,
)
from model_code.encoding.base_models import locate_model
from model_code.encoding.settings import EncoderSettings
from model_code.errors import FreshetError
from model_code.files import write_json
from model_code.retrieval.bm25_index import Bm25Index
from model_code.retrieval.top_k import top_k

# Largest size of the packed folder, in bytes.
MAX_BYTES = 60 * 2**20
# Number of BM25's first ranks from which negatives are drawn.
DEPTH = 20
# Largest number of queries of each split that is not trained on.
MAX_QUERIES = {"dev": 500, "test": 5000}
# Depth of BM25's ranking of test queries, in documents.
CUTOFF = 10
# Endings of the files in an encoder's folder that `Encoder.load` does not read.
UNUSED = (".onnx", ".bin", ".h5", ".md", ".ot")
# Libraries that the machine with the GPU lacks, and the platform that it has.
LIBRARIES = ("pydantic", "pydantic-core", "annotated-types", "typing-inspection", "PyStemmer")
PYTHON = "3.12"
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def pack(data: Path, output: Path, documents: int | None = None, wheels: bool = True) -> int:
    """Write the input of the measurements.

    Args:
        data: Folder of SQuAD: `corpus.jsonl.gz`, `queries.jsonl.gz` and `qrels-seen`.
        output: Folder to write. It must not exist.
        documents: Number of documents, for a small test. None: all.
        wheels: Whether to download wheels for the other machine.

    Returns:
        Size of the folder in bytes.

    Raises:
        FreshetError: If the folder exists, or if the input is larger than 60 MiB.
    """
    if output.exists():
        raise FreshetError(f"{output} exists; remove it, or name another folder")
    output.mkdir(parents=True)

    squad = read_squad(data, documents)
    write_compressed(output / CORPUS_FILE, json.dumps(squad.to_json()).encode())
    candidates, reference = rank_by_words(squad)
    write_compressed(output / CANDIDATES_FILE, candidates.tobytes())
    write_json(output / BM25_FILE, reference)
    pack_encoder(locate_model(EncoderSettings().base), output / ENCODER_FOLDER)
    if wheels:
        download_wheels(output / WHEELS_FOLDER)

    size = sum(file.stat().st_size for file in output.rglob("*") if file.is_file())
    if size > MAX_BYTES:
        raise FreshetError(f"{output} has {size:,} bytes, and at most {MAX_BYTES:,} can travel")
    return size


def read_squad(data: Path, documents: int | None) -> SquadInput:
    """Read texts and judgements. Queries of dev and test are a sample, always the same one.

    Args:
        data: Folder of the data set.
        documents: Number of documents to keep. None: all.
    """
    texts = {}
    for row in read_lines(data / "corpus.jsonl.gz"):
        texts[row["_id"]] = f"{row['title']} {row['text']}".strip()
    ids = sorted(texts)[:documents]
    number_of = {document: number for number, document in enumerate(ids)}
    query_rows = {row["_id"]: row for row in read_lines(data / "queries.jsonl.gz")}

    random = np.random.default_rng(0)
    splits: dict[str, list[JudgedQuery]] = {}
    for split in ("train", "dev", "test"):
        judged = []
        for query, document in read_qrels(data / "qrels-seen" / f"{split}.tsv"):
            if document in number_of:
                row = query_rows[query]
                answers = list(dict.fromkeys(row["answers"]))
                judged.append((row["text"], number_of[document], answers))
        # Training queries have no limit, so all of them are kept.
        sample = random.permutation(len(judged))[: MAX_QUERIES.get(split)]
        splits[split] = [judged[position] for position in np.sort(sample)]
    return SquadInput([texts[document] for document in ids], splits)


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a compressed file of JSON lines."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def read_qrels(file: Path) -> Iterator[tuple[str, str]]:
    """Yield query and document of each positive judgement of a BEIR file."""
    lines = file.read_text(encoding="utf-8").splitlines()
    for line in lines[1:]:
        query, document, grade = line.split("\t")
        if int(grade) > 0:
            yield query, document


def rank_by_words(squad: SquadInput) -> tuple[np.ndarray, dict[str, Any]]:
    """Rank with BM25: candidates for negatives of training queries, and a reference for test.

    Returns:
        For each of n training queries, the best `DEPTH` documents without the relevant one,
        (n, DEPTH) uint16. For each test query, the rank of its relevant document, from 1, or 0 if
        it is not among the first `CUTOFF`.
    """
    names = [str(number) for number in range(len(squad.texts))]
    index = Bm25Index.build(squad.texts, names)

    candidates = np.zeros((len(squad.splits["train"]), DEPTH), dtype=np.uint16)
    for number, (query, document, _) in enumerate(squad.splits["train"]):
        scores = index.scores(query)
        # The relevant document is no negative.
        scores[document] = -np.inf
        # A partition finds the best documents, and only these are sorted.
        best = np.argpartition(-scores, DEPTH - 1)[:DEPTH]
        candidates[number] = best[np.argsort(-scores[best], kind="stable")]

    ranks = []
    for query, document, _ in squad.splits["test"]:
        ranked_names = [name for name, _ in top_k(index.scores(query), names, CUTOFF)]
        rank = 0
        if str(document) in ranked_names:
            rank = ranked_names.index(str(document)) + 1
        ranks.append(rank)
    return candidates, {"ranks": ranks, "cutoff": CUTOFF}


def pack_encoder(source: Path, target: Path) -> None:
    """Copy an encoder's folder, with its weights in half precision and compressed."""

    def select_ignored(_: str, files: Sequence[str]) -> set[str]:
        """Return the unused files, and the weights, which are written in another form."""
        return {file for file in files if file.endswith((*UNUSED, ".safetensors"))}

    shutil.copytree(source, target, ignore=select_ignored)
    weights = {}
    for name, weight in load_file(source / WEIGHTS_FILE).items():
        if weight.is_floating_point():
            weight = weight.to(torch.float16)
        weights[name] = weight
    write_compressed(target / f"{WEIGHTS_FILE}.xz", save(weights))


def write_compressed(file: Path, content: bytes) -> None:
    """Write bytes with LZMA."""
    file.write_bytes(lzma.compress(content, preset=6))


def download_wheels(folder: Path) -> None:
    """Download the wheels of `LIBRARIES` in the installed versions.

    Raises:
        FreshetError: If pip cannot download one.
    """
    from importlib.metadata import version

    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command.extend(["--only-binary=:all:", "--python-version", PYTHON, "--implementation", "cp"])
    for platform in PLATFORMS:
        command.extend(["--platform", platform])
    command.extend(["--dest", str(folder)])
    for library in LIBRARIES:
        command.append(f"{library}=={version(library)}")
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    if completed.returncode:
        raise FreshetError(f"pip cannot download wheels: {completed.stderr.strip()}")
