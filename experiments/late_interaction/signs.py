"""Measure the gain of late interaction by token signs in a fusion.

Token signs are one bit per dimension of each token vector. `python -m
experiments.late_interaction.signs NAME=PROJECT ...` needs projects in which the stage `corpus` has
run. The encoder `hce` is only measured if `train@hce` has run, too. The command writes `signs.json`
and the third table of `README.md`.

Each encoder is fused with BM25 as in the stage `fuse`: once with weights learned on dev queries,
and once with default weights, as if no query were judged. Vectors and token signs of passages are
read from the outputs of `base_index` and `index@hce`, if these contain token signs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from experiments.comparison import compare_systems
from experiments.late_interaction.run import HERE, METRIC
from experiments.tables import measure_into, write_tables
from model_code.context import StageContext
from model_code.corpus.tables import Judgements, load_corpus, passage_texts
from model_code.encoding.encoder import Encoder
from model_code.encoding.token_signs import SIGNS_FILE
from model_code.evaluation.metrics import evaluate_run
from model_code.files import read_json
from model_code.retrieval import bm25
from model_code.retrieval.dense_index import DenseIndex
from model_code.retrieval.fused import FusedSearch
from model_code.retrieval.index_settings import ALWAYS_EXACT, IndexSettings
from model_code.retrieval.indexed import IndexedRetriever, NewPassages
from model_code.retrieval.kinds import open_retriever
from model_code.retrieval.protocol import LATE_SUFFIX
from model_code.retriever_settings import FusionSettings
from model_code.stages.baselines import UNTRAINED
from model_code.stages.evaluation_set import EvaluationSet
from model_code.stages.fusion import MIN_LEARNING_QUERIES, FusionBuilder
from orchestration import parameters

UNTRAINED_NAME = "untrained"
# Names of systems with late interaction end with this text.
LATE_ENDING = ", late"
# The difference between these two systems is the gain of late interaction and feedback together.
PLAIN_SYSTEM = "untrained, default, no feedback"
DEFAULT_SYSTEM = "untrained, default, late"
# Number of passages between two lines of progress.
PROGRESS_STEP = 1000
START = "<!-- signs -->\n"
END = "<!-- end of signs -->\n"


@dataclass(frozen=True)
class FusionPlan:
    """A fusion of an encoder with BM25.

    Attributes:
        system: Name of the system.
        learns: Whether weights are learned from dev queries. Otherwise they are the default ones.
        feedback: The setting `feedback` of the fusion.
        late: Whether late interaction is a component.
    """

    system: str
    learns: bool
    feedback: float
    late: bool


@dataclass(frozen=True)
class SystemResult:
    """Scores (q,) of the test queries, and weights of the fusion."""

    scores: np.ndarray
    weights: dict[str, float]


class Corpus:
    """The corpus of a project, whose passages are indexed by encoders and by BM25.

    Args:
        root: Folder of the project.
        folder: Empty folder for encoders and indexes.

    Attributes:
        texts: Texts of the passages.
        ids: Id of each passage's document.
        encoders: Folder of each trained encoder. None is the base encoder.
        built_indexes: Folder of the project's own index of each encoder.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        settings = parameters.load(root / "params.yaml")
        stage_settings = {
            "encoder": settings.encoder,
            "evaluation": settings.evaluation.replace(max_queries=None),
        }
        corpus_folder = root / "artifacts/corpus"
        self.context = StageContext(root, {"corpus": corpus_folder}, folder, stage_settings, folder)
        self.evaluation_set = EvaluationSet.load(self.context)
        passages = load_corpus(corpus_folder).passages
        self.texts = passage_texts(passages, settings.encoder.include_title)
        self.ids = passages["document_id"].tolist()
        self.folder = folder

        bm25_folders = (folder / "bm25" / "encoder", folder / "bm25" / "index")
        bm25.build_folders(NewPassages(self.texts, self.ids), settings.bm25, *bm25_folders)
        self.bm25 = open_retriever(*bm25_folders)

        self.encoders: dict[str, Path | None] = {UNTRAINED_NAME: None}
        trained_encoder = root / "artifacts/train/hce/encoder"
        if trained_encoder.is_dir():
            self.encoders["hce"] = trained_encoder
        self.built_indexes = {
            UNTRAINED_NAME: root / "artifacts/base_index/index",
            "hce": root / "artifacts/index/hce",
        }

    def open_encoded(self, name: str) -> IndexedRetriever:
        """Return a dense retriever with token signs, from the project's own index if possible."""
        encoder_folder = self.folder / name / "encoder"
        encoder_settings = self.context.settings["encoder"]
        Encoder.from_settings(encoder_settings, self.encoders[name]).save(encoder_folder)

        built_index = self.built_indexes[name]
        if (built_index / SIGNS_FILE).is_file():
            return open_retriever(encoder_folder, built_index)

        encoder = Encoder.load(encoder_folder, for_search=True)
        progress = partial(print_progress, name)
        vectors, tokens = encoder.encode_documents_with_signs(self.texts, progress)
        exact = IndexSettings(flat_below=ALWAYS_EXACT)
        index = DenseIndex.build(
            vectors, self.ids, encoder.fingerprint(), exact, token_signs=tokens
        )
        index_folder = self.folder / name / "index"
        index.save(index_folder)
        return open_retriever(encoder_folder, index_folder)

    def plans(self, name: str) -> list[FusionPlan]:
        """Return the fusions that are measured with one encoder."""
        is_untrained = name == UNTRAINED_NAME
        feedback = UNTRAINED.feedback if is_untrained else 0.0
        dev_queries = len(self.evaluation_set.judgements["dev"].queries)
        plans = []
        if dev_queries >= MIN_LEARNING_QUERIES:
            plans.append(FusionPlan(f"{name}, dev", True, feedback, late=False))
            plans.append(FusionPlan(f"{name}, dev{LATE_ENDING}", True, feedback, late=True))
        if is_untrained:
            plans.append(FusionPlan(f"{name}, default", False, feedback, late=False))
            plans.append(FusionPlan(f"{name}, default{LATE_ENDING}", False, feedback, late=True))
            plans.append(FusionPlan(PLAIN_SYSTEM, False, 0.0, late=False))
        return plans

    def measure(self, name: str) -> tuple[dict[str, SystemResult], int]:
        """Return the result of each fusion with one encoder, and the bytes of its token signs."""
        opened = {name: self.open_encoded(name), "bm25": self.bm25}
        stripped = {
            component: self.evaluation_set.strip_query_lines(retriever)
            for component, retriever in opened.items()
        }
        results = {}
        for plan in self.plans(name):
            components = [name, "bm25"]
            if plan.late:
                components.append(name + LATE_SUFFIX)
            evaluation_set = self.evaluation_set
            if not plan.learns:
                evaluation_set = without_dev_queries(evaluation_set)
            settings = FusionSettings(of=(name, "bm25"), feedback=plan.feedback)
            builder = FusionBuilder(evaluation_set, opened, settings, stripped)
            fusion = builder.fuse(components).fusion
            scores = self.score(FusedSearch(stripped, fusion))
            results[plan.system] = SystemResult(scores, dict(fusion.weights))

        tokens = opened[name].dense.index.token_signs
        return results, tokens.bits.nbytes + tokens.starts.nbytes

    def score(self, search: FusedSearch) -> np.ndarray:
        """Return the main metric of each test query."""
        test = self.evaluation_set.judgements["test"]
        rankings = search.search(list(test.queries.values()), 100)
        run = dict(zip(test.queries, rankings, strict=True))
        scores = evaluate_run(run, test.qrels, [METRIC])[METRIC]
        return np.array([scores[query] for query in test.queries])


