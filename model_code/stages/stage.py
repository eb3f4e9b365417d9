"""Declare a pipeline stage: its settings, inputs, output and code.

Each module of this package that holds a `STAGE` is one stage. DVC, the asset graph and the runner
read the declarations, so a declaration imports nothing slow: the libraries that do the work are
imported inside `run` and `check`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from model_code.retrieval.kinds import TRAINED_KINDS

# Paths of the modules that every package of `model_code` imports. Every stage depends on them.
BASE_CODE = (
    "freshet/errors.py",
    "freshet/results.py",
    "model_code/context.py",
    "model_code/errors.py",
    "model_code/files.py",
    "model_code/progress.py",
    "model_code/settings.py",
)


def code_paths(*names: str) -> tuple[str, ...]:
    """Return the paths of packages or modules of `model_code`.

    >>> code_paths("corpus", "stages/fusion.py")
    ('model_code/corpus', 'model_code/stages/fusion.py')
    """
    return tuple(f"model_code/{name}" for name in names)


def artifact_paths(*stages: str, **others: str) -> dict[str, str]:
    """Return the paths of a stage's inputs by name.

    Args:
        *stages: Names of stages. The output of each is an input with the name of the stage.
        **others: Paths of further inputs by name.

    >>> artifact_paths("corpus", index="artifacts/index/hce")
    {'corpus': 'artifacts/corpus', 'index': 'artifacts/index/hce'}
    """
    paths = {name: f"artifacts/{name}" for name in stages}
    paths.update(others)
    return paths


# Code of the stages that train or use a query generator.
QUERY_CODE = code_paths(
    "corpus",
    "distributed",
    "encoding",
    "evaluation",
    "hierarchy",
    "losses",
    "mapped_tensors.py",
    "queries",
    "retrieval",
    "row_file.py",
    "text",
    "training",
)
# Packages of the retriever kinds, such as `dsi` for the module `model_code.dsi.kind`.
KIND_PACKAGES = tuple(module.split(".")[1] for module in TRAINED_KINDS.values())
# Code of the stages that train, index or search a retriever of any kind.
RETRIEVER_CODE = (
    *QUERY_CODE,
    *code_paths(*KIND_PACKAGES, "mlr", "retriever_settings.py"),
)
# Path of the base encoder's index, whose vectors the hierarchy clusters and trainings use.
BASE_VECTORS = "artifacts/base_index/index"


@dataclass(frozen=True)
class Stage:
    """Declaration of one stage.

    In `inputs`, `output` and `groups`, `{retriever}` is replaced by a name if the stage runs once
    per retriever or fusion.

    Attributes:
        name: Name of the stage and of its module in this package.
        description: A description of the output, for `dvc.yaml` and the asset page.
        groups: Keys of `params.yaml` that the stage may read. A dotted key is a part of a group.
            The stage gets no other settings.
        inputs: Paths that the stage reads, by the names under which `run` finds them.
        output: The folder that the stage writes.
        code: Files and folders whose edit makes the stage run again, in addition to `BASE_CODE` and
            the stage's own module.
        expand_by: The group of `params.yaml` with a stage for each of its names, or None for a
            stage that exists once.
        pool: Dagster pool that limits how many such stages run at once.
        retriever: Name of the retriever or fusion, once the stage is expanded.
    """

    name: str
    description: str
    groups: tuple[str, ...]
    inputs: Mapping[str, str]
    output: str
    code: tuple[str, ...]
    expand_by: Literal["retrievers", "fusions"] | None = None
    pool: str | None = None
    retriever: str | None = field(default=None, kw_only=True)

    @property
    def module(self) -> str:
        """The module that holds the stage's `run` and `check`."""
        return f"model_code.stages.{self.name}"

    @property
    def address(self) -> str:
        """The name that DVC and the command line use, such as `corpus` or `train@hce`."""
        if self.retriever is None:
            return self.name
        return f"{self.name}@{self.retriever}"

    @property
    def code_files(self) -> tuple[str, ...]:
        """All files and folders of code that the output depends on, sorted."""
        own_module = self.module.replace(".", "/") + ".py"
        return tuple(sorted({*BASE_CODE, *self.code, own_module}))

    def for_retriever(self, name: str) -> Stage:
        """Return this stage for one retriever or fusion."""
        return replace(
            self,
            groups=tuple(group.format(retriever=name) for group in self.groups),
            inputs={key: path.format(retriever=name) for key, path in self.inputs.items()},
            output=self.output.format(retriever=name),
            retriever=name,
        )
