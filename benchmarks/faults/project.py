"""Create tiny temporary projects: one with two live retrievers, one that can train."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model_code.collection.segments.documents import DOCUMENTS, ENCODER
from model_code.project import Project
from orchestration import parameters
from orchestration.freshness.workspace import PROJECT_FILES
from orchestration.pipeline.code_lock import PACKAGES

if TYPE_CHECKING:
    from model_code.encoding.encoder import Encoder

CLONE = Path(__file__).parents[2]
# Live retrievers: the default one, and one that follows it.
DEFAULT, OTHER = "hce", "contrastive"
WORDS = (
    "array",
    "string",
    "file",
    "table",
    "number",
    "folder",
    "sorted",
    "random",
    "square",
    "pattern",
)
TRAINED_ON = 40
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
    "live.keep_generations=null",
)


def document_text(number: int) -> str:
    """Return the unique text of document `number`."""
    return f"Return the {WORDS[number % 10]} of a {WORDS[number // 10 % 10]}, version {number}."


def make_project(
    root: Path, encoder: str | Path, documents: int = 20
) -> tuple[Project, dict[str, str]]:
    """Create a project under `root` whose two live retrievers hold `documents`.

    Return it with the text of each document by id.
    """
    from benchmarks.opened_build import open_generation_zero
    from model_code.encoding.encoder import Encoder

    texts = {f"base-{number}": document_text(number) for number in range(documents)}
    loaded = Encoder.load(encoder, precision="float32", device="cpu")
    loaded.save(root / ENCODER)
    retrievers = f"{{{DEFAULT}: {{}}, {OTHER}: {{}}}}"
    (root / "params.yaml").write_text(f"retrievers: {retrievers}\nhierarchy: {{branching: 2}}\n")
    (root / "dvc.yaml").touch()
    # The retriever that is opened last is the default one.
    for retriever in (OTHER, DEFAULT):
        open_generation_zero(
            root, retriever, **write_build(root, root / f"build-{retriever}", loaded, texts)
        )
    return Project(root), texts


def write_build(
    root: Path, folder: Path, encoder: Encoder, texts: Mapping[str, str], seed: int = 0
) -> dict[str, Any]:
    """Write a build of documents to `folder`, like a training.

    Return the arguments of `open_generation_zero`. Another `seed` gives another hierarchy, so that
    two builds of the same documents differ.
    """
    import numpy as np
    import pandas as pd

    from model_code.files import write_json
    from model_code.hierarchy.tree import DOCUMENT_IDS, Hierarchy
    from model_code.retrieval.dense_index import DenseIndex
    from model_code.text.passages import TextRules

    parts = {name: folder / name for name in ("index", "hierarchy")}
    parts["hierarchy"].mkdir(parents=True)
    rules = TextRules(include_title=True, words=0, stride=1)
    vectors = encoder.encode([rules.passages(*item)[0] for item in texts.items()])
    DenseIndex.build(vectors, list(texts), encoder.fingerprint()).save(parts["index"])
    leaves = np.random.default_rng(seed).permutation(len(texts)).astype(np.int32) % 2
    Hierarchy((vectors[:2],), (np.zeros(2, np.int32),), leaves).save(parts["hierarchy"])
    write_json(parts["hierarchy"] / DOCUMENT_IDS, list(texts))
    rows = {"document_id": list(texts), "title": list(texts), "text": list(texts.values())}
    pd.DataFrame(rows).assign(fields="{}", date=None).to_parquet(folder / DOCUMENTS, index=False)
    return parts | {
        "encoder": root / ENCODER,
        "documents": folder / DOCUMENTS,
        "text": rules,
        "provenance": {},
    }


def make_retrain_project(root: Path, encoder: str | Path) -> tuple[Project, dict[str, str]]:
    """Create a project under `root` with a locked corpus, whose documents are live.

    The encoder is the base encoder. Nothing is registered, so the first retrain makes the first
    champion. Return the project with the texts.
    """
    from benchmarks.opened_build import open_generation_zero
    from model_code.encoding.encoder import Encoder
    from orchestration.pipeline.ingest import ingest
    from orchestration.pipeline.repro import repro

    project = Project(root)
    _copy_code(root)
    texts = _write_corpus(root / "data")
    parameters.write_overrides(
        project.params_file, [*SETTINGS, f"encoder.base={json.dumps(str(encoder))}"]
    )
    ingest(project)
    for _ in repro(project, ["corpus"]):
        pass
    loaded = Encoder.load(encoder, precision="float32", device="cpu", max_tokens=32)
    loaded.save(root / ENCODER)
    open_generation_zero(root, DEFAULT, **write_build(root, root / "build", loaded, texts))
    return project, texts


def _copy_code(root: Path) -> None:
    for name in PACKAGES:
        shutil.copytree(CLONE / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in PROJECT_FILES:
        shutil.copyfile(CLONE / name, root / name)


def _write_corpus(folder: Path) -> dict[str, str]:
    """Write documents and a judged query for each; return the texts by id.

    A document's name is its id, as for added documents.
    """
    folder.mkdir(parents=True)
    texts = {f"base-{number}": document_text(number) for number in range(TRAINED_ON)}
    documents: list[dict[str, Any]] = [
        {"_id": one, "title": one, "text": text} for one, text in texts.items()
    ]
    queries = [
        {"_id": f"q-{one}", "text": f"how to get {text[7:-1]}"} for one, text in texts.items()
    ]
    for name, rows in (("documents", documents), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8"
        )
    judged = "".join(f"q-{one}\t{one}\t1\n" for one in texts)
    (folder / "qrels.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}", encoding="utf-8")
    return texts
