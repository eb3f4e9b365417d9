"""The dense objective, and the trainer of encoders.

accelerate provides mixed precision, gradient accumulation and several devices. Each of n processes
takes every n-th batch of a step. The negatives of a query are in its own batch. So the gradient of
a step is the mean over its batches, whatever the number of processes.

A method that represents documents by several vectors, such as MLR, replaces only the contrastive
loss; see `PairLoss`. The hierarchy loss reads the vectors of queries only, so it does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import send_to_device
from torch import Tensor, nn

from model_code.encoding.encoder import Encoder, Forward, LengthBuckets, encode_buckets
from model_code.errors import FreshetError
from model_code.hierarchy.tree import Hierarchy
from model_code.losses.contrastive import Contrast
from model_code.losses.hierarchy import HierarchyLoss, hce_losses, joint_loss, level_means
from model_code.progress import Progress, no_progress
from model_code.training.batches import BatchSchedule, Collator, TrainingBatch
from model_code.training.cached_gradients import without_activations
from model_code.training.data import TrainingData
from model_code.training.loop import (
    TrainingLoop,
    TrainingState,
    latest_checkpoint,
    load_training_state,
    save_checkpoint,
)
from model_code.training.negatives import make_negative_sampler
from model_code.training.optimisation import (
    LENGTH_SETTINGS,
    check_max_tokens,
    freeze_layers,
    make_accelerator,
    make_optimizer,
    select_attention,
    set_dropout,
    set_learning_rate,
)
from model_code.training.pair_loss import PairLoss
from model_code.training.prefetch import PrefetchedBatches
from model_code.training.settings import TrainingSettings
from model_code.training.tables import DevEvaluator

# Largest number of tokens per bucket of texts. A CPU core is busy with few tokens, and small
# buckets need less padding. A GPU waits for Python at the start of each bucket, so it gets large
# ones. The activations of all buckets are in memory anyway, unless gradients are cached.
CPU_BATCH_TOKENS = 512
GPU_BATCH_TOKENS = 65_536
GPU_CACHED_BATCH_TOKENS = 16_384
# Part of the random seed that makes dropout independent of other random choices.
DROPOUT_STREAM = 29


class Objective(nn.Module):
    """The loss of a dense retriever.

    All trained weights are parameters of this module.

    The loss of pair i is L_i = C_i + `hierarchy_weight` H_i (HCE, equation 6). C_i is its
    contrastive loss, and H_i is its hierarchy loss, summed over levels. The loss of a batch is the
    mean of L_i over supervised pairs, plus `unsupervised_weight` times the mean over pseudo-queries
    (HCE, equation 7). If a batch has only one kind of pairs, it is their mean. See
    `model_code.losses`.

    Args:
        encoder: Maps tokenised texts to unit vectors, (B, H).
        settings: Temperature and weights.
        hierarchy: Required if `hierarchy_weight` is above 0.
        pair_loss: The contrastive part. None: one vector per document.
    """

    def __init__(
        self,
        encoder: Encoder,
        settings: TrainingSettings,
        hierarchy: Hierarchy | None = None,
        pair_loss: PairLoss | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.settings = settings
        self.pair_loss = pair_loss or PairLoss()
        self.hierarchy: HierarchyLoss | None = None
        if hierarchy is not None and settings.hierarchy_weight > 0:
            self.recluster(hierarchy)

    def recluster(self, hierarchy: Hierarchy) -> None:
        """Replace the centroids of the first M levels by those of a new hierarchy.

        Raises:
            FreshetError: If the hierarchy clusters vectors of another encoder.
        """
        if hierarchy.dimension != self.encoder.dimension:
            raise FreshetError(
                f"the encoder's vectors have {self.encoder.dimension} dimensions, and the "
                f"hierarchy's have {hierarchy.dimension}; set hierarchy_weight: 0, or name the "
                "encoder as base of the retriever, so that passages are clustered by it"
            )
        levels = slice(0, self.settings.hierarchy_levels)
        centroids = [torch.from_numpy(level) for level in hierarchy.centroids[levels]]
        parents = [torch.from_numpy(level) for level in hierarchy.parents[levels]]
        device = next(self.encoder.parameters()).device
        self.hierarchy = HierarchyLoss(centroids, parents, self.settings.temperature).to(device)
        self.hierarchy.requires_grad_(self.settings.centroid_learning_rate > 0)

    def forward(self, batch: TrainingBatch) -> dict[str, Tensor]:
        """Return the loss of a batch and its parts, for the training curve.

        Returns:
            Batch means: `loss`, which has a gradient; `contrastive`; and `hierarchy_1`,
            `hierarchy_2`, ... for the levels of the hierarchy.
        """
        queries = self.encode(self.encoder, batch.queries)
        encode_documents = partial(self.pair_loss.encode_documents, self.encoder)
        documents = self.encode(encode_documents, batch.documents)

        # Scores are float32. In bfloat16, the rounding error of a cosine, divided by a temperature
        # of .05, would be an error of .08 in a score.
        with torch.autocast(queries.device.type, enabled=False):
            queries = queries.float()
            contrastive = self._contrastive(queries, documents.float(), batch)
            hierarchy = None
            if self.hierarchy is not None:
                hierarchy = self.hierarchy(queries, batch.paths, batch.excluded)
            losses = hce_losses(contrastive, hierarchy, self.settings.hierarchy_weight)
            total = joint_loss(losses, batch.unsupervised, self.settings.unsupervised_weight)

        parts = {"loss": total, "contrastive": contrastive.detach().mean()}
        parts.update(level_means(hierarchy))
        return parts

    def encode(self, forward: Forward, texts: LengthBuckets) -> Tensor:
        """Return the vectors (n, ...) of texts in buckets.

        Gradients are cached if `settings.cached_gradients` is set; see `without_activations`.

        Args:
            forward: Function that encodes one bucket.
            texts: The n texts.
        """
        if self.settings.cached_gradients:
            forward = without_activations(forward)
        return encode_buckets(forward, texts)

    def _contrastive(self, queries: Tensor, documents: Tensor, batch: TrainingBatch) -> Tensor:
        """Return the contrastive loss of each pair, (B,): the query's document against others."""
        positives = documents[: len(queries)]
        negatives = documents[len(queries) :]
        contrast = Contrast(batch.relevant, negatives, batch.allowed)
        return self.pair_loss.losses(queries, positives, self.settings.temperature, contrast)


