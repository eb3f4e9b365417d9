"""Make a query generator for one corpus: start from a model, train it, and see how its queries do in search.

Where no sequence-to-sequence model can be fetched, `warm_start` makes one from the base encoder: both sides start from
its weights (Rothe et al., 2020, "BERT2BERT"), the decoder's self-attention sees only what is to its left, its
cross-attention is new, and its output layer shares the word embeddings. It has never written a word when training
begins, so it needs more pairs and steps than a model from the hub.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from model_code.context import StageContext
from model_code.corpus.tables import Corpus, judged_corpus, load_corpus
from model_code.encoding.base_models import load_tokenizer, locate, quiet
from model_code.encoding.hardware import pick_device
from model_code.encoding.layout import read_layout
from model_code.errors import FreshetError
from model_code.files import hash_text, write_json
from model_code.queries.filtering import make_search, shares_found, source_ranks
from model_code.queries.generator_training import METRIC, GeneratorPair, GeneratorTrainer, PairTokens, generator_pairs
from model_code.queries.generators import TRAINED_FOLDER
from model_code.queries.pseudo_queries import PseudoQuery
from model_code.queries.sequence_to_sequence import (
    Loaded,
    SequenceToSequence,
    load_sequence_model,
    require_positions,
    save_sequence_model,
)
from model_code.queries.settings import TRAINING_GROUP, WARM_START, WRITING_GROUP, GeneratorTrainingSettings


def warm_start(source: str | Path, seed: int) -> Loaded:
    """Model and tokenizer from the encoder `source` (see `locate`); equal arguments give equal weights, in float32.

    Raises FreshetError if the encoder's architecture cannot decode, or its tokenizer has no marks of begin and end.
    """
    from transformers import EncoderDecoderModel

    folder = read_layout(locate(source)).transformer
    tokenizer = load_tokenizer(folder)
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model = EncoderDecoderModel.from_encoder_decoder_pretrained(folder, folder)
        except ValueError as error:
            reason = str(error).strip().splitlines()[0]
            raise FreshetError(
                f"encoder {str(source)!r} cannot be made a decoder ({reason}); set pseudo_queries.training.base to a "
                "sequence-to-sequence model, or encoder.base to a BERT-like encoder"
            ) from error
    marks = {"decoder_start_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}
    marks["pad_token_id"] = tokenizer.pad_token_id
    missing = [name for name, token in marks.items() if token is None]
    if missing:
        raise FreshetError(f"the tokenizer of encoder {str(source)!r} has no {missing[0]}, which a decoder needs")
    for name, token in marks.items():
        setattr(model.config, name, token)
        setattr(model.generation_config, name, token)
    return model.float().eval(), tokenizer


Pairs = Sequence[GeneratorPair]


def train_generator(context: StageContext) -> dict[str, Any]:
    """Write `model/` and `history.json`; report what it learned from, which step was best, and its round trips."""
    training: GeneratorTrainingSettings = context.settings[TRAINING_GROUP]
    corpus = judged_corpus(load_corpus(context.inputs["corpus"]))
    pairs, held_out = generator_pairs(corpus, training.held_out_share, context.settings["seed"])
    loaded = _start(context)
    report = _train(context, loaded, pairs, held_out)
    save_sequence_model(*loaded, context.output / TRAINED_FOLDER, context.settings[WRITING_GROUP].section_tokens)
    return {"base": training.base} | report | _round_trips(context, corpus, loaded, held_out)


def _start(context: StageContext) -> Loaded:
    """The model to start from, on the device that the encoder's settings choose."""
    training, encoder = context.settings[TRAINING_GROUP], context.settings["encoder"]
    if training.base == WARM_START:
        model, tokenizer = warm_start(encoder.base, context.settings["seed"])
    else:
        model, tokenizer = load_sequence_model(training.base, training.revision)
    written = context.settings[WRITING_GROUP]
    require_positions(model, written.section_tokens, written.max_query_tokens)
    return model.to(pick_device(encoder.device)), tokenizer


def _train(context: StageContext, loaded: Loaded, pairs: Pairs, held_out: Pairs) -> dict[str, Any]:
    written, (model, tokenizer) = context.settings[WRITING_GROUP], loaded
    start_token = model.generation_config.decoder_start_token_id
    trainer = GeneratorTrainer(
        loaded,
        PairTokens(tokenizer, written.section_tokens, written.max_query_tokens, start_token),
        pairs,
        held_out,
        context.settings[TRAINING_GROUP],
        context.settings["seed"],
        context.checkpoints / "training",
        context.progress("train the generator"),
        context.settings["encoder"].precision,
    )
    result = trainer.fit()
    write_json(context.output / "history.json", list(result.history))
    return {
        "pairs": len(pairs),
        "held_out_pairs": len(held_out),
        f"start_{METRIC}": result.history[0].get(METRIC),
        f"best_{METRIC}": result.best_metric,
        "best_step": result.best_step,
        "steps": result.steps,
        "trained_parameters": result.trained_parameters,
    }


def _round_trips(context: StageContext, corpus: Corpus, loaded: Loaded, held_out: Pairs) -> dict[str, Any]:
    """How often BM25 and the base encoder find the document of a written query and, to compare, of a natural one.

    Of each document one query is searched for; none of these documents was trained on.
    """
    training: GeneratorTrainingSettings = context.settings[TRAINING_GROUP]
    depth, most = training.round_trip_depth, training.round_trip_documents
    chosen = _first_of_each(held_out)[:most]
    generator = SequenceToSequence(*loaded, context.settings[WRITING_GROUP].replace(per_document=1))
    written = generator.generate(
        {pair.document_id: pair.document for pair in chosen},
        context.settings["seed"],
        context.checkpoints / "written",
        context.progress("write queries"),
    )
    kinds = {"written": written, "natural": [PseudoQuery(pair.document_id, pair.query, "natural") for pair in chosen]}
    report: dict[str, Any] = {"round_trip_documents": len(chosen)}
    for by in ("bm25", "base") if chosen else ():
        search = make_search(
            by, corpus, context.settings["encoder"], context.checkpoints / "vectors", context.progress("encode")
        )
        ranks = {kind: source_ranks(queries, search, depth) for kind, queries in kinds.items()}
        report[f"round_trip_{by}"] = {kind: shares_found(ranks_of_kind, depth) for kind, ranks_of_kind in ranks.items()}
    return report


def _first_of_each(pairs: Pairs) -> list[GeneratorPair]:
    """The first pair of each document, in the order of a hash of its id: a fixed sample, whatever else is there."""
    first = {pair.document_id: pair for pair in reversed(pairs)}
    return sorted(first.values(), key=lambda pair: hash_text(pair.document_id))
