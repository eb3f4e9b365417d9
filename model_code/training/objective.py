"""The loss of a batch as one module: encoder, contrastive loss and, if it has weight, hierarchy loss with centroids.

Where several layers represent a document (MLR), only the contrastive loss changes: the hierarchy loss is of queries,
which are one vector as ever, and extra negatives are documents like the others.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from model_code.encoding.batching import Features, encode
from model_code.encoding.encoder import Encoder
from model_code.encoding.settings import LayerSettings
from model_code.hierarchy.tree import Hierarchy
from model_code.losses.contrastive import contrastive_losses
from model_code.losses.hierarchy import HierarchyLoss, hce_losses, joint_loss, level_means
from model_code.losses.layers import multi_vector_losses, self_contrastive_losses
from model_code.training.batches import TrainingBatch
from model_code.training.settings import TrainingSettings

LAST_LAYER = LayerSettings()


class Objective(nn.Module):
    """What the trainer minimises: everything that learns is a parameter of it."""

    def __init__(
        self,
        encoder: Encoder,
        settings: TrainingSettings,
        hierarchy: Hierarchy | None = None,
        layers: LayerSettings = LAST_LAYER,
    ) -> None:
        """encoder: maps tokenised texts to unit vectors (B, H).
        hierarchy: needed if the settings give it weight.

        layers: what represents documents; if not the last layer alone, `encoder` is an `Encoder` that
        `represent_documents` has prepared for it.
        """
        super().__init__()
        self.encoder, self.settings, self.layers = encoder, settings, layers
        self.numbers = layers.chosen(encoder.depth) if layers.numbers else ()
        self.hierarchy: HierarchyLoss | None = None
        if hierarchy is not None and settings.hierarchy_weight > 0:
            self.recluster(hierarchy)

    def recluster(self, hierarchy: Hierarchy) -> None:
        """Take the centroids of a new hierarchy for the first M levels, in place of those trained so far."""
        levels = slice(0, self.settings.hierarchy_levels)
        centroids = [torch.from_numpy(level) for level in hierarchy.centroids[levels]]
        parents = [torch.from_numpy(level) for level in hierarchy.parents[levels]]
        device = next(self.encoder.parameters()).device
        self.hierarchy = HierarchyLoss(centroids, parents, self.settings.temperature).to(device)

    def forward(self, batch: TrainingBatch) -> dict[str, Tensor]:
        """`loss`, to be minimised, and without gradient its parts `contrastive`, `hierarchy_1`, ...: batch means."""
        queries, documents = encode(self.encoder, batch.queries), encode(self._documents, batch.documents)
        # A temperature of .05 multiplies bfloat16's rounding of a cosine to .08 of a score: score in float32.
        with torch.autocast(queries.device.type, enabled=False):
            return self._losses(queries.float(), documents.float(), batch)

    def _documents(self, features: Features) -> Tensor:
        """Document vectors: (B, H), or (B, m, H) where the loss compares layers."""
        if not self.numbers:
            return self.encoder(features)
        return self.encoder.layers_forward(features, self.numbers)

    def _contrastive(self, queries: Tensor, documents: Tensor, batch: TrainingBatch) -> Tensor:
        loss = contrastive_losses
        if documents.ndim == 3:
            last = self.numbers.index(self.encoder.depth)
            loss = partial(multi_vector_losses, last=last)
            if self.layers.pooling == "self_contrastive":
                loss = partial(self_contrastive_losses, last=last, regulariser=self.layers.regulariser)
        positives, negatives = documents.split([len(queries), len(documents) - len(queries)])
        masks = {"relevant": batch.relevant, "negatives": negatives, "allowed": batch.allowed}
        return loss(queries, positives, self.settings.temperature, **masks)

    def _losses(self, queries: Tensor, documents: Tensor, batch: TrainingBatch) -> dict[str, Tensor]:
        contrastive = self._contrastive(queries, documents, batch)
        hierarchy = None
        if self.hierarchy is not None:
            hierarchy = self.hierarchy(queries, batch.paths, batch.excluded)
        losses = hce_losses(contrastive, hierarchy, self.settings.hierarchy_weight)
        parts = {"loss": joint_loss(losses, batch.unsupervised, self.settings.unsupervised_weight)}
        return parts | {"contrastive": contrastive.detach().mean()} | level_means(hierarchy)
