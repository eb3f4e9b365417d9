"""Guards the word cache: the bags are exactly what the tokenizer gives, for odd Unicode, long
words, literal special tokens; and a tokenizer that does not work word by word is asked for whole
texts.
"""

from __future__ import annotations

import unicodedata
from functools import cache
from threading import Thread
from typing import Any

import numpy as np
import pytest

from model_code.lexical.token_index.bags import TokenBags, WordCache
from tests.tiny_encoder import make_tokenizer

VOCABULARY = [
    "the quick brown fox jumps over a lazy dog",
    "naïve café résumé",
    "日 本 語",
    "don ' t",
    "∂ µ ß ΣΑΣ - ; = < .",
]
ODD = [
    "",
    " ",
    "\n\t\r\n",
    "The QUICK brown fox.",
    "don't -- [quick] (brown), fox/dog_a lazy@dog.",
    "a\x00b a\x0bb a\x0cb a\x1cb a\x1fb a\x85b a\u2028b a\u3000b a\xa0b a\u200bb a\ufeffb a\xadb",
    "café cafe\u0301 CAFÉ =\u0338 \u0301dog a\u0301\u0327 e\u0327\u0301",
    "\u037e \u1fef ≠ ≮ \u2260dog dog\u226e",
    "ΣΑΣ ὈΔΥΣΣΕΎΣ İstanbul STRAẞE ﬁre Ⅷ ǅ ŉ",
    "日本語のtext 漢字kanji 한국어 \U00020000\U0001f600dog",
    "w" * 100 + " " + "w" * 101 + " " + "fox" * 60,
    "[MASK] the[SEP]fox [mask] [CLS]",
    "x [UNK] [PAD]y",
    "\ud7ff\ue000\ufffd\U0010ffff",
    "\x7f\x80\x9f ¡fox! “quick” … – fox—dog · ¼ ²",
    "##ox ##a # #a",
]


def expected(tokenizer: Any, text: str) -> list[int]:
    """The tokenizer's own way, without special tokens."""
    return [i for i in tokenizer(text)["input_ids"] if i not in tokenizer.all_special_ids]


def check(tokenizer: Any, texts: list[str]) -> None:
    bags = TokenBags(tokenizer)(texts)
    ends = np.cumsum(bags.lengths)
    for text, end, length in zip(texts, ends, bags.lengths, strict=True):
        assert bags.tokens[end - length : end].tolist() == expected(tokenizer, text), repr(text)


@cache
def random_texts() -> list[str]:
    """Words, ASCII, and every kind of Unicode character, thrown together."""
    chance = np.random.default_rng(0)
    kinds: dict[str, list[str]] = {}
    for code in [*range(0xD800), *range(0xE000, 0x11000), *range(0x1F300, 0x1F400)]:
        kinds.setdefault(unicodedata.category(chr(code)), []).append(chr(code))
    pools = [*kinds.values(), *([list(" \n.,-'")] * 15), *([" ".join(VOCABULARY).split()] * 15)]
    picks = [chance.random((chance.integers(40), 2)) for _ in range(300)]
    texts = []
    for pick in picks:
        chosen = [(pools[int(pool * len(pools))], place) for pool, place in pick.tolist()]
        texts.append("".join(pool[int(place * len(pool))] for pool, place in chosen))
    return texts


@pytest.mark.parametrize(
    "options", [{}, {"lowercase": False}, {"clean_text": False}, {"strip_accents": True}]
)
def test_bags_equal_the_bert_tokenizer(
    options: dict[str, bool],
) -> None:
    from tokenizers.normalizers import BertNormalizer

    tokenizer = make_tokenizer(VOCABULARY)
    if options:
        tokenizer.backend_tokenizer.normalizer = BertNormalizer(**options)
    check(tokenizer, ODD + random_texts())


def test_added_tokens_with_and_without_a_space() -> None:
    from tokenizers import AddedToken

    tokenizer = make_tokenizer(VOCABULARY)
    tokenizer.add_tokens(
        [AddedToken("quick brown", normalized=False), AddedToken("fo", normalized=False)]
    )
    check(tokenizer, [*ODD, "a quick brown fox", "fo foo of-fo"])
    tokenizer.add_tokens([AddedToken("LAZY", normalized=True)])
    check(tokenizer, [*ODD, "a lazy Lazy LÁZY dog"])


def test_tokenizer_that_is_not_word_based() -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(letters, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel()
    check(PreTrainedTokenizerFast(tokenizer_object=backend), ODD)
    assert not WordCache.fits(
        {"model": {"type": "BPE"}, "pre_tokenizer": None, "normalizer": None, "added_tokens": []}
    )


def test_words_are_remembered_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model_code.lexical.token_index.bags.MAX_CACHED_WORDS", 5)
    bags = TokenBags(make_tokenizer(VOCABULARY))
    first = bags(ODD)
    for _ in range(2):
        assert bags(ODD).tokens.tolist() == first.tokens.tolist()


def test_truncation_of_the_tokenizer_is_kept() -> None:
    tokenizer = make_tokenizer(VOCABULARY)
    tokenizer.backend_tokenizer.enable_truncation(4)
    assert TokenBags(tokenizer)(["the quick brown fox jumps"]).lengths.tolist() == [5]
    assert tokenizer.backend_tokenizer.truncation["max_length"] == 4


def test_word_too_long_for_wordpiece() -> None:
    check(make_tokenizer(["a" * 100, "b" * 101]), ["a" * 100, "b" * 101, "A" * 100 + " b"])


class SlowTokenizer:
    """A tokenizer during whose first call another thread asks the same cache for tokens."""

    def __init__(self, bags: TokenBags, other_texts: list[str]) -> None:
        self.backend = bags._backend
        self.threads = [Thread(target=bags, args=(other_texts,))]

    def encode_batch_fast(self, texts: list[str], **options: Any) -> Any:
        while self.threads:
            thread = self.threads.pop()
            thread.start()
            # The other thread has to wait, so this wait ends by its limit.
            thread.join(timeout=0.2)
        return self.backend.encode_batch_fast(texts, **options)


def test_threads_share_the_cache():
    tokenizer = make_tokenizer(VOCABULARY)
    bags = TokenBags(tokenizer)
    bags._words._backend = SlowTokenizer(bags, ["lazy résumé jumps"])

    bags(["naïve café"])

    after = bags(["naïve café lazy résumé jumps over a dog"])
    assert after.tokens.tolist() == expected(tokenizer, "naïve café lazy résumé jumps over a dog")
