"""The lexical encoder of SVDR: learned weights E(x) of a text x, and the set of its tokens T(x).

E(x) has a weight for each entry of the tokenizer's vocabulary, also for entries that do not occur
in the text. With features x_t (D) of the text's tokens t, decoder rows e_v (D) and biases b_v, the
weight of vocabulary entry v is

    elu1p( max_t x_t.e_v + b_v )

(Zhou et al., Semi-Parametric Retrieval via Binary Token Index, section 3). The maximum leaves out
padding. The published code includes it, so that a text's weights there depend on the other texts of
its batch.

The features come from one of two heads:

- "mlm": the head of a masked language model. The rows and biases of its decoder are e and b.
- "closed_form", for encoders without such a head. The decoder rows e_v are the word embeddings,
  centred and scaled to unit norm. A ridge regression solves for a matrix W that maps the last
  hidden state h of a token to the decoder row of this token. The logit of entry v at a token is
  scale * cos(W h, e_v) + b_v. b_v starts at idf_v plus a constant, so that rare tokens weigh more.
  An untrained head has no random weights.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.functional import normalize

from model_code.encoding.base_models import (
    Prompts,
    compute_fingerprint,
    load_pretrained,
    load_transformer,
    to_arrays,
    tokenizer_rules,
)
from model_code.encoding.encoder import (
    CPU_BATCH_TOKENS,
    GPU_BATCH_TOKENS,
    WINDOW_TEXTS,
    Features,
    TextModel,
    pad,
)
from model_code.encoding.settings import Precision
from model_code.encoding.word_states import REPLACEMENT_CHARACTER
from model_code.errors import FreshetError
from model_code.lexical.token_index.postings import Sparse
from model_code.progress import Progress, no_progress

UNUSED_TOKEN = re.compile(r"\[unused\d+\]|<unused\d+>|<extra_id_\d+>")
# Vocabulary entries that are scored at a time. The logits of 512 tokens then fit into the cache.
VOCABULARY_BLOCK = 2048


class ClosedFormHead(nn.Module):
    """Maps hidden states h to features scale * W h / |W h|; see the module for "closed_form".

    The decoder rows have unit norm, so that a logit is scale times a cosine.
    """

    def __init__(self, hidden: int, scale: float) -> None:
        """Create the head.

        Args:
            hidden: Width H of the hidden states.
            scale: Norm of the features, and so the largest logit before the bias.
        """
        super().__init__()
        self.transform = nn.Linear(hidden, hidden, bias=False)
        self.scale = scale

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the features of hidden states, both (..., H), in float32 or wider."""
        transformed = self.transform(hidden)
        if transformed.dtype != torch.float64:
            # Normalise in float32: in bfloat16, norms would have less than three correct digits.
            transformed = transformed.float()
        return self.scale * normalize(transformed, dim=-1)


def ridge_transform(pairs: Iterable[tuple[Tensor, Tensor]], ridge: float) -> Tensor:
    """Solve the ridge regression that maps hidden states to decoder rows.

    It minimises sum |W h - e|^2 + penalty |W|^2 over all tokens, in float64.

    Args:
        pairs: Batches of hidden states h, (n, H), and decoder rows e, (n, D), of the same tokens.
        ridge: The penalty, as a share of the mean diagonal entry of the sum of h h^T.

    Returns:
        W, shape (D, H), float64.
    """
    # Sums over all tokens: `gram` of h h^T, (H, H), and `cross` of h e^T, (H, D).
    gram: Tensor | None = None
    cross: Tensor | None = None
    for hidden, rows in pairs:
        hidden = hidden.double()
        batch_gram = hidden.T @ hidden
        batch_cross = hidden.T @ rows.double()
        gram = batch_gram if gram is None else gram + batch_gram
        cross = batch_cross if cross is None else cross + batch_cross

    penalty = ridge * gram.diagonal().mean()
    identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    # The normal equations: (gram + penalty I) W^T = cross.
    return torch.linalg.solve(gram + penalty * identity, cross).T


