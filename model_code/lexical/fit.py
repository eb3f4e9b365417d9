"""Train a lexical encoder with SVDR's semi-parametric loss and HCE's hierarchy loss over tokens.

See `model_code.lexical.losses` and `model_code.lexical.token_hierarchy` for the two losses.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from model_code.context import StageContext
from model_code.encoding.encoder import Features, Forward, LengthBuckets, encode_buckets
from model_code.hierarchy.tree import Hierarchy
from model_code.lexical.encoder import LexicalEncoder
from model_code.lexical.index import BY_TOKENS, EmbeddingIndex, LexicalSearch, index_tokens
from model_code.lexical.layout import save_encoder, start_encoder
from model_code.lexical.losses import (
    TERM_WEIGHTS,
    TextViews,
    add_terms,
    quarter_deviation,
    semi_parametric_losses,
    term_pairs,
)
from model_code.lexical.settings import LexicalSettings
from model_code.lexical.token_hierarchy import TokenHierarchy
from model_code.lexical.token_index.index import TokenIndex
from model_code.losses.hierarchy import hce_losses, joint_loss, level_means
from model_code.training.batches import TrainingBatch
from model_code.training.cached_gradients import without_activations
from model_code.training.fit import make_trainer, write_training_report
from model_code.training.optimisation import adamw
from model_code.training.settings import TrainingSettings
from model_code.training.tables import DevEvaluator, TrainingTables
from model_code.training.trainer import Trainer, to_device

# Number of digits, with leading zeros, of document numbers that are used as ids. Equal scores are
# ordered by id as text, which then is the order of the numbers. Searches by tokens have many ties.
DOCUMENT_NUMBER_DIGITS = 12
# Learning rate of the closed-form head's transform, as a multiple of the encoder's learning rate.
HEAD_RATE_FACTOR = 4.0
# Learning rate of the biases. It is large because the biases start far from their optimum.
BIAS_LEARNING_RATE = 0.01


def fit_lexical_encoder(context: StageContext, tables: TrainingTables) -> dict[str, Any]:
    """Train the lexical retriever of a stage's context and write its encoder and training curve.

    Args:
        context: Context of the stage `train`, with the retriever's settings.
        tables: Pairs, passages and dev queries of the corpus.

    Returns:
        Report of the stage: the training data, the best step, and the encoder's head and
        fingerprint.
    """
    retriever = context.settings["retriever"]
    seed: int = context.settings["seed"]
    training: TrainingSettings = retriever.training
    lexical: LexicalSettings = retriever.lexical

    base = retriever.encoder_settings(context.settings["encoder"])
    encoder = start_encoder(base, lexical, tables.passages.texts, seed)
    data = tables.training_data(training)
    dev = tables.dev_evaluator(training, seed)
    trainer = make_trainer(LexicalTrainer, context, encoder, data, training, dev, lexical=lexical)
    trainer.fit()
    save_encoder(encoder, context.output / "encoder")

    report = write_training_report(context, tables, data, training, trainer)
    report["head"] = encoder.config.head
    report["fingerprint"] = encoder.fingerprint()
    return report


class SemiParametricObjective(nn.Module):
    """The semi-parametric loss of a batch, and the hierarchy loss if there is a hierarchy.

    Scores are divided by scales, which are measured before training: one per term of the loss, then
    one per level of the hierarchy. A buffer holds the scales, so that a resumed run keeps them.
    """

    def __init__(
        self,
        encoder: LexicalEncoder,
        top_k: int,
        training: TrainingSettings,
        hierarchy: TokenHierarchy | None = None,
    ) -> None:
        """Combine the losses.

        Args:
            encoder: The encoder to train.
            top_k: Number of vocabulary entries per text that get a gradient.
            training: Weights of the losses.
            hierarchy: Nodes of the hierarchy loss, or None.
        """
        super().__init__()
        self.encoder = encoder
        self.top_k = top_k
        # The name `training` is taken: it is a flag of every `nn.Module`.
        self.training_settings = training
        self.hierarchy = None
        levels = 0
        if hierarchy is not None:
            self.hierarchy = hierarchy.to(encoder.device)
            levels = hierarchy.levels
        # One scale for each term of the loss and each level of the hierarchy.
        scales = torch.ones(len(TERM_WEIGHTS) + levels, device=encoder.device)
        self.register_buffer("scales", scales)

    @torch.no_grad()
    def measure_scales(self, batch: TrainingBatch) -> None:
        """Measure the scales on the scores of a batch, and set them.

        The loss divides the scores of each term and level by its scale. A softmax of untrained
        scores would otherwise be saturated.
        """
        queries = self._views(batch.queries)
        documents = self._views(batch.documents)

        term_scales = []
        for left, right in term_pairs(queries, documents).values():
            term_scales.append(quarter_deviation(left @ right.T, batch.relevant))
        scales = torch.stack(term_scales)

        if self.hierarchy is not None:
            level_scales = self.hierarchy.measure_scales(
                queries.weights, batch.paths, batch.excluded
            )
            scales = torch.cat([scales, level_scales])
        self.scales.copy_(scales)

    def forward(self, batch: TrainingBatch) -> dict[str, Tensor]:
        """Return the loss of a batch, and the means of its parts for the training curve.

        Returns:
            Batch means by name. Only `loss` has a gradient. The terms of the semi-parametric loss
            compare learned weights or 0/1 tokens: `full` weights with weights, `beta` the query's
            weights with the passage's tokens, and `alpha` the reverse. `hierarchy_1`,
            `hierarchy_2`, ... are the losses of the hierarchy's levels.
        """
        settings = self.training_settings
        queries = self._views(batch.queries)
        documents = self._views(batch.documents)

        with torch.autocast(queries.weights.device.type, enabled=False):
            term_scales, level_scales = self.scales.tensor_split([len(TERM_WEIGHTS)])
            terms = semi_parametric_losses(
                queries, documents, term_scales, batch.relevant, batch.allowed
            )
            hierarchy = None
            if self.hierarchy is not None:
                hierarchy = self.hierarchy(
                    queries.weights, level_scales, batch.paths, batch.excluded
                )
            losses = hce_losses(add_terms(terms), hierarchy, settings.hierarchy_weight)
            loss = joint_loss(losses, batch.unsupervised, settings.unsupervised_weight)

        parts = {"loss": loss}
        parts.update(level_means(hierarchy))
        for name, term in terms.items():
            parts[name] = term.detach().mean()
        return parts

    def _views(self, texts: LengthBuckets) -> TextViews:
        """Return the learned weights and the 0/1 tokens of texts, in the order of the texts.

        Each text has `top_k` weights. With cached gradients, no activations are kept.
        """
        encode: Forward = self._weights
        if self.training_settings.cached_gradients:
            encode = without_activations(encode)
        weights = encode_buckets(encode, texts)
        tokens = encode_buckets(self.encoder.binary_bags, texts)
        return TextViews(weights, tokens)

    def _weights(self, features: Features) -> Tensor:
        """Return the `top_k` largest weights of each text as rows over the vocabulary, (B, V)."""
        entries, weights = self.encoder.sparse(features, self.top_k, bag_first=True)
        dense = weights.new_zeros(len(weights), self.encoder.vocabulary_size)
        return dense.scatter(1, entries, weights)


class LexicalTrainer(Trainer):
    """Trains a lexical encoder with the semi-parametric loss; see `Trainer`."""

    def __init__(
        self, encoder: LexicalEncoder, *arguments: Any, lexical: LexicalSettings, **options: Any
    ) -> None:
        """Prepare training.

        Args:
            encoder: The encoder to train.
            arguments: Further arguments of `Trainer`.
            lexical: Main search, and the number of entries that get a gradient.
            options: Keyword arguments of `Trainer`.
        """
        self.lexical = lexical
        super().__init__(encoder, *arguments, **options)

    def _make_objective(self, hierarchy: Hierarchy | None) -> SemiParametricObjective:
        """Return the losses to train, with the nodes of the hierarchy if its loss has a weight."""
        nodes = None
        if hierarchy is not None and self.settings.hierarchy_weight > 0:
            bags = self.encoder.bags(self.data.passages.texts)
            nodes = TokenHierarchy(
                hierarchy, bags, self.encoder.vocabulary_size, self.settings.hierarchy_levels
            )
        return SemiParametricObjective(self.encoder, self.lexical.top_k, self.settings, nodes)

    def _make_optimizer(self, objective: SemiParametricObjective) -> torch.optim.AdamW:
        """Return AdamW with separate learning rates for the head's transform and the biases."""
        encoder = objective.encoder
        head: list[nn.Parameter] = []
        bias: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for name, weight in encoder.named_parameters():
            if not weight.requires_grad:
                continue
            if "body.head." in name:
                head.append(weight)
            elif weight is encoder.bias:
                bias.append(weight)
            else:
                others.append(weight)

        rate = self.settings.learning_rate
        groups: list[dict[str, Any]] = [
            {"params": head, "weight_decay": 0.0, "lr": HEAD_RATE_FACTOR * rate},
            {"params": bias, "weight_decay": 0.0, "lr": BIAS_LEARNING_RATE},
        ]
        return adamw(others, rate, self.settings.weight_decay, groups)

    def _prepare(
        self, objective: SemiParametricObjective, optimizer: Any, hierarchy: Hierarchy | None
    ) -> None:
        """Prepare training as `Trainer` does, and measure the scales of the scores.

        The first batch is that of step 0, also if training resumes, so that the scales are equal.
        """
        super()._prepare(objective, optimizer, hierarchy)
        first_batch = self.collate(0, self.schedule[0])
        objective.measure_scales(to_device(first_batch, self.accelerator.device))

    @cached_property
    def _dev_tokens(self) -> TokenIndex:
        """Token index of the passages that dev evaluation ranks. Training does not change it.

        The ids of its documents are their numbers in the dev tables, with leading zeros.
        """
        documents = self.dev.passages.documents[self.dev.rows]
        names = [f"{document:0{DOCUMENT_NUMBER_DIGITS}}" for document in documents]
        tokens, _ = index_tokens(self.encoder, self.dev.texts, names)
        return tokens

    def _index_dev_passages(self, dev: DevEvaluator) -> EmbeddingIndex | None:
        """Index the embeddings of the dev passages; None if the search reads tokens only."""
        if self.lexical.search in BY_TOKENS:
            return None
        embeddings = self.encoder.encode(dev.texts)
        names = self._dev_tokens.ids.document_ids
        return EmbeddingIndex.build(embeddings, names, self.encoder.vocabulary_size)

    def _score_dev(self, dev: DevEvaluator, ranked: EmbeddingIndex | None) -> float:
        """Return the mean dev metric of the main search with the current encoder."""
        search = LexicalSearch(
            self.encoder, self._dev_tokens, ranked, self.lexical.search, self.lexical.rerank_depth
        )
        rankings = []
        for hits in search.search(dev.queries, dev.depth):
            # Document ids are padded numbers here, and `dev` expects them without leading zeros.
            rankings.append([(str(int(name)), score) for name, score in hits])
        return dev.mean(rankings)
