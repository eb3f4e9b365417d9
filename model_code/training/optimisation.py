"""Set up optimisation: frozen layers, dropout, optimiser, learning rate and accelerator."""

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

# Largest number of tokens of a text for which `select_attention` uses plain products. For longer
# texts the fused attention is as fast, and it stores no (T, T) probabilities.
MAX_EAGER_ATTENTION_TOKENS = 128
# Names of the settings that limit the number of tokens of texts.
LENGTH_SETTINGS = ("query_max_tokens", "document_max_tokens")


def freeze_layers(backbone: Any, frozen_layers: int | None) -> None:
    """Freeze a transformer's embeddings and its lowest layers.

    All weights that influence the output of these layers are frozen. This includes weights that all
    layers share, such as the relative positions of MPNet and DeBERTa. The backward pass then stops
    at the lowest trained layer, which saves memory and time. The pooler is always frozen, because
    the encoder does not use it.

    Args:
        backbone: A model of the library transformers.
        frozen_layers: Number of frozen layers. 0: the embeddings only. None: nothing is frozen.

    Raises:
        SettingsError: If no layer is left to train.
    """
    for name, parameter in backbone.named_parameters():
        parameter.requires_grad_(not name.startswith("pooler."))
    if frozen_layers is None:
        return

    layers = transformer_layers(backbone)
    if frozen_layers >= len(layers):
        raise SettingsError(
            f"frozen_layers is {frozen_layers}, but the encoder has only "
            f"{len(layers)} layers: freeze fewer"
        )
    for parameter in _parameters_below(backbone, frozen_layers):
        parameter.requires_grad_(False)

    # Parameters that are defined before the first trained layer are frozen as well, even if the
    # input of this layer does not depend on them.
    first_trained = next(layers[frozen_layers].parameters())
    earlier = itertools.takewhile(
        lambda parameter: parameter is not first_trained, backbone.parameters()
    )
    for parameter in earlier:
        parameter.requires_grad_(False)


def _parameters_below(backbone: Any, layer: int) -> list[nn.Parameter]:
    """Return the parameters that influence the input of a layer.

    They are the parameters with a gradient of the layer's input, for a text of two tokens.
    """
    learning = [parameter for parameter in backbone.parameters() if parameter.requires_grad]
    ids = torch.ones(1, 2, dtype=torch.long, device=learning[0].device)
    # A parameter that does not influence the layer's input has no gradient from it.
    with torch.enable_grad():
        output = backbone(
            input_ids=ids, attention_mask=torch.ones_like(ids), output_hidden_states=True
        )
        layer_input = output.hidden_states[layer]
        gradients = torch.autograd.grad(layer_input.sum(), learning, allow_unused=True)
    return [
        parameter
        for parameter, gradient in zip(learning, gradients, strict=True)
        if gradient is not None
    ]


def transformer_layers(backbone: Any) -> nn.ModuleList:
    """Return the layers of a model of the library transformers, lowest first.

    They are its first list of `num_hidden_layers` modules.

    Raises:
        SettingsError: If there is no such list.
    """
    count = backbone.config.num_hidden_layers
    for module in backbone.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise SettingsError(
        f"no list of {count} layers in a {type(backbone).__name__}: set frozen_layers to null"
    )


def make_optimizer(objective: Any, settings: TrainingSettings) -> torch.optim.AdamW:
    """Create the optimiser of an objective's encoder and centroids; see `adamw`.

    The centroids of the hierarchy loss have a separate learning rate and no weight decay. If that
    rate is 0, they are not optimised.
    """
    groups: list[dict[str, Any]] = []
    if objective.hierarchy is not None and settings.centroid_learning_rate > 0:
        groups.append(
            {
                "params": list(objective.hierarchy.parameters()),
                "weight_decay": 0.0,
                "lr": settings.centroid_learning_rate,
            }
        )
    return adamw(
        objective.encoder.parameters(), settings.learning_rate, settings.weight_decay, groups
    )


def adamw(
    weights: Iterable[nn.Parameter],
    rate: float,
    decay: float,
    others: Sequence[dict[str, Any]] = (),
) -> torch.optim.AdamW:
    """Create a fused AdamW optimiser.

    Matrices have weight decay, biases and norms have none. Each parameter group stores its highest
    learning rate as "peak", for `set_learning_rate`.

    Args:
        weights: Parameters. Parameters without gradient are left out.
        rate: Peak learning rate.
        decay: Weight decay of matrices.
        others: Further parameter groups.
    """
    learning = [weight for weight in weights if weight.requires_grad]
    matrices = [weight for weight in learning if weight.ndim > 1]
    vectors = [weight for weight in learning if weight.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": decay},
        {"params": vectors, "weight_decay": 0.0},
        *others,
    ]
    # Freezing may leave a group without parameters, which PyTorch refuses.
    filled_groups = [group for group in groups if group["params"]]
    optimizer = torch.optim.AdamW(filled_groups, lr=rate, fused=True)
    for group in optimizer.param_groups:
        group["peak"] = group["lr"]
    return optimizer