class ClosedFormBody(nn.Module):
    """A transformer with the closed-form head: maps token ids to features (B, T, H)."""

    def __init__(self, backbone: Any, head: ClosedFormHead) -> None:
        """Combine a transformer with a head that reads its last hidden states."""
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the features of every token: the output of the head for its hidden state."""
        return self.head(self.backbone(input_ids=ids, attention_mask=mask).last_hidden_state)


class MaskedModel(nn.Module):
    """A masked language model without its decoder: maps token ids to features (B, T, D).

    The decoder is the last linear map of the model, from features to logits of the vocabulary. Its
    rows usually are the word embeddings. `LexicalEncoder` applies the decoder itself, because it
    only needs some of the logits.
    """

    def __init__(self, model: Any) -> None:
        """Take the decoder out of `model`.

        Raises:
            FreshetError: If the decoder is not a linear map.
        """
        super().__init__()
        decoder = model.get_output_embeddings()
        if not isinstance(decoder, nn.Linear):
            raise FreshetError(
                f"a {type(model).__name__} has no linear decoder; name another encoder.base"
            )
        # Name of the decoder inside of the model, by which it is replaced.
        self._decoder_name = next(
            name for name, module in model.named_modules() if module is decoder
        )
        self.model = model
        self.set_decoder(nn.Identity())
        # A list hides the decoder's parameters from torch. `LexicalEncoder` registers them.
        self._decoder = [decoder]

    @property
    def decoder(self) -> nn.Linear:
        """The linear map from features to logits, which was taken out of the model."""
        return self._decoder[0]

    @property
    def backbone(self) -> Any:
        """The transformer alone, without the head of the language model."""
        return self.model.base_model

    def set_decoder(self, decoder: nn.Module) -> None:
        """Replace the decoder of the model, for example to save the model with its decoder."""
        self.model.set_submodule(self._decoder_name, decoder)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the features of every token: the decoder's input."""
        return self.model(input_ids=ids, attention_mask=mask).logits


def load_masked_model(folder: Path, max_tokens: int) -> MaskedModel:
    """Load a masked language model in float32 with dropout 0, without its decoder.

    Raises:
        FreshetError: If the checkpoint lacks a part of the head.
    """
    # transformers takes seconds to import.
    from transformers import AutoModelForMaskedLM

    # `load_transformer` checks the number of positions and sets dropout to 0 in the configuration.
    backbone = load_transformer(folder, max_tokens)
    model, missing = load_pretrained(AutoModelForMaskedLM, folder, backbone.config)
    if missing:
        raise FreshetError(
            f"{folder.name} has no whole masked-language-model head ({missing[0]!r} is missing); "
            "name another encoder.base"
        )
    model.original_dropout = backbone.original_dropout
    return MaskedModel(model)


def blocked_tokens(tokenizer: Any, size: int, punctuation: bool) -> np.ndarray:
    """Mark the vocabulary entries that never have a weight.

    These are special and unused tokens, and entries without a token. Tokens without a letter or
    digit are marked as well, unless `punctuation` is true. The decoded text of a token decides, not
    its name, because byte-level tokenizers write "Ġ," for " ,".

    Args:
        tokenizer: A fast tokenizer of transformers.
        size: Number of vocabulary entries.
        punctuation: Whether tokens without letters and digits may have a weight.

    Returns:
        Mask, (size,) bool, true for entries that never have a weight.
    """
    name_of = {number: name for name, number in tokenizer.get_vocab().items()}
    special = set(tokenizer.all_special_ids)
    blocked = np.ones(size, dtype=bool)
    for number in range(size):
        name = name_of.get(number)
        if name is None or number in special or UNUSED_TOKEN.fullmatch(name):
            continue
        text = tokenizer.convert_tokens_to_string([name])
        blocked[number] = not (punctuation or _has_letter_or_digit(text))
    return blocked


def _has_letter_or_digit(text: str) -> bool:
    """Return whether a token's text may be part of a word.

    A token may hold only some bytes of a character, which then decode to a replacement character.
    """
    return any(letter.isalnum() or letter == REPLACEMENT_CHARACTER for letter in text)


def own_tokens(token_ids: Sequence[int], blocked: np.ndarray) -> np.ndarray:
    """Return T(x): the different tokens of a text that may have a weight, ascending int64.

    >>> own_tokens([101, 7, 5, 7, 102], np.isin(np.arange(200), [101, 102])).tolist()
    [5, 7]
    """
    ids = np.unique(np.asarray(token_ids, dtype=np.int64))
    return ids[~blocked[ids]]


