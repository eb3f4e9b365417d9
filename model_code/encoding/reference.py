"""References to base encoders in installed packages, and encoders that several searches share."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from model_code.encoding.base_models import REFERENCE_FILE, Prompts
from model_code.encoding.settings import Pooling
from model_code.files import read_json, write_json

T = TypeVar("T")

# Base encoders that are loaded for search. One that nobody uses any more is dropped.
_SHARED_ENCODERS: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()


@dataclass(frozen=True)
class EncoderReference:
    """A reference to a base encoder in an installed package, in place of a copy of its weights.

    Without it, every untrained retriever, each of its versions and each live collection would hold
    a copy of 90 MB. Searches with the same base encoder also share it in memory.

    Attributes:
        base: Name of the packaged model.
        pooling: How token vectors become one vector.
        max_tokens: Number of tokens to which longer texts are cut.
        prompts: Texts put before queries and documents.
    """

    base: str
    pooling: Pooling
    max_tokens: int
    prompts: Prompts

    @classmethod
    def read(cls, folder: Path) -> EncoderReference | None:
        """Read the reference in a folder; None if the folder holds no reference."""
        path = folder / REFERENCE_FILE
        if not path.is_file():
            return None
        fields = read_json(path)
        prompts = Prompts(**fields["prompts"])
        return cls(fields["base"], fields["pooling"], fields["max_tokens"], prompts)

    def save(self, folder: Path) -> None:
        """Write the reference to a folder. Equal references give equal bytes."""
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / REFERENCE_FILE, asdict(self))


def share_encoder(key: Hashable, load: Callable[[], T]) -> T:
    """Return the encoder that is in use under a key, or load it.

    Args:
        key: Everything that decides how the encoder is loaded.
        load: Loads the encoder.
    """
    encoder: T | None = _SHARED_ENCODERS.get(key)
    if encoder is None:
        encoder = load()
        _SHARED_ENCODERS[key] = encoder
    return encoder
