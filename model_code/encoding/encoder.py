"""A text encoder: transformer, pooling, projections if the model has them, and L2 normalisation.

One class serves zero-shot use, training (it is an ordinary `torch.nn.Module`) and search. It reads and writes the
sentence-transformers layout, so that `SentenceTransformer(folder)` gives the same vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from model_code.encoding.base_models import locate
from model_code.encoding.batching import pad, token_batches
from model_code.encoding.fingerprint import fingerprint
from model_code.encoding.hardware import pick_device, uses_bfloat16
from model_code.encoding.layout import load_projection, read_layout, save_projection, write_layout
from model_code.encoding.settings import EncoderSettings, Pooling, Precision
from model_code.encoding.transformer import load_tokenizer, load_transformer, save_tokenizer, save_transformer
from model_code.progress import Progress, silent

WINDOW = 8192  # texts tokenised and sorted by length at once: bounds memory on large corpora
CPU_BATCH_TOKENS, GPU_BATCH_TOKENS = 1024, 65536


class Encoder(torch.nn.Module):
    """Map texts to unit vectors of `dimension` numbers; texts are cut to `max_tokens` tokens.

    backbone: the transformers model, dropout off.  tokenizer: its fast tokenizer.  pooling: "mean" or "cls".
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
        super().__init__()
        self.backbone, self.tokenizer = backbone, tokenizer
        self.pooling, self.max_tokens, self.precision = pooling, max_tokens, precision
        self.projections = torch.nn.ModuleList(projections)
        self.dimension: int = projections[-1][0].out_features if projections else backbone.config.hidden_size

    @classmethod
    def load(
        cls,
        source: str | Path,
        max_tokens: int | None = None,
        pooling: Pooling | None = None,
        precision: Precision = "auto",
        device: str = "auto",
    ) -> Encoder:
        """Load a folder in the sentence-transformers layout, a plain transformers folder, or a hub name.

        max_tokens, pooling: None takes the folder's own; where it states none, 512 or the tokenizer's limit, and mean.
        Weights are float32 whatever the file has. Raises FreshetError if the model is not to be had, is no dense text
        encoder, or has fewer than `max_tokens` positions.
        """
        layout = read_layout(locate(source))
        tokenizer = load_tokenizer(layout.transformer)
        limit = max_tokens or layout.max_tokens or min(512, tokenizer.model_max_length)
        backbone = load_transformer(layout.transformer, limit)
        projections = [load_projection(folder) for folder in layout.projections]
        encoder = cls(backbone, tokenizer, pooling or layout.pooling or "mean", limit, precision, projections)
        return encoder.to(pick_device(device)).eval()

    @classmethod
    def from_settings(cls, settings: EncoderSettings, source: str | Path | None = None) -> Encoder:
        """Load `source` (default: the settings' base) as `settings` say.

        A trained encoder's folder states its own pooling, so the settings' pooling counts only for the base.
        """
        pooling = settings.pooling if source is None else None
        return cls.load(source or settings.base, settings.max_tokens, pooling, settings.precision, settings.device)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.backbone.parameters()).device

    def tokenize(self, texts: Sequence[str], max_tokens: int | None = None) -> dict[str, torch.Tensor]:
        """`input_ids` and `attention_mask`, (B, T) int64 on the CPU, padded to the longest text of the batch.

        max_tokens: cut texts here rather than at `self.max_tokens`.
        """
        return pad(self._token_ids(texts, max_tokens or self.max_tokens), self.tokenizer.pad_token_id or 0)

    def _token_ids(self, texts: Sequence[str], max_tokens: int) -> list[list[int]]:
        backend = self.tokenizer.backend_tokenizer
        backend.no_padding()
        backend.enable_truncation(max_tokens)
        return [encoding.ids for encoding in backend.encode_batch_fast(list(texts))]

    def forward(self, features: dict[str, torch.Tensor]) -> torch.Tensor:
        """Unit vectors (B, H) of the `features` that `tokenize` gives; differentiable, float32 under autocast too."""
        ids, mask = (features[name].to(self.device) for name in ("input_ids", "attention_mask"))
        tokens = self.backbone(input_ids=ids, attention_mask=mask).last_hidden_state  # (B, T, H)
        vectors = self._pool(tokens.float(), mask)  # (B, H)
        for projection in self.projections:
            vectors = projection(vectors)
        return torch.nn.functional.normalize(vectors.float(), dim=-1)

    def _pool(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if self.pooling == "cls":
            return tokens[:, 0]
        weights = mask.unsqueeze(-1).to(tokens.dtype)  # (B, T, 1)
        return (tokens * weights).sum(1) / weights.sum(1).clamp(min=1e-9)

    def encode(self, texts: Sequence[str], progress: Progress = silent, batch_tokens: int | None = None) -> np.ndarray:
        """Unit vectors (n, H) float32, row i for text i. The same texts in the same order give the same bytes.

        batch_tokens: tokens per batch, padding included; texts of like length share a batch. None: on a CPU few enough
        for a layer's activations to stay in its cache (a quarter faster than 4096), on a GPU enough to fill it.
        """
        batch_tokens = batch_tokens or (CPU_BATCH_TOKENS if self.device.type == "cpu" else GPU_BATCH_TOKENS)
        vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        bfloat16 = uses_bfloat16(self.precision, self.device)
        training = self.training
        self.eval()
        with torch.no_grad(), torch.autocast(self.device.type, torch.bfloat16, enabled=bfloat16):
            for start in range(0, len(texts), WINDOW):
                self._encode_window(texts[start : start + WINDOW], vectors, start, progress, batch_tokens)
        self.train(training)
        return vectors

    def _encode_window(
        self, texts: Sequence[str], vectors: np.ndarray, start: int, progress: Progress, batch_tokens: int
    ) -> None:
        ids, done = self._token_ids(texts, self.max_tokens), start
        for rows in token_batches([len(row) for row in ids], batch_tokens):
            features = pad([ids[row] for row in rows], self.tokenizer.pad_token_id or 0)
            vectors[[start + row for row in rows]] = self(features).cpu().numpy()
            done += len(rows)
            progress(done, len(vectors), "texts")

    def save(self, folder: Path) -> None:
        """Write the sentence-transformers layout to `folder`; equal encoders give equal bytes, nothing is pickled."""
        folder.mkdir(parents=True, exist_ok=True)
        save_transformer(self.backbone, folder)
        save_tokenizer(self.tokenizer, folder, self.max_tokens)
        for i, projection in enumerate(self.projections):
            save_projection(projection, folder / f"{2 + i}_Dense")
        pooled = self.projections[0][0].in_features if len(self.projections) else self.dimension
        write_layout(folder, pooled, self.pooling, self.max_tokens, len(self.projections))

    def fingerprint(self) -> str:
        """SHA-256 of what decides the vectors: loaded weights, tokenizer, pooling and `max_tokens`."""
        return fingerprint(self.state_dict(), self.tokenizer, self.pooling, self.max_tokens)
