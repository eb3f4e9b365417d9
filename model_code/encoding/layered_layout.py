"""The sentence-transformers layout of an encoder whose documents come from several layers.

`layers.json` is what our own encoder reads. A mix is understood outside too: a Router sends queries through Pooling,
Normalize, ... and documents through WeightedLayerPooling first, so that `encode_query` (or `encode`) and
`encode_document` give our vectors. Several vectors per document are not, and such a folder loads as the query side.
"""

from __future__ import annotations

from pathlib import Path

import torch

from model_code.encoding.layers import Layers
from model_code.encoding.layout import LAYERS, ROUTER
from model_code.files import read_json, write_json

MIX = "layers"  # folder of the WeightedLayerPooling
KINDS = "sentence_transformers.models"


def read_layers(folder: Path) -> Layers | None:
    """What `write_layers` wrote; None if the folder is of an ordinary encoder."""
    path = folder / LAYERS
    return Layers.from_json(read_json(path)) if path.is_file() else None


def write_layers(folder: Path, layers: Layers, depth: int, width: int) -> None:
    """Add `layers` to a folder that holds an ordinary encoder of `depth` layers of `width` components."""
    write_json(folder / LAYERS, layers.to_json())
    if layers.pooling == "multi_vector":
        return
    _write_mix(folder / MIX, layers, depth, width)
    _write_routes(folder)
    config = read_json(folder / "config.json")
    write_json(folder / "config.json", config | {"output_hidden_states": True})


def _write_mix(folder: Path, layers: Layers, depth: int, width: int) -> None:
    """A WeightedLayerPooling, which has a weight for every layer from its first: 0 for those that are not ours."""
    from safetensors.torch import save_file

    first = min(layers.numbers)
    weights = torch.zeros(depth + 1 - first)
    weights[torch.tensor(layers.numbers) - first] = layers.weights().detach().cpu()
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", {"embedding_dimension": width, "layer_start": first, "num_hidden_layers": depth})
    save_file({"layer_weights": weights}, folder / "model.safetensors")


def _write_routes(folder: Path) -> None:
    """Put what follows the transformer into the routes of a Router; both share the modules' folders."""
    transformer, *others = read_json(folder / "modules.json")
    types = {module["path"]: module["type"] for module in others}
    routes = {"query": list(types), "document": [MIX, *types]}
    router = {"idx": 1, "name": "1", "path": "", "type": f"{KINDS}.Router"}
    write_json(folder / "modules.json", [transformer, router])
    write_json(
        folder / ROUTER,
        {
            "types": {**types, MIX: f"{KINDS}.WeightedLayerPooling"},
            "structure": routes,
            "parameters": {"default_route": "query", "allow_empty_key": True},
        },
    )
