"""Masked-language-model warm-up: the head learns to name hidden tokens of the corpus's own passages.

Devlin et al. (2019), BERT: of 15 % of the tokens, 8 in 10 become [MASK], 1 in 10 another token, 1 in 10 stay; each is
to be named from the rest. It teaches a closed-form head what no regression can: words that are not there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from model_code.encoding.hardware import uses_bfloat16
from model_code.errors import FreshetError
from model_code.files import replacing
from model_code.lexical.encoder import Features, LexicalEncoder
from model_code.lexical.settings import LexicalSettings
from model_code.progress import Progress, silent
from model_code.training.optimisation import freeze, learning_rate_factor, set_learning_rate
from model_code.training.settings import TrainingSettings

SHARE, MASKED, REPLACED = 0.15, 0.8, 0.1
WEIGHTS, LOSSES = "warmup.safetensors", "losses"


def warm_up(
    encoder: LexicalEncoder,
    texts: Sequence[str],
    training: TrainingSettings,
    settings: LexicalSettings,
    seed: int,
    folder: Path,
    progress: Progress = silent,
) -> list[float]:
    """Train `encoder` in place for `settings.warmup_steps`; its result is kept in `folder`, where a later run finds it.

    Returns the loss of each step, in nats per masked token.
    """
    from safetensors.torch import load_file, save_file

    if encoder.tokenizer.mask_token_id is None:
        raise FreshetError("the tokenizer has no mask token, which warmup_steps needs; set warmup_steps: 0")
    path = folder / WEIGHTS
    freeze(encoder.backbone, training.frozen_layers)
    learning = {name: weight for name, weight in encoder.named_parameters() if weight.requires_grad}
    if path.is_file():
        found = load_file(path)
        for name, weight in learning.items():
            weight.data.copy_(found[name])
        return found[LOSSES].tolist()
    losses = _train(encoder, texts, training, settings, seed, progress)
    kept = {name: weight.detach().cpu().contiguous() for name, weight in learning.items()}
    with replacing(path) as aside:
        save_file(kept | {LOSSES: torch.tensor(losses, dtype=torch.float64)}, aside)
    return losses


def _train(
    encoder: LexicalEncoder,
    texts: Sequence[str],
    training: TrainingSettings,
    settings: LexicalSettings,
    seed: int,
    progress: Progress,
) -> list[float]:
    from model_code.lexical.trainer import make_optimizer

    optimizer = make_optimizer(encoder, replace(training, learning_rate=settings.warmup_learning_rate), settings)
    losses: list[float] = []
    for step in range(settings.warmup_steps):
        set_learning_rate(optimizer, learning_rate_factor(step, settings.warmup_steps, training.warmup_share))
        rng = np.random.default_rng([seed, 23, step])
        chosen = rng.choice(len(texts), min(settings.warmup_batch, len(texts)), replace=False)
        features = encoder.tokenize([texts[row] for row in chosen], training.document_max_tokens)
        loss = masked_loss(encoder, *hide(features, encoder, rng))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            raise FreshetError(
                f"the warm-up's loss is {losses[-1]} after {step + 1} steps: lower lexical.warmup_learning_rate"
            )
        progress(step + 1, settings.warmup_steps, "warm-up steps")
    return losses


def hide(features: Features, encoder: LexicalEncoder, rng: np.random.Generator) -> tuple[Features, Tensor]:
    """Hide tokens of a batch; returns the features with them hidden, and the targets (B, T) int64, -100 elsewhere."""
    ids = features["input_ids"].numpy()
    open_tokens = ~encoder.blocked.cpu().numpy()
    hidden = open_tokens[ids] & (features["attention_mask"].numpy() == 1) & (rng.random(ids.shape) < SHARE)
    fate = rng.random(ids.shape)
    others = rng.choice(np.flatnonzero(open_tokens), ids.shape)
    seen = np.where(hidden & (fate < MASKED), encoder.tokenizer.mask_token_id, ids)
    seen = np.where(hidden & (fate >= MASKED) & (fate < MASKED + REPLACED), others, seen)
    targets = torch.from_numpy(np.where(hidden, ids, -100))
    return {**features, "input_ids": torch.from_numpy(seen)}, targets


def masked_loss(encoder: LexicalEncoder, features: Features, targets: Tensor) -> Tensor:
    """Mean cross-entropy of the hidden tokens over the open vocabulary; 0 with gradient if none is hidden."""
    bfloat16 = uses_bfloat16(encoder.precision, encoder.device)
    ids, mask = (features[name].to(encoder.device) for name in ("input_ids", "attention_mask"))
    with torch.autocast(encoder.device.type, torch.bfloat16, enabled=bfloat16):
        tokens: Any = encoder.body(ids, mask)
        wanted = targets.to(encoder.device) != -100
        logits = tokens[wanted] @ encoder.decoder.T + encoder.bias  # (hidden, V)
    logits = logits.float().masked_fill(encoder.blocked, -torch.inf)
    losses = torch.nn.functional.cross_entropy(logits, targets.to(encoder.device)[wanted], reduction="sum")
    return losses / max(1, int(wanted.sum()))