class Trainer(TrainingLoop):
    """Trains an encoder in place.

    `fit` leaves the encoder with the weights of the best evaluated step.

    Args:
        encoder: The encoder to train.
        data: The training data.
        settings: How the retriever is trained.
        seed: Seed of batches and negatives, to which `settings.seed_offset` is added.
        hierarchy: Required if `settings.needs_hierarchy`.
        dev: Evaluator on dev, which chooses the best step. None: the last step is kept.
        cluster: Function that clusters passage vectors, (N, H). Required for co-training.
        checkpoints: Folder of checkpoints, from which training resumes.
        progress: Called after each step.
        pair_loss: The contrastive part; see `Objective`.

    Raises:
        FreshetError: If there is no training pair, or if the hierarchy is missing or does not fit.
            Also if co-training lacks `dev` or `cluster`.
    """

    # Names of the settings that limit the number of tokens of texts.
    length_settings: Sequence[str] = LENGTH_SETTINGS

    def __init__(
        self,
        encoder: Encoder,
        data: TrainingData,
        settings: TrainingSettings,
        seed: int,
        hierarchy: Hierarchy | None = None,
        dev: DevEvaluator | None = None,
        cluster: Callable[[np.ndarray], Hierarchy] | None = None,
        checkpoints: Path | None = None,
        progress: Progress = no_progress,
        pair_loss: PairLoss | None = None,
    ) -> None:
        _check_inputs(data, settings, hierarchy, dev, cluster)
        check_max_tokens(encoder, settings, self.length_settings)

        # The encoder stays in evaluation mode, so that dropout is off. Steps switch it on if asked.
        self.encoder = encoder.eval()
        self.trained = self.encoder
        self.data = data
        self.settings = settings
        self.seed = seed + settings.seed_offset
        self.dev = dev
        self.metric = None if dev is None else dev.metric
        self.cluster = cluster
        self.checkpoints = checkpoints
        self.progress = progress
        self.pair_loss = pair_loss
        self.start_vectors: np.ndarray | None = None

        self.accelerator = make_accelerator(
            encoder.device, encoder.precision, settings.accumulation
        )
        select_attention(encoder, max(settings.document_max_tokens, settings.query_max_tokens))
        freeze_layers(encoder.backbone, settings.frozen_layers)
        if settings.dropout:
            set_dropout(encoder.backbone, settings.dropout)
        self.negatives = make_negative_sampler(data, settings)

        self.state = TrainingState()
        checkpoint = latest_checkpoint(checkpoints)
        if checkpoint is not None:
            self.state, saved_hierarchy = load_training_state(checkpoint)
            # A checkpoint holds a hierarchy if co-training had replaced the one that was given.
            hierarchy = saved_hierarchy or hierarchy

        objective = self._make_objective(hierarchy)
        self._prepare(objective, self._make_optimizer(objective), hierarchy)
        if checkpoint is not None:
            self.accelerator.load_state(str(checkpoint), load_kwargs={"weights_only": True})

    def fit(self, start_vectors: np.ndarray | None = None) -> TrainingState:
        """Train to the end, from the last checkpoint if there is one.

        Args:
            start_vectors: Vector of each passage by the untrained encoder, (N, H). If given, the
                first evaluation does not encode the passages.
        """
        self.start_vectors = start_vectors
        return super().fit()

    def _prepare(self, objective: Objective, optimizer: Any, hierarchy: Hierarchy | None) -> None:
        """Set up what depends on the hierarchy: model, optimiser, batches and negatives.

        It is called before training, and after co-training has clustered the passages again.
        """
        self.hierarchy = hierarchy
        self.negatives.recluster(hierarchy)
        self.accelerator.free_memory()
        self.model, self.optimizer = self.accelerator.prepare(objective, optimizer)

        leaves = None if hierarchy is None else hierarchy.leaves
        self.schedule = BatchSchedule(self.data, self.settings, self.seed, leaves)
        self.steps = self.schedule.steps
        self.pairs_per_step = self.schedule.per_step * len(self.schedule[0])

        batch_tokens = GPU_BATCH_TOKENS
        if self.accelerator.device.type == "cpu":
            batch_tokens = CPU_BATCH_TOKENS
        elif self.settings.cached_gradients:
            batch_tokens = GPU_CACHED_BATCH_TOKENS
        self.collate = self._make_collator(hierarchy, batch_tokens)
        self.next_batch = self.collate
        if self.settings.workers:
            # The workers are forked. Without this call, each of them would build a BM25 index.
            self.negatives.prepare()
            self.next_batch = PrefetchedBatches(
                self.collate,
                self.schedule,
                self._remaining_batches(),
                self.settings.workers,
                pin_memory=self.accelerator.device.type == "cuda",
            )

    def _remaining_batches(self) -> list[int]:
        """Return the numbers of the batches that this process still takes, in their order."""
        numbers: list[int] = []
        for step in range(self.state.step, self.steps):
            numbers.extend(self._batches_of_step(step))
        return numbers

    def _batches_of_step(self, step: int) -> range:
        """Return the numbers of the batches of a step that this process takes."""
        first = step * self.schedule.per_step
        end = first + self.schedule.per_step
        return range(first + self.accelerator.process_index, end, self.accelerator.num_processes)

    def _make_objective(self, hierarchy: Hierarchy | None) -> Any:
        """Return the module that computes the loss; trainers of other kinds override it."""
        return Objective(self.encoder, self.settings, hierarchy, self.pair_loss)

    def _make_optimizer(self, objective: Any) -> Any:
        """Return the optimiser of an objective's weights; trainers of other kinds override it."""
        return make_optimizer(objective, self.settings)

    def _make_collator(
        self, hierarchy: Hierarchy | None, batch_tokens: int
    ) -> Callable[[int, np.ndarray], Any]:
        """Return the function from the number and the pairs of a batch to its tensors.

        Args:
            hierarchy: The hierarchy of the passages, if the settings need one.
            batch_tokens: Largest number of tokens per bucket of texts.
        """
        return Collator(
            self.data,
            self.settings,
            self.encoder.tokenize,
            self.seed,
            hierarchy,
            batch_tokens,
            self.negatives,
            self.encoder.prompts,
        )

    def take_step(self) -> None:
        """Take one step of the optimiser: all batches of the step, then the update."""
        accelerator = self.accelerator
        set_learning_rate(self.optimizer, self._rate_factor(self.state.step))
        if self.settings.dropout:
            self.encoder.train()

        for number in self._batches_of_step(self.state.step):
            batch = self.next_batch(number, self.schedule[number])
            if self.settings.dropout:
                # Like the batch, dropout depends only on the number of the batch and the seed, so
                # that a resumed training equals an uninterrupted one.
                seeds = np.random.SeedSequence([self.seed, DROPOUT_STREAM, number])
                torch.manual_seed(int(seeds.generate_state(1)[0]))
            # Until the last batch of the step, this block makes the optimiser do nothing, so that
            # gradients add up.
            with accelerator.accumulate(self.model):
                parts = self.model(to_device(batch, accelerator.device))
                accelerator.backward(parts["loss"])
                if self.settings.clip_norm is not None and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(self.model.parameters(), self.settings.clip_norm)
                self.optimizer.step()
                self.optimizer.zero_grad()
            self.state.window.append({name: part.detach() for name, part in parts.items()})
        self.encoder.eval()
        self.state.step += 1

    def _save(self, folder: Path) -> None:
        """Write a checkpoint, with the hierarchy if co-training replaced it."""
        new_hierarchy = self.hierarchy if self.state.reclustered_at else None
        save_checkpoint(folder, self.accelerator, self.state, new_hierarchy)

    def _evaluate(self) -> None:
        """Evaluate on dev, and keep the weights if they are the best so far.

        In co-training, a best evaluation during training also clusters the passages again.
        """
        if self.dev is None:
            return
        index = self._index_dev_passages(self.dev)
        value = self._score_dev(self.dev, index)
        is_best = self.state.record_evaluation(
            self.dev.metric, value, self._trained_weights(), self.dev.interval, self.dev.groups
        )

        reclusters = self.settings.cotraining and self.settings.needs_hierarchy
        is_between = 0 < self.state.step < self.steps
        if is_best and reclusters and is_between:
            texts = self.data.passages.texts
            ranks_all_passages = len(self.dev.rows) == len(texts)
            vectors = index if ranks_all_passages else self.encoder.encode_documents(texts)
            self._recluster(vectors)

    def _index_dev_passages(self, dev: DevEvaluator) -> Any:
        """Return the vectors of the passages that an evaluation ranks, by the current encoder."""
        if self.state.step == 0 and self.start_vectors is not None:
            return self.start_vectors[dev.rows]
        return self.encoder.encode_documents(dev.texts)

    def _score_dev(self, dev: DevEvaluator, index: Any) -> float:
        """Return the dev metric of the current encoder, with the passages' vectors as `index`."""
        return dev.score(self.encoder.encode_queries(dev.queries), index)

    def _recluster(self, vectors: np.ndarray) -> None:
        """Cluster the passages again with the current encoder, and train on with the new hierarchy.

        Args:
            vectors: Vectors of the N passages, (N * v, H), with v consecutive rows per passage. The
                last of these rows, which is the vector of the last layer, is clustered.
        """
        assert self.cluster is not None
        vectors_per_passage = len(vectors) // len(self.data.passages.texts)
        last_layer = vectors[vectors_per_passage - 1 :: vectors_per_passage]
        hierarchy = self.cluster(last_layer)

        objective = self.accelerator.unwrap_model(self.model, keep_fp32_wrapper=False)
        optimizer = recluster(objective, self.optimizer.optimizer, hierarchy, self.settings)
        self._prepare(objective, optimizer, hierarchy)
        self.state.reclustered_at.append(self.state.step)


