"""The loss of atomic document ids, alone and as one module with the query encoder and the hierarchy loss.

A query classifies its document among all documents (IncDSI, section 3, stage 1).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from model_code.dsi.batches import DocumentBatch
from model_code.encoding.batching import encode
from model_code.hierarchy.tree import Hierarchy
from model_code.losses.hierarchy import hce_losses, level_means
from model_code.training.objective import Objective
from model_code.training.settings import TrainingSettings


def document_losses(
    queries: Tensor, vectors: Tensor, documents: Tensor, logit_scale: float, known: Tensor | None = None
) -> Tensor:
    """The cross-entropy of each of B queries over all n documents: (B,).

    With S(q, d) = logit_scale * q.v_d, query i's loss is
        - log[ e^S(q_i, d_i) / sum_d e^S(q_i, d) ],   d = all documents but the others known to answer q_i

    queries: (B, H). vectors: (n, H), of any norm. documents: (B,) int64, the number of each query's document.
    known: (2, m) int64, rows i of the batch and documents known to answer q_i. They are left out of query i's sum,
      except its own document, which may be among them or not. Published without: a query that several documents answer
      would push each of them away in turn.

    >>> vectors = torch.eye(3)
    >>> document_losses(vectors[:1], vectors, torch.tensor([0]), logit_scale=1.0)  # log(1 + 2/e)
    tensor([0.5514])
    >>> document_losses(vectors[:1], vectors, torch.tensor([0]), 1.0, known=torch.tensor([[0, 0], [0, 2]]))
    tensor([0.3133])
    """
    scores = (logit_scale * queries) @ vectors.T  # (B, n)
    if known is not None:
        scores = scores.masked_fill(_others(known, documents, scores), -torch.inf)
    return cross_entropy(scores, documents, reduction="none")


def _others(known: Tensor, documents: Tensor, scores: Tensor) -> Tensor:
    """Which documents other than its own answer each query: (B, n) bool, by steps that no GPU has to be waited for."""
    rows, columns = known
    others = torch.zeros_like(scores, dtype=torch.bool)
    others.view(-1).index_fill_(0, rows * scores.shape[1] + columns, True)
    return others.scatter_(1, documents[:, None], False)


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
        """`loss`, to be minimised, and without gradient its parts `cross_entropy`, `hierarchy_1`, ...: batch means."""
        queries = encode(self.encoder, batch.queries)
        with torch.autocast(queries.device.type, enabled=False):  # scaled scores are too coarse in bfloat16
            queries = queries.float()
            losses = document_losses(queries, self.vectors, batch.documents, self.logit_scale, batch.known)
            hierarchy = None if self.hierarchy is None else self.hierarchy(queries, batch.paths, batch.excluded)
            total = hce_losses(losses, hierarchy, self.settings.hierarchy_weight).mean()
        return {"loss": total, "cross_entropy": losses.detach().mean()} | level_means(hierarchy)
