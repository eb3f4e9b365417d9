"""The trainer of document vectors: the dense trainer with another loss and other batches.

A query classifies its document among all documents (IncDSI, section 3, stage 1). No document is
ever encoded. A frozen encoder encodes each query once, so an epoch takes seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from model_code.distributed.encoding import encode_resumably
from model_code.dsi.settings import DocumentVectorSettings
from model_code.encoding.encoder import Encoder, LengthBuckets
from model_code.hierarchy.tree import Hierarchy
from model_code.losses.hierarchy import hce_losses, level_means
from model_code.progress import Progress, no_progress
from model_code.training.batches import Collator
from model_code.training.data import Pairs, TrainingData
from model_code.training.optimisation import make_optimizer
from model_code.training.settings import TrainingSettings
from model_code.training.tables import DevEvaluator
from model_code.training.trainer import Objective, Trainer

VECTORS = "document_vectors"


@dataclass(frozen=True, eq=False)
class QueryVectors:
    """The vectors of the queries of P pairs. Each different text is encoded once.

    Attributes:
        vectors: Vectors of the U different texts, (U, H) float32.
        rows: Row of each pair's query in `vectors`, (P,) int64.
    """

    vectors: np.ndarray
    rows: np.ndarray

    @classmethod
    def encode(
        cls, pairs: Pairs, encoder: Encoder, folder: Path, progress: Progress = no_progress
    ) -> QueryVectors:
        """Encode the queries of pairs.

        Args:
            pairs: P pairs.
            encoder: Encoder of the queries.
            folder: Keeps finished shards. It must belong to this encoder and these pairs alone.
            progress: Called after each shard.
        """
        texts = list(dict.fromkeys(pairs.queries))
        row_of = {text: row for row, text in enumerate(texts)}
        rows = np.array([row_of[text] for text in pairs.queries], dtype=np.int64)
        return cls(encode_resumably(encoder, texts, folder, progress), rows)

    def of(self, pairs: np.ndarray) -> np.ndarray:
        """Return the query vectors of pairs, given by their numbers: (B, H)."""
        return self.vectors[self.rows[pairs]]


class DocumentBatch(NamedTuple):
    """B queries and their documents as tensors.

    Attributes:
        queries: Tokenised texts; with a frozen encoder one bucket with their vectors (B, H).
        documents: Number of each query's document, (B,) int64.
        relevant: m pairs of a row of the batch and a document that is known to answer its query,
            (2, m) int64.
        paths: Nodes of the hierarchy above each pair's passage, (B, M) int64. None without a
            hierarchy loss.
        excluded: For each level a mask of the nodes above other relevant passages, (B, K_t) bool,
            or None if there are no such nodes. None without a hierarchy loss.
    """

    queries: LengthBuckets
    documents: Tensor
    relevant: Tensor
    paths: Tensor | None
    excluded: list[Tensor | None] | None


class DocumentCollator(Collator):
    """Makes batches of query vectors or tokens, and of document numbers.

    A batch depends only on its number and pairs, not on earlier batches.
    """

    def __init__(
        self, *arguments: Any, query_vectors: QueryVectors | None = None, **more: Any
    ) -> None:
        """Prepare batches.

        Args:
            arguments: Arguments of `Collator`.
            query_vectors: Vectors of a frozen encoder, which are looked up. None: queries are
                tokenised.
            more: Keyword arguments of `Collator`.
        """
        super().__init__(*arguments, **more)
        self.query_vectors = query_vectors

    def __call__(self, number: int, pairs: np.ndarray) -> DocumentBatch:  # type: ignore[override]
        """Make a batch.

        Args:
            number: Number of the batch in the run.
            pairs: Numbers of the pairs in the batch, (B,).
        """
        passages = self.data.passages
        # For each pair: its passage, and all documents that are known to answer its query.
        positives = self.data.pairs.passages[pairs]
        relevant = [self.data.pairs.relevant[pair] for pair in pairs]
        relevant_passages = [passages.of_all(documents) for documents in relevant]

        # One entry for each query of the batch and each document that answers it: the row of the
        # query in the batch, and the number of the document.
        rows: list[int] = []
        answering_documents: list[int] = []
        for row, documents in enumerate(relevant):
            rows.extend([row] * len(documents))
            answering_documents.extend(sorted(documents))
        return DocumentBatch(
            queries=self._queries(pairs),
            documents=torch.from_numpy(passages.documents[positives]),
            relevant=torch.tensor([rows, answering_documents]),
            **self.hierarchy_targets(positives, relevant_passages),
        )

    def _queries(self, pairs: np.ndarray) -> LengthBuckets:
        """Return the queries of pairs (B,): their vectors in one bucket, or their tokens."""
        if self.query_vectors is not None:
            vectors = torch.from_numpy(self.query_vectors.of(pairs))
            return LengthBuckets([vectors], torch.arange(len(pairs)))  # type: ignore[list-item]
        return self.query_features([self.data.pairs.queries[pair] for pair in pairs])


def document_losses(
    queries: Tensor,
    vectors: Tensor,
    documents: Tensor,
    logit_scale: float,
    relevant: Tensor | None = None,
) -> Tensor:
    """Return the cross-entropy of each query over all documents (IncDSI, section 3, stage 1).

    With S(q, d) = logit_scale * q.v_d, the loss of query i is

        - log[ e^S(q_i, d_i) / sum_d e^S(q_i, d) ],   d = all documents but others that answer q_i

    The paper leaves no document out of the sum. A query that several documents answer would then
    push the vectors of its other answers away.

    Args:
        queries: Query vectors, (B, H).
        vectors: Document vectors of any norm, (n, H).
        documents: Number of each query's document, (B,) int64.
        logit_scale: Factor of the scores.
        relevant: m pairs of a row i of the batch and a document that is known to answer query i,
            (2, m) int64. These documents are left out of the query's sum, except for its own
            document, which may be among them.

    Returns:
        Losses, (B,).

    >>> vectors, documents = torch.eye(3), torch.tensor([0])
    >>> document_losses(vectors[:1], vectors, documents, logit_scale=1.0)  # log(1 + 2/e)
    tensor([0.5514])
    >>> relevant = torch.tensor([[0, 0], [0, 2]])
    >>> document_losses(vectors[:1], vectors, documents, 1.0, relevant)  # log(1 + 1/e)
    tensor([0.3133])
    """
    scores = (logit_scale * queries) @ vectors.T
    if relevant is not None:
        # Mask the documents that answer a query, except for its own one. These operations do not
        # make the CPU wait for the GPU, as boolean indexing would.
        rows, answering_documents = relevant
        positions = rows * scores.shape[1] + answering_documents
        is_left_out = torch.zeros_like(scores, dtype=torch.bool)
        is_left_out.view(-1).index_fill_(0, positions, True)
        is_left_out.scatter_(1, documents[:, None], False)
        scores = scores.masked_fill(is_left_out, -torch.inf)
    return cross_entropy(scores, documents, reduction="none")


class DocumentObjective(Objective):
    """The module that computes the loss of document vectors.

    The document vectors, and the encoder unless it is frozen, are its parameters.
    """

    def __init__(
        self,
        encoder: nn.Module,
        vectors: nn.Parameter,
        logit_scale: float,
        settings: TrainingSettings,
        hierarchy: Hierarchy | None = None,
    ) -> None:
        """Combine the losses.

        Args:
            encoder: Maps the buckets of `DocumentBatch.queries` to vectors (b, H).
            vectors: V, (n, H).
            logit_scale: Factor of the scores.
            settings: Weight and temperature of the hierarchy loss.
            hierarchy: Needed if the settings give its loss weight.
        """
        super().__init__(encoder, settings, hierarchy)
        self.vectors = vectors
        self.logit_scale = logit_scale

    def forward(self, batch: DocumentBatch) -> dict[str, Tensor]:  # type: ignore[override]
        """Return the loss of a batch, and the parts that the training curve shows.

        Returns:
            `loss`, to be minimised, and without gradient `cross_entropy`, `hierarchy_1`, ...: batch
            means.
        """
        queries = self.encode(self.encoder, batch.queries)
        # Scores are multiplied by a large scale. In bfloat16, they would be too coarse for a
        # softmax.
        with torch.autocast(queries.device.type, enabled=False):
            queries = queries.float()
            losses = document_losses(
                queries, self.vectors, batch.documents, self.logit_scale, batch.relevant
            )
            hierarchy = None
            if self.hierarchy is not None:
                hierarchy = self.hierarchy(queries, batch.paths, batch.excluded)
            total = hce_losses(losses, hierarchy, self.settings.hierarchy_weight).mean()

        parts = {"loss": total, "cross_entropy": losses.detach().mean()}
        parts.update(level_means(hierarchy))
        return parts


class DocumentTrainer(Trainer):
    """Trains document vectors in place, and the encoder unless it is frozen.

    The data come from `pool_pairs`, and the settings from `loop_settings`. A dev evaluator must
    rank the whole corpus. After `fit`, vectors and encoder have the values of the best evaluated
    step.
    """

    def __init__(
        self,
        encoder: Encoder,
        *arguments: Any,
        vector_settings: DocumentVectorSettings,
        vectors: nn.Parameter,
        query_vectors: QueryVectors | None,
        **keywords: Any,
    ) -> None:
        """Prepare training.

        Args:
            encoder: Encoder of the queries.
            arguments: Further arguments of `Trainer`.
            vector_settings: Settings of the document vectors.
            vectors: Document vectors V at the start of the training, (n, H).
            query_vectors: The queries' vectors if the encoder is frozen. None: it is trained.
            keywords: Keyword arguments of `Trainer`.
        """
        self.vector_settings = vector_settings
        self.vectors = vectors
        self.query_vectors = query_vectors
        # The settings of lengths to check: documents are never encoded here, and queries only if
        # the encoder is trained.
        self.length_settings = ("query_max_tokens",) if query_vectors is None else ()
        self._dev_queries: np.ndarray | None = None
        super().__init__(encoder, *arguments, **keywords)

    def dev_queries(self, dev: DevEvaluator) -> np.ndarray:
        """Return the vectors of the dev queries; a frozen encoder encodes them once."""
        is_encoder_trained = self.query_vectors is None
        if self._dev_queries is None or is_encoder_trained:
            self._dev_queries = self.encoder.encode_queries(dev.queries)
        return self._dev_queries

    def _index_dev_passages(self, dev: DevEvaluator) -> np.ndarray:
        """Return the vectors that an evaluation ranks: for each passage, that of its document."""
        documents = dev.passages.documents[dev.rows]
        return self.vectors.detach().cpu().numpy()[documents]

    def _score_dev(self, dev: DevEvaluator, ranked: np.ndarray) -> float:
        """Return the dev metric of the current vectors, which `_index_dev_passages` returned."""
        return dev.score(self.dev_queries(dev), ranked)

    def _make_objective(self, hierarchy: Hierarchy | None) -> DocumentObjective:
        """Return the module that computes the loss of the document vectors."""
        encoder: nn.Module = self.encoder
        if self.query_vectors is not None:
            encoder.requires_grad_(False)
            # With a frozen encoder, batches hold query vectors in place of texts, so nothing is
            # encoded.
            encoder = nn.Identity()
        return DocumentObjective(
            encoder, self.vectors, self.vector_settings.logit_scale, self.settings, hierarchy
        )

    def _make_optimizer(self, objective: DocumentObjective) -> torch.optim.AdamW:
        """Return the optimiser of the document vectors, and of the encoder unless it is frozen.

        Each group of parameters stores its highest learning rate as "peak", from which
        `set_learning_rate` computes the rate of each step.
        """
        rate = self.vector_settings.learning_rate
        vector_group = {"params": [self.vectors], "weight_decay": 0.0, "lr": rate, "peak": rate}
        if self.query_vectors is not None:
            return torch.optim.AdamW([vector_group], fused=True)
        optimizer = make_optimizer(objective, self.settings)
        optimizer.add_param_group(vector_group)
        return optimizer

    def _make_collator(self, hierarchy: Hierarchy | None, batch_tokens: int) -> DocumentCollator:
        """Return the function that makes the tensors of a batch of queries and documents."""
        return DocumentCollator(
            self.data,
            self.settings,
            self.encoder.tokenize,
            self.seed,
            hierarchy,
            batch_tokens,
            query_vectors=self.query_vectors,
            prompts=self.encoder.prompts,
        )

    def _trained_weights(self) -> dict[str, Tensor]:
        """Return the trained weights of the encoder, and the document vectors."""
        weights = super()._trained_weights()
        weights[VECTORS] = self.vectors
        return weights


def loop_settings(
    vector_settings: DocumentVectorSettings, training: TrainingSettings, pairs: int
) -> TrainingSettings:
    """Return the settings of the training loop, with the values that `vector_settings` overrides.

    The dev metric is measured after each epoch.

    Args:
        vector_settings: Settings of the document vectors.
        training: The retriever's training settings.
        pairs: Number of pairs in the pool.

    >>> loop = loop_settings(DocumentVectorSettings(), TrainingSettings(), pairs=1300)
    >>> loop.batch_size, loop.evaluate_every, loop.patience, loop.learning_rate
    (128, 10, 2, 0.0005)
    """
    batch_size = min(vector_settings.batch_size, max(1, pairs))
    steps_per_epoch = max(1, round(pairs // batch_size / training.accumulation))
    loop = training.replace(
        # All pairs are in one pool, so batches do not mix supervised and unsupervised pairs.
        supervision="supervised",
        epochs=vector_settings.epochs,
        batch_size=vector_settings.batch_size,
        batches="random",
        negatives_per_query=0,
        evaluate_every=steps_per_epoch,
        patience=vector_settings.patience,
    )
    if vector_settings.train_encoder:
        return loop
    return loop.replace(
        learning_rate=vector_settings.learning_rate,
        frozen_layers=None,
        checkpoint_every=steps_per_epoch,
    )


def pool_pairs(data: TrainingData) -> TrainingData:
    """Return training data in which pseudo-queries count like judged queries.

    Document vectors are trained on one pool of pairs, without a share of each kind per batch.

    >>> import numpy as np
    >>> from model_code.training.data import Pairs, Passages
    >>> one = Pairs(["a"], np.array([0]), [frozenset([0])])
    >>> pool = pool_pairs(TrainingData(Passages(["A"], np.array([0])), one, one))
    >>> len(pool.supervised), len(pool.unsupervised), len(pool.pairs)
    (2, 0, 2)
    """
    no_pairs = replace(
        data.unsupervised, queries=[], passages=data.unsupervised.passages[:0], relevant=[]
    )
    return TrainingData(data.passages, data.pairs, no_pairs)
