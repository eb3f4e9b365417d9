"""The lexical encoder: a text as weights over the vocabulary (SVDR's E(x)), and as the set of its
own tokens (T(x)).

With features x_t (D) of a text's real tokens, decoder rows e_v (D) and biases b_v, the weight of
vocabulary entry v is elu1p( max_t x_t.e_v + b_v ) (Zhou et al., Semi-Parametric Retrieval via
Binary Token Index, section 3). Padding takes no part in the maximum: the published code lets it,
and so a text's weights depend on its neighbours in the batch.

Features come from a head, a checkpoint's own, or one solved for in closed form. A masked language
model ends before its decoder, which the lexical encoder applies itself. For encoders without such a
head: (1) Decoder rows e_v are the word embeddings, centred and scaled to unit norm. (2) A matrix W
is the ridge regression of each token's last hidden state onto the decoder row of that token. (3)
The logit of entry v at a token is scale * cos(W h, e_v) + b_v, where b_v starts at idf_v + bias:
rare tokens are worth more, and no token is on at random. Nothing random is left of an untrained
head.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.functional import normalize

from model_code.encoding.base_models import (
    Prompts,
    fingerprint,
    load_pretrained,
    load_transformer,
    tokenizer_rules,
)
from model_code.encoding.encoder import (
    CPU_BATCH_TOKENS,
    GPU_BATCH_TOKENS,
    REPLACEMENT_CHARACTER,
    WINDOW,
    Features,
    TextModel,
    pad,
)
from model_code.encoding.settings import Precision
from model_code.errors import FreshetError
from model_code.lexical.token_index.postings import Sparse
from model_code.progress import Progress, no_progress

UNUSED = re.compile(r"\[unused\d+\]|<unused\d+>|<extra_id_\d+>")
# vocabulary entries scored at once: with 512 tokens a block of logits stays in a core's cache
BLOCK = 2048


class ClosedFormHead(nn.Module):
    """Hidden states (..., H) -> features scale * W h / |W h| (..., H), to be multiplied with unit
    decoder rows.
    """

    def __init__(self, hidden: int, scale: float) -> None:
        super().__init__()
        self.transform = nn.Linear(hidden, hidden, bias=False)
        self.scale = scale

    def forward(self, hidden: Tensor) -> Tensor:
        """The features of hidden states."""
        turned = self.transform(hidden)
        # norms in bfloat16 lose the third digit
        wide = turned if turned.dtype == torch.float64 else turned.float()
        return self.scale * normalize(wide, dim=-1)


def ridge_transform(pairs: Iterable[tuple[Tensor, Tensor]], ridge: float) -> Tensor:
    """The W that minimises sum |W h - e|^2 + penalty |W|^2, in float64: (D, H).

    pairs: hidden states (n, H) and decoder rows (n, D) of the same tokens, part by part. ridge: the
    penalty as a share of the mean square of the hidden states' components, summed over all tokens.
    """
    wide = ((hidden.double(), rows.double()) for hidden, rows in pairs)
    products = zip(*((hidden.T @ hidden, hidden.T @ rows) for hidden, rows in wide), strict=True)
    gram, cross = (reduce(torch.add, parts) for parts in products)  # (H, H), (H, D)
    penalty = ridge * gram.diagonal().mean()
    eye = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    return torch.linalg.solve(gram + penalty * eye, cross).T  # (D, H)


class ClosedFormBody(nn.Module):
    """A transformer and the closed-form head on its last hidden states: token ids -> features (B,
    T, H).
    """

    def __init__(self, backbone: Any, head: ClosedFormHead) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The features of every token."""
        return self.head(self.backbone(input_ids=ids, attention_mask=mask).last_hidden_state)


