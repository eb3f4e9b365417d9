"""Contract of a model's folder: every file that its loader opens, and weights that are numbers.

Read without torch, whose import alone takes longer than all other contracts together.
"""

from __future__ import annotations

from pathlib import Path

from model_code.contracts.rules import require, require_files, require_finite
from model_code.files import read_json
from model_code.retrievers.kinds import Kind

TRANSFORMER = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
LAYOUT = ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json")
WITH_WEIGHTS = ("Dense", "WeightedLayerPooling", "LexicalHead")
WITHOUT_FILES = ("Transformer", "Normalize")  # the transformer's lie at the top
QUERY_ENCODER = "query_encoder"


def check_encoder(folder: Path, kind: Kind, separate: bool) -> None:
    """A trained encoder and, if `separate`, that of queries below it; else there must be none."""
    require(folder.is_dir(), f"{folder.name}/ is missing")
    _check_side(folder, kind)
    queries = folder / QUERY_ENCODER
    if separate:
        require(queries.is_dir(), f"encoders are separate, so {folder.name}/ must hold {QUERY_ENCODER}/")
        _check_side(queries, kind)
    else:
        require(not queries.exists(), f"encoders are shared, so {folder.name}/ must not hold {QUERY_ENCODER}/")
    _check_weights(folder)


def check_sequence_model(folder: Path) -> None:
    """A model that writes queries, with its tokenizer."""
    require(folder.is_dir(), f"{folder.name}/ is missing")
    require_files(folder, (*TRANSFORMER, "generation_config.json"))
    _check_weights(folder)


def _check_side(folder: Path, kind: Kind) -> None:
    require_files(folder, (*TRANSFORMER, *LAYOUT, *(("lexical.json",) if kind == "lexical" else ())))
    for name, module in _modules(folder).items():
        if module not in WITHOUT_FILES:
            weights = ("model.safetensors",) if module in WITH_WEIGHTS else ()
            require_files(folder / name, ("config.json", *weights))


def _modules(folder: Path) -> dict[str, str]:
    """Folder -> kind of module, a router's own included."""
    found = {module["path"]: module["type"].rsplit(".", 1)[-1] for module in read_json(folder / "modules.json")}
    routers = [path for path, module in found.items() if module == "Router"]
    for path in routers:
        require_files(folder / path, ["router_config.json"])
        types = read_json(folder / path / "router_config.json")["types"]
        del found[path]
        found |= {name: qualified.rsplit(".", 1)[-1] for name, qualified in types.items()}
    return found


def _check_weights(folder: Path) -> None:
    """Every tensor can be read, and of floating-point ones every number is finite."""
    from safetensors import SafetensorError, safe_open

    for path in sorted(folder.rglob("*.safetensors")):
        name = path.relative_to(folder.parent).as_posix()
        try:
            with safe_open(path, framework="numpy") as weights:
                for tensor in weights.keys():  # noqa: SIM118  it is no mapping
                    if weights.get_slice(tensor).get_dtype().startswith("F"):
                        require_finite(f"{name}: {tensor}", weights.get_tensor(tensor))
        except SafetensorError as error:
            require(False, f"{name} cannot be read: {error}")
