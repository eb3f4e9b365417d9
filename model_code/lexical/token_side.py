"""The tokens' side of passages: the binary index that beta searches read, made by the encoder's own tokenizer."""

from __future__ import annotations

from collections.abc import Sequence

from model_code.lexical.encoder import LexicalEncoder
from model_code.progress import Progress, silent
from model_code.token_index.bags import TokenBags
from model_code.token_index.index import TokenIndex


def index_tokens(
    encoder: LexicalEncoder, texts: Sequence[str], document_ids: Sequence[str], progress: Progress = silent
) -> TokenIndex:
    """Index the tokens of whole passages, longer ones than the encoder sees included. Nothing is encoded.

    Tokens that may carry no weight are indexed, too: they match nothing, as no query gives them any.
    """
    bags = TokenBags(encoder.tokenizer)
    return TokenIndex.build(bags(texts, progress), document_ids, bags.fingerprint)
