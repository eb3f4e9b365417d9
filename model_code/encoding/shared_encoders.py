"""References to base encoders in installed packages, and encoders that several searches share."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from model_code.encoding.base_models import (
    REFERENCE_FILE,
    Layout,
    Prompts,
    locate_model,
    read_layout,
)
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


class EncoderSource(NamedTuple):
    """The files of an encoder, and how its vectors are made.

    Attributes:
        layout: The files. Its pooling, prompts and length limit may differ from those below.
        pooling: How token vectors become one vector.
        prompts: Texts put before queries and documents.
        max_tokens: Number of tokens to which longer texts are cut; None if it is not known yet.
        reference: The reference to these files, if the folder of the encoder holds one.
    """

    layout: Layout
    pooling: Pooling
    prompts: Prompts
    max_tokens: int | None
    reference: EncoderReference | None


def resolve_encoder(source: str | Path, max_tokens: int | None) -> EncoderSource:
    """Find the files of an encoder, in its folder or by the reference in its folder.

    Args:
        source: A folder, or the name of a model; see `Encoder.load`.
        max_tokens: Length limit. None: the limit of the folder or of the reference.

    Raises:
        FreshetError: If the model cannot be found or is not a text encoder.
    """
    reference = EncoderReference.read(Path(source))
    if reference is not None:
        return EncoderSource(
            layout=read_layout(locate_model(reference.base)),
            pooling=reference.pooling,
            prompts=reference.prompts,
            max_tokens=max_tokens or reference.max_tokens,
            reference=reference,
        )
    layout = read_layout(locate_model(source))
    return EncoderSource(
        layout=layout,
        pooling=layout.pooling or "mean",
        prompts=layout.prompts,
        max_tokens=max_tokens or layout.max_tokens,
        reference=None,
    )


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
