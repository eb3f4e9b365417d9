"""A text encoder: transformer, pooling, projections if the model has them, and L2 normalisation.

One class serves zero-shot use, training (it is an ordinary `torch.nn.Module`) and search. It reads
and writes the sentence-transformers layout, so that `SentenceTransformer(folder)` gives the same
vectors.

Queries are always encoded by the last layer; documents are too, unless `layers` is set (MLR). Token
sequences are sorted by length and cut into parts of about equal cost, so that hardly anything is
padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from os.path import commonprefix
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from model_code.encoding.base_models import (
    MULTI_VECTOR,
    Layout,
    Prompts,
    fingerprint,
    load_projection,
    load_tokenizer,
    load_transformer,
    locate_model,
    read_layout,
    save_projection,
    save_tokenizer,
    save_transformer,
    write_layout,
)
from model_code.encoding.bert import Bert, PlainTokenizer, load_plain_bert
from model_code.encoding.hardware import (
    pack_linear_layers,
    pick_device,
    select_packing,
    uses_bfloat16,
)
from model_code.encoding.settings import EncoderSettings, Pooling, Precision
from model_code.encoding.token_signs import TokenSigns, pack_signs
from model_code.errors import FreshetError
from model_code.progress import Progress, no_progress

Features = dict[str, Tensor]
WINDOW = 8192  # texts tokenised and sorted by length at once: bounds memory on large corpora
CPU_BATCH_TOKENS, GPU_BATCH_TOKENS = (
    1024,
    65536,
)  # activations of so many stay in a CPU's cache (faster than 4096), and fill a GPU
CUT = {"direction": "right", "strategy": "longest_first", "stride": 0}
REPLACEMENT_CHARACTER = (
    "\ufffd"  # what is decoded from some bytes of a character, which may be a letter
)
# of so few texts, unlike in length, smaller batches take a fifth less of a CPU
FEW, FEW_TOKENS = 64, 256
Forward = Callable[[Features], torch.Tensor]
WithTokens = tuple[np.ndarray, TokenSigns]
"""Unit vectors (n, H) float32 of n texts, and the signs of their tokens' vectors."""
Read = Callable[[list[int], Features, list[list[int]]], None]