def without_dev_queries(evaluation_set: EvaluationSet) -> EvaluationSet:
    """Return the evaluation set as if no dev query were judged."""
    judgements = dict(evaluation_set.judgements)
    judgements["dev"] = Judgements({}, {}, None)
    return replace(evaluation_set, judgements=judgements)


def print_progress(name: str, done: int, total: int, _: str = "") -> None:
    """Print the progress of the encoding, about every `PROGRESS_STEP` passages."""
    # The numbers of finished passages rise in steps of up to 8, so exact multiples may be skipped.
    if done % PROGRESS_STEP < 8 or done == total:
        print(f"{name}: {done:,}/{total:,}", file=sys.stderr, flush=True)


def measure(root: Path) -> dict[str, Any]:
    """Measure all systems, and the gain of late interaction in each of them."""
    results: dict[str, SystemResult] = {}
    bytes_per_document = {}
    with TemporaryDirectory() as folder:
        corpus = Corpus(root, Path(folder))
        documents = len(set(corpus.ids))
        for name in corpus.encoders:
            encoder_results, token_bytes = corpus.measure(name)
            results.update(encoder_results)
            bytes_per_document[name] = round(token_bytes / documents)

    gains = {}
    for system, result in results.items():
        late_result = results.get(system + LATE_ENDING)
        if late_result is not None:
            gains[system] = late_result.scores - result.scores
    gains[PLAIN_SYSTEM] = results[DEFAULT_SYSTEM].scores - results[PLAIN_SYSTEM].scores
    return {
        "test": len(gains[PLAIN_SYSTEM]),
        "bytes a document": bytes_per_document,
        METRIC: {
            system: round(float(result.scores.mean()), 4) for system, result in results.items()
        },
        "weights": {system: result.weights for system, result in results.items()},
        "gain": compare_systems(gains),
    }


def table(result: Mapping[str, Any]) -> str:
    """Return the page's third table."""
    lines = [
        f"| corpus, test queries | encoder, weights by | {METRIC} | late | gain | p (Holm) | "
        "bytes a document |",
        "|---|---|---|---|---|---|---|",
    ]
    for corpus, corpus_result in sorted(result.items()):
        means = corpus_result[METRIC]
        for system, (gain, low, high, p) in corpus_result["gain"].items():
            late_system = DEFAULT_SYSTEM if system == PLAIN_SYSTEM else system + LATE_ENDING
            encoder, _, _ = system.partition(",")
            size = corpus_result["bytes a document"][encoder]
            lines.append(
                f"| {corpus}, {corpus_result['test']:,} | {system} | "
                f"{means[system]:.4f} | {means[late_system]:.4f} | "
                f"{gain:+.4f} [{low:+.4f}, {high:+.4f}] | {p:.4f} | {size:,} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure the projects of the command line, and write the result and the table."""
    path = HERE / "signs.json"
    measure_into(path, sys.argv[1:], measure)
    write_tables(HERE, table(read_json(path)), START, END)


if __name__ == "__main__":
    main()
