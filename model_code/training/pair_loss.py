"""The contrastive part of the dense objective, which a method such as MLR may replace."""

from __future__ import annotations

from torch import Tensor

from model_code.encoding.encoder import Encoder, Features
from model_code.losses.contrastive import Contrast, contrastive_losses


class PairLoss:
    """The contrastive loss of pairs of a query vector and a document vector.

    A method that represents a document by several vectors, such as MLR, overrides both functions.
    The rest of the training does not change.
    """

    def encode_documents(self, encoder: Encoder, features: Features) -> Tensor:
        """Return the document vectors of tokenised texts, (B, H), or (B, m, H) in a subclass."""
        return encoder(features)

    def losses(
        self, queries: Tensor, documents: Tensor, temperature: float, contrast: Contrast
    ) -> Tensor:
        """Return the loss of each (query, document) pair, (B,).

        Args:
            queries: Unit vectors of the queries, (B, H).
            documents: The output of `encode_documents` for the B positive documents.
            temperature: Divisor of the scores.
            contrast: Masks, and the vectors of extra documents as `encode_documents` returned them.
        """
        return contrastive_losses(queries, documents, temperature, contrast)
