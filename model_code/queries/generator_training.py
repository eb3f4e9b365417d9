"""Fine-tune a sequence-to-sequence model to write the queries of a document: teacher-forced cross-entropy.

Batches and learning rates are functions of the step's number, and there is no dropout: a run that resumes from a
checkpoint takes the same steps as one that was never stopped, bit for bit on the same machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from model_code.progress import Progress, silent
from model_code.queries.generator_pairs import IGNORED, GeneratorPair, PairTokens, document_numbers
from model_code.queries.sequence_models import Loaded
from model_code.queries.training_settings import GeneratorTrainingSettings
from model_code.training.batches import PairStream
from model_code.training.checkpoints import Row, TrainingState, latest_checkpoint, load_training_state, save_checkpoint
from model_code.training.optimisation import freeze, learning_rate_factor, make_accelerator, set_learning_rate

METRIC = "log_likelihood"  # of held-out queries, mean per token


@dataclass(frozen=True)
class GeneratorResult:
    """What a finished training run is reported with; the model itself was trained in place."""

    best_step: int  # 0: the model that training started from was the best; the last step without held-out pairs
    best: float | None  # mean log-likelihood per token of held-out queries
    steps: int
    trained_parameters: int
    history: tuple[Row, ...]


class GeneratorTrainer:
    """Trains a model in place; `fit` leaves it with the weights of the best evaluated step."""

    def __init__(
        self,
        loaded: Loaded,
        tokens: PairTokens,
        pairs: Sequence[GeneratorPair],
        held_out: Sequence[GeneratorPair],
        settings: GeneratorTrainingSettings,
        seed: int,
        checkpoints: Path | None = None,
        progress: Progress = silent,
        precision: str = "auto",
    ) -> None:
        """held_out: chooses the best step; empty: the last is kept. checkpoints: a folder to resume from."""
        self.weights, self.tokens, self.pairs, self.settings = loaded[0].eval(), tokens, pairs, settings
        self.held_out = held_out[: settings.held_out_pairs]
        self.checkpoints, self.progress, self.state = checkpoints, progress, TrainingState()
        freeze(self.weights.get_encoder(), settings.frozen_layers)
        self.stream = PairStream(document_numbers(pairs), settings.batch_size, seed)
        self.steps = settings.steps or max(1, round(settings.epochs * self.stream.per_epoch))
        self.accelerator = make_accelerator(self.weights.device, precision)
        self.model, self.optimizer = self.accelerator.prepare(self.weights, _optimizer(self.weights, settings))
        checkpoint = latest_checkpoint(checkpoints)
        if checkpoint is not None:
            self.state = load_training_state(checkpoint)[0]
            self.accelerator.load_state(str(checkpoint), load_kwargs={"weights_only": True})

    def fit(self) -> GeneratorResult:
        """Train to the end, or on to it from the last checkpoint."""
        if self.state.step == 0:
            self._evaluate()
        while self.state.step < self.steps and not self._stalled():
            self._take_step()
            self._after_step()
        self._log()
        if METRIC not in self.state.row():
            self._evaluate()
        learned = self._learned()
        for name, value in self.state.best_weights.items():
            learned[name].data.copy_(value)
        return GeneratorResult(
            best_step=self.state.best_step if self.held_out else self.state.step,
            best=self.state.best_metric,
            steps=self.state.step,
            trained_parameters=sum(weight.numel() for weight in learned.values()),
            history=tuple(self.state.history),
        )

    def _take_step(self) -> None:
        set_learning_rate(self.optimizer, self._rate_factor(self.state.step))
        loss = self._loss([self.pairs[pair] for pair in self.stream.batch(self.state.step)])[0]
        self.accelerator.backward(loss)
        if self.settings.gradient_clip is not None:
            self.accelerator.clip_grad_norm_(self.model.parameters(), self.settings.gradient_clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.state.window.append({"loss": loss.detach()})
        self.state.step += 1

    def _after_step(self) -> None:
        step, settings = self.state.step, self.settings
        if step % settings.log_every == 0:
            self._log()
        if settings.evaluate_every and step % settings.evaluate_every == 0:
            self._evaluate()
        if self.checkpoints is not None and step % settings.checkpoint_every == 0:
            self._log()
            save_checkpoint(self.checkpoints, self.accelerator, self.state)
        self.progress(step, self.steps, "steps")

    @torch.no_grad()
    def _evaluate(self) -> None:
        """Note the held-out log-likelihood; if it is the best so far, keep the weights."""
        total, count, size = 0.0, 0, self.settings.batch_size
        for start in range(0, len(self.held_out), size):
            loss, targets = self._loss(self.held_out[start : start + size])
            total += targets * float(loss)
            count += targets
        if count:
            self.state.evaluated(METRIC, -total / count, self._learned())

    def _loss(self, pairs: Sequence[GeneratorPair]) -> tuple[Tensor, int]:
        """Mean cross-entropy of the queries' tokens, each predicted from the true ones before it; their number."""
        batch = {name: value.to(self.accelerator.device) for name, value in self.tokens.batch(pairs).items()}
        labels = batch.pop("labels")  # (B, L)
        before = self.weights.prepare_decoder_input_ids_from_labels(labels)
        logits = self.model(**batch, decoder_input_ids=before).logits  # (B, L, V)
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
        return loss, int((labels != IGNORED).sum())

    def _learned(self) -> dict[str, Tensor]:
        return {name: weight for name, weight in self.weights.named_parameters() if weight.requires_grad}

    def _rate_factor(self, step: int) -> float:
        return learning_rate_factor(step, self.steps, self.settings.warmup_share)

    def _log(self) -> None:
        self.state.log(self.settings.learning_rate * self._rate_factor(self.state.step - 1))

    def _stalled(self) -> bool:
        patience = self.settings.patience
        return patience is not None and self.state.evaluations_since_best >= patience


def _optimizer(model: Any, settings: GeneratorTrainingSettings) -> torch.optim.AdamW:
    """Fused AdamW: matrices with weight decay, biases and norms without."""
    learning = [weight for weight in model.parameters() if weight.requires_grad]
    groups = [
        {"params": [weight for weight in learning if weight.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [weight for weight in learning if weight.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], lr=settings.learning_rate, fused=True)
    for group in optimizer.param_groups:
        group["peak"] = group["lr"]
    return optimizer
