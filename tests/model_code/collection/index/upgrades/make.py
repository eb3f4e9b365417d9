"""Make a tiny project as an earlier Freshet made it, with that version's own code, for
`test_upgrades`.

    git archive COMMIT | tar x -C OLD && cp tests/model_code/collection/index/upgrades/make.py OLD
    cd OLD && PYTHONPATH=. python make.py NAME.tar.gz

Two live retrievers took in additions, an update and a removal, the default one went back by a
generation, and one document waits. `expected.json` says what that version's searches found.
"""

import json
import pkgutil
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from model_code.collection.generations.searcher import Searcher
from model_code.collection.index.live_index import LiveIndex
from model_code.project import Project
from tests.tiny_encoder import make_tiny_encoder

QUERIES = ("the array of a string", "a table in a folder", "square number")
PLACES = (
    "benchmarks.opened_build",
    "model_code.collection.generations.build",
    "model_code.collection.generations.generation_store",
)
RETRIEVERS = ("contrastive", "hce")  # the last one is searched by default


def make(root: Path) -> dict:
    """Live the life of the project, and return what its searches find."""
    project = build(root)
    default, other = (LiveIndex(project, name) for name in ("hce", "contrastive"))
    receive(
        default, {"new-1": "the array of a file", "new-2": "square root", "base-3": "another text"}
    )
    default.apply(), other.apply()
    default.remove(["base-4"], "test")
    default.apply(), other.apply()
    kept = default.generation.number
    receive(default, {"new-3": "taken back"})
    default.apply(), other.apply()
    (default.revert if hasattr(default, "revert") else default.rollback)(kept)
    default.apply(), other.apply()
    receive(default, {"waiting": "pattern of sorted strings"})
    return {name: found(project, name) for name in RETRIEVERS}


def build(root: Path) -> Project:
    """Both retrievers hold twenty documents, by the settings as they came."""
    document_text, write_build = (
        first(f"benchmarks.faults.project:{name}", f"benchmarks.faults.collection:{name}")
        for name in ("document_text", "write_build")
    )
    open_build = first(*(f"{module}:open_generation_zero" for module in PLACES))
    from model_code.encoding.encoder import Encoder

    shutil.copyfile("params.yaml", root / "params.yaml")
    (root / "dvc.yaml").touch()
    texts = {f"base-{number}": document_text(number) for number in range(20)}
    made = make_tiny_encoder(root / "encoder", texts.values(), layers=1, hidden=16)
    encoder = Encoder.load(made, precision="float32", device="cpu")
    for name in RETRIEVERS:
        open_build(root, name, **write_build(root, root / f"build-{name}", encoder, texts))
        shutil.rmtree(root / f"build-{name}")
    shutil.rmtree(root / "encoder")
    return Project(root)


def first(*addresses: str) -> Callable[..., Any]:
    """What this version calls by one of these names."""
    for address in addresses:
        with suppress(ImportError, AttributeError):
            return pkgutil.resolve_name(address)
    raise ImportError(addresses)


def receive(collection: LiveIndex, texts: dict) -> None:
    """Documents of one batch, one of them with fields and a query."""
    rows = [{"id": one, "title": one, "text": text} for one, text in texts.items()]
    rows[0] |= {"fields": {"package": "x"}, "queries": ["what is new"]}
    collection.receive(rows, "test")


def found(project: Project, retriever: str) -> dict:
    """Which documents each query finds, in their order."""
    searcher = Searcher.open(project.live, retriever)
    return {query: [hit.document_id for hit in searcher.search(query, k=100)] for query in QUERIES}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "expected.json").write_text(json.dumps(make(root)))
        with tarfile.open(sys.argv[1], "w:gz") as packed:
            for path in sorted(root.iterdir()):
                packed.add(path, path.name)
