"""Guards which entries may carry weight: by the text that a token stands for, however its tokenizer writes it."""

from __future__ import annotations

import numpy as np
import pytest

from model_code.encoding.base_models import load_tokenizer, locate
from model_code.lexical.encoder import UNUSED, blocked_tokens

PIECES = ["Ġ,", "Ġs", "Ġ()", ",", "7", "Ġ", "Ã©", "Ã", "âĢĻ"]  # the last three: é, half of it, ’
OPEN = ["Ġs", "7", "Ã©", "Ã"]


def byte_level():
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {piece: number for number, piece in enumerate(["<s>", "<unk>", *PIECES])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", unk_token="<unk>")


@pytest.mark.parametrize(("punctuation", "expected"), [(False, OPEN), (True, PIECES)])
def test_punctuation_of_byte_level_tokens_is_told_from_letters(punctuation: bool, expected: list[str]) -> None:
    tokenizer = byte_level()
    blocked = blocked_tokens(tokenizer, len(tokenizer), punctuation)
    assert sorted(tokenizer.convert_ids_to_tokens(np.flatnonzero(~blocked).tolist())) == sorted(expected)


def test_a_word_piece_vocabulary_is_read_as_it_is_written() -> None:
    tokenizer = load_tokenizer(locate("sentence-transformers/all-MiniLM-L6-v2"))
    names, special = tokenizer.get_vocab(), set(tokenizer.all_special_tokens)
    closed = {name for name in names if not any(letter.isalnum() for letter in name)}
    closed |= special | {name for name in names if UNUSED.fullmatch(name)}
    blocked = blocked_tokens(tokenizer, len(names), punctuation=False)
    assert {name for name, number in names.items() if blocked[number]} == closed