def token_batches(
    lengths: Sequence[int], batch_tokens: int, even: bool = False
) -> Iterator[list[int]]:
    """Yield lists of row numbers, longest rows first; rows x longest row <= `batch_tokens`, but one
    row at least.

    even: no list has rows of two lengths, so that nothing is padded.

    >>> list(token_batches([2, 5, 3, 2], batch_tokens=6)), list(token_batches([2, 5, 3, 2], batch_tokens=6, even=True))
    ([[1], [2, 0], [3]], [[1], [2], [0, 3]])
    """
    order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    start = 0
    while start < len(order):
        longest = lengths[order[start]]
        rows = order[start : start + max(1, batch_tokens // max(1, longest))]
        if even:
            rows = [row for row in rows if lengths[row] == longest]
        yield rows
        start += len(rows)


def pad(sequences: Sequence[Sequence[int]], padding: int) -> dict[str, Tensor]:
    """Right-pad token ids to the longest: `input_ids` and `attention_mask`, both (B, T) int64.

    >>> pad([[5, 6], [7]], padding=0)["input_ids"].tolist()
    [[5, 6], [7, 0]]
    """
    longest = max(map(len, sequences), default=0)
    ids = torch.tensor(
        [[*row, *[padding] * (longest - len(row))] for row in sequences], dtype=torch.int64
    )
    lengths = torch.tensor([len(row) for row in sequences])
    mask = (torch.arange(longest) < lengths[:, None]).long()
    return {"input_ids": ids.reshape(len(sequences), longest), "attention_mask": mask}


class LengthBuckets(NamedTuple):
    """n tokenised texts as a few padded parts; `rows` (n,): where each text's vector is once the
    parts are encoded.
    """

    parts: list[Features]
    rows: Tensor


def bucket_by_length(features: Features, batch_tokens: int) -> LengthBuckets:
    """Split padded features into parts of at most `batch_tokens` tokens, padding included, of texts
    of like length.

    >>> mask = torch.tensor([[1, 0, 0], [1, 1, 1], [1, 1, 0]])
    >>> buckets = bucket_by_length({"attention_mask": mask}, batch_tokens=4)
    >>> [part["attention_mask"].tolist() for part in buckets.parts], buckets.rows.tolist()
    ([[[1, 1, 1]], [[1, 1], [1, 0]]], [2, 0, 1])
    """
    lengths = features["attention_mask"].sum(dim=1).tolist()
    groups = list(token_batches(lengths, batch_tokens))
    parts = [
        {name: value[group, : lengths[group[0]]] for name, value in features.items()}
        for group in groups
    ]
    return LengthBuckets(parts, torch.tensor([row for group in groups for row in group]).argsort())


def encode(encoder: Forward, texts: LengthBuckets) -> Tensor:
    """The vectors (n, H) of the texts, in their own order."""
    return torch.cat([encoder(part) for part in texts.parts])[texts.rows]


class TextModel(torch.nn.Module):
    """A model with its fast tokenizer: texts are cut to `max_tokens` tokens, and go through it in
    batches.
    """

    def __init__(self, tokenizer: Any, max_tokens: int, precision: Precision) -> None:
        super().__init__()
        self.tokenizer, self.max_tokens, self.precision = tokenizer, max_tokens, precision

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    def tokenize(self, texts: Sequence[str], max_tokens: int | None = None) -> Features:
        """`input_ids` and `attention_mask`, (B, T) int64 on the CPU, padded to the longest text of
        the batch.

        max_tokens: cut texts here rather than at `self.max_tokens`.
        """
        return pad(self.token_ids(texts, max_tokens), self.tokenizer.pad_token_id or 0)

    def token_ids(self, texts: Sequence[str], max_tokens: int | None = None) -> list[list[int]]:
        """The token ids of each text, special ones included.

        The tokenizer is told only what it does not do yet: telling it waits for whoever tokenises,
        with all threads.
        """
        backend, cut = (
            self.tokenizer.backend_tokenizer,
            CUT | {"max_length": max_tokens or self.max_tokens},
        )
        if backend.padding is not None:
            backend.no_padding()
        if backend.truncation != cut:
            backend.enable_truncation(**cut)
        return [encoding.ids for encoding in backend.encode_batch_fast(list(texts))]

    def encode_in_batches(
        self,
        texts: Sequence[str],
        read: Read,
        progress: Progress,
        even: bool,
        batch_tokens: int | None = None,
    ) -> None:
        """Have `read` encode the texts: rows, features and token ids of batches of like length,
        window after window.

        even: nothing is padded; batch_tokens: of a batch, padding included, None: as the device
        likes it. Nothing learns meanwhile.
        """
        if batch_tokens is None:
            few = FEW_TOKENS if len(texts) <= FEW else CPU_BATCH_TOKENS
            batch_tokens = few if self.device.type == "cpu" else GPU_BATCH_TOKENS
        training, done = self.training, 0
        # asked first, as telling every module costs a single query a tenth of its time
        if training:
            self.eval()
        bfloat16 = uses_bfloat16(self.precision, self.device)
        with torch.no_grad(), torch.autocast(self.device.type, torch.bfloat16, enabled=bfloat16):
            for start in range(0, len(texts), WINDOW):
                ids = self.token_ids(texts[start : start + WINDOW])
                for group in token_batches([len(row) for row in ids], batch_tokens, even):
                    batch = [ids[row] for row in group]
                    read(
                        [start + row for row in group],
                        pad(batch, self.tokenizer.pad_token_id or 0),
                        batch,
                    )
                    done += len(group)
                    progress(done, len(texts), "texts")
        if training:
            self.train()


class Encoder(TextModel):
    """Map texts to unit vectors of `dimension` numbers; texts are cut to `max_tokens` tokens.

    backbone: the transformers model, dropout off.  tokenizer: its fast tokenizer.  pooling: "mean"
    or "cls". layers: the numbers of those that documents are indexed by, if that is not the last
    one alone. prompts: what stands before queries and documents.
    """

    def __init__(
        self,
        backbone: Any,
        tokenizer: Any,
        pooling: Pooling,
        max_tokens: int,
        precision: Precision = "auto",
        projections: Sequence[torch.nn.Sequential] = (),
    ) -> None:
        super().__init__(tokenizer, max_tokens, precision)
        self.backbone, self.pooling = backbone, pooling
        self.projections = torch.nn.ModuleList(projections)
        self.layers: tuple[int, ...] = ()
        self.prompts = Prompts()
        self._pieces: dict[int, tuple[bool, bool]] = {}
        self.dimension: int = (
            projections[-1][0].out_features if projections else backbone.config.hidden_size
        )

    @classmethod
    def load(
        cls,
        source: str | Path,
        max_tokens: int | None = None,
        pooling: Pooling | None = None,
        precision: Precision = "auto",
        device: str = "auto",
        for_search: bool = False,
    ) -> Encoder:
        """Load a folder in the sentence-transformers layout, a plain transformers folder, or a hub
        name.

        max_tokens, pooling: None takes the folder's own; where it states none, 512 or the
        tokenizer's limit, and mean. for_search: the encoder is not to be trained, so a BERT is
        loaded without transformers, to the same bits, and products are those of `hardware.pack`
        where `precision` and the CPU allow it. Weights are float32 whatever the file has. Raises
        FreshetError if the model is not to be had, is no dense text encoder, or has fewer than
        `max_tokens` positions.
        """
        folder = locate_model(source)
        layout = read_layout(folder)
        stated = max_tokens or layout.max_tokens
        plain = (
            load_plain_bert(layout.transformer, stated)
            if for_search and stated is not None
            else None
        )
        tokenizer = (
            PlainTokenizer(layout.transformer) if plain else load_tokenizer(layout.transformer)
        )
        limit = stated or min(512, tokenizer.model_max_length)
        backbone = plain or load_transformer(layout.transformer, limit)
        projections = [load_projection(folder) for folder in layout.projections]
        encoder = cls(
            backbone, tokenizer, pooling or layout.pooling or "mean", limit, precision, projections
        )
        encoder.layers, encoder.prompts = layout.layers, layout.prompts
        backbone.config.output_hidden_states = False  # which queries do not need
        encoder.to(pick_device(device)).eval()
        if for_search and (kind := select_packing(precision, encoder.device)):
            pack_linear_layers(backbone, kind)
        return encoder

    @classmethod
    def from_settings(
        cls, settings: EncoderSettings, source: Path | None = None, for_search: bool = False
    ) -> Encoder:
        """Load `source` (default: the settings' base) as `settings` say; for_search: see `load`.

        A trained encoder's folder states its own pooling and prompts: those of the settings are the
        base's.
        """
        folder, pooling = (settings.base, settings.pooling) if source is None else (source, None)
        encoder = cls.load(
            folder, settings.max_tokens, pooling, settings.precision, settings.device, for_search
        )
        if source is None:
            stated = {
                side: prompt
                for side, prompt in dict(settings.prompts).items()
                if prompt is not None
            }
            encoder.prompts = replace(encoder.prompts, **stated)
        return encoder

    @property
    def depth(self) -> int:
        """Number of the last layer, that is of layers; 0 is the embeddings'."""
        return self.backbone.config.num_hidden_layers

    @property
    def vectors_per_passage(self) -> int:
        """Number of vectors that a passage is indexed by."""
        return len(self.layers) or 1

    def forward(self, features: Features) -> torch.Tensor:
        """Unit vectors (B, H) of the `features` that `tokenize` gives; differentiable, float32
        under autocast too.
        """
        return self._finish(self._pool(*self._states(features)))

    def _states(self, features: Features) -> tuple[Tensor, Tensor]:
        """The last layer's states (B, T, width of the transformer), float32, and which of them are
        tokens' (B, T).
        """
        ids, mask = (
            features["input_ids"].to(self.device),
            features["attention_mask"].to(self.device),
        )
        return self.backbone(input_ids=ids, attention_mask=mask).last_hidden_state.float(), mask

    def layers_forward(self, features: Features, numbers: Sequence[int]) -> torch.Tensor:
        """Unit vectors (B, m, H), one per layer in `numbers`, each pooled and normalised as
        `forward` does the last.

        Each by its own norm: inner layers of T5 are residual streams, and the largest would win
        every comparison. Projections serve every layer, as an unprojected vector would lie in
        another space than the query; and as they may bend (bias, activation), each layer comes to
        them at the last one's norm, which they were made for. FreshetError if there is no such
        layer.
        """
        if not len(self.projections):
            return self._finish(self.pooled_layers(features, numbers))
        *inner, last = self.pooled_layers(features, [*numbers, self.depth]).unbind(dim=1)
        norms = last.norm(dim=-1, keepdim=True)
        levelled = [norms * torch.nn.functional.normalize(pooled, dim=-1) for pooled in inner]
        return self._finish(torch.stack(levelled, dim=1))

    def pooled_layers(self, features: Features, numbers: Sequence[int]) -> torch.Tensor:
        """The layers' pooled vectors (B, m, width of the transformer) as they come, float32."""
        unknown = [number for number in numbers if not 0 <= number <= self.depth]
        if unknown:
            raise FreshetError(
                f"there is no layer {unknown[0]}; this encoder has 0 (the embeddings) to {self.depth}"
            )
        ids, mask = (
            features["input_ids"].to(self.device),
            features["attention_mask"].to(self.device),
        )
        # `Bert` always has them
        options = {} if isinstance(self.backbone, Bert) else {"output_hidden_states": True}
        output = self.backbone(input_ids=ids, attention_mask=mask, **options)
        # T5's last: through a final norm
        states = (*output.hidden_states[: self.depth], output.last_hidden_state)
        return torch.stack([self._pool(states[number].float(), mask) for number in numbers], dim=1)

    def _finish(self, vectors: torch.Tensor) -> torch.Tensor:
        for projection in self.projections:
            vectors = projection(vectors)
        return torch.nn.functional.normalize(vectors.float(), dim=-1)

    def _pool(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if self.pooling == "cls":
            return tokens[:, 0]
        weights = mask.unsqueeze(-1).to(tokens.dtype)  # (B, T, 1)
        return (tokens * weights).sum(1) / weights.sum(1).clamp(min=1e-9)

    def encode(self, texts: Sequence[str], progress: Progress = no_progress) -> np.ndarray:
        """Unit vectors (n, H) float32 of queries, row i for text i. The same texts in the same
        order give equal bytes.

        Texts of one length share a batch, as padding would move a query's vector, in bfloat16 by
        thousandths. What is left of those beside it is the rounding of a larger product: nothing in
        bfloat16, last bits in float32.
        """
        return self._encode(self, self.prompts.to_queries(texts), 1, progress, even=True)

    def encode_documents(
        self, texts: Sequence[str], progress: Progress = no_progress
    ) -> np.ndarray:
        """Unit vectors (n * v, H) float32 of documents, v = `vectors_per_passage` rows for each
        text; see `encode`.

        Of several rows, which follow the numbers of their layers, the last is the last layer's.
        """
        forward = partial(self.layers_forward, numbers=self.layers) if self.layers else self
        return self._encode(
            forward, self.prompts.to_documents(texts), self.vectors_per_passage, progress
        )

    def encode_passages(self, texts: Sequence[str], progress: Progress = no_progress) -> np.ndarray:
        """One vector (n, H) float32 of each document: that of the last layer."""
        return self._encode(self, self.prompts.to_documents(texts), 1, progress)

    def encode_with_tokens(
        self, texts: Sequence[str], progress: Progress = no_progress
    ) -> WithTokens:
        """What `encode` gives, and the signs of the vectors of each text's words.

        A word's is the sum of its pieces', and it comes as often as it has pieces: rare words have
        more. What has no letter or digit has none, nor has the prompt.
        """
        return self._encode_tokens(self.prompts.query, texts, progress, of_queries=True)

    def encode_passages_with_tokens(
        self, texts: Sequence[str], progress: Progress = no_progress
    ) -> WithTokens:
        """What `encode_passages` gives, and the signs of the vectors of each text's words, each
        once.
        """
        return self._encode_tokens(self.prompts.document, texts, progress, of_queries=False)

    def _encode_tokens(
        self, prompt: str, texts: Sequence[str], progress: Progress, of_queries: bool
    ) -> WithTokens:
        vectors, tokens = (
            np.empty((len(texts), self.dimension), dtype=np.float32),
            dict[int, np.ndarray](),
        )
        (lead,) = self.token_ids([prompt])

        def read(rows: list[int], features: Features, ids: list[list[int]]) -> None:
            states, mask = self._states(features)
            vectors[rows] = self._finish(self._pool(states, mask)).cpu().numpy()
            for row, hidden, numbers in zip(rows, states.cpu().numpy(), ids, strict=True):
                start = len(commonprefix([lead, numbers]))
                words, pieces = self._of_words(hidden[start:], numbers[start:])
                tokens[row] = pack_signs(np.repeat(words, pieces, axis=0) if of_queries else words)

        self.encode_in_batches([prompt + text for text in texts], read, progress, of_queries)
        return vectors, TokenSigns.of([tokens[row] for row in range(len(texts))])

    def _of_words(
        self, states: np.ndarray, numbers: Sequence[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """The sums (w, H) of the states of each word's pieces, and how many these are (w,).

        states: (t, H) of tokens, whose ids are `numbers`.
        """
        pieces = np.array([self._piece(number) for number in numbers], bool).reshape(-1, 2)
        says, words = np.flatnonzero(pieces[:, 0]), np.cumsum(pieces[:, 1])
        first = np.flatnonzero(np.diff(words[says], prepend=-1))
        return np.add.reduceat(states[says], first, axis=0), np.diff(first, append=len(says))

    def _piece(self, number: int) -> tuple[bool, bool]:
        """Whether a token has a letter or digit, and whether it begins a word, as tokens do but for
        WordPiece's.
        """
        if number not in self._pieces:
            tokenizer = self.tokenizer.backend_tokenizer
            says = any(
                character.isalnum() or character == REPLACEMENT_CHARACTER
                for character in tokenizer.decode([number])
            )
            prefix = getattr(tokenizer.model, "continuing_subword_prefix", None)
            self._pieces[number] = (
                says,
                not (prefix and tokenizer.id_to_token(number).startswith(prefix)),
            )
        return self._pieces[number]

    def _encode(
        self,
        forward: Forward,
        texts: Sequence[str],
        per_text: int,
        progress: Progress,
        even: bool = False,
    ) -> np.ndarray:
        vectors = np.empty((len(texts), per_text, self.dimension), dtype=np.float32)

        def read(rows: list[int], features: Features, _: list[list[int]]) -> None:
            vectors[rows] = forward(features).cpu().numpy().reshape(len(rows), *vectors.shape[1:])

        self.encode_in_batches(texts, read, progress, even)
        return vectors.reshape(-1, self.dimension)

    def save(self, folder: Path) -> None:
        """Write the sentence-transformers layout to `folder`; equal encoders give equal bytes,
        nothing is pickled.
        """
        folder.mkdir(parents=True, exist_ok=True)
        save_transformer(self.backbone, folder)
        save_tokenizer(self.tokenizer, folder, self.max_tokens)
        projections = {
            folder / f"{2 + i}_Dense": projection for i, projection in enumerate(self.projections)
        }
        for path, projection in projections.items():
            save_projection(projection, path)
        pooled = self.projections[0][0].in_features if projections else self.dimension
        layout = Layout(
            folder, self.pooling, self.max_tokens, tuple(projections), self.prompts, self.layers
        )
        write_layout(folder, layout, pooled)

    def fingerprint(self) -> str:
        """SHA-256 of what decides the vectors: weights, tokenizer, pooling, layers, prompts,
        `max_tokens`.
        """
        layers = f" {MULTI_VECTOR} {list(self.layers)}" if self.layers else ""
        prompts = f" {self.prompts}" if self.prompts != Prompts() else ""
        return fingerprint(
            self.state_dict(), self.tokenizer, self.pooling + layers + prompts, self.max_tokens
        )
