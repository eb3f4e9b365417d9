"""Adapt a training to few judged pairs.

With the usual batch size, an epoch over a hundred pairs has two or three steps, which hardly change
the encoder. So training on a small set uses small batches and a minimum number of steps. A small
batch has few negatives, so extra negatives are added. Evaluations on dev stop the training early.

It is off by default. `experiments/small_sets` found no gain over the usual training.
"""

from __future__ import annotations

from typing import Any

from model_code.training.settings import TrainingSettings

# Limits of a training on few pairs: largest batch, smallest number of steps, smallest number of
# extra negatives, steps between evaluations, and evaluations without a new best one.
MAX_BATCH_PAIRS = 16
MIN_STEPS = 60
MIN_NEGATIVES_PER_QUERY = 4
STEPS_BETWEEN_EVALUATIONS = 10
PATIENCE_EVALUATIONS = 3

ADAPTED_KEYS = ("batch_size", "negatives_per_query", "steps", "evaluate_every", "patience")


def adapt_to_small_set(settings: TrainingSettings, pairs: int, has_dev: bool) -> TrainingSettings:
    """Return the settings for a training on few judged pairs.

    The settings are returned unchanged if they set `steps`, since the user chose the length. They
    are also returned unchanged if there are `small_set_pairs` pairs or more, or no judged pairs.

    Args:
        settings: How the retriever is trained.
        pairs: Number of judged training pairs.
        has_dev: Whether dev queries can stop the training.

    >>> settings = TrainingSettings(small_set_pairs=400)
    >>> adapted = adapt_to_small_set(settings, pairs=40, has_dev=True)
    >>> adapted.batch_size, adapted.steps, adapted.negatives_per_query, adapted.patience
    (16, 60, 4, 3)
    >>> adapt_to_small_set(settings, pairs=4000, has_dev=True).steps is None
    True
    """
    is_small = 0 < pairs < settings.small_set_pairs
    if not is_small or settings.steps is not None:
        return settings

    batch_size = min(settings.batch_size, MAX_BATCH_PAIRS)
    judged_share = 1.0
    if settings.supervision == "joint":
        judged_share = 1 - settings.unsupervised_share
        generated_in_batch = round(batch_size * settings.unsupervised_share)
        # With an extreme share, a small batch would have one kind of pair, which is refused.
        if generated_in_batch in (0, batch_size):
            batch_size = settings.batch_size
    judged_in_batch = batch_size * settings.accumulation * judged_share
    epoch_steps = round(settings.epochs * pairs / judged_in_batch)

    changes: dict[str, Any] = {
        "batch_size": batch_size,
        "steps": max(MIN_STEPS, epoch_steps),
        "negatives_per_query": max(settings.negatives_per_query, MIN_NEGATIVES_PER_QUERY),
    }
    if has_dev and settings.evaluate_every is None:
        changes["evaluate_every"] = STEPS_BETWEEN_EVALUATIONS
        changes["patience"] = PATIENCE_EVALUATIONS
    return settings.replace(**changes)


def describe_adaptation(before: TrainingSettings, after: TrainingSettings) -> dict[str, Any]:
    """Return the keys that `adapt_to_small_set` changed, with their new values."""
    changed = {}
    for key in ADAPTED_KEYS:
        if getattr(before, key) != getattr(after, key):
            changed[key] = getattr(after, key)
    return changed