def to_device(batch: Any, device: Any) -> Any:
    """Return a batch, a tensor or any nesting of tensors, with its tensors on `device`."""
    return send_to_device(batch, device, non_blocking=True)


def _check_inputs(
    data: TrainingData,
    settings: TrainingSettings,
    hierarchy: Hierarchy | None,
    dev: DevEvaluator | None,
    cluster: Any,
) -> None:
    """Raise FreshetError if there is nothing to train on, or an input is missing; see `Trainer`."""
    if not len(data.pairs):
        raise FreshetError(
            "there is no training pair; give the corpus qrels for train, or make pseudo-queries"
        )
    if settings.needs_hierarchy and hierarchy is None:
        raise FreshetError(
            "these settings need a hierarchy; build one, or set "
            "hierarchy_weight 0 and negatives bm25"
        )
    if hierarchy is not None and len(hierarchy.leaves) != len(data.passages.texts):
        raise FreshetError(
            f"the hierarchy has {len(hierarchy.leaves)} passages, the corpus "
            f"{len(data.passages.texts)}; build it again"
        )
    if settings.cotraining and settings.needs_hierarchy and (dev is None or cluster is None):
        raise FreshetError(
            "cotraining re-clusters when the dev metric improves: give dev queries, or set "
            "cotraining false"
        )


def recluster(
    objective: Objective,
    optimizer: torch.optim.Optimizer,
    hierarchy: Hierarchy,
    settings: TrainingSettings,
) -> torch.optim.Optimizer:
    """Replace the centroids of an objective by those of a new hierarchy, and create an optimiser.

    Co-training (HCE, Algorithm 3) clusters the corpus again with the current encoder whenever an
    evaluation is the best so far. The new optimiser keeps the state of the encoder's weights. The
    state of the centroids is dropped, because their nodes no longer exist. Unlike in the paper's
    listing, training returns the best encoder and not the last one.

    Args:
        objective: The objective. It does not change if it has no hierarchy loss.
        optimizer: The optimiser that was used until now.
        hierarchy: The new hierarchy.
        settings: How the retriever is trained.
    """
    if settings.hierarchy_weight > 0:
        objective.recluster(hierarchy)
    new_optimizer = make_optimizer(objective, settings)
    for parameter in objective.encoder.parameters():
        if parameter in optimizer.state:
            new_optimizer.state[parameter] = optimizer.state[parameter]
    return new_optimizer
