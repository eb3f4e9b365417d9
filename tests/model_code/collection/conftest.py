"""A tiny finished build: encoder, index, hierarchy and documents of ten passages."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks.opened_build import open_generation_zero
from model_code.collection.generations.generation import Generation
from model_code.encoding.encoder import Encoder
from model_code.files import write_json
from model_code.hierarchy.tree import DOCUMENT_IDS, TOPICS, Hierarchy
from model_code.project import Project
from model_code.retrieval.dense_index import DenseIndex
from model_code.text.passages import TextRules
from tests.disk import skip_fsync
from tests.model_code.collection.laws import OLD, WORDS, make_encoder, open_build
from tests.tiny_encoder import make_tiny_encoder

DOCUMENTS = {
    "builtins.sorted": "Return a new sorted list from the items in an iterable.",
    "csv.reader": "Read rows of a table from a csv file. Rows end where lines end.",
    "json.load": "Read a json document from an open file.",
    "math.sqrt": "Return the square root of a number.",
    "os.listdir": "Return a list of the names of files in a folder.",
    "random.choice": "Choose a random element from a sequence.",
    "re.split": "Split a string by the occurrences of a pattern.",
    "str.split": "Split a string into a list of words on whitespace.",
    "time.sleep": "Wait for a number of seconds.",
}
# Names of the nodes of the hierarchy.
NAMES = ["of lists", "of files", "of strings"]
PASSAGES = [*DOCUMENTS, "csv.reader"]
RULES = TextRules(include_title=True, words=12, stride=5)


@dataclass(frozen=True)
class Build:
    """The folders of a build, as `open_generation_zero` takes them."""

    encoder: Path
    index: Path
    documents: Path
    hierarchy: Path

    def open(self, root: Path, retriever: str = "hce", **provenance: object) -> Generation:
        """Open this build's live collection under `root`."""
        return open_generation_zero(
            root, retriever, **vars(self), provenance=provenance, text=RULES
        )


def make_build(folder: Path, seed: int = 0) -> Build:
    """Build everything below `folder`; another seed is another encoder."""
    passages = {document: RULES.passages(document, text) for document, text in DOCUMENTS.items()}
    texts = [*(own[0] for own in passages.values()), passages["csv.reader"][1]]
    build = Build(
        folder / "encoder", folder / "index", folder / "documents.parquet", folder / "hierarchy"
    )
    encoder = Encoder.load(
        make_tiny_encoder(build.encoder, texts, seed), precision="float32", device="cpu"
    )
    vectors = encoder.encode_documents(texts)
    DenseIndex.build(vectors, PASSAGES, encoder.fingerprint()).save(build.index)
    leaves = np.array([0, 1, 1, 0, 0, 2, 2, 2, 0, 1], np.int32)
    centroids = np.stack([vectors[leaves == leaf].mean(axis=0) for leaf in range(3)])
    centroids /= np.linalg.norm(centroids, axis=1, keepdims=True)
    build.hierarchy.mkdir()
    Hierarchy((centroids,), (np.zeros(3, np.int32),), leaves).save(build.hierarchy)
    write_json(build.hierarchy / DOCUMENT_IDS, PASSAGES)
    write_json(build.hierarchy / TOPICS, [NAMES])
    rows = [
        (document, document, text, fields_of(document), "initial")
        for document, text in DOCUMENTS.items()
    ]
    rows.append(("later.document", "later.document", "Not searchable yet.", "{}", "new"))
    frame = pd.DataFrame(rows[::-1], columns=["document_id", "title", "text", "fields", "part"])
    frame.assign(date=None).to_parquet(build.documents, index=False)
    return build


def fields_of(document: str) -> str:
    """A document's fields as the corpus has them: its package, and for some a list of tags and a
    number.
    """
    fields: dict[str, object] = {"package": document.partition(".")[0]}
    if document.endswith("split"):
        fields |= {"tags": ["text", "strings"], "since": 3}
    return json.dumps(fields, sort_keys=True)


@pytest.fixture
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that pull no plug."""
    skip_fsync(monkeypatch)


@pytest.fixture(scope="session")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a dense encoder, and a live collection of the old documents of the laws."""
    root = tmp_path_factory.mktemp("dense")
    make_encoder("dense", root / "encoder")
    with pytest.MonkeyPatch.context() as patch:
        skip_fsync(patch)
        open_build("dense", root, root / "encoder", OLD)
    return root


@pytest.fixture
def live(dense: Path, tmp_path: Path) -> Path:
    """A copy of that collection."""
    return Path(shutil.copytree(dense / "live", tmp_path / "live"))


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """One build."""
    return make_build(tmp_path_factory.mktemp("build"))


@pytest.fixture(scope="session")
def other_build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """A build of the same documents with another encoder."""
    return make_build(tmp_path_factory.mktemp("other"), seed=1)


PARAMS = "retrievers: {r: {}}\n"


def texts() -> dict[str, tuple[str, str]]:
    """Documents of one passage, five words long."""
    random = np.random.default_rng(0)
    return {f"d{i:02d}": (WORDS[i], " ".join(random.choice(WORDS, 5))) for i in range(24)}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A project with a live collection."""
    root = tmp_path_factory.mktemp("project")
    with pytest.MonkeyPatch.context() as patch:
        skip_fsync(patch)
        patch.delenv("FRESHET_STATE", raising=False)
        make_encoder("dense", root / "encoder")
        open_build("dense", root, root / "encoder", texts())
        (root / "params.yaml").write_text(PARAMS)
        (root / "dvc.yaml").touch()
        yield Project(root)


@pytest.fixture
def own(project: Project, tmp_path: Path) -> Project:
    """A copy of it in which nothing was tuned or arrived."""
    ignored = shutil.ignore_patterns(".freshet", "ledger*")
    return Project(Path(shutil.copytree(project.root, tmp_path / "own", ignore=ignored)))
