"""Training of document vectors, alone or with the query encoder: the one trainer, with another loss
and other batches.

A query classifies its document among all documents (IncDSI, section 3, stage 1), and no document is
ever encoded. A frozen encoder encodes each query once; the means of their vectors stand for their
documents.
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
from model_code.encoding.encoder import Encoder, LengthBuckets, encode
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
    """Each different query text of P pairs, encoded once."""

    vectors: np.ndarray  # (U, H) float32
    rows: np.ndarray  # (P,) int64: which of them is each pair's

    @classmethod
    def encode(
        cls, pairs: Pairs, encoder: Encoder, folder: Path, progress: Progress = no_progress
    ) -> QueryVectors:
        """Encode the queries of `pairs`, shard by shard in `folder`, which belongs to this encoder
        and these pairs.
        """
        number = {text: number for number, text in enumerate(dict.fromkeys(pairs.queries))}
        rows = np.fromiter(
            (number[text] for text in pairs.queries), dtype=np.int64, count=len(pairs)
        )
        return cls(encode_resumably(encoder, list(number), folder, progress), rows)

    def of(self, pairs: np.ndarray) -> np.ndarray:
        """The query vectors of some pairs, given by number: (B, H)."""
        return self.vectors[self.rows[pairs]]


class DocumentBatch(NamedTuple):
    """B queries and their documents as tensors."""

    queries: LengthBuckets  # tokenised; if the encoder is frozen one part, their vectors (B, H)
    documents: Tensor  # (B,) int64
    relevant: Tensor  # (2, m) int64: rows of the batch, and documents known to answer them
    # (B, M) int64: ancestors of each pair's passage; None without a hierarchy loss
    paths: Tensor | None
    # per level None or (B, K_t) bool: nodes above other relevant passages
    excluded: list[Tensor | None] | None


class DocumentCollator(Collator):
    """A maker of batches; equal numbers give equal batches, whatever was made before."""

    def __init__(
        self, *arguments: Any, query_vectors: QueryVectors | None = None, **more: Any
    ) -> None:
        """query_vectors: those of a frozen encoder, looked up instead of tokenised; the rest is
        `Collator`'s.
        """
        super().__init__(*arguments, **more)
        self.query_vectors = query_vectors

    def __call__(self, number: int, pairs: np.ndarray) -> DocumentBatch:  # type: ignore[override]
        """Batch `number` of the run, made of `pairs` (B,)."""
        every, passages = self.data.pairs, self.data.passages
        positives = every.passages[pairs]
        relevant = [every.relevant[pair] for pair in pairs]
        return DocumentBatch(
            queries=self._queries(pairs),
            documents=torch.from_numpy(passages.documents[positives]),
            relevant=torch.tensor(
                [(row, key) for row, keys in enumerate(relevant) for key in sorted(keys)]
            ).T,
            **self.hierarchy_targets(positives, list(map(passages.of_all, relevant))),
        )

    def _queries(self, pairs: np.ndarray) -> LengthBuckets:
        if self.query_vectors is not None:
            return LengthBuckets(
                [torch.from_numpy(self.query_vectors.of(pairs))], torch.arange(len(pairs))
            )  # type: ignore[list-item]
        return self.query_features([self.data.pairs.queries[pair] for pair in pairs])


def document_losses(
    queries: Tensor,
    vectors: Tensor,
    documents: Tensor,
    logit_scale: float,
    relevant: Tensor | None = None,
) -> Tensor:
    """The cross-entropy of each of B queries over all n documents: (B,).

    With S(q, d) = logit_scale * q.v_d, query i's loss is
        - log[ e^S(q_i, d_i) / sum_d e^S(q_i, d) ],   d = all documents but the others known to answer q_i

    queries: (B, H). vectors: (n, H), of any norm. documents: (B,) int64, the number of each query's
    document. relevant: (2, m) int64, rows i of the batch and documents known to answer q_i. They
    are left out of query i's sum,
      except its own document, which may be among them or not. Published without: a query that several documents answer
      would push each of them away in turn.

    >>> vectors = torch.eye(3)
    >>> document_losses(vectors[:1], vectors, torch.tensor([0]), logit_scale=1.0)  # log(1 + 2/e)
    tensor([0.5514])
    >>> document_losses(vectors[:1], vectors, torch.tensor([0]), 1.0, relevant=torch.tensor([[0, 0], [0, 2]]))
    tensor([0.3133])
    """
    scores = (logit_scale * queries) @ vectors.T  # (B, n)
    if relevant is not None:
        # by steps that no GPU has to be waited for
        others = torch.zeros_like(scores, dtype=torch.bool)
        others.view(-1).index_fill_(0, relevant[0] * scores.shape[1] + relevant[1], True)
        scores = scores.masked_fill(others.scatter_(1, documents[:, None], False), -torch.inf)
    return cross_entropy(scores, documents, reduction="none")


class DocumentObjective(Objective):
    """What training document vectors minimises: everything that learns is a parameter of it."""

    def __init__(
        self,
        encoder: nn.Module,
        vectors: nn.Parameter,
        logit_scale: float,
        settings: TrainingSettings,
        hierarchy: Hierarchy | None = None,
    ) -> None:
        """encoder: maps the parts of `DocumentBatch.queries` to vectors (b, H); vectors: V, (n, H)."""
        super().__init__(encoder, settings, hierarchy)
        self.vectors, self.logit_scale = vectors, logit_scale

    def forward(self, batch: DocumentBatch) -> dict[str, Tensor]:  # type: ignore[override]
        """`loss`, to be minimised, and without gradient its parts `cross_entropy`, `hierarchy_1`,
        ...: batch means.
        """
        queries = encode(self.encoder, batch.queries)
        # scaled scores are too coarse in bfloat16
        with torch.autocast(queries.device.type, enabled=False):
            queries = queries.float()
            losses = document_losses(
                queries, self.vectors, batch.documents, self.logit_scale, batch.relevant
            )
            hierarchy = (
                None
                if self.hierarchy is None
                else self.hierarchy(queries, batch.paths, batch.excluded)
            )
            total = hce_losses(losses, hierarchy, self.settings.hierarchy_weight).mean()
        return {"loss": total, "cross_entropy": losses.detach().mean()} | level_means(hierarchy)


class DocumentTrainer(Trainer):
    """Training of `vectors` (n, H) in place, and of `encoder` unless it is frozen, as there are
    `query_vectors` of it.

    data: what `pooled` returns; settings: what `loop_settings` returns; dev: of the whole corpus,
    or None. The rest is `Trainer`'s, and so is `fit`, which leaves vectors and encoder as the best
    evaluated step had them.
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
        self.vector_settings, self.vectors, self.query_vectors = (
            vector_settings,
            vectors,
            query_vectors,
        )
        self.length_settings = ("query_max_tokens",) if query_vectors is None else ()
        self._dev_queries: np.ndarray | None = None
        super().__init__(encoder, *arguments, **keywords)

    def dev_queries(self, dev: DevEvaluator) -> np.ndarray:
        """The vectors of the dev queries; encoded only once where the encoder does not learn."""
        if self._dev_queries is None or self.query_vectors is None:
            self._dev_queries = self.encoder.encode(dev.queries)
        return self._dev_queries

    def _index_dev_passages(self, dev: DevEvaluator) -> np.ndarray:
        """The vectors of passages: of each its document's row, as it is now."""
        return self.vectors.detach().cpu().numpy()[dev.passages.documents[dev.rows]]

    def _score_dev(self, dev: DevEvaluator, ranked: np.ndarray) -> float:
        return dev.score(self.dev_queries(dev), ranked)

    def _make_objective(self, hierarchy: Hierarchy | None) -> DocumentObjective:
        encoder: nn.Module = self.encoder
        if self.query_vectors is not None:
            encoder.requires_grad_(False)
            encoder = nn.Identity()  # the batches hold vectors
        return DocumentObjective(
            encoder, self.vectors, self.vector_settings.logit_scale, self.settings, hierarchy
        )

    def _make_optimizer(self, objective: DocumentObjective) -> torch.optim.AdamW:
        rate = self.vector_settings.learning_rate
        group = {"params": [self.vectors], "weight_decay": 0.0, "lr": rate, "peak": rate}
        if self.query_vectors is not None:
            return torch.optim.AdamW([group], fused=True)
        optimizer = make_optimizer(objective, self.settings)
        optimizer.add_param_group(group)
        return optimizer

    def _make_collator(self, hierarchy: Hierarchy | None, batch_tokens: int) -> DocumentCollator:
        tokenize, more = (
            self.encoder.tokenize,
            {"query_vectors": self.query_vectors, "prompts": self.encoder.prompts},
        )
        return DocumentCollator(
            self.data, self.settings, tokenize, self.seed, hierarchy, batch_tokens, **more
        )

    def _trained_weights(self) -> dict[str, Tensor]:
        return {**super()._trained_weights(), VECTORS: self.vectors}


