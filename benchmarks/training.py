"""`freshet bench train`: compare a training step with plain training and sentence-transformers.

It measures what the hierarchy adds to the time of a step, and our speed against
sentence-transformers' usual loss. Every row is a median over steps that alternate between the two
sides, so that other load slows both. Texts are random words of the encoder's vocabulary with the
lengths of real corpora, because the content of texts does not change the time.
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
from model_code.hierarchy.tree import Hierarchy
from model_code.training.data import Pairs, Passages, TrainingData, make_pairs
from model_code.training.optimisation import freeze_layers
from model_code.training.settings import TrainingSettings
from model_code.training.trainer import Trainer

BASE = EncoderSettings().base
MAX_TOKENS = 128
PEER = "MultipleNegativesRankingLoss"
# Goals: largest ratio of the time of a step with the hierarchy to one without, and smallest ratio
# of our speed to the peer's.
MAX_HIERARCHY_COST = 1.10
MIN_PEER_SPEED = 1.2
Step = Callable[[], object]


def rows(
    base: str = BASE, pairs: int = 512, batch_size: int = 32, steps: int = 7, device: str = "auto"
) -> list[dict[str, Any]]:
    """Return four rows with pairs per second, so that a ratio above 1 means that ours is faster.

    Args:
        base: Argument of `Encoder.load`.
        pairs: Size of the synthetic training set.
        batch_size: Pairs per step.
        steps: Timed steps per side, after one warm-up step.
        device: Device of both sides.
    """
    data = make_training_data(Encoder.load(base, MAX_TOKENS, device="cpu"), pairs)
    shared = {
        "supervision": "supervised",
        "batch_size": batch_size,
        "document_max_tokens": 96,
        "steps": 10 * steps,
        "negatives_per_query": 0,
    }
    plain_settings = TrainingSettings(**shared, hierarchy_weight=0.0)
    plain = _make_trainer(base, data, plain_settings, device)
    hce_settings = TrainingSettings(**shared, batches="siblings")
    hce = _make_trainer(base, data, hce_settings, device)
    peer_alike = _peer_step(base, data, plain, plain_settings, as_installed=False)
    peer_installed = _peer_step(base, data, plain, plain_settings, as_installed=True)

    comparisons = [
        (
            "HCE against plain contrastive training",
            hce.take_step,
            plain.take_step,
            1 / MAX_HIERARCHY_COST,
        ),
        (
            f"contrastive training against {PEER}, same layers frozen, dropout 0",
            plain.take_step,
            peer_alike,
            MIN_PEER_SPEED,
        ),
        (
            f"HCE against {PEER}, same layers frozen, dropout 0",
            hce.take_step,
            peer_alike,
            MIN_PEER_SPEED,
        ),
        (
            f"contrastive training against {PEER} as installed",
            plain.take_step,
            peer_installed,
            MIN_PEER_SPEED,
        ),
    ]
    results = []
    for label, our_step, peer_step, goal in comparisons:
        our_seconds, peer_seconds = median_seconds([our_step, peer_step], steps)
        results.append(_row(label, batch_size, goal, our_seconds, peer_seconds))
    return results


def _row(
    label: str, batch_size: int, goal: float, our_seconds: float, peer_seconds: float
) -> dict[str, Any]:
    """Return a row with pairs per second, whose goal is a smallest ratio to the peer.

    Args:
        label: Start of the row's name.
        batch_size: Pairs per step.
        goal: Smallest ratio of our speed to the peer's.
        our_seconds: Seconds of our step.
        peer_seconds: Seconds of the peer's step.
    """
    ratio = peer_seconds / our_seconds
    return {
        "what": f"{label}, pairs/s, batch {batch_size}",
        "ours": batch_size / our_seconds,
        "peer": batch_size / peer_seconds,
        "ratio": ratio,
        "goal": f">= {goal:.2f}",
        "met": ratio >= goal,
    }


def make_training_data(encoder: Encoder, pairs: int) -> TrainingData:
    """Return queries of 4 to 24 words and documents of 8 to 400 words, half of them under 60."""
    random = np.random.default_rng(0)
    words = np.array([word for word in encoder.tokenizer.get_vocab() if word.isalpha()])
    words.sort()

    def draw_text(length: float) -> str:
        return " ".join(random.choice(words, int(length)))

    document_lengths = np.exp(random.normal(4.1, 0.7, pairs)).clip(8, 400)
    documents = [draw_text(length) for length in document_lengths]
    passages = Passages(documents, np.arange(pairs))

    queries = []
    for document, length in enumerate(random.integers(4, 25, pairs)):
        queries.append((draw_text(length), [document]))
    no_pseudo_queries = Pairs([], np.empty(0, np.int64), [])
    return TrainingData(passages, make_pairs(passages, queries), no_pseudo_queries)


def _make_trainer(
    base: str, data: TrainingData, settings: TrainingSettings, device: str
) -> Trainer:
    """Return a trainer of the base encoder, with a hierarchy if the settings need one."""
    encoder = Encoder.load(base, MAX_TOKENS, device=device)
    hierarchy = None
    if settings.needs_hierarchy:
        hierarchy = make_hierarchy(data, encoder.dimension)
    return Trainer(encoder, data, settings, seed=0, hierarchy=hierarchy)


def make_hierarchy(data: TrainingData, dimension: int) -> Hierarchy:
    """Return a hierarchy of random vectors. The cost of a step does not depend on the vectors.

    Args:
        data: The training data.
        dimension: Numbers per vector.
    """
    random = np.random.default_rng(1)
    vectors = random.standard_normal((len(data.passages.texts), dimension)).astype(np.float32)
    return build_hierarchy(vectors, HierarchySettings(), seed=0)


def _peer_step(
    base: str, data: TrainingData, ours: Trainer, settings: TrainingSettings, as_installed: bool
) -> Step:
    """Return a step of sentence-transformers on our batches, without its trainer's overhead.

    Args:
        base: Argument of `locate_model`.
        data: Training data of both sides.
        ours: Trainer of Freshet, whose batches and device the peer uses.
        settings: Settings of `ours`.
        as_installed: Train all layers with dropout, instead of our frozen layers without dropout.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    from model_code.encoding.base_models import locate_model

    device = ours.encoder.device
    model = SentenceTransformer(str(locate_model(base)), device=str(device)).train(as_installed)
    if not as_installed:
        freeze_layers(model[0].auto_model, settings.frozen_layers)
    loss = MultipleNegativesRankingLoss(model, scale=1 / settings.temperature)
    trained_parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained_parameters, lr=settings.learning_rate, fused=True)
    bfloat16 = uses_bfloat16("auto", device)
    # Numbers of the batches in our schedule, which starts again when it ends.
    batch_numbers = cycle(range(len(ours.schedule)))

    def tokenize(texts: list[str], max_tokens: int) -> dict[str, torch.Tensor]:
        """Tokenize texts with the peer's own tokenizer, with at most `max_tokens` tokens."""
        model.max_seq_length = max_tokens
        features = {}
        for name, value in model.preprocess(texts).items():
            if torch.is_tensor(value):
                features[name] = value.to(device)
        return features

    def step() -> None:
        """Take one step on the next pairs of our schedule, with the peer's loss."""
        pairs = ours.schedule[next(batch_numbers)]
        query_texts = [data.pairs.queries[pair] for pair in pairs]
        queries = tokenize(query_texts, settings.query_max_tokens)
        passage_texts = [data.passages.texts[passage] for passage in data.pairs.passages[pairs]]
        with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
            passages = tokenize(passage_texts, settings.document_max_tokens)
            value = loss([queries, passages], torch.empty(0))
        value.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
