"""Settings of one retriever and of one fusion: keys under `retrievers:` and `fusions:`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import create_model

from model_code import settings
from model_code.encoding.settings import EncoderSettings, PromptSettings
from model_code.retrieval.kinds import DEFAULT_KIND, all_trained_kinds, trained_kind
from model_code.retrieval.protocol import LATE_SUFFIX
from model_code.settings import Field
from model_code.training.settings import TrainingSettings

# Names of the two BM25 baselines. The second one also indexes the known queries of each document.
BM25 = "bm25"
BM25_KNOWN = "bm25_known"

_KINDS = all_trained_kinds()
_KIND_DESCRIPTIONS = "Type of the retriever: " + "; ".join(
    f"{kind.name} ({kind.description})" for kind in _KINDS
)
_KIND_NAMES = tuple(kind.name for kind in _KINDS)


class CommonRetrieverSettings(settings.Settings):
    """Settings that retrievers of all kinds have: training, kind and base encoder."""

    training: TrainingSettings
    kind: Literal[_KIND_NAMES] = Field(  # type: ignore[valid-type]
        DEFAULT_KIND, description=_KIND_DESCRIPTIONS
    )
    base: str | None = Field(
        None,
        min_length=1,
        description="Base encoder of this retriever: a folder or the name of a hub repository. "
        "null: encoder.base. DVC follows the name of a folder, not its content.",
    )

    def encoder_settings(self, shared: EncoderSettings) -> EncoderSettings:
        """Return the encoder settings that this retriever is trained with.

        The pooling and prompts of the group `encoder` belong to the base encoder `encoder.base`. If
        this retriever has another base encoder, they are left out. The encoder then takes them from
        the folder of its base encoder.

        Args:
            shared: The group `encoder`.

        >>> RetrieverSettings(training=TrainingSettings(), base="b").encoder_settings(
        ...     EncoderSettings(base="a", pooling="cls", max_tokens=64)
        ... )  # doctest: +ELLIPSIS
        EncoderSettings(base='b', max_tokens=64, include_title=True, pooling=None, ...)
        """
        if self.base is None:
            return shared
        return shared.replace(base=self.base, pooling=None, prompts=PromptSettings())

    def check(self) -> None:
        """Refuse groups that the kind does not read, and settings that it cannot be trained with.

        A group that the kind does not read would have no effect. It is accepted if it only repeats
        its default values.
        """
        settings.require(
            self.base is None or self.training.start is None,
            f"base is {self.base} and start is {self.training.start}, but training begins with one "
            "of the two; leave the other out",
        )
        for other in _KINDS:
            group = getattr(self, other.settings_group)
            is_default = group == other.settings_class()
            settings.require(
                other.name == self.kind or is_default,
                f"{other.settings_group} is read by kind: {other.name} only, and this one is "
                f"{self.kind}",
            )

        kind = trained_kind(self.kind)
        kind.check_settings(self.training, getattr(self, kind.settings_group))


# Each kind adds its own group of settings as a field, so that a new kind needs no line here.
RetrieverSettings = create_model(
    "RetrieverSettings",
    __base__=CommonRetrieverSettings,
    __module__=__name__,
    __doc__="One retriever: its training, its kind, and a group of settings for each kind.",
    **{
        kind.settings_group: (kind.settings_class, Field(default_factory=kind.settings_class))
        for kind in _KINDS
    },
)


class FusionSettings(settings.Settings):
    """One fusion. Its score is the weighted sum of its components' normalised scores."""

    of: tuple[str, ...] = Field(
        description="Components: names under `retrievers`, bm25, bm25_known, zero_shot (the base "
        "encoder), or headline (titles and first sentences, by the base encoder)."
    )
    weights: dict[str, float] = Field(
        default_factory=dict,
        description="Weight of each component. Without it, weights are learned on the judged dev "
        "queries if there are at least 30.",
    )
    depth: int = Field(
        100,
        ge=1,
        description="Candidates of each component that all components score, or k if that is "
        "larger.",
    )
    feedback: float = Field(
        0.0,
        ge=0,
        le=1,
        description="How far a query's vector is moved towards its three best documents before "
        "scoring again. 0: not at all.",
    )

    def with_known_queries(self) -> FusionSettings:
        """Return the settings with bm25_known in place of bm25, unless both are components."""
        if BM25 not in self.of or BM25_KNOWN in self.of:
            return self
        renamed = {BM25: BM25_KNOWN}
        components = [renamed.get(name, name) for name in self.of]
        weights = {renamed.get(name, name): weight for name, weight in self.weights.items()}
        return self.replace(of=tuple(components), weights=weights)

    def check(self) -> None:
        """Refuse fewer than two components, repeated ones, and weights that do not fit them."""
        names = set(self.of)
        settings.require(
            len(self.of) >= 2 and len(names) == len(self.of),
            f"of is {list(self.of)}, but a fused retriever has two parts or more, each once",
        )
        if not self.weights:
            return

        weighable = names | {name + LATE_SUFFIX for name in self.of}
        settings.require(
            names <= self.weights.keys() <= weighable,
            f"weights are given for {sorted(self.weights)}; give one for each of {list(self.of)}, "
            "or leave them out",
        )
        values = self.weights.values()
        settings.require(
            all(weight >= 0 for weight in values) and any(values),
            f"weights are {self.weights}, but none may be below 0, and one must be above it",
        )


def parse_retriever(
    group: Mapping[str, Any] | None, shared: Mapping[str, Any], where: str
) -> CommonRetrieverSettings:
    """Parse a retriever's flat group of keys.

    Args:
        group: Keys of the retriever: those of `RetrieverSettings`, and keys of `training` that it
            overrides.
        shared: The group `training`, for the keys that the retriever does not override.
        where: Path of the group, which error messages begin with.

    Returns:
        A `RetrieverSettings`.

    Raises:
        SettingsError: If a key is unknown or a value impossible.

    >>> group = {"kind": "lexical", "epochs": 2}
    >>> parse_retriever(group, {"epochs": 1}, "retrievers.svdr").training.epochs
    2.0
    """
    settings.require(
        group is None or isinstance(group, Mapping),
        f"{where} must be a group of settings, not {group!r}",
    )
    group = group or {}

    retriever_keys = [name for name in RetrieverSettings.model_fields if name != "training"]
    known_keys = [*retriever_keys, *settings.keys(TrainingSettings)]
    # A constant of `training` is not a known key, but `settings.parse` accepts its default value
    # below.
    other_values = {
        key: value for key, value in group.items() if key not in TrainingSettings.model_fields
    }
    settings.reject_unknown(other_values, known_keys, where)

    # Keys of the retriever itself, and all others, which override keys of `training`.
    retriever_values: dict[str, Any] = {}
    training_values = dict(shared)
    for key, value in group.items():
        if key in retriever_keys:
            retriever_values[key] = value
        else:
            training_values[key] = value

    retriever_values["training"] = settings.parse(TrainingSettings, training_values, where)
    return settings.parse(RetrieverSettings, retriever_values, where)
