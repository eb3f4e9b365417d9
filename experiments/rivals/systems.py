"""Systems of sentence-transformers and bm25s, each trained and searched by its own library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import Stemmer
from datasets import Dataset
from sentence_transformers import (
    MultiVectorEncoder,
    MultiVectorEncoderTrainer,
    MultiVectorEncoderTrainingArguments,
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    SparseEncoder,
    SparseEncoderTrainer,
    SparseEncoderTrainingArguments,
)
from sentence_transformers.multi_vector_encoder.losses import (
    MultiVectorMultipleNegativesRankingLoss,
)
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sparse_encoder.losses import (
    SparseMultipleNegativesRankingLoss,
    SpladeLoss,
)
from sentence_transformers.util import mine_hard_negatives

from model_code.retrieval.protocol import Ranking, Search
from model_code.retrieval.top_k import top_k

# Negatives are drawn from the first ranks, at random. A candidate whose score is close to that of
# the positive is left out, because it may be an answer, too.
MINED_RANKS = 50
MINED_MARGIN = 0.05
# Weights of SPLADE's regularisers, as in the library's examples.
DOCUMENT_REGULARIZER = 3e-5
QUERY_REGULARIZER = 5e-5
WARMUP_SHARE = 0.1


@dataclass(frozen=True)
class Task:
    """Texts of a corpus and training pairs, which are the same for all systems.

    Attributes:
        ids: Document id of each text.
        texts: The texts that are searched.
        queries: The query of each training pair.
        positives: The text that answers the query of each training pair.
        max_tokens: Largest number of tokens; longer texts are cut.
    """

    ids: Sequence[str]
    texts: Sequence[str]
    queries: Sequence[str]
    positives: Sequence[str]
    max_tokens: int


@dataclass(frozen=True)
class Budget:
    """Settings of a training: steps, pairs per step, learning rate and seed."""

    steps: int
    batch_size: int
    learning_rate: float
    seed: int


def bm25s_search(task: Task) -> Search:
    """Return a search by bm25s with its stop words and the Porter stemmer."""
    stemmer = Stemmer.Stemmer("english")

    def tokenize(texts: Sequence[str]) -> Any:
        return bm25s.tokenize(list(texts), stopwords="en", stemmer=stemmer, show_progress=False)

    index = bm25s.BM25()
    index.index(tokenize(task.texts), show_progress=False)

    def search(texts: Sequence[str], k: int) -> list[Ranking]:
        depth = min(k, len(task.ids))
        documents, scores = index.retrieve(tokenize(texts), k=depth, show_progress=False)
        rankings = []
        for rows, values in zip(documents, scores, strict=True):
            found = zip(rows.tolist(), values.tolist(), strict=True)
            rankings.append([(task.ids[row], value) for row, value in found if value > 0])
        return rankings

    return search


def mine_triplets(base: Path, task: Task) -> Dataset:
    """Return the training pairs, each with a negative that an untrained dense encoder finds.

    The library drops pairs for which no candidate can be a negative; see `MINED_MARGIN`.
    """
    model = SentenceTransformer(str(base), device="cpu")
    model.max_seq_length = task.max_tokens
    pairs = Dataset.from_dict({"query": list(task.queries), "positive": list(task.positives)})
    return mine_hard_negatives(
        pairs,
        model,
        corpus=list(task.texts),
        num_negatives=1,
        range_max=MINED_RANKS,
        relative_margin=MINED_MARGIN,
        sampling_strategy="random",
        verbose=False,
    )


def train_dense(base: Path, task: Task, triplets: Dataset, budget: Budget, folder: Path) -> Search:
    """Train a SentenceTransformer by multiple negatives ranking with mined negatives."""
    model = SentenceTransformer(str(base), device="cpu")
    model.max_seq_length = task.max_tokens
    trainer = SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(**_arguments(budget, folder)),
        train_dataset=triplets,
        loss=MultipleNegativesRankingLoss(model),
    )
    trainer.train()
    vectors = model.encode_document(list(task.texts))

    def search(texts: Sequence[str], k: int) -> list[Ranking]:
        products = model.encode_query(list(texts)) @ vectors.T
        return _rankings(products, task.ids, k)

    return search


def train_sparse(base: Path, task: Task, triplets: Dataset, budget: Budget, folder: Path) -> Search:
    """Train a SparseEncoder as SPLADE with mined negatives."""
    model = SparseEncoder(str(base), device="cpu")
    model.max_seq_length = task.max_tokens
    loss = SpladeLoss(
        model,
        loss=SparseMultipleNegativesRankingLoss(model),
        document_regularizer_weight=DOCUMENT_REGULARIZER,
        query_regularizer_weight=QUERY_REGULARIZER,
    )
    trainer = SparseEncoderTrainer(
        model=model,
        args=SparseEncoderTrainingArguments(**_arguments(budget, folder)),
        train_dataset=triplets,
        loss=loss,
    )
    trainer.train()
    documents = model.encode_document(list(task.texts))

    def search(texts: Sequence[str], k: int) -> list[Ranking]:
        queries = model.encode_query(list(texts))
        return _rankings(model.similarity(queries, documents).numpy(), task.ids, k)

    return search


def train_multi_vector(
    base: Path, task: Task, triplets: Dataset, budget: Budget, folder: Path
) -> Search:
    """Train a MultiVectorEncoder (ColBERT) with mined negatives."""
    model = MultiVectorEncoder(str(base), device="cpu")
    model.max_seq_length = task.max_tokens
    trainer = MultiVectorEncoderTrainer(
        model=model,
        args=MultiVectorEncoderTrainingArguments(**_arguments(budget, folder)),
        train_dataset=triplets,
        loss=MultiVectorMultipleNegativesRankingLoss(model),
    )
    trainer.train()
    documents = model.encode_document(list(task.texts))

    def search(texts: Sequence[str], k: int) -> list[Ranking]:
        queries = model.encode_query(list(texts))
        return _rankings(model.similarity(queries, documents).numpy(), task.ids, k)

    return search


TrainRival = Callable[[Path, Task, Dataset, Budget, Path], Search]
TRAINERS: Mapping[str, TrainRival] = {
    "dense": train_dense,
    "sparse": train_sparse,
    "multi_vector": train_multi_vector,
}


def _arguments(budget: Budget, folder: Path) -> dict[str, Any]:
    """Return the arguments that the trainers of all classes share."""
    return {
        "output_dir": str(folder),
        "max_steps": budget.steps,
        "per_device_train_batch_size": budget.batch_size,
        "learning_rate": budget.learning_rate,
        "warmup_steps": round(WARMUP_SHARE * budget.steps),
        "seed": budget.seed,
        "batch_sampler": "no_duplicates",
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }


def _rankings(scores: np.ndarray, ids: Sequence[str], k: int) -> list[Ranking]:
    return [top_k(row, list(ids), k) for row in scores]
