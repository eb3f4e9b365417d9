"""What learns, how fast and by which arithmetic: frozen layers, optimiser, learning rate,
attention, accelerator.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState
from torch import nn

from model_code.encoding.base_models import max_positions
from model_code.encoding.hardware import uses_bfloat16
from model_code.errors import SettingsError
from model_code.settings import require
from model_code.training.settings import TrainingSettings

MAX_EAGER_ATTENTION_TOKENS = (
    128  # tokens: from 256 on the fused one is as fast, and keeps no (T, T) probabilities
)
LENGTH_SETTINGS = ("query_max_tokens", "document_max_tokens")


def freeze_layers(backbone: Any, frozen_layers: int | None) -> None:
    """Keep a transformer's embeddings and its lowest layers from learning; None lets everything
    learn.

    What the output of these layers depends on stays as it is, also what all layers share (relative
    positions of MPNet and DeBERTa). Frozen tensors that no trained one precedes store nothing for
    the backward pass: less memory, and less time. A pooler, which no vector of ours comes from,
    never learns. Raises SettingsError if no layer is left to train.
    """
    for name, parameter in backbone.named_parameters():
        parameter.requires_grad_(not name.startswith("pooler."))
    if frozen_layers is None:
        return
    layers = transformer_layers(backbone)
    if frozen_layers >= len(layers):
        raise SettingsError(
            f"frozen_layers is {frozen_layers}, but the encoder has only {len(layers)} layers: freeze fewer"
        )
    lowest = next(layers[frozen_layers].parameters())
    before = itertools.takewhile(lambda parameter: parameter is not lowest, backbone.parameters())
    # what is before and reaches nothing, rests, too
    for parameter in [*_below(backbone, frozen_layers), *before]:
        parameter.requires_grad_(False)


def _below(backbone: Any, layer: int) -> list[nn.Parameter]:
    """The parameters that the input of `layer` depends on, asked of a text of two tokens."""
    learning = [parameter for parameter in backbone.parameters() if parameter.requires_grad]
    ids = torch.ones(1, 2, dtype=torch.long, device=learning[0].device)
    with torch.enable_grad():
        states = backbone(
            input_ids=ids, attention_mask=torch.ones_like(ids), output_hidden_states=True
        ).hidden_states
        gradients = torch.autograd.grad(states[layer].sum(), learning, allow_unused=True)
    return [
        parameter
        for parameter, gradient in zip(learning, gradients, strict=True)
        if gradient is not None
    ]


def transformer_layers(backbone: Any) -> nn.ModuleList:
    """The layers of a transformers model, lowest first: its only list of `num_hidden_layers`
    modules.
    """
    count = backbone.config.num_hidden_layers
    for module in backbone.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise SettingsError(
        f"no list of {count} layers in a {type(backbone).__name__}: set frozen_layers to null"
    )


def make_optimizer(objective: Any, settings: TrainingSettings) -> torch.optim.AdamW:
    """`adamw` of the encoder, with a group of centroids (own rate, no decay) where there are any."""
    centroids: list[dict[str, Any]] = []
    if objective.hierarchy is not None:
        rate = settings.centroid_learning_rate
        centroids = [
            {"params": list(objective.hierarchy.parameters()), "weight_decay": 0.0, "lr": rate}
        ]
    return adamw(
        objective.encoder.parameters(), settings.learning_rate, settings.weight_decay, centroids
    )


def adamw(
    weights: Iterable[nn.Parameter],
    rate: float,
    decay: float,
    others: Sequence[dict[str, Any]] = (),
) -> torch.optim.AdamW:
    """Fused AdamW of those of `weights` that learn: a group of matrices, one of biases and norms
    (no decay), `others`.

    Each group remembers its highest rate, as `set_learning_rate` needs it.
    """
    learning = [weight for weight in weights if weight.requires_grad]
    groups = [
        {"params": [weight for weight in learning if weight.ndim > 1], "weight_decay": decay},
        {"params": [weight for weight in learning if weight.ndim <= 1], "weight_decay": 0.0},
        *others,
    ]
    optimizer = torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=rate, fused=True
    )
    for group in optimizer.param_groups:
        group["peak"] = group["lr"]
    return optimizer


def set_learning_rate(optimizer: Any, factor: float) -> None:
    """Set each group's rate to `factor` times its peak."""
    for group in optimizer.param_groups:
        group["lr"] = factor * group["peak"]


def learning_rate_factor(step: int, steps: int, warmup_share: float) -> float:
    """Share of the peak learning rate at `step` (0, 1, ...): linear warm-up, then linear decay
    towards 0 at `steps`.

    >>> [learning_rate_factor(step, steps=6, warmup_share=1 / 3) for step in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    warmup = round(warmup_share * steps)
    if step < warmup:
        return (step + 1) / warmup
    return (steps - step) / max(1, steps - warmup)


def select_attention(encoder: Any, max_tokens: int) -> None:
    """Let `encoder` attend by plain products where it is to learn from short texts, in bfloat16, on
    a CPU.

    There torch's fused attention takes 2 to 16 times as long as plain products, forward and
    backward together (texts of 24 to 96 tokens; the backward pass is to blame), and a whole step
    1.4 times. Everywhere else the fused one stays.
    """
    if (
        encoder.device.type != "cpu"
        or not uses_bfloat16(encoder.precision, encoder.device)
        or max_tokens > MAX_EAGER_ATTENTION_TOKENS
    ):
        return
    encoder.backbone.set_attn_implementation("eager")


def make_accelerator(device: torch.device, precision: str, accumulation: int = 1) -> Accelerator:
    """An accelerator on `device`; precision: "auto", "float32" or "bfloat16", as in
    `EncoderSettings`.

    accumulation: batches of a step, which the processes share evenly; SettingsError if they cannot.
    A step's gradient is the mean over its batches, so it does not depend on how many processes
    there are.
    """
    on_cpu = device.type == "cpu"
    processes = PartialState(cpu=on_cpu).num_processes
    require(
        accumulation % processes == 0,
        f"accumulation is {accumulation}, but {processes} processes share the batches of a step: set a multiple of it",
    )
    if processes == 1:
        # a process may train one model after another
        AcceleratorState._reset_state(reset_partial_state=True)
        if device.type == "cuda" and device.index is not None:
            torch.cuda.set_device(device)  # accelerate takes the current one
    mixed = "bf16" if uses_bfloat16(precision, device) else "no"
    return Accelerator(
        cpu=on_cpu, mixed_precision=mixed, gradient_accumulation_steps=accumulation // processes
    )


def check_max_tokens(
    encoder: Any, settings: TrainingSettings, names: Sequence[str] = LENGTH_SETTINGS
) -> None:
    """SettingsError if one of the settings `names` allows longer texts than the transformer has
    positions for.
    """
    for name in names:
        most, tokens = max_positions(encoder.backbone), getattr(settings, name)
        require(
            most is None or tokens <= most,
            f"{name} is {tokens}, but the encoder has positions for {most} tokens; lower it, or set an encoder.base "
            "that has more",
        )
