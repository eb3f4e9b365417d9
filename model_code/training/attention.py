"""Which of transformers' attentions learns fastest."""

from __future__ import annotations

from model_code.encoding.hardware import uses_bfloat16
from model_code.encoding.sides import TwoSided

SHORT = 128  # tokens: from 256 on the fused one is as fast, and keeps no (T, T) probabilities


def choose_attention(encoder: TwoSided, max_tokens: int) -> None:
    """Let `encoder` attend by plain products where it is to learn from short texts, in bfloat16, on a CPU.

    There torch's fused attention takes 2 to 16 times as long as plain products, forward and backward together (texts of
    24 to 96 tokens; the backward pass is to blame), and a whole step 1.4 times. Everywhere else the fused one stays.
    """
    if encoder.device.type != "cpu" or not uses_bfloat16(encoder.precision, encoder.device) or max_tokens > SHORT:
        return
    for side in encoder.sides:
        side.backbone.set_attn_implementation("eager")
