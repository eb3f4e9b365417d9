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
from model_code.lexical.token_hierarchy import TokenHierarchy
from model_code.losses.hce import hce_losses, joint_loss, level_means
from model_code.training.buckets import Buckets
from model_code.training.collator import Batch
from model_code.training.settings import TrainingSettings


class ScaledObjective(nn.Module):
    """An objective whose scores are divided by scales (n,), measured before training or 1.

    The scales are a buffer, so a run that resumes goes on with those it began with: one per term of the loss, then one
    per level of the hierarchy loss, if there is one.
    """

    def __init__(
        self,
        encoder: LexicalEncoder,
        settings: LexicalSettings,
        training: TrainingSettings,
        hierarchy: TokenHierarchy | None = None,
    ) -> None:
        super().__init__()
        self.encoder, self.settings, self.training_settings = encoder, settings, training
        self.hierarchy = None if hierarchy is None else hierarchy.to(encoder.device)
        levels = 0 if hierarchy is None else hierarchy.levels
        self.register_buffer("scales", torch.ones(self.term_count + levels, device=encoder.device))

    @property
    def term_count(self) -> int:
        """How many terms the loss has, the hierarchy's apart."""
        raise NotImplementedError

    @torch.no_grad()
    def measure(self, batch: Batch | BagBatch) -> None:
        """Set the scales by a batch, unless the settings ask for raw scores."""
        if self.settings.score_scale == "measured":
            self.scales.copy_(self._spread(batch))

    def _spread(self, batch: Batch | BagBatch) -> Tensor:
        raise NotImplementedError

    def _spreads(self, terms: Tensor, queries: Tensor, batch: Batch | BagBatch) -> Tensor:
        """The scales of the terms and, by E(q) (B, V), of the hierarchy's levels."""
        if self.hierarchy is None:
            return terms
        return torch.cat([terms, self.hierarchy.spread(queries, batch.paths, batch.excluded)])

    def _losses(self, losses: Tensor, queries: Tensor, batch: Batch | BagBatch) -> dict[str, Tensor]:
        """`loss`, to be minimised, of each pair's losses (B,) and, by E(q) (B, V), the hierarchy's; and its levels."""
        hierarchy = None
        if self.hierarchy is not None:
            hierarchy = self.hierarchy(queries, self.scales[self.term_count :], batch.paths, batch.excluded)
        losses = hce_losses(losses, hierarchy, self.training_settings.hierarchy_weight)
        loss = joint_loss(losses, batch.unsupervised, self.training_settings.unsupervised_weight)
        return {"loss": loss} | level_means(hierarchy)

    def _embed(self, texts: Buckets, side: LexicalEncoder) -> Tensor:
        """E(x) of the texts with `top_k` entries, in their order: (n, V)."""
        size, k = side.vocabulary_size, self.settings.top_k
        return torch.cat([dense(*side.sparse(part, k, own=True), size) for part in texts.parts])[texts.rows]


class SemiParametricObjective(ScaledObjective):
    """L(E(q), E(p)) + 1/2 L(E(q), T(p)) + 1/2 L(T(q), E(p)) over the batch, or the `terms` asked for (`losses.py`)."""

    @property
    def term_count(self) -> int:
        """Those that the settings name."""
        return len(self.settings.terms)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """`loss`, to be minimised, and without gradient its terms and the hierarchy's levels: batch means."""
        queries, documents = self._sides(batch)
        with torch.autocast(queries.weights.device.type, enabled=False):
            scales, terms = self.scales[: self.term_count], self.settings.terms
            losses = semi_parametric_losses(queries, documents, scales, batch.relevant, batch.allowed, terms)
            parts = self._losses(total(losses), queries.weights, batch)
        return parts | {name: one.detach().mean() for name, one in losses.items()}

    def _sides(self, batch: Batch) -> tuple[Views, Views]:
        """Queries and documents, each by its side of the encoder."""
        return self._views(batch.queries, self.encoder.query_side), self._views(batch.documents, self.encoder)

    def _views(self, texts: Buckets, side: LexicalEncoder) -> Views:
        own = torch.cat([side.own(part) for part in texts.parts])[texts.rows]
        return Views(self._embed(texts, side), own)

    def _spread(self, batch: Batch) -> Tensor:
        queries, documents = self._sides(batch)
        pairs = term_pairs(queries, documents, self.settings.terms).values()
        terms = torch.stack([quarter_deviation(left @ right.T, batch.relevant) for left, right in pairs])
        return self._spreads(terms, queries.weights, batch)


class BetaObjective(ScaledObjective):
    """E(q) against the fixed token bags of many passages, in one sparse product: no passage is encoded."""

    term_count = 1

    def forward(self, batch: BagBatch) -> dict[str, Tensor]:
        """`loss`, to be minimised, and without gradient its parts, `beta` and the hierarchy's levels: batch means."""
        queries = self._queries(batch)
        with torch.autocast(queries.device.type, enabled=False):
            losses = beta_losses(self._scores(queries, batch), batch.positives, batch.answers, self.scales[0])
            return self._losses(losses, queries, batch) | {"beta": losses.detach().mean()}

    def _queries(self, batch: BagBatch) -> Tensor:
        """E(q): (B, V)."""
        return self._embed(batch.queries, self.encoder.query_side)

    def _scores(self, queries: Tensor, batch: BagBatch) -> Tensor:
        """E(q).T(p): (B, P)."""
        ones = torch.ones(batch.bags.shape[1], device=queries.device)
        shape = (batch.answers.shape[1], self.encoder.vocabulary_size)
        passages = torch.sparse_coo_tensor(batch.bags, ones, shape, is_coalesced=True, check_invariants=False)
        return torch.sparse.mm(passages, queries.T.contiguous()).T  # of another layout, it takes four times as long

    def _spread(self, batch: BagBatch) -> Tensor:
        queries = self._queries(batch)
        with torch.autocast(queries.device.type, enabled=False):
            term = quarter_deviation(self._scores(queries, batch)[~batch.answers][None])
            return self._spreads(term.reshape(1), queries, batch)
