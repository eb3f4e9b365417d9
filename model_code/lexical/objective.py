"""The losses of a batch as modules, as the trainer wants them: the semi-parametric one, and that of the first stage."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from model_code.lexical.encoder import LexicalEncoder
from model_code.lexical.first_stage import BagBatch
from model_code.lexical.losses import (
    Views,
    beta_losses,
    dense,
    quarter_deviation,
    semi_parametric_losses,
    term_pairs,
    total,
)
from model_code.lexical.settings import LexicalSettings
from model_code.losses.hce import joint_loss
from model_code.training.buckets import Buckets
from model_code.training.collator import Batch


class ScaledObjective(nn.Module):
    """An objective whose scores are divided by scales (n,), measured before training or 1.

    The scales are a buffer, so a run that resumes goes on with those it began with.
    """

    def __init__(
        self, encoder: LexicalEncoder, settings: LexicalSettings, unsupervised_weight: float, scales: int
    ) -> None:
        super().__init__()
        self.encoder, self.settings, self.unsupervised_weight = encoder, settings, unsupervised_weight
        self.hierarchy = None
        self.register_buffer("scales", torch.ones(scales, device=encoder.device))

    @torch.no_grad()
    def measure(self, batch: Batch | BagBatch) -> None:
        """Set the scales by a batch, unless the settings ask for raw scores."""
        if self.settings.score_scale == "measured":
            self.scales.copy_(self._spread(batch))

    def _spread(self, batch: Batch | BagBatch) -> Tensor:
        raise NotImplementedError

    def _embed(self, texts: Buckets, side: LexicalEncoder) -> Tensor:
        """E(x) of the texts with `top_k` entries, in their order: (n, V)."""
        size, k = side.vocabulary_size, self.settings.top_k
        return torch.cat([dense(*side.sparse(part, k, own=True), size) for part in texts.parts])[texts.rows]


class SemiParametricObjective(ScaledObjective):
    """L(E(q), E(p)) + 1/2 L(E(q), T(p)) + 1/2 L(T(q), E(p)) over the batch, or the `terms` asked for (`losses.py`)."""

    def __init__(self, encoder: LexicalEncoder, settings: LexicalSettings, unsupervised_weight: float) -> None:
        super().__init__(encoder, settings, unsupervised_weight, len(settings.terms))

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """`loss`, to be minimised, and without gradient its terms (`full`, `beta`, `alpha`): batch means."""
        queries, documents = self._sides(batch)
        with torch.autocast(queries.weights.device.type, enabled=False):
            losses = semi_parametric_losses(
                queries, documents, self.scales, batch.relevant, batch.allowed, self.settings.terms
            )
            loss = joint_loss(total(losses), batch.unsupervised, self.unsupervised_weight)
        return {"loss": loss} | {name: terms.detach().mean() for name, terms in losses.items()}

    def _sides(self, batch: Batch) -> tuple[Views, Views]:
        """Queries and documents, each by its side of the encoder."""
        return self._views(batch.queries, self.encoder.query_side), self._views(batch.documents, self.encoder)

    def _views(self, texts: Buckets, side: LexicalEncoder) -> Views:
        own = torch.cat([side.own(part) for part in texts.parts])[texts.rows]
        return Views(self._embed(texts, side), own)

    def _spread(self, batch: Batch) -> Tensor:
        terms = term_pairs(*self._sides(batch), self.settings.terms)
        return torch.stack([quarter_deviation(left @ right.T, batch.relevant) for left, right in terms.values()])


class BetaObjective(ScaledObjective):
    """E(q) against the fixed token bags of many passages, in one sparse product: no passage is encoded."""

    def __init__(self, encoder: LexicalEncoder, settings: LexicalSettings, unsupervised_weight: float) -> None:
        super().__init__(encoder, settings, unsupervised_weight, 1)

    def forward(self, batch: BagBatch) -> dict[str, Tensor]:
        """`loss`, to be minimised: the batch mean."""
        scores = self._scores(batch)
        losses = beta_losses(scores, batch.positives, batch.excluded, self.scales[0])
        return {"loss": joint_loss(losses, batch.unsupervised, self.unsupervised_weight)}

    def _scores(self, batch: BagBatch) -> Tensor:
        """E(q).T(p): (B, P)."""
        queries = self._embed(batch.queries, self.encoder.query_side)  # (B, V)
        with torch.autocast(queries.device.type, enabled=False):
            ones = torch.ones(batch.bags.shape[1], device=queries.device)
            shape = (batch.excluded.shape[1], self.encoder.vocabulary_size)
            passages = torch.sparse_coo_tensor(batch.bags, ones, shape, is_coalesced=True, check_invariants=False)
            return torch.sparse.mm(passages, queries.T).T

    def _spread(self, batch: BagBatch) -> Tensor:
        return quarter_deviation(self._scores(batch)[~batch.excluded][None]).reshape(1)
