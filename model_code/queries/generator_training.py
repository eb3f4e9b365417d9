"""Training of a sequence-to-sequence model that writes the queries of a document.

The model learns from (document, query) pairs by teacher-forced cross-entropy, without dropout. An
interrupted training resumes from its last checkpoint; see `model_code.training.loop`.
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
from model_code.encoding.settings import EncoderSettings
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
    SequenceToSequenceSettings,
)
from model_code.training.batches import PairStream
from model_code.training.loop import (
    TrainingLoop,
    TrainingState,
    latest_checkpoint,
    load_training_state,
)
from model_code.training.optimisation import adamw, make_accelerator, set_learning_rate

# Label of the padding after a query, which the loss ignores.
IGNORED = -100
# Name of the metric that chooses the best step: the mean log-likelihood of held-out queries per
# token.
METRIC = "log_likelihood"


class GeneratorPair(NamedTuple):
    """A document and a query that it answers."""

    document_id: str
    document: str
    query: str


def generator_pairs(
    corpus: Corpus, held_out_share: float, seed: int
) -> tuple[list[GeneratorPair], list[GeneratorPair]]:
    """Divide the judged training pairs of document and query into two sets.

    The model is trained on the first set. The second, the held-out set, chooses the best step of
    the training. All pairs of a document are in the same set.

    Args:
        corpus: The corpus.
        held_out_share: Share of the documents that are held out, from 0 to 1.
        seed: Random seed of the project.

    Returns:
        The pairs to train on, and the held-out pairs.

    Raises:
        FreshetError: If there is no pair to train on. A generator must learn from real queries.
    """
    texts = dict(zip(corpus.documents["document_id"], corpus.documents["text"], strict=True))
    train = corpus.judgements("train")
    learned: list[GeneratorPair] = []
    held_out: list[GeneratorPair] = []
    for query, documents in train.qrels.items():
        for document in documents:
            pair = GeneratorPair(document, texts[document], train.queries[query])
            # A number from 0 to 1 that depends on the document only, so that its pairs stay
            # together.
            position = derive_seed(seed, "held out", document) / 2**63
            if position < held_out_share:
                held_out.append(pair)
            else:
                learned.append(pair)

    if not learned:
        raise FreshetError(
            "a query generator learns from training qrels, and the corpus has none left to train "
            "on; set pseudo_queries.training.base to null"
        )
    return learned, held_out


class PairTokens:
    """Turns (document, query) pairs into token ids: a section of the document, and the query.

    A section is a part of a document that fits the model. Each pair uses the section that shares
    most tokens with the query, or the first of several such sections. The trained model writes
    queries for every section of a document, so it must learn queries that the section answers.

    Args:
        tokenizer: The model's tokenizer.
        section_tokens: Largest number of tokens of a section.
        query_tokens: Largest number of tokens of a query.
        start_token: The token that decoding begins with. If the tokenizer puts it before a query,
            it is removed, because the decoder adds it.
    """

    def __init__(
        self, tokenizer: Any, section_tokens: int, query_tokens: int, start_token: int
    ) -> None:
        self.tokenizer = tokenizer
        self.section_tokens = section_tokens
        self.query_tokens = query_tokens
        self.start_token = start_token

    def batch(self, pairs: Sequence[GeneratorPair]) -> dict[str, Tensor]:
        """Return the tensors of B pairs, all int64.

        `input_ids` and `attention_mask` (B, T) are the padded sections. `labels` (B, L) are the
        queries, padded with `IGNORED`.
        """
        queries = [self._query_tokens(pair.query) for pair in pairs]
        documents = [pair.document for pair in pairs]
        sections_by_document = sections_of(self.tokenizer, documents, self.section_tokens)
        best_sections: list[list[int]] = []
        for sections, query in zip(sections_by_document, queries, strict=True):
            best_sections.append(_best_section(sections, query))

        padded = self.tokenizer.pad({"input_ids": best_sections}, return_tensors="pt")
        labels = [torch.tensor(query) for query in queries]
        return {
            "input_ids": padded["input_ids"],
            "attention_mask": padded["attention_mask"],
            "labels": pad_sequence(labels, batch_first=True, padding_value=IGNORED),
        }

    def _query_tokens(self, text: str) -> list[int]:
        """Return the token ids of a query, without the token that decoding begins with."""
        encoded = self.tokenizer(text_target=text, truncation=True, max_length=self.query_tokens)
        ids = encoded["input_ids"]
        if ids[0] == self.start_token:
            return ids[1:]
        return ids


def _best_section(sections: list[list[int]], query: list[int]) -> list[int]:
    """Return the section that shares most different tokens with a query; the first of several."""
    query_tokens = set(query)
    return max(sections, key=lambda section: len(query_tokens & set(section)))


class GeneratorTrainer(TrainingLoop):
    """Trains a model that writes the queries of a document. The model is changed in place.

    `fit` leaves the model with the weights of the best evaluated step.

    Args:
        loaded: The model and its tokenizer.
        tokens: Turns pairs into tensors.
        pairs: Pairs to train on.
        held_out: Pairs that choose the best step. If there are none, the last step is kept.
        settings: How the model is trained.
        seed: The project's seed.
        checkpoints: Folder of checkpoints, from which training resumes.
        progress: Called after each step.
        precision: "auto", "float32" or "bfloat16", as in `EncoderSettings`.
    """

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
        """Prepare training, and load the newest checkpoint if there is one."""
        model, _ = loaded
        # In evaluation mode there is no dropout, so that a resumed training has the same result.
        self.trained = model.eval()
        self.tokens = tokens
        self.pairs = pairs
        self.held_out = held_out[: settings.held_out_pairs]
        self.settings = settings
        self.checkpoints = checkpoints
        self.progress = progress

        # The number of each pair's document, by which a batch gets few pairs of one document.
        # An array of ids would store all of them in the length of the longest one.
        number_of: dict[str, int] = {}
        document_numbers = [
            number_of.setdefault(pair.document_id, len(number_of)) for pair in pairs
        ]
        self.stream = PairStream(np.array(document_numbers, np.int64), settings.batch_size, seed)
        steps_of_epochs = max(1, round(settings.epochs * self.stream.per_epoch))
        self.steps = settings.steps or steps_of_epochs
        self.pairs_per_step = settings.batch_size

        self.accelerator = make_accelerator(self.trained.device, precision)
        optimizer = adamw(self.trained.parameters(), settings.learning_rate, settings.weight_decay)
        self.model, self.optimizer = self.accelerator.prepare(self.trained, optimizer)

        self.state = TrainingState()
        checkpoint = latest_checkpoint(checkpoints)
        if checkpoint is not None:
            self.state, _ = load_training_state(checkpoint)
            self.accelerator.load_state(str(checkpoint), load_kwargs={"weights_only": True})

    def take_step(self) -> None:
        """Take one step of the optimiser, on one batch."""
        set_learning_rate(self.optimizer, self._rate_factor(self.state.step))
        numbers = self.stream.batch(self.state.step)
        loss, _ = self._loss([self.pairs[number] for number in numbers])
        self.accelerator.backward(loss)
        self.accelerator.clip_grad_norm_(self.model.parameters(), self.settings.gradient_clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.state.window.append({"loss": loss.detach()})
        self.state.step += 1

    @torch.no_grad()
    def _evaluate(self) -> None:
        """Record the log-likelihood of held-out queries, and keep the weights if it is the best.

        It is the mean over the tokens of all held-out queries, on which the model is not trained.
        Nothing is recorded if there are none.
        """
        batch_size = self.settings.batch_size
        total_loss = 0.0
        token_count = 0
        for start in range(0, len(self.held_out), batch_size):
            mean_loss, batch_tokens = self._loss(self.held_out[start : start + batch_size])
            total_loss += batch_tokens * float(mean_loss)
            token_count += batch_tokens
        if token_count:
            log_likelihood = -total_loss / token_count
            self.state.record_evaluation(METRIC, log_likelihood, self._trained_weights())

    def _loss(self, pairs: Sequence[GeneratorPair]) -> tuple[Tensor, int]:
        """Return the mean cross-entropy of the queries' tokens, and the number of tokens.

        Each token is predicted from the true tokens before it.
        """
        device = self.accelerator.device
        batch = {name: tensor.to(device) for name, tensor in self.tokens.batch(pairs).items()}
        # Token ids of the queries, (B, L).
        labels = batch.pop("labels")
        previous = self.trained.prepare_decoder_input_ids_from_labels(labels)
        # Score of each of the V tokens at each position, (B, L, V).
        logits = self.model(**batch, decoder_input_ids=previous).logits
        loss = torch.nn.functional.cross_entropy(
            logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED
        )
        return loss, int((labels != IGNORED).sum())


def train_generator(context: StageContext) -> dict[str, Any]:
    """Train the model that writes queries, and write `model/` and `history.json`.

    The model learns from the judged training queries of the corpus. Documents lose the lines that
    are such queries first, because a model would otherwise learn to copy them.

    Args:
        context: Context of the stage `query_generator`.

    Returns:
        The number of training pairs, and the best step with its log-likelihood.
    """
    training: GeneratorTrainingSettings = context.settings[TRAINING_GROUP]
    writing: SequenceToSequenceSettings = context.settings[WRITING_GROUP]
    encoder: EncoderSettings = context.settings["encoder"]
    seed: int = context.settings["seed"]

    corpus = strip_query_lines(load_corpus(context.inputs["corpus"]))
    pairs, held_out = generator_pairs(corpus, training.held_out_share, seed)

    model, tokenizer = load_sequence_model(training.base, training.revision)
    require_positions(model, writing.section_tokens, writing.max_query_tokens)
    model = model.to(pick_device(encoder.device))
    pair_tokens = PairTokens(
        tokenizer,
        section_tokens=writing.section_tokens,
        query_tokens=writing.max_query_tokens,
        start_token=model.generation_config.decoder_start_token_id,
    )
    trainer = GeneratorTrainer(
        (model, tokenizer),
        pair_tokens,
        pairs,
        held_out,
        training,
        seed,
        checkpoints=context.checkpoints / "training",
        progress=context.progress("train the generator"),
        precision=encoder.precision,
    )
    state = trainer.fit()

    write_json(context.output / "history.json", state.history)
    save_sequence_model(model, tokenizer, context.output / TRAINED_FOLDER, writing.section_tokens)
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
