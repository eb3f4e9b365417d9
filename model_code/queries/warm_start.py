"""An encoder-decoder made from the base encoder, for machines that cannot fetch a sequence-to-sequence model.

Both sides start from the encoder's weights (Rothe et al., 2020, "BERT2BERT"): the decoder's self-attention sees only
what is to its left, its cross-attention is new, and its output layer shares the word embeddings. It has never written a
word when training begins, so it needs more pairs and steps than a model from the hub.
"""

from __future__ import annotations

from pathlib import Path

import torch

from model_code.encoding.base_models import load_tokenizer, locate, quiet
from model_code.encoding.layout import read_layout
from model_code.errors import FreshetError
from model_code.queries.sequence_models import Loaded


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
