"""The dense objective, and the training loop; mixed precision, accumulation and several devices are
accelerate's.

Of n processes each takes every n-th batch of a step, with in-batch negatives of its own: the step's
gradient is the mean over its batches however many processes there are.

The contrastive part is a `PairLoss`, which a method such as MLR may replace. The hierarchy loss
then stays the same, since it is a loss of queries, which are one vector each.
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

from model_code.encoding.encoder import Encoder, encode
from model_code.errors import FreshetError
from model_code.hierarchy.tree import Hierarchy
from model_code.losses.contrastive import Contrast
from model_code.losses.hierarchy import HierarchyLoss, hce_losses, joint_loss, level_means
from model_code.progress import Progress, no_progress
from model_code.training.batches import BatchSchedule, Collator, TrainingBatch
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
    set_learning_rate,
)
from model_code.training.pair_loss import PairLoss
from model_code.training.settings import TrainingSettings
from model_code.training.tables import DevEvaluator

CPU_BATCH_TOKENS = 512  # few tokens keep a core busy, and small parts waste less on padding
GPU_BATCH_TOKENS = 16_384


class Objective(nn.Module):
    """What the trainer minimises: everything that learns is a parameter of it."""

    def __init__(
        self,
        encoder: Encoder,
        settings: TrainingSettings,
        hierarchy: Hierarchy | None = None,
        pair_loss: PairLoss | None = None,
    ) -> None:
        """Combine the losses.

        Args:
            encoder: Maps tokenised texts to unit vectors (B, H).
            settings: Weights of the losses, and the temperature.
            hierarchy: Needed if the settings give it weight.
            pair_loss: Contrastive part. None: one vector per document.
        """
        super().__init__()
        self.encoder = encoder
        self.settings = settings
        self.pair_loss = pair_loss or PairLoss()
        self.hierarchy: HierarchyLoss | None = None
        if hierarchy is not None and settings.hierarchy_weight > 0:
            self.recluster(hierarchy)

    def recluster(self, hierarchy: Hierarchy) -> None:
        """Take the centroids of a new hierarchy for the first M levels, in place of those trained
        so far.
        """
        levels = slice(0, self.settings.hierarchy_levels)
        centroids = [torch.from_numpy(level) for level in hierarchy.centroids[levels]]
        parents = [torch.from_numpy(level) for level in hierarchy.parents[levels]]
        device = next(self.encoder.parameters()).device
        self.hierarchy = HierarchyLoss(centroids, parents, self.settings.temperature).to(device)

    def forward(self, batch: TrainingBatch) -> dict[str, Tensor]:
        """`loss`, to be minimised, and without gradient its parts `contrastive`, `hierarchy_1`,
        ...: batch means.
        """
        queries, documents = (
            encode(self.encoder, batch.queries),
            encode(partial(self.pair_loss.encode_documents, self.encoder), batch.documents),
        )
        # A temperature of .05 multiplies bfloat16's rounding of a cosine to .08 of a score: score
        # in float32.
        with torch.autocast(queries.device.type, enabled=False):
            queries = queries.float()
            contrastive = self._contrastive(queries, documents.float(), batch)
            hierarchy = (
                None
                if self.hierarchy is None
                else self.hierarchy(queries, batch.paths, batch.excluded)
            )
            losses = hce_losses(contrastive, hierarchy, self.settings.hierarchy_weight)
            total = joint_loss(losses, batch.unsupervised, self.settings.unsupervised_weight)
            return {"loss": total, "contrastive": contrastive.detach().mean()} | level_means(
                hierarchy
            )

    def _contrastive(self, queries: Tensor, documents: Tensor, batch: TrainingBatch) -> Tensor:
        positives, negatives = documents.split([len(queries), len(documents) - len(queries)])
        contrast = Contrast(batch.relevant, negatives, batch.allowed)
        return self.pair_loss.losses(queries, positives, self.settings.temperature, contrast)


class Trainer(TrainingLoop):
    """Training of `encoder` in place on `data`; `fit` leaves it with the weights of the best
    evaluated step.

    hierarchy: needed if `settings.needs_hierarchy`. dev: chooses the best step; without it the last
    one is kept. cluster: passage vectors (N, H) -> Hierarchy, needed for co-training. checkpoints:
    a folder to resume from. pair_loss: see `Objective`.
    """

    length_settings: Sequence[str] = LENGTH_SETTINGS  # the settings that say how long texts are

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
        _check(data, settings, hierarchy, dev, cluster)
        self.encoder, self.data, self.settings, self.seed = (
            encoder.eval(),
            data,
            settings,
            seed + settings.seed_offset,
        )
        self.trained, self.metric, self.start_vectors = (
            self.encoder,
            None if dev is None else dev.metric,
            None,
        )
        self.dev, self.cluster, self.checkpoints, self.progress = (
            dev,
            cluster,
            checkpoints,
            progress,
        )
        self.pair_loss = pair_loss
        self.accelerator = make_accelerator(
            encoder.device, encoder.precision, settings.accumulation
        )
        check_max_tokens(encoder, settings, self.length_settings)
        select_attention(encoder, max(settings.document_max_tokens, settings.query_max_tokens))
        self.state, self.negatives = TrainingState(), make_negative_sampler(data, settings)
        freeze_layers(encoder.backbone, settings.frozen_layers)
        checkpoint = latest_checkpoint(checkpoints)
        if checkpoint is not None:
            self.state, latest = load_training_state(checkpoint)
            hierarchy = latest or hierarchy
        objective = self._make_objective(hierarchy)
        self._prepare(objective, self._make_optimizer(objective), hierarchy)
        if checkpoint is not None:
            self.accelerator.load_state(str(checkpoint), load_kwargs={"weights_only": True})

    def fit(self, start_vectors: np.ndarray | None = None) -> TrainingState:
        """Train to the end, or on to it from the last checkpoint.

        start_vectors: (N, H), the passages as the untrained encoder encodes documents, if they are
        at hand and one
          vector each: saves doing so.
        """
        self.start_vectors = start_vectors
        return super().fit()

    def _prepare(self, objective: Objective, optimizer: Any, hierarchy: Hierarchy | None) -> None:
        self.hierarchy = hierarchy
        self.negatives.recluster(hierarchy)
        self.accelerator.free_memory()
        self.model, self.optimizer = self.accelerator.prepare(objective, optimizer)
        leaves = None if hierarchy is None else hierarchy.leaves
        self.schedule = BatchSchedule(self.data, self.settings, self.seed, leaves)
        self.steps, self.pairs_per_step = (
            self.schedule.steps,
            self.schedule.per_step * len(self.schedule[0]),
        )
        tokens = CPU_BATCH_TOKENS if self.accelerator.device.type == "cpu" else GPU_BATCH_TOKENS
        self.collate = self._make_collator(hierarchy, tokens)

    def _make_objective(self, hierarchy: Hierarchy | None) -> Any:
        return Objective(self.encoder, self.settings, hierarchy, self.pair_loss)

    def _make_optimizer(self, objective: Any) -> Any:
        return make_optimizer(objective, self.settings)

    def _make_collator(
        self, hierarchy: Hierarchy | None, batch_tokens: int
    ) -> Callable[[int, np.ndarray], Any]:
        prompts, tokenize, negatives = self.encoder.prompts, self.encoder.tokenize, self.negatives
        return Collator(
            self.data,
            self.settings,
            tokenize,
            self.seed,
            hierarchy,
            batch_tokens,
            negatives,
            prompts,
        )

    def take_step(self) -> None:
        """One step of the optimiser: forward and backward through its batches, and the update."""
        accelerator = self.accelerator
        set_learning_rate(self.optimizer, self._rate_factor(self.state.step))
        first = self.state.step * self.schedule.per_step
        numbers = range(
            first + accelerator.process_index,
            first + self.schedule.per_step,
            accelerator.num_processes,
        )
        for number in numbers:
            batch = to_device(self.collate(number, self.schedule[number]), accelerator.device)
            with accelerator.accumulate(self.model):
                parts = self.model(batch)
                accelerator.backward(parts["loss"])
                self.optimizer.step()
                self.optimizer.zero_grad()
            self.state.window.append({name: part.detach() for name, part in parts.items()})
        self.state.step += 1

    def _save(self, folder: Path) -> None:
        changed = self.hierarchy if self.state.reclustered_at else None
        save_checkpoint(folder, self.accelerator, self.state, changed)

    def _evaluate(self) -> None:
        """Note the dev metric; if it is the best so far, keep the weights and, in co-training,
        re-cluster.
        """
        if self.dev is None:
            return
        ranked = self._index_dev_passages(self.dev)
        value = self._score_dev(self.dev, ranked)
        improved = self.state.evaluated(
            self.dev.metric, value, self._trained_weights(), self.dev.interval
        )
        renews = self.settings.cotraining and self.settings.needs_hierarchy
        if improved and renews and 0 < self.state.step < self.steps:
            texts = self.data.passages.texts
            ranks_all = len(self.dev.rows) == len(texts)
            self._recluster(ranked if ranks_all else self.encoder.encode_documents(texts))

    def _index_dev_passages(self, dev: DevEvaluator) -> Any:
        """The passages that an evaluation ranks, as they are searched now."""
        if self.state.step == 0 and self.start_vectors is not None:
            return self.start_vectors[dev.rows]
        return self.encoder.encode_documents(dev.texts)

    def _score_dev(self, dev: DevEvaluator, ranked: Any) -> float:
        return dev.score(self.encoder.encode(dev.queries), ranked)

    def _recluster(self, vectors: np.ndarray) -> None:
        each = len(vectors) // len(self.data.passages.texts)
        hierarchy = self.cluster(vectors[each - 1 :: each])  # type: ignore[misc]  # of several, the last layer's
        objective = self.accelerator.unwrap_model(self.model, keep_fp32_wrapper=False)
        optimizer = recluster(objective, self.optimizer.optimizer, hierarchy, self.settings)
        self._prepare(objective, optimizer, hierarchy)
        self.state.reclustered_at.append(self.state.step)


def to_device(batch: Any, device: Any) -> Any:
    """The same batch, a tensor or any nesting of tensors, with its tensors on `device`."""
    return send_to_device(batch, device, non_blocking=True)


def _check(
    data: TrainingData,
    settings: TrainingSettings,
    hierarchy: Hierarchy | None,
    dev: DevEvaluator | None,
    cluster: Any,
) -> None:
    if not len(data.pairs):
        raise FreshetError(
            "there is no training pair; give the corpus qrels for train, or make pseudo-queries"
        )
    if settings.needs_hierarchy and hierarchy is None:
        raise FreshetError(
            "these settings need a hierarchy; build one, or set hierarchy_weight 0 and negatives bm25"
        )
    if hierarchy is not None and len(hierarchy.leaves) != len(data.passages.texts):
        raise FreshetError(
            f"the hierarchy has {len(hierarchy.leaves)} passages, the corpus {len(data.passages.texts)}; build it again"
        )
    if settings.cotraining and settings.needs_hierarchy and (dev is None or cluster is None):
        raise FreshetError(
            "cotraining re-clusters when the dev metric improves: give dev queries, or set cotraining false"
        )


def recluster(
    objective: Objective,
    optimizer: torch.optim.Optimizer,
    hierarchy: Hierarchy,
    settings: TrainingSettings,
) -> torch.optim.Optimizer:
    """Give `objective` the centroids of `hierarchy`, if it has a loss over them, and return a new
    optimiser.

    Co-training (HCE, Algorithm 3) clusters the corpus again with the current encoder whenever an
    evaluation beats all before it. The centroids' optimiser state, which belongs to nodes that are
    gone, is dropped, and the encoder's kept. Unlike in the paper's listing, the encoder that
    training leaves is the best one, not the last.
    """
    if settings.hierarchy_weight > 0:
        objective.recluster(hierarchy)
    fresh = make_optimizer(objective, settings)
    for parameter in objective.encoder.parameters():
        if parameter in optimizer.state:
            fresh.state[parameter] = optimizer.state[parameter]
    return fresh
