"""Fine-tune a sequence-to-sequence model to write the queries of a document: teacher-forced
cross-entropy.

It learns from (document, query) pairs as token ids, without dropout, and resumes as every training
does (`loop.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from model_code.context import StageContext
from model_code.corpus.tables import Corpus, load_corpus, strip_query_lines
from model_code.encoding.hardware import pick_device
from model_code.errors import FreshetError
from model_code.files import write_json
from model_code.progress import Progress, no_progress
from model_code.queries.pseudo_queries import derive_seed
from model_code.queries.sequence_to_sequence import (
    Loaded,
    load_sequence_model,
    require_positions,
    save_sequence_model,
    sections_of,
)
from model_code.queries.settings import (
    TRAINED_FOLDER,
    TRAINING_GROUP,
    WRITING_GROUP,
    GeneratorTrainingSettings,
)
from model_code.training.batches import PairStream
from model_code.training.loop import (
    TrainingLoop,
    TrainingState,
    latest_checkpoint,
    load_training_state,
)
from model_code.training.optimisation import adamw, make_accelerator, set_learning_rate

IGNORED = -100  # a label that is no target


class GeneratorPair(NamedTuple):
    """A document and a query that it answers."""

    document_id: str
    document: str
    query: str


def generator_pairs(
    corpus: Corpus, held_out_share: float, seed: int
) -> tuple[list[GeneratorPair], list[GeneratorPair]]:
    """The pairs of the corpus's own training qrels: to train on, and those of the share of
    documents held out.

    FreshetError if there are none to train on: no query may be made up to learn from.
    """
    texts = dict(zip(corpus.documents["document_id"], corpus.documents["text"], strict=True))
    train = corpus.judgements("train")
    rows = ((document, query) for query, documents in train.qrels.items() for document in documents)
    pairs = [
        GeneratorPair(document, texts[document], train.queries[query]) for document, query in rows
    ]
    learned = [
        pair
        for pair in pairs
        if derive_seed(seed, "held out", pair.document_id) / 2**63 >= held_out_share
    ]
    if not learned:
        raise FreshetError(
            "a query generator learns from training qrels, and the corpus has none left to train on; "
            "set pseudo_queries.training.base to null"
        )
    documents = {pair.document_id for pair in learned}
    return learned, [pair for pair in pairs if pair.document_id not in documents]


class PairTokens:
    """Pairs as a model reads them: a section of the document in, the query out.

    Of a long document it is the section with most of the query's tokens (the first of equals): a
    generator is given every section, and should learn to ask what that very section answers.
    """

    def __init__(
        self, tokenizer: Any, section_tokens: int, query_tokens: int, start_token: int
    ) -> None:
        """start_token: what decoding begins with; a tokenizer that puts it before every text must
        not repeat it.
        """
        self.tokenizer, self.start_token = tokenizer, start_token
        self.section_tokens, self.query_tokens = section_tokens, query_tokens

    def batch(self, pairs: Sequence[GeneratorPair]) -> dict[str, Tensor]:
        """`input_ids`, `attention_mask` (B, T) and `labels` (B, L) int64, the labels padded with
        `IGNORED`.
        """
        queries = [self._query(pair.query) for pair in pairs]
        sections = sections_of(
            self.tokenizer, [pair.document for pair in pairs], self.section_tokens
        )
        chosen = [
            max(group, key=lambda s: len(set(s) & set(q)))
            for group, q in zip(sections, queries, strict=True)
        ]
        padded = self.tokenizer.pad({"input_ids": chosen}, return_tensors="pt")
        labels = pad_sequence(
            [torch.tensor(query) for query in queries], batch_first=True, padding_value=IGNORED
        )
        return {
            "input_ids": padded["input_ids"],
            "attention_mask": padded["attention_mask"],
            "labels": labels,
        }

    def _query(self, text: str) -> list[int]:
        ids = self.tokenizer(text_target=text, truncation=True, max_length=self.query_tokens)[
            "input_ids"
        ]
        return ids[1:] if ids[0] == self.start_token else ids


METRIC = "log_likelihood"  # of held-out queries, mean per token


class GeneratorTrainer(TrainingLoop):
    """Training of a model in place; `fit` leaves it with the weights of the best evaluated step."""

    metric = METRIC

    def __init__(
        self,
        loaded: Loaded,
        tokens: PairTokens,
        pairs: Sequence[GeneratorPair],
        held_out: Sequence[GeneratorPair],
        settings: GeneratorTrainingSettings,
        seed: int,
        checkpoints: Path | None = None,
        progress: Progress = no_progress,
        precision: str = "auto",
    ) -> None:
        """held_out: chooses the best step; empty: the last is kept. checkpoints: a folder to resume
        from.
        """
        self.trained, self.tokens, self.pairs, self.settings = (
            loaded[0].eval(),
            tokens,
            pairs,
            settings,
        )
        self.held_out = held_out[: settings.held_out_pairs]
        self.checkpoints, self.progress, self.state = checkpoints, progress, TrainingState()
        documents = np.unique([pair.document_id for pair in pairs], return_inverse=True)[1]
        self.stream = PairStream(documents.astype(np.int64), settings.batch_size, seed)
        self.steps = settings.steps or max(1, round(settings.epochs * self.stream.per_epoch))
        self.pairs_per_step = settings.batch_size
        self.accelerator = make_accelerator(self.trained.device, precision)
        optimizer = adamw(self.trained.parameters(), settings.learning_rate, settings.weight_decay)
        self.model, self.optimizer = self.accelerator.prepare(self.trained, optimizer)
        checkpoint = latest_checkpoint(checkpoints)
        if checkpoint is not None:
            self.state = load_training_state(checkpoint)[0]
            self.accelerator.load_state(str(checkpoint), load_kwargs={"weights_only": True})

    def take_step(self) -> None:
        """One step of the optimiser, on one batch."""
        set_learning_rate(self.optimizer, self._rate_factor(self.state.step))
        loss = self._loss([self.pairs[pair] for pair in self.stream.batch(self.state.step)])[0]
        self.accelerator.backward(loss)
        self.accelerator.clip_grad_norm_(self.model.parameters(), self.settings.gradient_clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.state.window.append({"loss": loss.detach()})
        self.state.step += 1

    @torch.no_grad()
    def _evaluate(self) -> None:
        """Note the held-out log-likelihood; if it is the best so far, keep the weights."""
        total, count, size = 0.0, 0, self.settings.batch_size
        for start in range(0, len(self.held_out), size):
            loss, targets = self._loss(self.held_out[start : start + size])
            total += targets * float(loss)
            count += targets
        if count:
            self.state.evaluated(METRIC, -total / count, self._trained_weights())

    def _loss(self, pairs: Sequence[GeneratorPair]) -> tuple[Tensor, int]:
        """Mean cross-entropy of the queries' tokens, each predicted from the true ones before it;
        their number.
        """
        batch = {
            name: value.to(self.accelerator.device)
            for name, value in self.tokens.batch(pairs).items()
        }
        labels = batch.pop("labels")  # (B, L)
        before = self.trained.prepare_decoder_input_ids_from_labels(labels)
        logits = self.model(**batch, decoder_input_ids=before).logits  # (B, L, V)
        loss = torch.nn.functional.cross_entropy(
            logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED
        )
        return loss, int((labels != IGNORED).sum())


def train_generator(context: StageContext) -> dict[str, Any]:
    """Write `model/` and `history.json`; report what it learned from, and which step was best."""
    training: GeneratorTrainingSettings = context.settings[TRAINING_GROUP]
    written, encoder, seed = (context.settings[name] for name in (WRITING_GROUP, "encoder", "seed"))
    corpus = strip_query_lines(load_corpus(context.inputs["corpus"]))
    pairs, held_out = generator_pairs(corpus, training.held_out_share, seed)
    model, tokenizer = load_sequence_model(training.base, training.revision)
    require_positions(model, written.section_tokens, written.max_query_tokens)
    start_token = model.generation_config.decoder_start_token_id
    trainer = GeneratorTrainer(
        (model.to(pick_device(encoder.device)), tokenizer),
        PairTokens(tokenizer, written.section_tokens, written.max_query_tokens, start_token),
        pairs,
        held_out,
        training,
        seed,
        context.checkpoints / "training",
        context.progress("train the generator"),
        encoder.precision,
    )
    state = trainer.fit()
    write_json(context.output / "history.json", state.history)
    save_sequence_model(model, tokenizer, context.output / TRAINED_FOLDER, written.section_tokens)
    return {
        "base": training.base,
        "pairs": len(pairs),
        "held_out_pairs": len(held_out),
        f"start_{METRIC}": state.history[0].get(METRIC),
        f"best_{METRIC}": state.best_metric,
        "best_step": state.best_step,
        "steps": state.step,
        "trained_parameters": trainer.trained_parameters,
    }