def set_dropout(backbone: Any, probability: float) -> None:
    """Set the dropout probability of all layers of a transformer, for training mode.

    Raises:
        SettingsError: If the transformer has no dropout layers.
    """
    layers = [module for module in backbone.modules() if isinstance(module, nn.Dropout)]
    require(
        bool(layers),
        f"dropout is {probability}, but a {type(backbone).__name__} has no dropout layers; "
        "set dropout to 0",
    )
    for layer in layers:
        layer.p = probability


def set_learning_rate(optimizer: Any, factor: float) -> None:
    """Set the learning rate of each parameter group to `factor` times its peak."""
    for group in optimizer.param_groups:
        group["lr"] = factor * group["peak"]


def learning_rate_factor(step: int, steps: int, warmup_share: float) -> float:
    """Return the share of the peak learning rate at a step.

    It rises linearly during the warm-up, then falls linearly towards 0 at the end.

    Args:
        step: Number of the step, from 0.
        steps: Steps of the whole training.
        warmup_share: Share of the steps that are warm-up.

    >>> [learning_rate_factor(step, steps=6, warmup_share=1 / 3) for step in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    warmup = round(warmup_share * steps)
    if step < warmup:
        return (step + 1) / warmup
    return (steps - step) / max(1, steps - warmup)


def select_attention(encoder: Any, max_tokens: int) -> None:
    """Choose the faster implementation of attention for training.

    For short texts in bfloat16 on a CPU, attention is computed by plain matrix products. In this
    case, PyTorch's fused attention takes 2 to 16 times as long, because its backward pass is slow
    (texts of 24 to 96 tokens). A whole step takes 1.4 times as long. In all other cases the encoder
    keeps the fused attention.
    """
    is_slow = encoder.device.type == "cpu" and uses_bfloat16(encoder.precision, encoder.device)
    if is_slow and max_tokens <= MAX_EAGER_ATTENTION_TOKENS:
        encoder.backbone.set_attn_implementation("eager")


def make_accelerator(device: torch.device, precision: str, accumulation: int = 1) -> Accelerator:
    """Return an accelerator on a device.

    Args:
        device: Device of the model.
        precision: "auto", "float32" or "bfloat16", as in `EncoderSettings`.
        accumulation: Number of batches of a step, which the processes share evenly. The gradient of
            a step is the mean over its batches, whatever the number of processes.

    Raises:
        SettingsError: If the processes cannot share the batches evenly.
    """
    on_cpu = device.type == "cpu"
    processes = PartialState(cpu=on_cpu).num_processes
    require(
        accumulation % processes == 0,
        f"accumulation is {accumulation}, but {processes} processes share the batches of a step: "
        "set a multiple of it",
    )
    if processes == 1:
        # accelerate keeps one state per process. Without this reset, a second training in the
        # process would use the device and precision of the first.
        AcceleratorState._reset_state(reset_partial_state=True)
        if device.type == "cuda" and device.index is not None:
            # accelerate can only be told the GPU as PyTorch's current device.
            torch.cuda.set_device(device)

    mixed = "bf16" if uses_bfloat16(precision, device) else "no"
    return Accelerator(
        cpu=on_cpu, mixed_precision=mixed, gradient_accumulation_steps=accumulation // processes
    )


def check_max_tokens(
    encoder: Any, settings: TrainingSettings, names: Sequence[str] = LENGTH_SETTINGS
) -> None:
    """Check that the transformer has positions for the longest texts that the settings allow.

    Args:
        encoder: The encoder.
        settings: The settings.
        names: Names of the settings to check.

    Raises:
        SettingsError: If one of the settings allows longer texts.
    """
    # A trainer that encodes no text has no limits to check. Its encoder may be no transformer.
    if not names:
        return
    limit = max_positions(encoder.backbone)
    for name in names:
        tokens = getattr(settings, name)
        require(
            limit is None or tokens <= limit,
            f"{name} is {tokens}, but the encoder has positions for {limit} tokens; lower it, or "
            "set an encoder.base that has more",
        )
