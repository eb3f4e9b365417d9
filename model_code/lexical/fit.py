"""Train a lexical encoder on a corpus's pairs by the semi-parametric loss of SVDR, and the
hierarchy's over tokens.

Zhou et al., Semi-Parametric Retrieval via Binary Token Index, section 4: with E(x) the learned
weights of a text and T(x) the 0/1 vector of its own tokens,

    L(E(q), E(p)) + 1/2 L(E(q), T(p)) + 1/2 L(T(q), E(p)),

where each L is contrastive in both directions. Scores are plain inner products, as large as weights
times the tokens two texts share, so an untrained encoder's softmax is saturated: each term divides
its scores by a scale of its own.

In the hierarchy loss the centroid of a node is the mean of its passages' T(p), at unit norm as HCE
scores centroids (equation 5): at another norm, nodes of long passages would win. As T(p) is fixed
and needs no encoder, so are they: unlike HCE's (section 5.2) they are not trained, which at V
entries each would cost more than the encoder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from model_code.context import StageContext
from model_code.encoding.encoder import LengthBuckets
from model_code.hierarchy.tree import Hierarchy
from model_code.lexical.encoder import LexicalEncoder
from model_code.lexical.index import BY_TOKENS, EmbeddingIndex, LexicalSearch, index_tokens
from model_code.lexical.layout import save_encoder, start_encoder
from model_code.lexical.settings import LexicalSettings
from model_code.lexical.token_index.index import TokenIndex
from model_code.losses.contrastive import Contrast, contrastive_losses, softmax_losses
from model_code.losses.hierarchy import hce_losses, joint_loss, level_means, siblings
from model_code.training.batches import TrainingBatch
from model_code.training.fit import make_trainer, write_training_report
from model_code.training.optimisation import adamw
from model_code.training.settings import TrainingSettings
from model_code.training.tables import DevEvaluator, TrainingTables
from model_code.training.trainer import Trainer, to_device

SHARES = {"full": 1.0, "beta": 0.5, "alpha": 0.5}  # of each term in the loss
# of a document's number, so that ties, which token searches have many of, break as by the
# documents' ids
DIGITS = 12
HEAD_RATE = 4.0  # times the learning rate: the rate of the closed-form transform
BIAS_LEARNING_RATE = 0.01  # of the tokens' biases


class Views(NamedTuple):
    """n texts seen both ways, over the same V entries: learned weights E(x) (n, V), and own tokens
    T(x) (n, V).
    """

    weights: Tensor
    tokens: Tensor


def term_pairs(queries: Views, documents: Views) -> dict[str, tuple[Tensor, Tensor]]:
    """The two sides of each term: "full" E(q), E(p); "beta" E(q), T(p); "alpha" T(q), E(p)."""
    return {
        "full": (queries.weights, documents.weights),
        "beta": (queries.weights, documents.tokens),
        "alpha": (queries.tokens, documents.weights),
    }


def semi_parametric_losses(
    queries: Views,
    documents: Views,
    scales: Tensor,
    relevant: Tensor | None = None,
    allowed: Tensor | None = None,
) -> dict[str, Tensor]:
    """Each term's loss of each of the B pairs, both directions added, without its share: {term:
    (B,)}.

    queries: B texts; documents: the B positives, then E extra negatives. scales: one per term,
    divide its scores. relevant: (B, B) bool and allowed: (B, E) bool, as in `Contrast`.
    """
    batch = len(queries.weights)
    losses = {}
    for (name, (left, right)), scale in zip(
        term_pairs(queries, documents).items(), scales, strict=True
    ):
        losses[name] = contrastive_losses(
            left, right[:batch], scale, Contrast(relevant, right[batch:], allowed)
        )
    return losses


def total(losses: dict[str, Tensor]) -> Tensor:
    """The terms of a pair added by their shares: (B,)."""
    return torch.stack([SHARES[name] * loss for name, loss in losses.items()]).sum(dim=0)


def quarter_deviation(scores: Tensor, relevant: Tensor | None = None) -> Tensor:
    """A quarter of the standard deviation of the scores of non-relevant pairs, for the softmax to
    start unsaturated.

    scores: (B, P); relevant: (B, B) bool for the first B columns. Never below 1e-6. No gradient.
    """
    scores = scores.detach()
    matching = torch.zeros_like(scores, dtype=torch.bool)
    if relevant is not None:
        matching[:, : len(relevant)] = relevant | torch.eye(
            len(relevant), dtype=torch.bool, device=scores.device
        )
    others = scores[~matching]
    if len(others) < 2:
        return scores.new_ones(())
    return (others.std() / 4).clamp(min=1e-6)


class TokenHierarchy(nn.Module):
    """The nodes of a tree's first M levels, as the mean tokens of their passages."""

    def __init__(
        self, hierarchy: Hierarchy, bags: Sequence[np.ndarray], entries: int, levels: int | None
    ) -> None:
        """bags: T(p) of each of the hierarchy's N passages; entries: V; levels: M, None: all."""
        super().__init__()
        self.entries = entries
        paths = hierarchy.paths()[:, :levels]
        self.levels = paths.shape[1]
        for level in range(self.levels):
            places, weights = token_centroids(paths[:, level], bags)
            self.register_buffer(f"places_{level}", torch.from_numpy(places), persistent=False)
            self.register_buffer(f"weights_{level}", torch.from_numpy(weights), persistent=False)
            parents = torch.from_numpy(hierarchy.parents[level]).long()
            self.register_buffer(f"parents_{level}", parents, persistent=False)

    def scores(self, columns: Tensor, level: int) -> Tensor:
        """E(q).c/|c| of B queries with the nodes of a level, from 0: (B, K_t).

        columns: E(q), (V, B), contiguous: of another layout, the product takes some six times as
        long on a CPU.
        """
        places, weights = (
            self.get_buffer(f"places_{level}"),
            self.get_buffer(f"weights_{level}").to(columns.dtype),
        )
        shape = (len(self.get_buffer(f"parents_{level}")), self.entries)
        centroids = torch.sparse_coo_tensor(
            places, weights, shape, is_coalesced=True, check_invariants=False
        )
        return torch.sparse.mm(centroids, columns).T

    def forward(
        self, queries: Tensor, scales: Tensor, paths: Tensor, excluded: Sequence[Tensor | None]
    ) -> Tensor:
        """The loss of each of B queries at each level, its scores divided by the level's of M
        scales: (B, M).

        queries: E(q), (B, V). paths: (B, M) int64 and excluded: as in `HierarchyLoss`.
        """
        levels = zip(self._levels(queries, paths, excluded), scales, strict=True)
        losses = [
            softmax_losses(scores / scale, nodes, ~inside)
            for (scores, nodes, inside), scale in levels
        ]
        return torch.stack(losses, dim=1)

    def spread(self, queries: Tensor, paths: Tensor, excluded: Sequence[Tensor | None]) -> Tensor:
        """The scale of each level, a quarter of the standard deviation of a query's scores with its
        negatives: (M,).

        What all siblings of a query have in common, which no softmax sees, is taken out first:
        beside it, siblings differ by little.
        """
        scales = []
        for scores, nodes, inside in self._levels(queries, paths, excluded):
            negatives = inside.scatter(1, nodes[:, None], False)
            scales.append(quarter_deviation(_centred(scores, negatives)[None]))
        return torch.stack(scales)

    def _levels(
        self, queries: Tensor, paths: Tensor, excluded: Sequence[Tensor | None]
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Of each level the scores (B, K_t), the queries' own nodes (B,), and which nodes are told
        apart (B, K_t).
        """
        columns = queries.T.contiguous()
        for level in range(self.levels):
            nodes = paths[:, level]
            inside = siblings(self.get_buffer(f"parents_{level}"), nodes, excluded[level])
            yield self.scores(columns, level), nodes, inside


def _centred(scores: Tensor, inside: Tensor) -> Tensor:
    """The scores (B, K) that are `inside`, less their row's mean, of rows that have more than one:
    (n,).
    """
    counts = inside.sum(dim=1, keepdim=True)
    means = scores.masked_fill(~inside, 0.0).sum(dim=1, keepdim=True) / counts.clamp(min=1)
    return (scores - means)[inside & (counts > 1)]


def token_centroids(nodes: np.ndarray, bags: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The mean T(p) of each node's passages, at unit norm: places (2, n) int64, node and token, and
    weights (n,) there.

    nodes: (N,), each passage's. Places ascend; where there is none, a weight is 0.

    >>> places, weights = token_centroids(np.array([1, 0, 1]), [np.array([5, 7]), np.array([5]), np.array([7])])
    >>> places.tolist(), [round(weight, 3) for weight in weights.tolist()]
    ([[0, 1, 1], [5, 5, 7]], [1.0, 0.447, 0.894])
    """
    lines, tokens = (
        np.repeat(nodes.astype(np.int64), [len(bag) for bag in bags]),
        np.concatenate(bags),
    )
    width = int(tokens.max(initial=0)) + 1
    keys, counts = np.unique(lines * width + tokens, return_counts=True)
    places = np.stack(np.divmod(keys, width))
    norms = np.sqrt(np.bincount(places[0], counts**2))
    return places, (counts / norms[places[0]]).astype(np.float32)


class SemiParametricObjective(nn.Module):
    """L(E(q), E(p)) + 1/2 L(E(q), T(p)) + 1/2 L(T(q), E(p)) over the batch, and the hierarchy's
    loss, if there is one.

    Scores are divided by scales (n,), measured before training: one per term, then one per level of
    the hierarchy. They are a buffer, so a run that resumes goes on with those it began with.
    """

    def __init__(
        self,
        encoder: LexicalEncoder,
        top_k: int,
        training: TrainingSettings,
        hierarchy: TokenHierarchy | None = None,
    ) -> None:
        """top_k: entries of a text that learn."""
        super().__init__()
        self.encoder, self.top_k, self.training_settings = encoder, top_k, training
        self.hierarchy = None if hierarchy is None else hierarchy.to(encoder.device)
        levels = 0 if hierarchy is None else hierarchy.levels
        self.register_buffer("scales", torch.ones(len(SHARES) + levels, device=encoder.device))

    @torch.no_grad()
    def measure(self, batch: TrainingBatch) -> None:
        """Set the scales by a batch."""
        queries, documents = self._views(batch.queries), self._views(batch.documents)
        pairs = term_pairs(queries, documents).values()
        scales = torch.stack(
            [quarter_deviation(left @ right.T, batch.relevant) for left, right in pairs]
        )
        if self.hierarchy is not None:
            levels = self.hierarchy.spread(queries.weights, batch.paths, batch.excluded)
            scales = torch.cat([scales, levels])
        self.scales.copy_(scales)

    def forward(self, batch: TrainingBatch) -> dict[str, Tensor]:
        """`loss`, to be minimised, and without gradient its terms and the hierarchy's levels: batch
        means.
        """
        queries, documents = self._views(batch.queries), self._views(batch.documents)
        with torch.autocast(queries.weights.device.type, enabled=False):
            term_scales, level_scales = self.scales.tensor_split([len(SHARES)])
            terms = semi_parametric_losses(
                queries, documents, term_scales, batch.relevant, batch.allowed
            )
            hierarchy = None
            if self.hierarchy is not None:
                hierarchy = self.hierarchy(
                    queries.weights, level_scales, batch.paths, batch.excluded
                )
            losses = hce_losses(total(terms), hierarchy, self.training_settings.hierarchy_weight)
            loss = joint_loss(
                losses, batch.unsupervised, self.training_settings.unsupervised_weight
            )
        means = {name: term.detach().mean() for name, term in terms.items()}
        return {"loss": loss} | level_means(hierarchy) | means

    def _views(self, texts: LengthBuckets) -> Views:
        """E(x) with `top_k` entries, and T(x), of the texts in their order."""
        size = self.encoder.vocabulary_size
        tokens = torch.cat([self.encoder.binary_bags(part) for part in texts.parts])[texts.rows]
        encoded = (self.encoder.sparse(part, self.top_k, bag_first=True) for part in texts.parts)
        rows = [
            weights.new_zeros(len(weights), size).scatter(1, entries, weights)
            for entries, weights in encoded
        ]
        return Views(torch.cat(rows)[texts.rows], tokens)


def fit_lexical_encoder(context: StageContext, tables: TrainingTables) -> dict[str, Any]:
    """Train the lexical retriever of `context`; the report says what it saw and which step was
    best.
    """
    retriever, seed = context.settings["retriever"], context.settings["seed"]
    training, lexical = retriever.training, retriever.lexical
    encoder = start_encoder(context.settings["encoder"], lexical, tables.passages.texts, seed)
    data, dev = tables.training_data(training), tables.dev_evaluator(training, seed)
    trainer = make_trainer(LexicalTrainer, context, encoder, data, training, dev, lexical=lexical)
    trainer.fit()
    save_encoder(encoder, context.output / "encoder")
    report = {"head": encoder.config.head, "fingerprint": encoder.fingerprint()}
    return report | write_training_report(context, tables, data, training, trainer)


class LexicalTrainer(Trainer):
    """Training with the semi-parametric loss; other arguments as `Trainer` has them."""

    def __init__(
        self, encoder: LexicalEncoder, *arguments: Any, lexical: LexicalSettings, **options: Any
    ) -> None:
        self.lexical = lexical
        super().__init__(encoder, *arguments, **options)

    def _make_objective(self, hierarchy: Hierarchy | None) -> SemiParametricObjective:
        nodes = None
        if hierarchy is not None and self.settings.hierarchy_weight > 0:
            bags = self.encoder.bags(self.data.passages.texts)
            nodes = TokenHierarchy(
                hierarchy, bags, self.encoder.vocabulary_size, self.settings.hierarchy_levels
            )
        return SemiParametricObjective(self.encoder, self.lexical.top_k, self.settings, nodes)

    def _make_optimizer(self, objective: SemiParametricObjective) -> torch.optim.AdamW:
        """Fused AdamW with a rate for the closed-form transform and one for the biases, which start
        far from home.
        """
        encoder, settings = objective.encoder, self.settings
        learning = {
            name: weight for name, weight in encoder.named_parameters() if weight.requires_grad
        }
        head = {name: learning.pop(name) for name in list(learning) if "body.head." in name}
        bias = {
            name: learning.pop(name) for name in list(learning) if learning[name] is encoder.bias
        }
        others: list[dict[str, Any]] = [
            {
                "params": list(head.values()),
                "weight_decay": 0.0,
                "lr": HEAD_RATE * settings.learning_rate,
            },
            {"params": list(bias.values()), "weight_decay": 0.0, "lr": BIAS_LEARNING_RATE},
        ]
        return adamw(learning.values(), settings.learning_rate, settings.weight_decay, others)

    def _prepare(
        self, objective: SemiParametricObjective, optimizer: Any, hierarchy: Hierarchy | None
    ) -> None:
        super()._prepare(objective, optimizer, hierarchy)
        objective.measure(to_device(self.collate(0, self.schedule[0]), self.accelerator.device))

    @cached_property
    def _ranked_tokens(self) -> TokenIndex:
        """The tokens of the passages that an evaluation ranks, which do not change."""
        texts, documents = self.dev.texts, self.dev.passages.documents[self.dev.rows]
        return index_tokens(
            self.encoder, texts, [f"{document:0{DIGITS}}" for document in documents]
        )

    def _index_dev_passages(self, dev: DevEvaluator) -> EmbeddingIndex | None:
        """The passages as the encoder embeds them now; None if the search reads tokens only."""
        if self.lexical.search in BY_TOKENS:
            return None
        names = self._ranked_tokens.ids.document_ids
        return EmbeddingIndex.build(
            self.encoder.encode(dev.texts), names, self.encoder.vocabulary_size
        )

    def _score_dev(self, dev: DevEvaluator, ranked: EmbeddingIndex | None) -> float:
        """The mean metric of the main search with the encoder as it is now."""
        main, depth = self.lexical.search, self.lexical.rerank_depth
        rankings = LexicalSearch(self.encoder, self._ranked_tokens, ranked, main, depth).search(
            dev.queries, dev.depth
        )
        return dev.mean([[(str(int(name)), score) for name, score in hits] for hits in rankings])
