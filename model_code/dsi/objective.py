"""The loss of a batch as one module: document vectors, query encoder and, if it has weight, the hierarchy loss."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from model_code.dsi.collator import DocumentBatch
from model_code.dsi.losses import document_losses
from model_code.encoding.batching import encode
from model_code.hierarchy.tree import Hierarchy
from model_code.losses.hierarchy import hce_losses, level_means
from model_code.training.objective import Objective
from model_code.training.settings import TrainingSettings


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
