"""What new documents are compared with: a sample of what the retriever was trained for, as a sealed
folder of arrays.

The sample should be of documents whose own queries the encoder was not trained on (those with dev
or test queries): training moves documents, and a classifier can tell a moved document from one that
merely resembles it.

Of old documents it keeps queries, not scores, to be searched anew for every report: in a larger
collection a document has more rivals, so beside scores from before it grew, documents like the old
ones would look harmed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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

FORMAT, KIND = 7, "drift_reference"
TENSORS, QUESTIONS = "drift_reference.safetensors", "questions.json"


@dataclass(frozen=True)
class Question:
    """A query that stands for `document_id`, and all documents that answer it.

    rank: of a protected one, that of the first of them before any addition, from 1; 0 if none was
    found.
    """

    document_id: str
    text: str
    answers: frozenset[str]
    rank: int = 0


@dataclass(frozen=True)
class Questions:
    """For old documents: `made` from them, `asked` by people (judged in the corpus), and
    `protected` from additions.
    """

    made: tuple[Question, ...] = ()
    asked: tuple[Question, ...] = ()
    protected: tuple[Question, ...] = ()

    def save(self, path: Path) -> None:
        """Write a JSON file; equal questions give equal bytes."""
        kinds = {
            kind: [vars(each) | {"answers": sorted(each.answers)} for each in questions]
            for kind, questions in vars(self).items()
        }
        write_json(path, kinds)

    @classmethod
    def load(cls, path: Path) -> Questions:
        """Read what `save` wrote."""
        return cls(
            **{
                kind: tuple(
                    Question(**row | {"answers": frozenset(row["answers"])}) for row in rows
                )
                for kind, rows in read_json(path).items()
            }
        )


@dataclass(frozen=True, eq=False)
class DriftReference:
    """n documents, and queries for old documents to search anew.

    trained: documents that the retriever was trained on. fingerprint: of the encoder. note: what a
    reader of reports should know of the documents.
    """

    vectors: np.ndarray  # (n, H) float32, unit norm
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
        """Keep `settings.reference_documents` of passages, `vectors` (N, H).

        rows: those that may be kept, one per document; None: all. trained: None: N.
        However few are kept: what they are too few for is not measured, and reports say so.
        """
        eligible = np.arange(len(vectors)) if rows is None else np.asarray(rows)
        chance = np.random.default_rng([settings.seed, len(eligible)])
        sample = eligible[
            np.sort(chance.permutation(len(eligible))[: settings.reference_documents])
        ]
        number = len(vectors) if trained is None else trained
        return cls(
            np.ascontiguousarray(vectors[sample], np.float32), number, fingerprint, questions, note
        )

    def save(self, folder: Path) -> None:
        """Write and seal the folder; equal references give equal bytes."""
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(folder / TENSORS) as aside:
            save_file({"vectors": self.vectors}, aside)
        self.questions.save(folder / QUESTIONS)
        facts = {
            "kind": KIND,
            "fingerprint": self.fingerprint,
            "trained": self.trained,
            "note": self.note,
        }
        write_manifest(folder, FORMAT, facts | {"documents": len(self.vectors)})

    @classmethod
    def load(cls, folder: Path) -> DriftReference:
        """Read what `save` wrote; FreshetError if a file is not what the manifest says."""
        manifest = read_manifest(folder, FORMAT)
        verify_checksums(folder, manifest)
        facts = {name: manifest[name] for name in ("trained", "fingerprint", "note")}
        return cls(
            **load_file(folder / TENSORS), **facts, questions=Questions.load(folder / QUESTIONS)
        )
