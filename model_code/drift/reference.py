"""The drift reference: the documents and queries that new documents are compared with.

It is a sample of the documents that the retriever was trained on, saved as a folder of arrays with
checksums. The sample should contain documents whose queries the encoder was not trained on, such as
documents with dev or test queries. Training moves the vectors of the other documents. A classifier
could tell such a document from a new one of the same kind.

The reference holds queries for old documents, and not the scores of these queries. Every report
searches the queries again, because documents score lower in a larger collection. If old scores from
before the growth were used, new documents of the same kind would seem to be found worse.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from model_code.drift.settings import DriftSettings
from model_code.files import (
    atomic_write,
    read_json,
    read_manifest,
    verify_checksums,
    write_json,
    write_manifest,
)

# Version of the format of the reference's folder, and the kind of folder in its manifest.
FORMAT = 8
KIND = "drift_reference"
TENSORS_FILE = "drift_reference.safetensors"
QUESTIONS_FILE = "questions.json"


@dataclass(frozen=True)
class Question:
    """A query that measures how well a document is found.

    Attributes:
        document_id: Id of the document that is measured.
        text: Text of the query.
        answers: Ids of all documents that answer the query.
        rank: For a protected query, the rank of its first answer before any addition, from 1. It is
            0 if no answer was found, and for other queries.
    """

    document_id: str
    text: str
    answers: frozenset[str]
    rank: int = 0


@dataclass(frozen=True)
class Questions:
    """Queries for old documents.

    Attributes:
        made: Pseudo-queries, which are generated from the documents.
        asked: Judged queries of the corpus.
        protected: Judged queries that show whether additions push their answers down.
    """

    made: tuple[Question, ...] = ()
    asked: tuple[Question, ...] = ()
    protected: tuple[Question, ...] = ()

    def save(self, path: Path) -> None:
        """Write the queries to a JSON file. Equal questions give equal bytes."""
        rows_by_kind: dict[str, list[dict[str, Any]]] = {}
        for kind, questions in vars(self).items():
            rows = []
            for question in questions:
                row = dict(vars(question))
                row["answers"] = sorted(question.answers)
                rows.append(row)
            rows_by_kind[kind] = rows
        write_json(path, rows_by_kind)

    @classmethod
    def load(cls, path: Path) -> Questions:
        """Read the queries from a file that `save` wrote."""
        questions_by_kind = {}
        for kind, rows in read_json(path).items():
            questions = []
            for row in rows:
                row["answers"] = frozenset(row["answers"])
                questions.append(Question(**row))
            questions_by_kind[kind] = tuple(questions)
        return cls(**questions_by_kind)


@dataclass(frozen=True, eq=False)
class DriftReference:
    """n documents, and queries for old documents that every report searches again.

    Attributes:
        vectors: Vectors of the documents, (n, H) float32, of unit norm.
        trained: Number of documents that the retriever was trained on.
        fingerprint: Fingerprint of the encoder.
        questions: Queries for old documents, which every report searches again.
        note: A sentence that tells readers of reports what the sample consists of.
    """

    vectors: np.ndarray
    trained: int
    fingerprint: str
    questions: Questions = Questions()
    note: str = ""

    @classmethod
    def build(
        cls,
        vectors: np.ndarray,
        fingerprint: str,
        settings: DriftSettings,
        rows: np.ndarray | None = None,
        trained: int | None = None,
        questions: Questions = Questions(),
        note: str = "",
    ) -> DriftReference:
        """Make a reference from a sample of `settings.reference_documents` passages.

        If there are fewer passages, all are taken. Reports then skip the measures that need more
        passages, and mention it.

        Args:
            vectors: Vectors of passages, (N, H).
            fingerprint: Fingerprint of the encoder.
            settings: Size of the sample, and seed.
            rows: The passages that may be sampled, one per document. None: all.
            trained: Number of documents that the retriever was trained on. None: N.
            questions: Queries for old documents.
            note: A sentence that tells readers of reports what the sample consists of.
        """
        eligible = np.arange(len(vectors)) if rows is None else np.asarray(rows)
        generator = np.random.default_rng([settings.seed, len(eligible)])
        drawn = generator.permutation(len(eligible))[: settings.reference_documents]
        sample = eligible[np.sort(drawn)]
        if trained is None:
            trained = len(vectors)
        sampled_vectors = np.ascontiguousarray(vectors[sample], np.float32)
        return cls(sampled_vectors, trained, fingerprint, questions, note)

    def save(self, folder: Path) -> None:
        """Write the reference to a folder with a manifest of checksums.

        Equal references give equal bytes.
        """
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(folder / TENSORS_FILE) as path:
            save_file({"vectors": self.vectors}, path)
        self.questions.save(folder / QUESTIONS_FILE)
        facts = {
            "kind": KIND,
            "fingerprint": self.fingerprint,
            "trained": self.trained,
            "note": self.note,
            "documents": len(self.vectors),
        }
        write_manifest(folder, FORMAT, facts)

    @classmethod
    def load(cls, folder: Path) -> DriftReference:
        """Read a folder that `save` wrote.

        Raises:
            FreshetError: If a file differs from its checksum in the manifest.
        """
        manifest = read_manifest(folder, FORMAT)
        verify_checksums(folder, manifest)
        return cls(
            vectors=load_file(folder / TENSORS_FILE)["vectors"],
            trained=manifest["trained"],
            fingerprint=manifest["fingerprint"],
            questions=Questions.load(folder / QUESTIONS_FILE),
            note=manifest["note"],
        )