class MaskedModel(nn.Module):
    """A masked language model that ends before its decoder: token ids -> features (B, T, D).

    The decoder, a linear map to the vocabulary whose rows are mostly the word embeddings, is the
    lexical encoder's.
    """

    def __init__(self, model: Any) -> None:
        """Take `model` apart; FreshetError if its decoder is no linear map."""
        super().__init__()
        decoder = model.get_output_embeddings()
        if not isinstance(decoder, nn.Linear):
            raise FreshetError(
                f"a {type(model).__name__} has no linear decoder; name another encoder.base"
            )
        self._place = next(name for name, module in model.named_modules() if module is decoder)
        self.model = model
        self.put(nn.Identity())
        # in a list: its parameters are registered where the lexical encoder has them
        self._decoder = [decoder]

    @property
    def decoder(self) -> nn.Linear:
        """The linear map that was taken out."""
        return self._decoder[0]

    @property
    def backbone(self) -> Any:
        """The transformer without any head."""
        return self.model.base_model

    def put(self, decoder: nn.Module) -> None:
        """Set what stands in the decoder's place."""
        self.model.set_submodule(self._place, decoder)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The features of every token, those that the decoder multiplies."""
        return self.model(input_ids=ids, attention_mask=mask).logits


def load_masked_model(folder: Path, max_tokens: int) -> MaskedModel:
    """The model in float32 with dropout 0, taken apart. FreshetError if the checkpoint lacks a part
    of the head.
    """
    from transformers import AutoModelForMaskedLM  # late, as in `base_models`

    backbone = load_transformer(folder, max_tokens)  # its config: checked positions, dropout 0
    model, missing = load_pretrained(AutoModelForMaskedLM, folder, backbone.config)
    if missing:
        raise FreshetError(
            f"{folder.name} has no whole masked-language-model head ({missing[0]!r} is missing); name another "
            "encoder.base"
        )
    model.original_dropout = backbone.original_dropout
    return MaskedModel(model)


def blocked_tokens(tokenizer: Any, size: int, punctuation: bool) -> np.ndarray:
    """Which of the `size` vocabulary entries never carry weight: (size,) bool.

    Special and unused tokens, entries without a token, and, unless `punctuation`, tokens with no
    letter or digit in the text that they stand for: byte-level tokenizers write "Ġ," for " ,".
    """
    names = {number: name for name, number in tokenizer.get_vocab().items()}
    special = set(tokenizer.all_special_ids)
    blocked = np.ones(size, dtype=bool)
    for number in range(size):
        name = names.get(number)
        if name is None or number in special or UNUSED.fullmatch(name):
            continue
        text = tokenizer.convert_tokens_to_string([name])
        blocked[number] = not (
            punctuation
            or any(letter.isalnum() or letter == REPLACEMENT_CHARACTER for letter in text)
        )
    return blocked


def own_tokens(token_ids: Sequence[int], blocked: np.ndarray) -> np.ndarray:
    """T(x): the different tokens of a text that may carry weight, ascending int64.

    >>> own_tokens([101, 7, 5, 7, 102], np.isin(np.arange(200), [101, 102])).tolist()
    [5, 7]
    """
    ids = np.unique(np.asarray(token_ids, dtype=np.int64))
    return ids[~blocked[ids]]


def inverse_document_frequencies(bags: Sequence[np.ndarray], size: int) -> np.ndarray:
    """log( (N + 1) / (n_v + 1) ) for each of `size` tokens, in n_v of the N bags: (size,) float32.

    A token of no bag is held to be little rarer than one of a single bag: with a larger idf,
    vocabulary that the corpus never uses fills the places of query expansion.

    >>> inverse_document_frequencies([np.array([0, 1]), np.array([0])], size=3).round(2).tolist()
    [0.0, 0.41, 1.1]
    """
    counts = np.bincount(np.concatenate([*bags, np.empty(0, dtype=np.int64)]), minlength=size)
    return np.log((len(bags) + 1) / (counts + 1)).astype(np.float32)


def elu1p(logits: Tensor) -> Tensor:
    """X + 1 from 0 on, e^x below: positive, smooth and increasing.

    >>> elu1p(torch.tensor([-1.0, 0.0, 2.0]))
    tensor([0.3679, 1.0000, 3.0000])
    """
    return torch.nn.functional.elu(logits) + 1


def best_logits(features: Tensor, mask: Tensor, decoder: Tensor, bias: Tensor) -> Tensor:
    """max_t x_t.e_v + b_v over each text's real tokens: (B, V), from blocks of the vocabulary.

    features: (B, T, D); mask: (B, T), 0 for padding; decoder: (V, D); bias: (V,).
    """
    padding = (mask == 0).unsqueeze(-1)
    blocks = [
        (features @ decoder[start : start + BLOCK].T).masked_fill(padding, -torch.inf).amax(dim=1)
        for start in range(0, len(decoder), BLOCK)
    ]
    return torch.cat(blocks, dim=1) + bias


def chosen_logits(
    features: Tensor, mask: Tensor, decoder: Tensor, bias: Tensor, chosen: Tensor
) -> Tensor:
    """`best_logits` at the entries `chosen` (B, k) of each text only: (B, k), in float32 or wider.

    What the backward pass keeps is (B, T, k), not (B, T, V); values and gradients are those of the
    dense path.
    """
    with torch.autocast(features.device.type, enabled=False):
        wide = features if features.dtype == torch.float64 else features.float()
        logits = torch.bmm(wide, decoder[chosen].to(wide.dtype).transpose(1, 2))  # (B, T, k)
        return logits.masked_fill((mask == 0).unsqueeze(-1), -torch.inf).amax(dim=1) + bias[chosen]


def largest(logits: Tensor, blocked: Tensor, k: int, first: Tensor | None = None) -> Tensor:
    """The entries of the k largest logits (B, V) that are not `blocked` (V,) bool, ascending: (B,
    k) int64.

    k: at most as many as are not blocked; they are not counted here, as a GPU would have to be
    waited for. first: (B, n) int64, entries that come before all others unless they are blocked.

    >>> largest(torch.tensor([[5.0, 1.0, 3.0, 2.0]]), torch.tensor([True, False, False, False]), k=2)
    tensor([[2, 3]])
    """
    if first is not None:
        logits = logits.scatter(1, first, torch.finfo(logits.dtype).max)
    return logits.masked_fill(blocked, -torch.inf).topk(k, dim=1).indices.sort(dim=1).values


@dataclass(frozen=True)
class LexicalConfig:
    """What a saved lexical encoder says of itself, beside its weights; see `LexicalSettings` for
    the meanings.
    """

    head: str  # "mlm" or "closed_form"
    scale: float
    punctuation: bool
    index_top_k: int
    query_top_k: int


class LexicalEncoder(TextModel):
    """Map texts, cut to `max_tokens` tokens, to positive weights over the V entries of the
    tokenizer's vocabulary.

    body: (input_ids, attention_mask) -> features (B, T, D) of the tokens; its `backbone` is the
    transformer alone. decoder, bias: (V, D) and (V,), so that features times decoder rows plus bias
    are logits.
    """

    def __init__(
        self,
        body: Any,
        decoder: nn.Parameter,
        bias: nn.Parameter,
        tokenizer: Any,
        config: LexicalConfig,
        max_tokens: int,
        precision: Precision = "auto",
    ) -> None:
        super().__init__(tokenizer, max_tokens, precision)
        self.body, self.decoder, self.bias, self.config = body, decoder, bias, config
        self.prompts = Prompts()  # none: it reads words
        blocked = blocked_tokens(tokenizer, len(decoder), config.punctuation)
        self.register_buffer("blocked", torch.from_numpy(blocked), persistent=False)
        self.open_entries = int((~blocked).sum())

    @property
    def backbone(self) -> Any:
        """The transformer without any head."""
        return self.body.backbone

    @property
    def vocabulary_size(self) -> int:
        """V, special and unused entries included."""
        return len(self.decoder)

    def bags(self, texts: Sequence[str]) -> list[np.ndarray]:
        """T(x) of each whole text, not cut: its different tokens that may carry weight, ascending
        int64.
        """
        blocked, bags = self.blocked.cpu().numpy(), []
        for start in range(0, len(texts), WINDOW):
            encodings = self._uncut.encode_batch_fast(list(texts[start : start + WINDOW]))
            bags += [own_tokens(encoding.ids, blocked) for encoding in encodings]
        return bags

    @cached_property
    def _uncut(self) -> Any:
        """The tokenizer without truncation, as one of its own: `token_ids` sets it, maybe in
        another thread.
        """
        return Tokenizer.from_str(tokenizer_rules(self.tokenizer))

    def sparse(self, features: Features, k: int, bag_first: bool = False) -> tuple[Tensor, Tensor]:
        """The k largest weights of each text: entries (B, k) int64 ascending, and weights (B, k)
        with gradient.

        Which entries they are is found without gradient; only their logits are then computed with
        it. So the gradient is that of the dense path, and no (B, T, V) tensor is kept. bag_first:
        the text's own tokens come before all others, however light, so that they always learn.
        """
        tokens, mask = self._features(features)
        with torch.no_grad():
            logits = best_logits(tokens, mask, self.decoder, self.bias)
            first = features["input_ids"].to(self.device) if bag_first else None
            chosen = largest(logits, self.blocked, min(k, self.open_entries), first)
        return chosen, elu1p(chosen_logits(tokens, mask, self.decoder, self.bias, chosen))

    def at(self, features: Features, entries: Tensor) -> Tensor:
        """The weights at `entries` (B, n) int64 of each text: (B, n), with gradient."""
        tokens, mask = self._features(features)
        return elu1p(chosen_logits(tokens, mask, self.decoder, self.bias, entries))

    def binary_bags(self, features: Features) -> Tensor:
        """T(x): 1 at the tokens of each text that may carry weight, 0 elsewhere: (B, V) float32."""
        ids = features["input_ids"].to(self.device)
        rows = torch.zeros(len(ids), self.vocabulary_size, device=self.device).scatter(1, ids, 1.0)
        return rows.masked_fill(self.blocked, 0.0)

    def _features(self, features: Features) -> tuple[Tensor, Tensor]:
        ids, mask = (features[name].to(self.device) for name in ("input_ids", "attention_mask"))
        return self.body(ids, mask), mask

    def encode(
        self,
        texts: Sequence[str],
        top_k: int | None = None,
        progress: Progress = no_progress,
        even: bool = False,
    ) -> list[Sparse]:
        """E(x), the `top_k` (None: `index_top_k`) largest weights of each text; equal texts give
        equal bytes.

        even: without padding, see `Encoder.encode`.
        """
        k = top_k or self.config.index_top_k

        def top(features: Features, _: list[list[int]]) -> list[Sparse]:
            entries, weights = (part.cpu().numpy() for part in self.sparse(features, k))
            return list(zip(entries, weights, strict=True))

        return self._encode(texts, top, progress, even)

    def encode_queries(self, texts: Sequence[str]) -> list[Sparse]:
        """E(q): the `query_top_k` largest weights of each query."""
        return self.encode(texts, self.config.query_top_k, even=True)

    def encode_own(self, texts: Sequence[str]) -> list[Sparse]:
        """E(q) at the tokens of the query itself, and nowhere else: learned term weights without
        expansion.
        """
        blocked = self.blocked.cpu().numpy()

        def encode_bags(features: Features, ids: list[list[int]]) -> list[Sparse]:
            bags = [own_tokens(row, blocked) for row in ids]
            entries = pad(bags, 0)["input_ids"].to(self.device)
            weights = self.at(features, entries).cpu().numpy()
            return [(bag, row[: len(bag)]) for bag, row in zip(bags, weights, strict=True)]

        return self._encode(texts, encode_bags, no_progress, even=True)

    def _encode(
        self,
        texts: Sequence[str],
        read: Callable[[Features, list[list[int]]], list[Sparse]],
        progress: Progress,
        even: bool,
    ) -> list[Sparse]:
        results: list[Sparse] = [(np.empty(0, np.int64), np.empty(0, np.float32))] * len(texts)

        def store(rows: list[int], features: Features, ids: list[list[int]]) -> None:
            for row, result in zip(rows, read(features, ids), strict=True):
                results[row] = result

        most = CPU_BATCH_TOKENS if self.device.type == "cpu" else GPU_BATCH_TOKENS
        self.encode_in_batches(texts, store, progress, even, most // 2)
        return results

    def fingerprint(self) -> str:
        """SHA-256 of what decides a text's weights: parameters, tokenizer, head, `max_tokens`, how
        many are kept.
        """
        return fingerprint(
            self.state_dict(), self.tokenizer, f"lexical {self.config}", self.max_tokens
        )
