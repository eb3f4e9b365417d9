"""Vectors of the words of a text, of which late interaction compares the signs.

The vector of a word is the sum of the states of its tokens. Tokens without a letter or digit are
left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from os.path import commonprefix
from typing import Any, NamedTuple

import numpy as np

from model_code.encoding.token_signs import pack_signs

# Text of a token that holds only some bytes of a character. The character may be a letter.
REPLACEMENT_CHARACTER = "\ufffd"


class WordVectors(NamedTuple):
    """The vectors (w, D) of a text's words, and the number of tokens of each word (w,)."""

    vectors: np.ndarray
    token_counts: np.ndarray


class TokenRole(NamedTuple):
    """Whether a token has a letter or digit, and whether it starts a word."""

    has_letter: bool
    starts_word: bool


class WordStates:
    """Sums the states of a text's tokens to vectors of its words.

    Args:
        tokenizer: A tokenizer with a `backend_tokenizer`.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        # The roles are kept, because decoding a token takes long.
        self._roles: dict[int, TokenRole] = {}

    def signs(
        self,
        states: np.ndarray,
        token_ids: Sequence[int],
        prompt_ids: Sequence[int],
        repeats_words: bool,
    ) -> np.ndarray:
        """Return the packed signs of the vectors of a text's words.

        Args:
            states: States (t, D) of the text's tokens, and perhaps of padding after them.
            token_ids: Ids of the text's tokens, those of the prompt included.
            prompt_ids: Ids of the prompt alone. Its words have no signs.
            repeats_words: Whether a word with several tokens is repeated once per token.
        """
        # Skip the tokens of the prompt, with which each text begins. The prompt alone has an end
        # token, which the text does not have there.
        start = len(commonprefix([list(prompt_ids), list(token_ids)]))
        words = self.sum_states(states[start:], token_ids[start:])
        word_vectors = words.vectors
        if repeats_words:
            word_vectors = np.repeat(word_vectors, words.token_counts, axis=0)
        return pack_signs(word_vectors)

    def sum_states(self, states: np.ndarray, token_ids: Sequence[int]) -> WordVectors:
        """Return the vector of each word of a text: the sum of the states of its tokens.

        Args:
            states: States (t, D) of a text's tokens, and perhaps of padding after them.
            token_ids: Ids of the tokens.
        """
        roles = [self._role(token_id) for token_id in token_ids]
        has_letter = np.array([role.has_letter for role in roles], bool)
        starts_word = np.array([role.starts_word for role in roles], bool)

        # The tokens that count, by position, and the number of the word that each belongs to.
        tokens = np.flatnonzero(has_letter)
        word_numbers = np.cumsum(starts_word)[tokens]
        # Places in `tokens` at which a new word begins.
        first_tokens = np.flatnonzero(np.diff(word_numbers, prepend=-1))
        vectors = np.add.reduceat(states[tokens], first_tokens, axis=0)
        token_counts = np.diff(first_tokens, append=len(tokens))
        return WordVectors(vectors, token_counts)

    def _role(self, token_id: int) -> TokenRole:
        """Return whether a token has a letter or digit, and whether it starts a word."""
        if token_id not in self._roles:
            backend = self._tokenizer.backend_tokenizer
            text = backend.decode([token_id])
            has_letter = any(
                character.isalnum() or character == REPLACEMENT_CHARACTER for character in text
            )
            # Only WordPiece marks tokens that continue a word. With other tokenizers, each token
            # counts as a word.
            prefix = getattr(backend.model, "continuing_subword_prefix", None)
            continues_word = bool(prefix) and backend.id_to_token(token_id).startswith(prefix)
            self._roles[token_id] = TokenRole(has_letter, not continues_word)
        return self._roles[token_id]