def inverse_document_frequencies(bags: Sequence[np.ndarray], size: int) -> np.ndarray:
    """Return the idf of each token v: log((N + 1) / (n_v + 1)), where n_v of N texts contain v.

    The formula gives a token without a text only a slightly larger idf than a token of one text.
    With a much larger idf, query expansion would choose tokens that the corpus never uses.

    Args:
        bags: The different token ids of each text.
        size: Number of tokens.

    Returns:
        Inverse document frequencies, (size,) float32.

    >>> inverse_document_frequencies([np.array([0, 1]), np.array([0])], size=3).round(2).tolist()
    [0.0, 0.41, 1.1]
    """
    tokens = np.concatenate([*bags, np.empty(0, dtype=np.int64)])
    counts = np.bincount(tokens, minlength=size)
    return np.log((len(bags) + 1) / (counts + 1)).astype(np.float32)


def elu1p(logits: Tensor) -> Tensor:
    """Return x + 1 for x >= 0 and e^x for x < 0: a positive, smooth and increasing function.

    >>> elu1p(torch.tensor([-1.0, 0.0, 2.0]))
    tensor([0.3679, 1.0000, 3.0000])
    """
    return torch.nn.functional.elu(logits) + 1


def max_logits(features: Tensor, mask: Tensor, decoder: Tensor, bias: Tensor) -> Tensor:
    """Return the logit of each vocabulary entry v for each text: max_t (x_t.e_v) + b_v.

    The maximum is over the tokens t of the text. It is computed in blocks of the vocabulary, which
    saves memory.

    Args:
        features: Features x of each token, (B, T, D).
        mask: 0 for padding, (B, T).
        decoder: Decoder row e of each vocabulary entry, (V, D).
        bias: Bias b of each vocabulary entry, (V,).

    Returns:
        Logits, (B, V).
    """
    is_padding = (mask == 0).unsqueeze(-1)
    blocks = []
    for start in range(0, len(decoder), VOCABULARY_BLOCK):
        logits = features @ decoder[start : start + VOCABULARY_BLOCK].T
        blocks.append(logits.masked_fill(is_padding, -torch.inf).amax(dim=1))
    return torch.cat(blocks, dim=1) + bias


def max_logits_at(
    features: Tensor, mask: Tensor, decoder: Tensor, bias: Tensor, entries: Tensor
) -> Tensor:
    """Return the `max_logits` of given vocabulary entries of each text, in float32 or wider.

    The backward pass keeps (B, T, k) numbers instead of (B, T, V). Values and gradients equal those
    of the dense computation.

    Args:
        features: Features x of each token, (B, T, D).
        mask: 0 for padding, (B, T).
        decoder: Decoder row e of each vocabulary entry, (V, D).
        bias: Bias b of each vocabulary entry, (V,).
        entries: Vocabulary entries of each text, (B, k) int64.

    Returns:
        Logits, (B, k).
    """
    # Autocast would compute the product in bfloat16, which is not exact enough for logits.
    with torch.autocast(features.device.type, enabled=False):
        if features.dtype != torch.float64:
            features = features.float()
        # Decoder rows of each text's entries, (B, k, D).
        rows = decoder[entries].to(features.dtype)
        logits = torch.bmm(features, rows.transpose(1, 2))
        is_padding = (mask == 0).unsqueeze(-1)
        return logits.masked_fill(is_padding, -torch.inf).amax(dim=1) + bias[entries]


def top_entries(logits: Tensor, blocked: Tensor, k: int, first: Tensor | None = None) -> Tensor:
    """Return the entries of the k largest logits that are not blocked, ascending.

    Args:
        logits: Logits of each text, (B, V).
        blocked: Mask of the entries that are never returned, (V,) bool.
        k: Number of entries per text, at most the number of entries that are not blocked. It is
            not checked, because the check would have to wait for the GPU.
        first: Entries, (B, n) int64, that are chosen before all others unless they are blocked.

    Returns:
        Entries, (B, k) int64.

    >>> blocked = torch.tensor([True, False, False, False])
    >>> top_entries(torch.tensor([[5.0, 1.0, 3.0, 2.0]]), blocked, k=2)
    tensor([[2, 3]])
    """
    if first is not None:
        logits = logits.scatter(1, first, torch.finfo(logits.dtype).max)
    allowed_logits = logits.masked_fill(blocked, -torch.inf)
    entries = allowed_logits.topk(k, dim=1).indices
    return entries.sort(dim=1).values


