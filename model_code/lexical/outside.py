"""The lexical head as a sentence-transformers module, to use an encoder outside this project.

Every saved lexical encoder contains a copy of this file, which imports nothing of the project.
`SparseEncoder(folder, trust_remote_code=True)` gives the same weights as the project's encoder. The
library's `SpladePooling` cannot replace this module. It computes log(1 + relu(x)) instead of
elu1p(x), and it supports neither the closed-form head nor blocked entries.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from sentence_transformers.base.modules.module import Module


class LexicalHead(Module):
    """Maps the output of a transformer to one weight per vocabulary entry.

    The input is token embeddings for the closed-form head, and logits for a masked language model.
    """

    config_keys = ["head", "hidden", "vocabulary", "scale", "biased"]

    def __init__(
        self, head: str, hidden: int, vocabulary: int, scale: float, biased: bool = False
    ) -> None:
        """Create the head without weights.

        Args:
            head: "closed_form" or "mlm".
            hidden: Width of the token embeddings.
            vocabulary: Number of vocabulary entries V.
            scale: Norm of the closed-form head's features.
            biased: Whether to add biases to the logits, for a masked language model without
                biases.
        """
        super().__init__()
        self.head = head
        self.hidden = hidden
        self.vocabulary = vocabulary
        self.scale = scale
        self.biased = biased
        self.register_buffer("blocked", torch.zeros(vocabulary, dtype=torch.bool))
        if head == "closed_form":
            self.transform = torch.nn.Parameter(torch.empty(hidden, hidden))
            self.decoder = torch.nn.Parameter(torch.empty(vocabulary, hidden))
        if head == "closed_form" or biased:
            self.bias = torch.nn.Parameter(torch.empty(vocabulary))

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Add `sentence_embedding`, (B, V): elu(x) + 1 of each entry's largest logit x.

        The largest logit is taken over the text's tokens, without padding.
        """
        logits = features["token_embeddings"].float()
        if self.head == "closed_form":
            directions = torch.nn.functional.normalize(logits @ self.transform.T, dim=-1)
            logits = self.scale * directions @ self.decoder.T + self.bias
        elif self.biased:
            logits = logits + self.bias
        padding = (features["attention_mask"] == 0).unsqueeze(-1)
        best = logits.masked_fill(padding, -torch.inf).amax(dim=1)
        weights = torch.nn.functional.elu(best) + 1
        features["sentence_embedding"] = weights.masked_fill(self.blocked, 0.0)
        return features

    def get_embedding_dimension(self) -> int:
        """Return V, the size of the vocabulary."""
        return self.vocabulary

    def save(
        self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any
    ) -> None:
        """Write the head's configuration and weights to a folder of sentence-transformers."""
        os.makedirs(output_path, exist_ok=True)
        self.save_config(output_path)
        self.save_torch_weights(output_path, safe_serialization=True)

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **kwargs: Any) -> LexicalHead:
        """Read a head from a folder that `save` wrote."""
        hub = {key: kwargs.get(key) for key in ("token", "cache_folder", "revision")}
        hub["local_files_only"] = kwargs.get("local_files_only", False)
        config = cls.load_config(model_name_or_path, subfolder=subfolder, **hub)
        head = cls(**config)
        return cls.load_torch_weights(model_name_or_path, subfolder=subfolder, model=head, **hub)
