"""The two stages of training a lexical encoder, on the trainer that every encoder has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from model_code.errors import FreshetError
from model_code.hierarchy.tree import Hierarchy
from model_code.lexical.encoder import LexicalEncoder
from model_code.lexical.first_stage import BagCollator
from model_code.lexical.negatives import TokenNegatives
from model_code.lexical.objective import BetaObjective, ScaledObjective, SemiParametricObjective
from model_code.lexical.settings import LexicalSettings
from model_code.lexical.token_hierarchy import TokenHierarchy
from model_code.token_index.index import TokenIndex
from model_code.training.ancestors import Ancestors
from model_code.training.settings import TrainingSettings
from model_code.training.trainer import Trainer, to_device


class LexicalTrainer(Trainer):
    """Trains with the semi-parametric loss; other arguments as `Trainer` has them.

    tokens: of the training passages, number i its own document "i": in-training negatives are drawn from it.
    bags: T(p) of every training passage, for the hierarchy loss.
    """

    objective: type[ScaledObjective] = SemiParametricObjective

    def __init__(
        self,
        encoder: LexicalEncoder,
        *arguments: Any,
        lexical: LexicalSettings,
        tokens: TokenIndex | None = None,
        bags: Sequence[np.ndarray] | None = None,
        **options: Any,
    ) -> None:
        self.lexical, self.tokens, self.bags = lexical, tokens, bags
        super().__init__(encoder, *arguments, **options)

    def _make_objective(self, hierarchy: Hierarchy | None) -> ScaledObjective:
        return self.objective(self.encoder, self.lexical, self.settings, self._token_hierarchy(hierarchy))

    def _token_hierarchy(self, hierarchy: Hierarchy | None) -> TokenHierarchy | None:
        if hierarchy is None or self.settings.hierarchy_weight == 0:
            return None
        if self.bags is None:
            raise FreshetError("a hierarchy loss of tokens needs the bags of the training passages")
        return TokenHierarchy(hierarchy, self.bags, self.encoder.vocabulary_size, self.settings.hierarchy_levels)

    def _make_optimizer(self, objective: ScaledObjective) -> torch.optim.AdamW:
        return make_optimizer(objective.encoder, self.settings, self.lexical)

    def _prepare(self, objective: ScaledObjective, optimizer: Any, hierarchy: Hierarchy | None) -> None:
        if self.tokens is not None and not isinstance(self.negatives, TokenNegatives):
            first = round(self.lexical.in_training_from * self._planned_steps())
            self.negatives = TokenNegatives(self.negatives, self.data, self.settings, self.lexical, self.tokens, first)
        super()._prepare(objective, optimizer, hierarchy)
        objective.measure(to_device(self.collate(0, self.schedule[0]), self.accelerator.device))

    def _planned_steps(self) -> int:
        from model_code.training.batches import BatchSchedule

        return BatchSchedule(self.data, self.settings, self.seed).steps


class FirstStageTrainer(LexicalTrainer):
    """Trains E(q) against fixed token bags.

    bags: T(p) of every training passage, which this stage needs in any case.
    """

    objective = BetaObjective

    def __init__(
        self,
        encoder: LexicalEncoder,
        data: Any,
        settings: TrainingSettings,
        *arguments: Any,
        lexical: LexicalSettings,
        bags: Sequence[np.ndarray],
        **options: Any,
    ) -> None:
        settings = first_stage(settings, lexical)
        super().__init__(encoder, data, settings, *arguments, lexical=lexical, bags=bags, **options)

    def _make_collator(self, hierarchy: Hierarchy | None, batch_tokens: int) -> Callable[[int, np.ndarray], Any]:
        above = None
        if hierarchy is not None and self.settings.hierarchy_weight > 0:
            above = Ancestors(hierarchy, self.settings.hierarchy_levels)
        bags: Sequence[np.ndarray] = self.bags or ()
        return BagCollator(self.data, bags, self.settings, self.lexical, self.encoder, self.seed, batch_tokens, above)


def first_stage(settings: TrainingSettings, lexical: LexicalSettings) -> TrainingSettings:
    """The settings of the first stage: its own length, batch and rate, nothing that needs a passage encoded."""
    return replace(
        settings,
        steps=lexical.first_stage_steps,
        batch_size=lexical.first_stage_batch,
        accumulation=1,
        learning_rate=lexical.first_stage_learning_rate,
        batches="random",
        negatives="random",
        negatives_per_query=0,
        negatives_margin=None,
        negatives_skip=0,
        negatives_outside_leaf=False,
    )


def make_optimizer(encoder: LexicalEncoder, settings: TrainingSettings, lexical: LexicalSettings) -> torch.optim.AdamW:
    """Fused AdamW with a rate for the closed-form transform and one for the biases, which start far from home."""
    learning = {name: weight for name, weight in encoder.named_parameters() if weight.requires_grad}
    head = {name: learning.pop(name) for name in list(learning) if "body.head." in name}
    biases = [side.bias for side in encoder.sides]
    bias = {name: learning.pop(name) for name in list(learning) if any(learning[name] is one for one in biases)}
    groups: list[dict[str, Any]] = [
        {"params": [p for p in learning.values() if p.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in learning.values() if p.ndim <= 1], "weight_decay": 0.0},
        {"params": list(head.values()), "weight_decay": 0.0, "lr": lexical.head_rate * settings.learning_rate},
        {"params": list(bias.values()), "weight_decay": 0.0, "lr": lexical.bias_learning_rate},
    ]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], lr=settings.learning_rate, fused=True)
    for group in optimizer.param_groups:
        group["peak"] = group["lr"]
    return optimizer