def loop_settings(
    vector_settings: DocumentVectorSettings, training: TrainingSettings, pairs: int
) -> TrainingSettings:
    """`training` with what the training loop must read from `vector_settings` instead, for a pool
    of so many pairs.

    >>> loop = loop_settings(DocumentVectorSettings(), TrainingSettings(), pairs=1300)
    >>> loop.batch_size, loop.evaluate_every, loop.patience, loop.learning_rate
    (128, 10, 2, 0.0005)
    """
    per_epoch = pairs // min(vector_settings.batch_size, max(1, pairs)) / training.accumulation
    every = max(1, round(per_epoch))
    joint = training.replace(
        supervision="supervised",  # of one pool: a batch has no two kinds of pairs
        epochs=vector_settings.epochs,
        batch_size=vector_settings.batch_size,
        batches="random",
        negatives_per_query=0,
        evaluate_every=every,
        patience=vector_settings.patience,
    )
    if vector_settings.train_encoder:
        return joint
    return joint.replace(
        learning_rate=vector_settings.learning_rate, frozen_layers=None, checkpoint_every=every
    )


def pooled(data: TrainingData) -> TrainingData:
    """All pairs as one kind.

    >>> import numpy as np
    >>> from model_code.training.data import Pairs, Passages
    >>> one = Pairs(["a"], np.array([0]), [frozenset([0])])
    >>> pool = pooled(TrainingData(Passages(["A"], np.array([0])), one, one))
    >>> len(pool.supervised), len(pool.unsupervised), len(pool.pairs)
    (2, 0, 2)
    """
    nothing = replace(
        data.unsupervised, queries=[], passages=data.unsupervised.passages[:0], relevant=[]
    )
    return TrainingData(data.passages, data.pairs, nothing)