@dataclass(frozen=True)
class LexicalConfig:
    """Configuration that is saved beside a lexical encoder's weights; see `LexicalSettings`.

    Attributes:
        head: "mlm" or "closed_form"; see the module.
        scale: Norm of the closed-form head's features.
        punctuation: Whether tokens without letters and digits may have a weight.
        index_top_k: Number of largest weights that are kept of an indexed passage.
        query_top_k: Number of largest weights that are kept of a query.
    """

    head: str
    scale: float
    punctuation: bool
    index_top_k: int
    query_top_k: int


class LexicalEncoder(TextModel):
    """Maps texts to positive weights over the V entries of the tokenizer's vocabulary.

    Attributes:
        body: Maps (input_ids, attention_mask) to features (B, T, D). Its `backbone` is the
            transformer alone.
        decoder: Decoder rows, (V, D). The logit of an entry is the product of a feature with its
            row, plus its bias.
        bias: Bias of the logit of each entry, (V,).
        config: Kind of the head, and numbers of weights that are kept.
        blocked: Mask of the entries that never have a weight, (V,) bool.
        open_entries: Number of entries that may have a weight.
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
        """Combine the parts; see the attributes.

        Args:
            body: The transformer with its head.
            decoder: Decoder rows, (V, D).
            bias: Biases, (V,).
            tokenizer: A fast tokenizer of transformers.
            config: Head, and numbers of weights that are kept.
            max_tokens: Number of tokens to which longer texts are cut.
            precision: Number format of matrix products when texts are encoded.
        """
        super().__init__(tokenizer, max_tokens, precision)
        self.body = body
        self.decoder = decoder
        self.bias = bias
        self.config = config
        # A prompt's words would get weights, so a lexical encoder has no prompts.
        self.prompts = Prompts()
        blocked = blocked_tokens(tokenizer, len(decoder), config.punctuation)
        self.register_buffer("blocked", torch.from_numpy(blocked), persistent=False)
        self.open_entries = int((~blocked).sum())

    @property
    def backbone(self) -> Any:
        """The transformer alone, without the head that computes weights."""
        return self.body.backbone

    @property
    def vocabulary_size(self) -> int:
        """Number V of vocabulary entries, including special and unused ones."""
        return len(self.decoder)

    def bags(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the tokens T(x) of each text, as ascending int64 token ids. Texts are not cut."""
        blocked = self.blocked.cpu().numpy()
        bags = []
        for start in range(0, len(texts), WINDOW_TEXTS):
            window = list(texts[start : start + WINDOW_TEXTS])
            for encoding in self._untruncated_tokenizer.encode_batch_fast(window):
                bags.append(own_tokens(encoding.ids, blocked))
        return bags

    @cached_property
    def _untruncated_tokenizer(self) -> Any:
        """A copy of the tokenizer that never truncates.

        `token_ids` sets the truncation of the original, perhaps in another thread.
        """
        return Tokenizer.from_str(tokenizer_rules(self.tokenizer))

    def sparse(self, features: Features, k: int, bag_first: bool = False) -> tuple[Tensor, Tensor]:
        """Return the k largest weights of each text.

        The entries are selected without gradient. Then only their logits are computed with
        gradient. The gradient equals that of the dense computation, but no (B, T, V) tensor is
        kept.

        Args:
            features: Tokenised texts.
            k: Number of weights per text.
            bag_first: Whether the text's own tokens are selected first, even if their weights are
                small. Then they always get a gradient.

        Returns:
            Entries, (B, k) int64, ascending, and weights, (B, k), with gradient.
        """
        tokens, mask = self.token_features(features)
        with torch.no_grad():
            logits = max_logits(tokens, mask, self.decoder, self.bias)
            own_tokens_first = features["input_ids"].to(self.device) if bag_first else None
            # No more weights can be asked for than there are entries that are not blocked.
            k = min(k, self.open_entries)
            entries = top_entries(logits, self.blocked, k, own_tokens_first)
        chosen_logits = max_logits_at(tokens, mask, self.decoder, self.bias, entries)
        return entries, elu1p(chosen_logits)

    def weights_at(self, features: Features, entries: Tensor) -> Tensor:
        """Return the weights at `entries` (B, n) int64 of each text: (B, n), with gradient."""
        tokens, mask = self.token_features(features)
        return elu1p(max_logits_at(tokens, mask, self.decoder, self.bias, entries))

    def binary_bags(self, features: Features) -> Tensor:
        """Return the tokens T(x) of each text as a row of zeros and ones, (B, V) float32.

        Tokens that never have a weight are 0.
        """
        ids = features["input_ids"].to(self.device)
        rows = torch.zeros(len(ids), self.vocabulary_size, device=self.device).scatter(1, ids, 1.0)
        return rows.masked_fill(self.blocked, 0.0)

    def token_features(self, features: Features) -> tuple[Tensor, Tensor]:
        """Return the features of every token, (B, T, D), and the mask of real tokens, (B, T)."""
        ids = features["input_ids"].to(self.device)
        mask = features["attention_mask"].to(self.device)
        return self.body(ids, mask), mask

    def encode(
        self,
        texts: Sequence[str],
        top_k: int | None = None,
        progress: Progress = no_progress,
        even: bool = False,
    ) -> list[Sparse]:
        """Return E(x): the largest weights of each text. Equal calls give equal bytes.

        Args:
            texts: The texts, which are cut to `max_tokens`.
            top_k: Number of weights. None: `index_top_k`.
            progress: Called after each batch.
            even: Whether all texts of a batch have the same length, so that nothing is padded; see
                `Encoder.encode`.

        Returns:
            For each text its ascending vocabulary entries and their weights.
        """
        k = top_k or self.config.index_top_k

        def encode_top(features: Features, _: list[list[int]]) -> list[Sparse]:
            entries, weights = self.sparse(features, k)
            return list(zip(entries.cpu().numpy(), weights.cpu().numpy(), strict=True))

        return self._encode(texts, encode_top, progress, even)

    def encode_queries(self, texts: Sequence[str]) -> list[Sparse]:
        """Return E(q): the `query_top_k` largest weights of each query."""
        return self.encode(texts, self.config.query_top_k, even=True)

    def encode_own(self, texts: Sequence[str]) -> list[Sparse]:
        """Return the weights E(q) of each query's own tokens, without expansion by others."""
        blocked = self.blocked.cpu().numpy()

        def encode_bags(features: Features, ids: list[list[int]]) -> list[Sparse]:
            """Return the tokens that each query of a batch contains, with learned weights."""
            bags = [own_tokens(row, blocked) for row in ids]
            # Pad the lists of tokens to one length, so that one call computes all weights. The
            # padding is cut off again below.
            padded_bags = pad(bags, 0)["input_ids"].to(self.device)
            padded_weights = self.weights_at(features, padded_bags).cpu().numpy()
            results: list[Sparse] = []
            for bag, weights in zip(bags, padded_weights, strict=True):
                results.append((bag, weights[: len(bag)]))
            return results

        return self._encode(texts, encode_bags, no_progress, even=True)

    def _encode(
        self,
        texts: Sequence[str],
        encode_batch: Callable[[Features, list[list[int]]], list[Sparse]],
        progress: Progress,
        even: bool,
    ) -> list[Sparse]:
        """Encode texts in batches, and return the results in the order of the texts.

        Args:
            texts: The texts.
            encode_batch: Returns the weights of each text of a batch from its features and token
                ids.
            progress: Called after each batch.
            even: Whether all texts of a batch have the same length.
        """
        # Batches are not in the order of the texts. So make room first; each batch fills its
        # places.
        no_weights: Sparse = (np.empty(0, np.int64), np.empty(0, np.float32))
        results = [no_weights] * len(texts)

        def store(rows: list[int], features: Features, ids: list[list[int]]) -> None:
            for row, result in zip(rows, encode_batch(features, ids), strict=True):
                results[row] = result

        batch_tokens = CPU_BATCH_TOKENS if self.device.type == "cpu" else GPU_BATCH_TOKENS
        # A batch has half the tokens of a dense encoder's, because its logits need memory as well.
        self.encode_in_batches(texts, store, progress, even, batch_tokens // 2)
        return results

    def fingerprint(self) -> str:
        """Return the SHA-256 of everything that influences a text's weights.

        This is the parameters, the tokenizer, the configuration and `max_tokens`.
        """
        return compute_fingerprint(
            to_arrays(self.state_dict()),
            self.tokenizer,
            f"lexical {self.config}",
            self.max_tokens,
        )
