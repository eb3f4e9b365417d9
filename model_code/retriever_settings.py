"""What the user may choose about one retriever: a key under `retrievers:` in `params.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_code import settings
from model_code.dsi.settings import DocumentVectorSettings
from model_code.encoding.settings import LayerSettings
from model_code.lexical.settings import LexicalSettings
from model_code.retrieval.kinds import KINDS, Kind
from model_code.retrieval.protocol import LATE
from model_code.settings import Field
from model_code.training.settings import TrainingSettings


class RetrieverSettings(settings.Settings):
    """One retriever: what kind it is, how it is trained, and what only its kind has."""

    training: TrainingSettings
    kind: Kind = Field(
        "dense", description=", ".join(f"{kind} ({words})" for kind, words in KINDS.items())
    )
    layers: LayerSettings = Field(default_factory=LayerSettings)
    lexical: LexicalSettings = Field(default_factory=LexicalSettings)
    document_vectors: DocumentVectorSettings = Field(default_factory=DocumentVectorSettings)

    def check(self) -> None:
        """Refuse groups that the kind does not read, and what it cannot train with: they would be
        without effect.
        """
        readers: dict[str, Kind] = {
            "layers": "dense",
            "lexical": "lexical",
            "document_vectors": "dsi",
        }
        for group, kind in readers.items():
            untouched = getattr(self, group) == type(getattr(self, group))()
            settings.require(
                self.kind == kind or untouched,
                f"{group} is read by kind: {kind} only, and this one is {self.kind}",
            )
        training, lexical, dsi = self.training, self.kind == "lexical", self.kind == "dsi"
        settings.require(
            not lexical or training.start is None,
            "start names a dense encoder to go on from, and a lexical one has a head beside it; leave start out",
        )
        settings.require(
            not (lexical and training.cotraining and training.needs_hierarchy),
            "cotraining clusters vectors of passages, and a lexical retriever has none; set cotraining: false",
        )
        settings.require(
            not dsi or self.document_vectors.train_encoder or training.hierarchy_weight == 0,
            f"hierarchy_weight is {training.hierarchy_weight}, but the hierarchy loss teaches the query encoder, "
            "which train_encoder: false keeps; set hierarchy_weight: 0, or document_vectors.train_encoder: true",
        )
        settings.require(
            not (dsi and training.cotraining and training.hierarchy_weight),
            "cotraining clusters passages that the encoder encodes, and a dsi encodes none; set cotraining: false",
        )


class FusionSettings(settings.Settings):
    """One fused retriever: a key under `fusions:`; its score is the weighed sum of its parts'
    scores.
    """

    of: tuple[str, ...] = Field(
        description="its parts: names under `retrievers`, bm25, zero_shot (the base encoder)"
    )
    weights: dict[str, float] = Field(
        default_factory=dict,
        description="of each part; left out: learned on the judged dev queries, where there are at least 30",
    )
    depth: int = Field(
        100, ge=1, description="documents of each part that all parts score, or k, if that is more"
    )
    feedback: float = Field(
        0.0,
        ge=0,
        le=1,
        description="how far a query is moved towards its three best documents, to score again",
    )

    def check(self) -> None:
        """Refuse fewer than two parts, one that comes twice, and weights that are not those of the
        parts.
        """
        settings.require(
            len(self.of) >= 2 and len(set(self.of)) == len(self.of),
            f"of is {list(self.of)}, but a fused retriever has two parts or more, each once",
        )
        settings.require(
            not self.weights
            or set(self.of)
            <= self.weights.keys()
            <= {*self.of, *(part + LATE for part in self.of)},
            f"weights are given for {sorted(self.weights)}; give one for each of {list(self.of)}, or leave them out",
        )
        settings.require(
            all(weight >= 0 for weight in self.weights.values())
            and (not self.weights or any(self.weights.values())),
            f"weights are {self.weights}, but none may be below 0, and one must be above it",
        )


def parse_retriever(
    group: Mapping[str, Any] | None, shared: Mapping[str, Any], where: str
) -> RetrieverSettings:
    """The retriever of a flat group, with the keys of `training` that it does not override taken
    from `shared`.

    >>> parse_retriever({"kind": "lexical", "epochs": 2}, {"epochs": 1}, "retrievers.svdr").training.epochs
    2.0
    """
    names = [name for name in RetrieverSettings.model_fields if name != "training"]
    keys = [*names, *settings.keys(TrainingSettings)]
    settings.require(
        group is None or isinstance(group, Mapping),
        f"{where} must be a group of settings, not {group!r}",
    )
    group = group or {}
    settings.reject_unknown(group, keys, where)
    trained = {key: value for key, value in group.items() if key not in names}
    training = settings.parse(TrainingSettings, {**shared, **trained}, where)
    values = {key: value for key, value in group.items() if key in names}
    return settings.parse(RetrieverSettings, {**values, "training": training}, where)
