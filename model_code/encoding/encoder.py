"""A text encoder: transformer, pooling, optional projections, and L2 normalisation.

One class serves zero-shot use, training (it is a `torch.nn.Module`) and search. It reads and writes
the layout of sentence-transformers, so that `SentenceTransformer(folder)` gives the same vectors.

The vector of a query comes from the last layer. The vector of a document does as well, unless
`layers` is set. Then a document has one vector per layer (MLR).

Batching is our own code because sentence-transformers forms batches of a fixed number of texts.
Here texts are sorted by length, and a batch has a fixed number of tokens, which avoids most
padding. All queries of a batch have the same length, so that a query's vector does not depend on
other queries.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from model_code.encoding.base_models import (
    Layout,
    Prompts,
    compute_fingerprint,
    describe_vectors,
    is_packaged,
    load_projection,
    load_tokenizer,
    load_transformer,
    save_projection,
    save_tokenizer,
    save_transformer,
    to_arrays,
    write_layout,
)
from model_code.encoding.bert import Bert, load_plain_bert, map_weights_again
from model_code.encoding.bert_files import PlainTokenizer
from model_code.encoding.hardware import (
    limit_primitive_caches,
    pack_linear_layers,
    pick_device,
    select_packing,
    uses_bfloat16,
)
from model_code.encoding.settings import EncoderSettings, Pooling, Precision
from model_code.encoding.shared_encoders import (
    EncoderReference,
    EncoderSource,
    resolve_encoder,
    share_encoder,
)
from model_code.encoding.token_signs import TokenSigns
from model_code.encoding.tokens import token_batches, token_ids
from model_code.encoding.word_states import WordStates
from model_code.errors import FreshetError
from model_code.progress import Progress, no_progress

# Tokenised texts: `input_ids` and `attention_mask`, both (B, T) int64.
Features = dict[str, Tensor]

# A function that encodes a batch of features as vectors.
Forward = Callable[[Features], torch.Tensor]

# Unit vectors (n, H) float32 of n texts, and their token signs.
VectorsWithSigns = tuple[np.ndarray, TokenSigns]

# A function that receives the numbers of a batch's texts, their features and their token ids.
BatchCallback = Callable[[list[int], Features, list[list[int]]], None]

# Length limit in tokens of a model whose folder states none. The tokenizer may allow fewer.
DEFAULT_MAX_TOKENS = 512

# Number of texts that are tokenised and sorted together. It bounds memory on large corpora.
WINDOW_TEXTS = 8192

# Tokens per batch on a CPU. Their activations stay in the cache, which is faster than 4096.
CPU_BATCH_TOKENS = 1024

# Tokens per batch on a GPU, enough to keep it busy.
GPU_BATCH_TOKENS = 65_536

# Largest number of texts for which a CPU uses batches of `SMALL_INPUT_BATCH_TOKENS`.
MAX_SMALL_INPUT_TEXTS = 64

# Tokens per batch if there are few texts. Their lengths differ, and small batches need less
# padding: a fifth less time on a CPU.
SMALL_INPUT_BATCH_TOKENS = 256


def pad(sequences: Sequence[Sequence[int]], padding: int) -> Features:
    """Pad token ids on the right to the longest sequence.

    Args:
        sequences: Token ids of each text.
        padding: Id of the padding token.

    Returns:
        `input_ids` and `attention_mask`, both (B, T) int64.

    >>> pad([[5, 6], [7]], padding=0)["input_ids"].tolist()
    [[5, 6], [7, 0]]
    """
    lengths = np.fromiter(map(len, sequences), dtype=np.int64, count=len(sequences))
    longest = int(lengths.max(initial=0))
    # Which places of the padded texts hold a token, (B, T). The others are padding.
    is_token = np.arange(longest) < lengths[:, None]
    ids = np.full((len(sequences), longest), padding, dtype=np.int64)
    # One flat array is several times faster to make than a tensor of nested lists.
    flat = itertools.chain.from_iterable(sequences)
    ids[is_token] = np.fromiter(flat, dtype=np.int64, count=int(lengths.sum()))
    return {
        "input_ids": torch.from_numpy(ids),
        "attention_mask": torch.from_numpy(is_token.astype(np.int64)),
    }


class LengthBuckets(NamedTuple):
    """Tokenised texts in padded batches, each with texts of similar length.

    Attributes:
        batches: Token ids and attention mask of each batch.
        rows: Row of each text in the concatenated batches, shape (n,).
    """

    batches: list[Features]
    rows: Tensor


def bucket_by_length(features: Features, batch_tokens: int) -> LengthBuckets:
    """Split padded features into batches of texts of similar length, which need less padding.

    Args:
        features: Padded features of all texts.
        batch_tokens: Largest number of tokens per batch, padding included.

    >>> mask = torch.tensor([[1, 0, 0], [1, 1, 1], [1, 1, 0]])
    >>> buckets = bucket_by_length({"attention_mask": mask}, batch_tokens=4)
    >>> [batch["attention_mask"].tolist() for batch in buckets.batches]
    [[[1, 1, 1]], [[1, 1], [1, 0]]]
    >>> buckets.rows.tolist()
    [2, 0, 1]
    """
    lengths = features["attention_mask"].sum(dim=1).tolist()
    batches = []
    # Numbers of the texts, in the order in which the batches hold them.
    order: list[int] = []
    for rows in token_batches(lengths, batch_tokens):
        longest = lengths[rows[0]]
        batches.append({name: value[rows, :longest] for name, value in features.items()})
        order.extend(rows)
    # Sorting a permutation gives its inverse: the row of each text.
    return LengthBuckets(batches, torch.tensor(order).argsort())


def encode_buckets(encoder: Forward, texts: LengthBuckets) -> Tensor:
    """Return the vectors (n, H) of texts in buckets, in the original order of the texts."""
    vectors = torch.cat([encoder(batch) for batch in texts.batches])
    return vectors[texts.rows]


class TextModel(torch.nn.Module):
    """A model with its fast tokenizer, which encodes texts in batches.

    Args:
        tokenizer: The tokenizer.
        max_tokens: Longer texts are cut to so many tokens, special ones included.
        precision: Precision of the products.
    """

    def __init__(self, tokenizer: Any, max_tokens: int, precision: Precision) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.max_tokens = max_tokens
        self.precision = precision

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next(self.parameters()).device

    def tokenize(self, texts: Sequence[str], max_tokens: int | None = None) -> Features:
        """Tokenise texts as one batch on the CPU, padded to the longest text.

        Args:
            texts: The texts.
            max_tokens: Length limit. None: `self.max_tokens`.
        """
        return self._pad(self.token_ids(texts, max_tokens))

    def token_ids(self, texts: Sequence[str], max_tokens: int | None = None) -> list[list[int]]:
        """Return the token ids of each text, special ones included.

        Args:
            texts: The texts.
            max_tokens: Length limit. None: `self.max_tokens`.
        """
        return token_ids(self.tokenizer, texts, max_tokens or self.max_tokens)

    def encode_in_batches(
        self,
        texts: Sequence[str],
        encode_batch: BatchCallback,
        progress: Progress,
        even: bool,
        batch_tokens: int | None = None,
    ) -> None:
        """Call a function for batches of similar length that cover all texts, without gradients.

        Args:
            texts: The texts.
            encode_batch: Encodes a batch and stores the result.
            progress: Called with the number of finished texts after each batch.
            even: Whether all texts of a batch must have the same length, so that nothing is padded.
            batch_tokens: Tokens per batch, padding included. None: a number that suits the device.
        """
        if batch_tokens is None:
            batch_tokens = self._default_batch_tokens(len(texts))
        # `eval` visits every module, which takes a tenth of the time of a single query. So it is
        # called only in training mode.
        was_training = self.training
        if was_training:
            self.eval()

        done = 0
        bfloat16 = uses_bfloat16(self.precision, self.device)
        with torch.no_grad(), torch.autocast(self.device.type, torch.bfloat16, enabled=bfloat16):
            for start in range(0, len(texts), WINDOW_TEXTS):
                window_ids = self.token_ids(texts[start : start + WINDOW_TEXTS])
                lengths = [len(ids) for ids in window_ids]
                for rows in token_batches(lengths, batch_tokens, even):
                    batch_ids = [window_ids[row] for row in rows]
                    text_numbers = [start + row for row in rows]
                    encode_batch(text_numbers, self._pad(batch_ids), batch_ids)
                    done += len(rows)
                    progress(done, len(texts), "texts")
        if was_training:
            self.train()

    def _default_batch_tokens(self, text_count: int) -> int:
        """Return a number of tokens per batch that suits the device and the number of texts."""
        if self.device.type != "cpu":
            return GPU_BATCH_TOKENS
        if text_count <= MAX_SMALL_INPUT_TEXTS:
            return SMALL_INPUT_BATCH_TOKENS
        return CPU_BATCH_TOKENS

    def _pad(self, ids: Sequence[Sequence[int]]) -> Features:
        return pad(ids, self.tokenizer.pad_token_id or 0)


class Encoder(TextModel):
    """Encodes texts as unit vectors.

    Attributes:
        dimension: Number of dimensions H of a vector.
        layers: Numbers of the layers that documents are indexed by. Empty: the last layer only.
        prompts: Texts put before queries and documents.
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
        """Combine the parts of an encoder; `load` reads them from a folder.

        Args:
            backbone: A transformer without dropout.
            tokenizer: The fast tokenizer of the transformer.
            pooling: How token vectors become one vector, "mean" or "cls".
            max_tokens: Longer texts are cut to so many tokens.
            precision: Precision of the products.
            projections: Layers applied to the pooled vector.
        """
        super().__init__(tokenizer, max_tokens, precision)
        self.backbone = backbone
        self.pooling = pooling
        self.projections = torch.nn.ModuleList(projections)
        self.layers: tuple[int, ...] = ()
        self.prompts = Prompts()
        self.dimension: int = backbone.config.hidden_size
        if projections:
            self.dimension = projections[-1][0].out_features
        self._word_states = WordStates(tokenizer)
        # Folder from which the weights are mapped, if `release_weights` can map them again.
        self._mapped_folder: Path | None = None
        # Known fingerprints, by representation and `max_tokens`. None: the weights may change.
        self._fingerprints: dict[tuple[str, int], str] | None = None

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
        """Load an encoder. Weights become float32, whatever the file holds.

        Args:
            source: A folder in the layout of sentence-transformers, a folder with a reference to a
                packaged model, a plain transformers folder, or the name of a hub repository.
            max_tokens: Length limit. None: the folder's limit, else 512 or the tokenizer's limit.
            pooling: Pooling. None: the folder's pooling, else mean.
            precision: Precision of the products.
            device: Device, see `pick_device`.
            for_search: Whether the encoder will not be trained. A BERT is then loaded without
                transformers, to the same bits, and weights are packed where the precision and the
                CPU allow it (see `hardware`).

        Raises:
            FreshetError: If the model cannot be found, is not a dense text encoder, or has fewer
                than `max_tokens` positions.
        """
        resolved = resolve_encoder(source, max_tokens)

        def load() -> Encoder:
            return cls._load_resolved(resolved, pooling, precision, device, for_search)

        if resolved.reference is None or not for_search:
            return load()
        # Searches with the same base encoder share it.
        key = (cls, resolved.reference, resolved.max_tokens, pooling, precision, device)
        return share_encoder(key, load)

    @classmethod
    def _load_resolved(
        cls,
        source: EncoderSource,
        pooling: Pooling | None,
        precision: Precision,
        device: str,
        for_search: bool,
    ) -> Encoder:
        """Load an encoder whose files were found; see `load` for the other arguments."""
        layout = source.layout
        limit = source.max_tokens

        # The library transformers takes seconds to import, and a BERT for search does not need it.
        plain_bert = None
        if for_search and limit is not None:
            plain_bert = load_plain_bert(layout.transformer, limit)
        if plain_bert is not None:
            tokenizer: Any = PlainTokenizer(layout.transformer)
        else:
            tokenizer = load_tokenizer(layout.transformer)
        if limit is None:
            limit = min(DEFAULT_MAX_TOKENS, tokenizer.model_max_length)
        backbone = plain_bert or load_transformer(layout.transformer, limit)
        # Only an index by several layers reads the hidden states of inner layers, and asks for
        # them.
        backbone.config.output_hidden_states = False

        projections = [load_projection(path) for path in layout.projections]
        pooling = pooling or source.pooling
        encoder = cls(backbone, tokenizer, pooling, limit, precision, projections)
        encoder.layers = layout.layers
        encoder.prompts = source.prompts
        encoder.to(pick_device(device)).eval()

        if for_search:
            encoder._fingerprints = {}
            limit_primitive_caches()
            if plain_bert is not None:
                encoder._mapped_folder = layout.transformer
            packing = select_packing(precision, encoder.device)
            if packing is not None:
                pack_linear_layers(backbone, packing)
        return encoder

    @classmethod
    def from_settings(
        cls, settings: EncoderSettings, source: Path | None = None, for_search: bool = False
    ) -> Encoder:
        """Load the base encoder or a trained encoder with the options of the settings.

        Pooling and prompts of the settings apply to the base encoder only. A trained encoder reads
        both from its folder.

        Args:
            settings: The group `encoder`.
            source: Folder of a trained encoder. None: the settings' base.
            for_search: Whether the encoder will not be trained; see `load`.
        """
        is_base = source is None
        model = settings.base if source is None else source
        pooling = settings.pooling if is_base else None
        encoder = cls.load(
            model,
            max_tokens=settings.max_tokens,
            pooling=pooling,
            precision=settings.precision,
            device=settings.device,
            for_search=for_search,
        )
        if is_base:
            # A prompt that the settings leave out is the one that the folder of the base states.
            if settings.prompts.query is not None:
                encoder.prompts = replace(encoder.prompts, query=settings.prompts.query)
            if settings.prompts.document is not None:
                encoder.prompts = replace(encoder.prompts, document=settings.prompts.document)
        return encoder

    def release_weights(self) -> None:
        """Let the kernel take back the weights that were read from the file.

        They are read again when a query needs them. An encoder that searches needs few of them once
        its linear maps are packed. Any other encoder stays as it is.
        """
        if self._mapped_folder is not None:
            map_weights_again(self.backbone, self._mapped_folder)

    @property
    def pytorch(self) -> Encoder:
        """This encoder itself; see `SearchEncoder`."""
        return self

    @property
    def depth(self) -> int:
        """Number of the last layer. Layer 0 is the layer of the embeddings."""
        return self.backbone.config.num_hidden_layers

    @property
    def vectors_per_passage(self) -> int:
        """Number of vectors with which a passage is indexed: one, or one per layer."""
        return len(self.layers) or 1

    def forward(self, features: Features) -> torch.Tensor:
        """Encode the features that `tokenize` returns, with gradients.

        Returns:
            Unit vectors (B, H), float32 also under autocast.
        """
        states, mask = self._last_states(features)
        return self._to_unit_vectors(self._pool(states, mask))

    def _last_states(self, features: Features) -> tuple[Tensor, Tensor]:
        """Return the last layer's states (B, T, D), float32, and the attention mask (B, T)."""
        ids = features["input_ids"].to(self.device)
        mask = features["attention_mask"].to(self.device)
        output = self.backbone(input_ids=ids, attention_mask=mask)
        return output.last_hidden_state.float(), mask

    def layers_forward(self, features: Features, numbers: Sequence[int]) -> torch.Tensor:
        """Encode features as one vector per layer, for several layers (MLR).

        The states of each layer are pooled and normalised in the same way as the last layer in
        `forward`. Without this, the layer with the largest norm would always score best. T5 does
        not normalise its inner layers, so their norms differ much.

        Projections are applied to every layer, because the query's vector is projected too. They
        may be non-linear or have a bias, and were trained on vectors of the last layer. So the
        vector of each layer is scaled to the norm of the last layer's vector before projection.

        Args:
            features: Features that `tokenize` returns.
            numbers: Numbers of m layers.

        Returns:
            Unit vectors (B, m, H).

        Raises:
            FreshetError: If there is no such layer.
        """
        if not len(self.projections):
            return self._to_unit_vectors(self.pooled_layers(features, numbers))

        pooled = self.pooled_layers(features, [*numbers, self.depth])
        last_norms = pooled[:, -1].norm(dim=-1, keepdim=True)
        scaled: list[Tensor] = []
        for vectors in pooled[:, :-1].unbind(dim=1):
            scaled.append(last_norms * torch.nn.functional.normalize(vectors, dim=-1))
        return self._to_unit_vectors(torch.stack(scaled, dim=1))

    def pooled_layers(self, features: Features, numbers: Sequence[int]) -> torch.Tensor:
        """Return the pooled states (B, m, D) of several layers, float32, not normalised.

        Raises:
            FreshetError: If there is no such layer.
        """
        for number in numbers:
            if not 0 <= number <= self.depth:
                raise FreshetError(
                    f"there is no layer {number}; "
                    f"this encoder has 0 (the embeddings) to {self.depth}"
                )

        ids = features["input_ids"].to(self.device)
        mask = features["attention_mask"].to(self.device)
        # Ask for the states of all layers. `Bert` always returns them, and has no such option.
        options = {} if isinstance(self.backbone, Bert) else {"output_hidden_states": True}
        output = self.backbone(input_ids=ids, attention_mask=mask, **options)
        # T5 normalises `last_hidden_state`, but not the last entry of `hidden_states`. So the
        # former is used for the last layer.
        states = (*output.hidden_states[: self.depth], output.last_hidden_state)
        return torch.stack([self._pool(states[number].float(), mask) for number in numbers], dim=1)

    def _to_unit_vectors(self, vectors: torch.Tensor) -> torch.Tensor:
        """Project pooled vectors (..., D), and scale them to unit norm: (..., H) float32."""
        for projection in self.projections:
            vectors = projection(vectors)
        return torch.nn.functional.normalize(vectors.float(), dim=-1)

    def _pool(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return one vector (B, D) per text: the state of its first token, or the mean of all.

        Args:
            states: States of the tokens, (B, T, D).
            mask: 1 for tokens and 0 for padding, (B, T).
        """
        if self.pooling == "cls":
            return states[:, 0]
        weights = mask.unsqueeze(-1).to(states.dtype)
        # The lower limit only avoids a division by zero for a text without tokens.
        token_counts = weights.sum(1).clamp(min=1e-9)
        return (states * weights).sum(1) / token_counts

    def encode_queries(self, texts: Sequence[str], progress: Progress = no_progress) -> np.ndarray:
        """Encode queries. The same texts in the same order give equal bytes.

        All texts of a batch have the same length, because padding changes a vector, in bfloat16 by
        thousandths. The size of a batch still influences rounding: not in bfloat16, but in the last
        bits in float32.

        Args:
            texts: Query texts.
            progress: Called with the number of finished texts after each batch.

        Returns:
            Unit vectors (n, H), float32.
        """
        return self._encode(self, self.prompts.to_queries(texts), 1, progress, even=True)

    def encode_documents(
        self, texts: Sequence[str], progress: Progress = no_progress
    ) -> np.ndarray:
        """Encode documents for the index.

        Args:
            texts: Texts of documents.
            progress: Called with the number of finished texts after each batch.

        Returns:
            Unit vectors (n * v, H), float32, with v = `vectors_per_passage` consecutive rows per
            text. The rows of a text have the order of `layers`: the last row is the last layer's.
        """
        forward: Forward = self
        if self.layers:
            forward = partial(self.layers_forward, numbers=self.layers)
        prompted_texts = self.prompts.to_documents(texts)
        return self._encode(forward, prompted_texts, self.vectors_per_passage, progress)

    def document_token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids that the encoder reads of documents, prompt and limit included.

        Documents with equal token ids have equal encodings, up to rounding.
        """
        return self.token_ids(self.prompts.to_documents(texts))

    def encode_documents_by_last_layer(
        self, texts: Sequence[str], progress: Progress = no_progress
    ) -> np.ndarray:
        """Encode documents by the last layer only: one vector (n, H) each, float32."""
        return self._encode(self, self.prompts.to_documents(texts), 1, progress)

    def encode_queries_with_signs(
        self, texts: Sequence[str], progress: Progress = no_progress
    ) -> VectorsWithSigns:
        """Return the vectors of queries, and the signs of their words' vectors.

        By the signs, late interaction compares each word of a query with each word of a passage.

        The vector of a word is the sum of the states of its tokens. A word with several tokens is
        repeated once per token, so that rare words weigh more. The prompt, and tokens without a
        letter or digit, are left out.
        """
        return self._encode_with_signs(self.prompts.query, texts, progress, are_queries=True)

    def encode_documents_with_signs(
        self, texts: Sequence[str], progress: Progress = no_progress
    ) -> VectorsWithSigns:
        """Return the vectors of documents, and the signs of their words' vectors.

        The vectors are those of `encode_documents_by_last_layer`. Unlike in
        `encode_queries_with_signs`, a word with several tokens is not repeated.
        """
        return self._encode_with_signs(self.prompts.document, texts, progress, are_queries=False)

    def _encode_with_signs(
        self, prompt: str, texts: Sequence[str], progress: Progress, are_queries: bool
    ) -> VectorsWithSigns:
        """Return the vectors of texts, and the signs of their words' vectors.

        Args:
            prompt: Text that is put before each text. Its words have no signs.
            texts: The texts.
            progress: Called with the number of finished texts after each batch.
            are_queries: Whether a word with several tokens is repeated once per token, and batches
                are not padded; see `encode_queries_with_signs` and `encode_queries`.
        """
        vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        signs_by_text: dict[int, np.ndarray] = {}
        (prompt_ids,) = self.token_ids([prompt])

        def encode_batch(numbers: list[int], features: Features, ids: list[list[int]]) -> None:
            """Store the vectors and the signs of the texts with these numbers."""
            states, mask = self._last_states(features)
            vectors[numbers] = self._to_unit_vectors(self._pool(states, mask)).cpu().numpy()
            batch_states = states.cpu().numpy()
            for number, text_states, text_ids in zip(numbers, batch_states, ids, strict=True):
                signs_by_text[number] = self._word_states.signs(
                    text_states, text_ids, prompt_ids, repeats_words=are_queries
                )

        prompted = [prompt + text for text in texts]
        self.encode_in_batches(prompted, encode_batch, progress, even=are_queries)
        signs = TokenSigns.of([signs_by_text[number] for number in range(len(texts))])
        return vectors, signs

    def _encode(
        self,
        forward: Forward,
        texts: Sequence[str],
        vectors_per_text: int,
        progress: Progress,
        even: bool = False,
    ) -> np.ndarray:
        """Encode texts in batches.

        Args:
            forward: Encodes a batch as vectors (B, H), or (B, v, H) for v vectors per text.
            texts: The texts, with their prompt.
            vectors_per_text: Number v of vectors per text.
            progress: Called with the number of finished texts after each batch.
            even: Whether all texts of a batch must have the same length.

        Returns:
            Vectors (n * v, H), float32, with v consecutive rows per text.
        """
        vectors = np.empty((len(texts), vectors_per_text, self.dimension), dtype=np.float32)

        def encode_batch(numbers: list[int], features: Features, _: list[list[int]]) -> None:
            encoded = forward(features).cpu().numpy()
            vectors[numbers] = encoded.reshape(len(numbers), vectors_per_text, self.dimension)

        self.encode_in_batches(texts, encode_batch, progress, even)
        return vectors.reshape(-1, self.dimension)

    def save(self, folder: Path) -> None:
        """Write the layout of sentence-transformers. Equal encoders give equal bytes.

        Nothing is pickled.
        """
        folder.mkdir(parents=True, exist_ok=True)
        save_transformer(self.backbone, folder)
        save_tokenizer(self.tokenizer, folder, self.max_tokens)

        # A folder is named after the number of its module. Modules 0 and 1 are the transformer and
        # the pooling.
        projection_paths = []
        for number, projection in enumerate(self.projections, start=2):
            path = folder / f"{number}_Dense"
            save_projection(projection, path)
            projection_paths.append(path)
        pooled_dimension = self.dimension
        if projection_paths:
            pooled_dimension = self.projections[0][0].in_features

        layout = Layout(
            folder,
            self.pooling,
            self.max_tokens,
            tuple(projection_paths),
            self.prompts,
            self.layers,
        )
        write_layout(folder, layout, pooled_dimension)

    def fingerprint(self) -> str:
        """Return the SHA-256 of everything that influences the vectors.

        This is the weights, the tokenizer, the pooling, the layers, the prompts and `max_tokens`.
        Hashing the weights takes a tenth of a second or more. An encoder for search keeps the
        result, because its weights never change.
        """
        representation = describe_vectors(self.pooling, self.layers, self.prompts)
        key = (representation, self.max_tokens)
        if self._fingerprints is not None and key in self._fingerprints:
            return self._fingerprints[key]
        fingerprint = compute_fingerprint(
            to_arrays(self.state_dict()), self.tokenizer, representation, self.max_tokens
        )
        if self._fingerprints is not None:
            self._fingerprints[key] = fingerprint
        return fingerprint


def save_base_encoder(settings: EncoderSettings, folder: Path) -> None:
    """Write the base encoder to a folder: as a reference if an installed package contains it.

    Args:
        settings: The group `encoder`.
        folder: Folder to write to.
    """
    if not is_packaged(settings.base):
        Encoder.from_settings(settings).save(folder)
        return

    # Loading for search does not import the library transformers, which takes seconds.
    encoder = Encoder.from_settings(settings, for_search=True)
    reference = EncoderReference(
        settings.base, encoder.pooling, encoder.max_tokens, encoder.prompts
    )
    reference.save(folder)
