"""The two stages of training a lexical encoder, on the trainer that every encoder has.

In the first, queries learn against the token bags of their passages and of many others: T(p) never changes and needs no
encoder, so that passages cost next to nothing, and thousands stand against every query. In the second, negatives may
come from a beta search with the encoder of that very step: the token index is never out of date and never built again
(SVDR, section 4.2), so there is no interval after which a corpus must be encoded anew, and nothing that a checkpoint
must keep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from model_code.encoding.batching import bucketed
from model_code.errors import FreshetError
from model_code.hierarchy.tree import Hierarchy
from model_code.lexical.encoder import LexicalEncoder
from model_code.lexical.losses import BagBatch, BetaObjective, ScaledObjective, SemiParametricObjective, TokenHierarchy
from model_code.lexical.settings import LexicalSettings
from model_code.retriever import Ranking
from model_code.token_index.index import TokenIndex
from model_code.training.batches import BatchSchedule
from model_code.training.collator import Ancestors, membership
from model_code.training.data import TrainingData
from model_code.training.negatives import Drawing, Negatives, sample
from model_code.training.optimisation import adamw
from model_code.training.settings import TrainingSettings
from model_code.training.trainer import Trainer, to_device

HEAD_RATE = 4.0  # times the learning rate: the rate of the closed-form transform
BIAS_LEARNING_RATE = 0.01  # of the tokens' biases


class BagCollator:
    """Makes batch after batch; equal numbers give equal batches, whatever was made before."""

    def __init__(
        self,
        data: TrainingData,
        bags: Sequence[np.ndarray],
        training: TrainingSettings,
        settings: LexicalSettings,
        encoder: LexicalEncoder,
        seed: int,
        batch_tokens: int,
        ancestors: Ancestors | None = None,
    ) -> None:
        """bags: T(p) of all N passages; batch_tokens: as in `Collator`; ancestors: for a hierarchy loss."""
        self.data, self.bags, self.training, self.settings = data, bags, training, settings
        self.encoder, self.seed, self.batch_tokens, self.ancestors = encoder, seed, batch_tokens, ancestors

    def __call__(self, number: int, pairs: np.ndarray) -> BagBatch:
        """Batch `number` of the run, made of `pairs` (B,)."""
        every, passages = self.data.pairs, self.data.passages
        targets, shown = every.passages[pairs], self._shown(number, every.passages[pairs])
        queries = self.encoder.tokenize([every.queries[pair] for pair in pairs], self.training.query_max_tokens)
        relevant = [every.relevant[pair] for pair in pairs]
        cut = {row: every.positives[pair] for row, pair in enumerate(pairs.tolist()) if pair in every.positives}
        bags = [self.bags[passage] for passage in shown] + self.encoder.bags(list(cut.values()))
        positives, answers = np.searchsorted(shown, targets), np.ones((len(pairs), len(bags)), dtype=bool)
        positives[list(cut)] = np.arange(len(shown), len(bags))
        answers[:, : len(shown)] = membership(relevant, passages.documents[shown])
        lines = np.repeat(np.arange(len(bags)), [len(bag) for bag in bags])
        return BagBatch(
            queries=bucketed(queries, self.batch_tokens),
            positives=torch.from_numpy(positives),
            answers=torch.from_numpy(answers),
            unsupervised=torch.from_numpy(pairs >= len(self.data.supervised)),
            bags=torch.from_numpy(np.stack([lines, np.concatenate(bags)])),
            paths=None if self.ancestors is None else self.ancestors.of(targets),
            excluded=None if self.ancestors is None else self.ancestors.excluded(list(map(passages.of_all, relevant))),
        )

    def _shown(self, number: int, targets: np.ndarray) -> np.ndarray:
        """The passages of the batch, ascending: those of the pairs, and `first_stage_passages` drawn from all."""
        count = min(self.settings.first_stage_passages, len(self.bags))
        drawn = np.random.default_rng([self.seed, number]).choice(len(self.bags), count, replace=False)
        return np.unique(np.concatenate([targets, drawn]))


class TokenNegatives(Drawing):
    """Draws from the m passages that the present encoder ranks highest, once the run has come to step `first`.

    Dropped are passages known to answer the query and, as they may be answers that nobody judged, those that hold one
    of the strings that answer it. Of a query without such strings they are those that score above
    `in_training_margin` times the pair's own passage, and those in its leaf of the hierarchy, if there is one.
    """

    def __init__(
        self,
        before: Negatives,
        data: TrainingData,
        training: TrainingSettings,
        settings: LexicalSettings,
        tokens: TokenIndex,
        first: int,
    ) -> None:
        """before: where negatives come from until step `first`; tokens: passage i is its document "i"."""
        super().__init__(data, training)
        self.before, self.lexical, self.tokens, self.first = before, settings, tokens, first
        self.encoder: LexicalEncoder | None = None

    def needs_refresh(self, step: int) -> bool:
        """From step `first` on, every time: the encoder of that step is the one that searches."""
        return step >= self.first

    def refresh(self, encoder: LexicalEncoder, vectors: np.ndarray | None = None) -> None:  # type: ignore[override]
        """Search with `encoder`, as its weights are at every draw, from now on."""
        self.encoder = encoder

    def recluster(self, hierarchy: Hierarchy | None) -> None:
        """See `Negatives.recluster`."""
        super().recluster(hierarchy)
        self.before.recluster(hierarchy)

    def draw(self, pairs: np.ndarray, known: list[np.ndarray], rng: np.random.Generator) -> list[list[int]]:
        """See `Negatives.draw`."""
        if self.encoder is None or not self.settings.negatives_per_query:
            return self.before.draw(pairs, known, rng)
        targets = self.data.pairs.passages[pairs]
        queries = self.encoder.encode_queries([self.data.pairs.queries[pair] for pair in pairs])
        most = self.lexical.in_training_negatives + max(map(len, known)) + len(targets)  # m beside those banned
        rankings = self.tokens.search(queries, most, self.tokens.fingerprint)
        positives = self.tokens.rank(queries, [[str(passage)] for passage in targets.tolist()], self.tokens.fingerprint)
        batch = set(targets.tolist())
        return [
            self._draw_from(ranking, positive[0][1], pair, batch.union(answers.tolist()), rng)
            for ranking, positive, pair, answers in zip(rankings, positives, pairs.tolist(), known, strict=True)
        ]

    def _draw_from(
        self, ranking: Ranking, positive: float, pair: int, banned: set[int], rng: np.random.Generator
    ) -> list[int]:
        holds = self._holds(pair)
        most = self.lexical.in_training_margin * positive if holds is None else np.inf
        candidates = [int(name) for name, score in ranking if score <= most and int(name) not in banned]
        candidates = candidates[: self.lexical.in_training_negatives]
        if holds is None and self.hierarchy is not None:
            leaves, passage = self.hierarchy.leaves, self.data.pairs.passages[pair]
            candidates = [other for other in candidates if leaves[other] != leaves[passage]]
        return sample(np.array(candidates, dtype=np.int64), self.settings.negatives_per_query, (), rng, holds)


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
        return make_optimizer(objective.encoder, self.settings)

    def _prepare(self, objective: ScaledObjective, optimizer: Any, hierarchy: Hierarchy | None) -> None:
        if self.tokens is not None and not isinstance(self.negatives, TokenNegatives):
            first = round(self.lexical.in_training_from * self._planned_steps())
            self.negatives = TokenNegatives(self.negatives, self.data, self.settings, self.lexical, self.tokens, first)
        super()._prepare(objective, optimizer, hierarchy)
        objective.measure(to_device(self.collate(0, self.schedule[0]), self.accelerator.device))

    def _planned_steps(self) -> int:
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
    return settings.replace(
        steps=lexical.first_stage_steps,
        batch_size=lexical.first_stage_batch,
        accumulation=1,
        learning_rate=lexical.first_stage_learning_rate,
        batches="random",
        negatives="random",
        negatives_per_query=0,
    )


def make_optimizer(encoder: LexicalEncoder, settings: TrainingSettings) -> torch.optim.AdamW:
    """Fused AdamW with a rate for the closed-form transform and one for the biases, which start far from home."""
    learning = {name: weight for name, weight in encoder.named_parameters() if weight.requires_grad}
    head = {name: learning.pop(name) for name in list(learning) if "body.head." in name}
    bias = {name: learning.pop(name) for name in list(learning) if learning[name] is encoder.bias}
    others: list[dict[str, Any]] = [
        {"params": list(head.values()), "weight_decay": 0.0, "lr": HEAD_RATE * settings.learning_rate},
        {"params": list(bias.values()), "weight_decay": 0.0, "lr": BIAS_LEARNING_RATE},
    ]
    return adamw(learning.values(), settings.learning_rate, settings.weight_decay, others)
