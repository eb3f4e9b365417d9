"""`freshet bench train`: compare a training step with plain training and sentence-transformers.

It measures the cost of the hierarchy per step, and our speed against sentence-transformers' usual
loss. Every row is a median over steps that alternate between the two sides, so that other load
slows both. Texts are random words of the encoder's vocabulary with the lengths of real corpora;
their content does not change the cost.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import numpy as np
import torch

from benchmarks.measurement import median_seconds
from model_code.encoding.encoder import Encoder
from model_code.encoding.hardware import uses_bfloat16
from model_code.encoding.settings import EncoderSettings
from model_code.hierarchy.build import build_hierarchy
from model_code.hierarchy.settings import HierarchySettings
from model_code.training.data import Pairs, Passages, TrainingData, make_pairs
from model_code.training.optimisation import freeze_layers
from model_code.training.settings import TrainingSettings
from model_code.training.trainer import Trainer

BASE, MAX_TOKENS = EncoderSettings().base, 128
PEER = "MultipleNegativesRankingLoss"
# Goals: time of a step with the hierarchy, and speed against the peer.
HIERARCHY_COST, PEER_SPEED = 1.10, 1.2
Step = Callable[[], object]


def rows(
    base: str = BASE, pairs: int = 512, batch_size: int = 32, steps: int = 7, device: str = "auto"
) -> list[dict[str, Any]]:
    """Return four rows with pairs per second, so that a ratio above 1 means that ours is faster.

    Args:
        base: Argument of `Encoder.load`.
        pairs: Size of the synthetic training set.
        batch_size: Pairs per step.
        device: Device of both sides.
        steps: Timed steps per side, after one warm-up step.
    """
    data = _data(Encoder.load(base, MAX_TOKENS, device="cpu"), pairs)
    shared = {
        "supervision": "supervised",
        "batch_size": batch_size,
        "document_max_tokens": 96,
        "steps": 10 * steps,
    }
    settings = TrainingSettings(**shared, hierarchy_weight=0.0, negatives_per_query=0)
    plain = _trainer(base, data, settings, device)
    hce = _trainer(
        base, data, TrainingSettings(**shared, batches="siblings", negatives_per_query=0), device
    )
    alike, installed = (
        _peer_step(base, data, plain, settings, as_installed) for as_installed in (False, True)
    )
    compared = [
        (
            "HCE against plain contrastive training",
            hce.take_step,
            plain.take_step,
            1 / HIERARCHY_COST,
        ),
        (
            f"contrastive training against {PEER}, same layers frozen, dropout 0",
            plain.take_step,
            alike,
            PEER_SPEED,
        ),
        (f"HCE against {PEER}, same layers frozen, dropout 0", hce.take_step, alike, PEER_SPEED),
        (
            f"contrastive training against {PEER} as installed",
            plain.take_step,
            installed,
            PEER_SPEED,
        ),
    ]
    return [
        _row(what, batch_size, goal, *median_seconds([ours, peer], steps))
        for what, ours, peer, goal in compared
    ]


def _row(what: str, batch_size: int, goal: float, ours: float, peer: float) -> dict[str, Any]:
    ratio = peer / ours
    return {
        "what": f"{what}, pairs/s, batch {batch_size}",
        "ours": batch_size / ours,
        "peer": batch_size / peer,
        "ratio": ratio,
        "goal": f">= {goal:.2f}",
        "met": ratio >= goal,
    }


def _data(encoder: Encoder, pairs: int) -> TrainingData:
    """Return queries of 4 to 24 words and documents of 8 to 400 words, half of them under 60."""
    random = np.random.default_rng(0)
    words = np.array([word for word in encoder.tokenizer.get_vocab() if word.isalpha()])
    words.sort()

    def text(length: float) -> str:
        return " ".join(random.choice(words, int(length)))

    documents = [text(length) for length in np.exp(random.normal(4.1, 0.7, pairs)).clip(8, 400)]
    passages = Passages(documents, np.arange(pairs))
    queries = [(text(length), [i]) for i, length in enumerate(random.integers(4, 25, pairs))]
    return TrainingData(
        passages, make_pairs(passages, queries), Pairs([], np.empty(0, np.int64), [])
    )


def _trainer(base: str, data: TrainingData, settings: TrainingSettings, device: str) -> Trainer:
    encoder = Encoder.load(base, MAX_TOKENS, device=device)
    vectors = (
        np.random.default_rng(1)
        .standard_normal((len(data.passages.texts), encoder.dimension))
        .astype(np.float32)
    )
    hierarchy = (
        build_hierarchy(vectors, HierarchySettings(), seed=0) if settings.needs_hierarchy else None
    )
    return Trainer(encoder, data, settings, seed=0, hierarchy=hierarchy)


def _peer_step(
    base: str, data: TrainingData, ours: Trainer, settings: TrainingSettings, as_installed: bool
) -> Step:
    """Return a step of sentence-transformers on our batches, without its trainer's overhead."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    from model_code.encoding.base_models import locate_model

    device = ours.encoder.device
    model = SentenceTransformer(str(locate_model(base)), device=str(device)).train(as_installed)
    if not as_installed:
        freeze_layers(model[0].auto_model, settings.frozen_layers)
    loss = MultipleNegativesRankingLoss(model, scale=1 / settings.temperature)
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=settings.learning_rate, fused=True)
    bfloat16 = uses_bfloat16("auto", device)
    numbers = cycle(range(len(ours.schedule)))

    def features(texts: list[str], most: int) -> dict[str, torch.Tensor]:
        """Tokenize texts with the peer's own tokenizer, with at most `most` tokens."""
        model.max_seq_length = most
        return {
            name: value.to(device)
            for name, value in model.preprocess(texts).items()
            if torch.is_tensor(value)
        }

    def step() -> None:
        """Take one step on the next pairs of our schedule, with the peer's loss."""
        pairs = ours.schedule[next(numbers)]
        queries = features([data.pairs.queries[pair] for pair in pairs], settings.query_max_tokens)
        texts = [data.passages.texts[passage] for passage in data.pairs.passages[pairs]]
        with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
            value = loss([queries, features(texts, settings.document_max_tokens)], torch.empty(0))
        value.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
