"""Train on SQuAD in the form of the HCE paper: every layer, large batches, four negatives.

Three trainings differ in their negatives and in the hierarchy loss. All have equal batches, steps
and evaluations. The number of steps is the largest that fits into the time, up to three epochs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.inputs import BM25_FILE, SquadInput
from model_code.encoding.encoder import Encoder
from model_code.files import read_json
from model_code.hierarchy.build import build_hierarchy
from model_code.hierarchy.settings import HierarchySettings
from model_code.hierarchy.tree import Hierarchy
from model_code.training.data import Pairs, Passages, TrainingData, make_pairs
from model_code.training.negatives import Bm25Negatives
from model_code.training.settings import TrainingSettings
from model_code.training.tables import DevEvaluator
from model_code.training.trainer import Trainer

MAX_TOKENS = 128
BRANCHING = 8
CUTOFF = 10
DEV_QUERIES = 500
# Evaluations during a training, after the one before its first step. The best one is kept.
EVALUATIONS = 3
# Steps that are timed to choose the number of steps, after some that warm up.
WARM_UP_STEPS = 3
TIMED_STEPS = 8
# Seconds that a training takes besides its steps: loading, evaluations, clustering, final test.
SECONDS_BESIDE_STEPS = 20
# Share of the time that is left free, because steps of different trainings differ.
SPARE_SHARE = 0.1
# Test queries that are scored at once.
QUERIES_AT_ONCE = 1000

SHARED: dict[str, Any] = {
    "supervision": "supervised",
    "batch_size": 512,
    "epochs": 3,
    "negatives_per_query": 4,
    "negatives_depth": 20,
    "frozen_layers": None,
    "learning_rate": 1e-4,
    "query_max_tokens": 32,
    "document_max_tokens": MAX_TOKENS,
}
TRAININGS: dict[str, dict[str, Any]] = {
    "contrastive, four BM25 negatives": {"negatives": "bm25", "hierarchy_weight": 0.0},
    "four siblings, weight 0": {"negatives": "siblings", "hierarchy_weight": 0.0},
    "hce, four siblings, weight 1, slow centroids, co-training": {
        "negatives": "siblings",
        "hierarchy_weight": 1.0,
        "centroid_learning_rate": 5e-6,
        "cotraining": True,
    },
}
SEEDS = (0, 1)
Save = Callable[[str, Any], None]


def measure(
    folder: Path,
    data: SquadInput,
    candidates: np.ndarray,
    source: Path,
    deadline: float,
    save: Save,
    shared: Mapping[str, Any] = SHARED,
    workers: int = 10,
) -> dict[str, Any]:
    """Return the effectiveness of every training that fits into the time.

    Args:
        folder: Folder of the base encoder.
        data: Documents and judged queries.
        candidates: BM25's candidates of each training query, (n, depth).
        source: The packed folder.
        deadline: Time of `time.monotonic` by which everything must be done.
        save: Called with all results after each training.
        shared: Settings that all trainings share.
        workers: Processes that prepare batches.
    """
    experiment = SquadExperiment(folder, data, candidates, shared, workers)
    bm25 = read_json(source / BM25_FILE)
    # Ranks (Q,) of the relevant document of each test query, by system.
    test_ranks = {
        "bm25": np.array(bm25["ranks"]),
        "encoder as it comes": experiment.test_ranks(experiment.load_encoder(), experiment.start),
    }
    result: dict[str, Any] = {"documents": len(data.texts), "settings": dict(shared)}
    result["queries"] = {split: len(queries) for split, queries in data.splits.items()}
    result["trainings"] = {}

    # All trainings have the same number of steps. The last one takes the longest per step.
    runs = [(name, seed) for seed in SEEDS for name in TRAININGS]
    slowest_training = list(TRAININGS)[-1]
    seconds_per_step = experiment.time_step(slowest_training)
    steps = affordable_steps(
        deadline - time.monotonic(), len(runs), seconds_per_step, experiment.full_steps()
    )
    result["seconds per step"] = round(seconds_per_step, 3)
    result["steps"] = steps
    result["epochs"] = round(steps * shared["batch_size"] / len(data.splits["train"]), 2)

    longest_run = 0.0
    for name, seed in runs:
        if time.monotonic() + longest_run > deadline:
            break
        started = time.monotonic()
        report, ranks = experiment.train(name, seed, steps)
        longest_run = max(longest_run, time.monotonic() - started)

        key = f"{name}, seed {seed}"
        test_ranks[key] = ranks
        result["trainings"][key] = report
        result["test"] = {system: summarise(ranks) for system, ranks in test_ranks.items()}
        result["differences"] = differences(test_ranks)
        save("squad", result)
        print(name, seed, report["seconds"], result["test"][key], flush=True)
    return result


def affordable_steps(seconds: float, runs: int, seconds_per_step: float, largest: int) -> int:
    """Return the number of steps of each of several trainings that fit into the time.

    Args:
        seconds: Time for all trainings.
        runs: Number of trainings, each of which has the same number of steps.
        seconds_per_step: Time of one step.
        largest: Largest number of steps. The smallest number is `EVALUATIONS`.

    >>> affordable_steps(seconds=600, runs=6, seconds_per_step=0.2, largest=354)
    350
    """
    for_steps = seconds * (1 - SPARE_SHARE) / runs - SECONDS_BESIDE_STEPS
    return int(min(largest, max(EVALUATIONS, for_steps / seconds_per_step)))


class SquadExperiment:
    """Trains and tests encoders on SQuAD.

    Args:
        folder: Folder of the base encoder.
        data: Documents and judged queries.
        candidates: BM25's candidates of each training query, (n, depth).
        shared: Settings that all trainings share.
        workers: Processes that prepare batches.

    Attributes:
        start: Vector of each document by the base encoder, (N, H).
        hierarchy: Clusters of these vectors.
    """

    def __init__(
        self,
        folder: Path,
        data: SquadInput,
        candidates: np.ndarray,
        shared: Mapping[str, Any],
        workers: int,
    ) -> None:
        self.folder = folder
        self.data = data
        self.candidates = candidates
        self.shared = shared
        self.workers = workers
        self.training_data = training_data(data)
        self.start = self.load_encoder().encode_documents(data.texts)
        self.hierarchy = self.cluster(self.start)

    def load_encoder(self) -> Encoder:
        """Return the base encoder."""
        return Encoder.load(self.folder, max_tokens=MAX_TOKENS)

    def cluster(self, vectors: np.ndarray) -> Hierarchy:
        """Return the hierarchy of document vectors (N, H)."""
        return build_hierarchy(vectors, HierarchySettings(branching=BRANCHING), seed=0)

    def full_steps(self) -> int:
        """Return the number of steps of all epochs."""
        per_epoch = len(self.training_data.supervised) // self.shared["batch_size"]
        return max(1, int(per_epoch * self.shared["epochs"]))

    def time_step(self, name: str) -> float:
        """Return the mean seconds of a step of a training, without evaluations."""
        trainer = self._make_trainer(name, seed=0, steps=WARM_UP_STEPS + TIMED_STEPS + 1)
        for _ in range(WARM_UP_STEPS):
            trainer.take_step()
        _wait_for_gpu()
        started = time.perf_counter()
        for _ in range(TIMED_STEPS):
            trainer.take_step()
        _wait_for_gpu()
        return (time.perf_counter() - started) / TIMED_STEPS

    def train(self, name: str, seed: int, steps: int) -> tuple[dict[str, Any], np.ndarray]:
        """Return a report of a training, and the ranks of the relevant test documents (Q,)."""
        started = time.perf_counter()
        trainer = self._make_trainer(name, seed, steps)
        state = trainer.fit(self.start)
        vectors = trainer.encoder.encode_documents(self.data.texts)
        ranks = self.test_ranks(trainer.encoder, vectors)
        losses = [row for row in state.history if "loss" in row]
        report = {
            "start_dev": state.history[0]["nDCG@10"],
            "best_dev": state.best_metric,
            "best_step": state.best_step,
            "reclustered_at": state.reclustered_at,
            "first losses": losses[0],
            "last losses": losses[-1],
            "seconds": round(time.perf_counter() - started, 1),
        }
        return report, ranks

    def test_ranks(self, encoder: Encoder, vectors: np.ndarray) -> np.ndarray:
        """Return the rank of the relevant document for each test query, (Q,), from 1.

        Args:
            encoder: Encodes the queries.
            vectors: Vectors of the documents, (N, H).
        """
        queries = [text for text, _, _ in self.data.splits["test"]]
        relevant = torch.tensor([document for _, document, _ in self.data.splits["test"]])
        query_vectors = torch.from_numpy(encoder.encode_queries(queries))
        documents = torch.from_numpy(vectors)

        ranks = []
        for start in range(0, len(queries), QUERIES_AT_ONCE):
            rows = slice(start, start + QUERIES_AT_ONCE)
            scores = query_vectors[rows] @ documents.T
            # Score of the relevant document of each query, (q, 1).
            relevant_scores = scores.gather(1, relevant[rows, None])
            better_count = (scores > relevant_scores).sum(dim=1)
            ranks.append(better_count + 1)
        return torch.cat(ranks).numpy()

    def _make_trainer(self, name: str, seed: int, steps: int) -> SquadTrainer:
        """Return a trainer of one of `TRAININGS`.

        Args:
            name: A key of `TRAININGS`.
            seed: Seed of the training.
            steps: Number of steps. `EVALUATIONS` evaluations are spread evenly over them.
        """
        values = dict(self.shared)
        values.update(TRAININGS[name])
        values["steps"] = steps
        values["workers"] = self.workers
        values["evaluate_every"] = max(1, math.ceil(steps / EVALUATIONS))
        settings = TrainingSettings(**values)
        dev_queries = [(text, {document: 1}) for text, document, _ in self.data.splits["dev"]]
        dev = DevEvaluator(self.training_data.passages, dev_queries, "nDCG@10", 0, DEV_QUERIES)
        sampler = None
        if settings.negatives == "bm25":
            sampler = PackedNegatives(self.training_data, settings)
            sampler.packed = self.candidates
        return SquadTrainer(
            sampler,
            self.load_encoder(),
            self.training_data,
            settings,
            seed,
            hierarchy=self.hierarchy,
            dev=dev,
            cluster=self.cluster,
        )


class PackedNegatives(Bm25Negatives):
    """BM25 negatives whose candidates were ranked when the input was packed."""

    packed: np.ndarray

    def _rank(self, pair: int) -> np.ndarray:
        return self.packed[pair].astype(np.int64)


class SquadTrainer(Trainer):
    """A trainer that may draw its negatives from packed candidates.

    Args:
        sampler: Draws negatives. None: the sampler that the settings name.
        *arguments: Arguments of `Trainer`.
        **options: Further arguments of `Trainer`.
    """

    def __init__(self, sampler: PackedNegatives | None, *arguments: Any, **options: Any) -> None:
        self.sampler = sampler
        super().__init__(*arguments, **options)

    def _make_collator(
        self, hierarchy: Hierarchy | None, batch_tokens: int
    ) -> Callable[[int, np.ndarray], Any]:
        if self.sampler is not None:
            self.negatives = self.sampler
        return super()._make_collator(hierarchy, batch_tokens)


def training_data(data: SquadInput, texts: int | None = None) -> TrainingData:
    """Return the training pairs of the packed input.

    Args:
        data: Documents and judged queries.
        texts: Number of first documents to keep. None: all.
    """
    kept_texts = data.texts[:texts]
    # Each document is one passage.
    passages = Passages(kept_texts, np.arange(len(kept_texts)))
    judged = []
    # Strings that answer each query. The same text may be a query of several documents.
    answers: dict[str, Sequence[str]] = {}
    for text, document, strings in data.splits["train"]:
        if document < len(kept_texts):
            judged.append((text, [document]))
            answers[text] = [*answers.get(text, ()), *strings]

    pairs = make_pairs(passages, judged)
    supervised = Pairs(pairs.queries, pairs.passages, pairs.relevant, answers)
    no_pseudo_queries = make_pairs(passages, [])
    return TrainingData(passages, supervised, no_pseudo_queries)


def gains(ranks: np.ndarray) -> np.ndarray:
    """Return nDCG@10 of queries with one relevant document, from its ranks (Q,). 0: not found.

    >>> gains(np.array([1, 3, 11, 0])).tolist()
    [1.0, 0.5, 0.0, 0.0]
    """
    is_found = (ranks > 0) & (ranks <= CUTOFF)
    return np.where(is_found, 1 / np.log2(np.maximum(ranks, 1) + 1), 0.0)


def summarise(ranks: np.ndarray) -> dict[str, float]:
    """Return nDCG@10 and the share of queries whose document is first."""
    return {
        "nDCG@10": round(float(gains(ranks).mean()), 4),
        "hit@1": round(float((ranks == 1).mean()), 4),
    }


def differences(test: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Return how far the nDCG@10 of each other training is from that of the first one.

    The difference of a query is the mean over the seeds that both trainings have. The interval is
    the 95 % confidence interval over queries. Two seeds are too few for an interval over seeds.

    Args:
        test: Ranks (Q,) of the relevant document of each test query, by training and seed.
    """
    control, *others = TRAININGS
    rows = []
    for name in others:
        # Differences (Q,) of each seed.
        by_seed = []
        for seed in SEEDS:
            key = f"{name}, seed {seed}"
            control_key = f"{control}, seed {seed}"
            if key in test and control_key in test:
                by_seed.append(gains(test[key]) - gains(test[control_key]))
        if not by_seed:
            continue

        by_query = np.mean(by_seed, axis=0)
        difference = float(by_query.mean())
        half_width = float(1.96 * by_query.std(ddof=1) / np.sqrt(len(by_query)))
        rows.append(
            {
                "training": name,
                "less": control,
                "by seed": [round(float(values.mean()), 4) for values in by_seed],
                "difference": round(difference, 4),
                "interval over queries": [
                    round(difference - half_width, 4),
                    round(difference + half_width, 4),
                ],
            }
        )
    return rows


def _wait_for_gpu() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
