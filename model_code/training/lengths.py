"""Whether the encoder has positions for texts as long as training cuts them."""

from __future__ import annotations

from collections.abc import Sequence

from model_code.encoding.base_models import positions
from model_code.encoding.sides import TwoSided
from model_code.settings import require
from model_code.training.settings import TrainingSettings

CUT_BY = ("query_max_tokens", "document_max_tokens")


def require_positions(encoder: TwoSided, settings: TrainingSettings, names: Sequence[str] = CUT_BY) -> None:
    """SettingsError if one of the settings `names` allows longer texts than the transformer has positions for."""
    for name in names:
        most, tokens = positions(encoder.backbone), getattr(settings, name)
        require(
            most is None or tokens <= most,
            f"{name} is {tokens}, but the encoder has positions for {most} tokens; lower it, or set an encoder.base "
            "that has more",
        )
