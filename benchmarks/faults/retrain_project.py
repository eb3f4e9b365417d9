"""A tiny real project that retrains can be killed in: this code, made-up documents, a live build without a champion."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from benchmarks.faults.collection import document_text, write_build
from orchestration import parameters
from orchestration.freshness.workspace import CODE, FILES
from orchestration.project import Project

DOCUMENTS = 40
SETTINGS = (
    "corpus.source=files",
    "corpus.path=data/documents.jsonl",
    "corpus.files={queries: data/queries.jsonl, qrels: data/qrels.tsv}",
    "corpus.merge_duplicates=none",
    "retrievers={hce: {hierarchy_weight: 0.2, batches: siblings, negatives: siblings}}",
    "encoder.max_tokens=32",
    "encoder.precision=float32",
    "encoder.device=cpu",
    "hierarchy.branching=2",
    "acceptance.max_repeated_query_share=1.0",
    "pseudo_queries.inverse_cloze={per_document: 2, min_words: 3, max_words: 6}",
    "training.steps=12",
    "training.batch_size=8",
    "training.checkpoint_every=2",
    "training.evaluate_every=6",
    "evaluation.variants=false",
    "evaluation.bootstrap_samples=100",
    "evaluation.permutations=100",
    "promotion.permutations=100",
    "live.keep_generations=null",
)


def make_retrain_project(root: Path, encoder: str | Path) -> tuple[Project, dict[str, str]]:
    """A project under `root` with a locked corpus and its documents live, by the encoder as it comes; and their texts.

    Nothing is registered: the first retrain makes the first champion.
    """
    from model_code.encoding.encoder import Encoder
    from model_code.live.build import open_generation_zero
    from model_code.live.generation import ENCODER
    from orchestration.pipeline.ingest import ingest
    from orchestration.pipeline.repro import repro

    project = Project(root)
    _copy_code(root)
    texts = _write_corpus(root / "data")
    parameters.assign(project.params_file, [*SETTINGS, f"encoder.base={json.dumps(str(encoder))}"])
    ingest(project)
    for _ in repro(project, ["corpus"]):
        pass
    loaded = Encoder.load(encoder, precision="float32", device="cpu", max_tokens=32)
    loaded.save(root / ENCODER)
    open_generation_zero(root, "hce", **write_build(root, root / "build", loaded, texts))
    return project, texts


def _copy_code(root: Path) -> None:
    code = Path(__file__).parents[2]
    for name in CODE:
        shutil.copytree(code / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copyfile(code / name, root / name)


def _write_corpus(folder: Path) -> dict[str, str]:
    """Documents, a judged query for each, and the texts by id; a document is called by its id, as added ones are."""
    folder.mkdir(parents=True)
    texts = {f"base-{number}": document_text(number) for number in range(DOCUMENTS)}
    documents: list[dict[str, Any]] = [{"_id": one, "title": one, "text": text} for one, text in texts.items()]
    queries = [{"_id": f"q-{one}", "text": f"how to get {text[7:-1]}"} for one, text in texts.items()]
    for name, rows in (("documents", documents), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    judged = "".join(f"q-{one}\t{one}\t1\n" for one in texts)
    (folder / "qrels.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}", encoding="utf-8")
    return texts
