"""Create tiny temporary projects: one with two live retrievers, one that can train."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model_code.collection.segments.documents import CORPUS_DOCUMENTS, ENCODER
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
# Documents of the project that can train.
TRAINING_DOCUMENTS = 40
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
    """Create a project with two live retrievers of the same documents.

    Args:
        root: Folder of the project.
        encoder: Encoder of both retrievers.
        documents: Number of documents.

    Returns:
        The project, and the text of each document by id.
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
        build = write_build(root, root / f"build-{retriever}", loaded, texts)
        open_generation_zero(root, retriever, **build)
    return Project(root), texts


def write_build(
    root: Path, folder: Path, encoder: Encoder, texts: Mapping[str, str], seed: int = 0
) -> dict[str, Any]:
    """Write a build of documents, like a training.

    Args:
        root: Folder of the project, which holds the encoder.
        folder: Folder of the build.
        encoder: Encoder of the documents.
        texts: Texts by document id.
        seed: Seed of the hierarchy, so that two builds of the same documents differ.

    Returns:
        The arguments of `open_generation_zero`.
    """
    import numpy as np
    import pandas as pd

    from model_code.files import write_json
    from model_code.hierarchy.tree import DOCUMENT_IDS, Hierarchy
    from model_code.retrieval.dense_index import DenseIndex
    from model_code.text.passages import TextRules

    ids = list(texts)
    rules = TextRules(include_title=True, words=0, stride=1)
    # Each document is one passage. Its title is its id.
    passages = [rules.passages(document_id, text)[0] for document_id, text in texts.items()]
    vectors = encoder.encode_documents(passages)
    DenseIndex.build(vectors, ids, encoder.fingerprint()).save(folder / "index")

    # The hierarchy has one level with two leaves, whose centroids are the first two vectors.
    # Documents are assigned to the leaves at random.
    hierarchy = folder / "hierarchy"
    hierarchy.mkdir(parents=True)
    leaves = np.random.default_rng(seed).permutation(len(ids)).astype(np.int32) % 2
    parents = np.zeros(2, np.int32)
    Hierarchy((vectors[:2],), (parents,), leaves).save(hierarchy)
    write_json(hierarchy / DOCUMENT_IDS, ids)

    rows = pd.DataFrame({"document_id": ids, "title": ids, "text": list(texts.values())})
    rows = rows.assign(fields="{}", date=None)
    rows.to_parquet(folder / CORPUS_DOCUMENTS, index=False)
    return {
        "index": folder / "index",
        "hierarchy": hierarchy,
        "encoder": root / ENCODER,
        "documents": folder / CORPUS_DOCUMENTS,
        "text": rules,
        "provenance": {},
    }


def make_retrain_project(root: Path, encoder: str | Path) -> tuple[Project, dict[str, str]]:
    """Create a project with a locked corpus, whose documents are live.

    Nothing is registered, so the first retrain makes the first champion.

    Args:
        root: Folder of the project.
        encoder: Base encoder, which also searches until the first retrain.

    Returns:
        The project, and the text of each document by id.
    """
    from benchmarks.opened_build import open_generation_zero
    from model_code.encoding.encoder import Encoder
    from orchestration.pipeline.ingest import ingest
    from orchestration.pipeline.repro import repro

    project = Project(root)
    _copy_code(root)
    texts = _write_corpus(root / "data")
    base_setting = f"encoder.base={json.dumps(str(encoder))}"
    parameters.write_overrides(project.params_file, [*SETTINGS, base_setting])
    ingest(project)
    # `repro` yields its progress, which is not shown here.
    for _ in repro(project, ["corpus"]):
        pass

    loaded = Encoder.load(encoder, precision="float32", device="cpu", max_tokens=32)
    loaded.save(root / ENCODER)
    build = write_build(root, root / "build", loaded, texts)
    open_generation_zero(root, DEFAULT, **build)
    return project, texts


def _copy_code(root: Path) -> None:
    """Copy the code and the files that a project needs to run its stages with DVC."""
    for name in PACKAGES:
        shutil.copytree(CLONE / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in PROJECT_FILES:
        shutil.copyfile(CLONE / name, root / name)


def _write_corpus(folder: Path) -> dict[str, str]:
    """Write documents and a judged query for each in BEIR's columns; return the texts by id.

    The title of a document is its id, as in the documents that are added later.
    """
    texts = {f"base-{number}": document_text(number) for number in range(TRAINING_DOCUMENTS)}
    documents = []
    queries = []
    qrels = ["query-id\tcorpus-id\tscore\n"]
    for document_id, text in texts.items():
        documents.append({"_id": document_id, "title": document_id, "text": text})
        # A text begins with "Return " and ends with a full stop.
        wanted = text.removeprefix("Return ").removesuffix(".")
        queries.append({"_id": f"q-{document_id}", "text": f"how to get {wanted}"})
        qrels.append(f"q-{document_id}\t{document_id}\t1\n")

    folder.mkdir(parents=True)
    _write_json_lines(folder / "documents.jsonl", documents)
    _write_json_lines(folder / "queries.jsonl", queries)
    (folder / "qrels.tsv").write_text("".join(qrels), encoding="utf-8")
    return texts


def _write_json_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    lines = [json.dumps(row) + "\n" for row in rows]
    path.write_text("".join(lines), encoding="utf-8")
