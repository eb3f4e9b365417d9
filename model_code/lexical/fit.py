"""Train a lexical encoder on a corpus's pairs by the semi-parametric loss.

Writes `encoder/` (see `layout.py`) and `history.json`, the rows of the training curve.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch

from model_code.context import StageContext
from model_code.hierarchy.tree import Hierarchy
from model_code.lexical.encoder import LexicalEncoder
from model_code.lexical.index import BY_TOKENS, EmbeddingIndex, LexicalSearch, index_tokens
from model_code.lexical.layout import save_encoder, start_encoder
from model_code.lexical.losses import SemiParametricObjective, TokenHierarchy
from model_code.lexical.settings import LexicalSettings
from model_code.token_index.index import TokenIndex
from model_code.training.dev_evaluation import DevEvaluator
from model_code.training.fit import finish, load_tree
from model_code.training.optimisation import adamw
from model_code.training.settings import TrainingSettings
from model_code.training.tables import TrainingTables
from model_code.training.trainer import Trainer, to_device

DIGITS = 12  # of a document's number, so that ties, which token searches have many of, break as by the documents' ids
HEAD_RATE = 4.0  # times the learning rate: the rate of the closed-form transform
BIAS_LEARNING_RATE = 0.01  # of the tokens' biases


def fit_lexical_encoder(context: StageContext, tables: TrainingTables) -> dict[str, Any]:
    """Train the lexical retriever of `context`; the report says what it saw and which step was best."""
    retriever, seed = context.settings["retriever"], context.settings["seed"]
    training, lexical = retriever.training, retriever.lexical
    encoder = start_encoder(context.settings["encoder"], lexical, tables.passages.texts, seed)
    data = tables.training_data(training)
    trainer = LexicalTrainer(
        encoder,
        data,
        training,
        seed,
        load_tree(context, training),
        tables.dev_evaluator(training, seed),
        checkpoints=context.checkpoints,
        progress=context.progress("train"),
        lexical=lexical,
    )
    result = trainer.fit()
    save_encoder(encoder, context.output / "encoder")
    report = {"head": encoder.config.head, "fingerprint": encoder.fingerprint()}
    return report | finish(context, tables, data, training, result)


class LexicalTrainer(Trainer):
    """Trains with the semi-parametric loss; other arguments as `Trainer` has them."""

    def __init__(self, encoder: LexicalEncoder, *arguments: Any, lexical: LexicalSettings, **options: Any) -> None:
        self.lexical = lexical
        super().__init__(encoder, *arguments, **options)

    def _make_objective(self, hierarchy: Hierarchy | None) -> SemiParametricObjective:
        nodes = None
        if hierarchy is not None and self.settings.hierarchy_weight > 0:
            bags = self.encoder.bags(self.data.passages.texts)
            nodes = TokenHierarchy(hierarchy, bags, self.encoder.vocabulary_size, self.settings.hierarchy_levels)
        return SemiParametricObjective(self.encoder, self.lexical.top_k, self.settings, nodes)

    def _make_optimizer(self, objective: SemiParametricObjective) -> torch.optim.AdamW:
        return make_optimizer(objective.encoder, self.settings)

    def _prepare(self, objective: SemiParametricObjective, optimizer: Any, hierarchy: Hierarchy | None) -> None:
        super()._prepare(objective, optimizer, hierarchy)
        objective.measure(to_device(self.collate(0, self.schedule[0]), self.accelerator.device))

    @cached_property
    def _ranked_tokens(self) -> TokenIndex:
        """The tokens of the passages that an evaluation ranks, which do not change."""
        texts, documents = self.dev.texts, self.dev.passages.documents[self.dev.rows]
        return index_tokens(self.encoder, texts, [f"{document:0{DIGITS}}" for document in documents])

    def _ranked(self, dev: DevEvaluator) -> EmbeddingIndex | None:
        """The passages as the encoder embeds them now; None if the search reads tokens only."""
        if self.lexical.search in BY_TOKENS:
            return None
        names = self._ranked_tokens.document_ids
        return EmbeddingIndex.build(self.encoder.encode(dev.texts), names, self.encoder.vocabulary_size)

    def _score(self, dev: DevEvaluator, ranked: EmbeddingIndex | None) -> float:
        """The mean metric of the main search with the encoder as it is now."""
        main, depth = self.lexical.search, self.lexical.rerank_depth
        rankings = LexicalSearch(self.encoder, self._ranked_tokens, ranked, main, depth).search(dev.queries, dev.depth)
        return dev.mean([[(_number(name), score) for name, score in hits] for hits in rankings])


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


def _number(name: str) -> str:
    """A document's number as the judgements have it.

    >>> _number("000000000120"), _number("000000000000")
    ('120', '0')
    """
    return name.lstrip("0") or "0"
