"""THE stage table: every stage's function, settings, inputs and output. `dvc.yaml` and the asset
graph say the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from model_code.errors import FreshetError

GROUND = ("context", "errors", "files", "progress", "settings")
# on which every package of `model_code` stands
BASE_CODE = tuple(f"model_code/{name}.py" for name in GROUND)


def _code(*names: str) -> tuple[str, ...]:
    """Packages or modules of `model_code`."""
    return tuple(f"model_code/{name}" for name in names)


def _read(*names: str, **others: str) -> dict[str, str]:
    """Inputs that are called as the folder of a stage below `artifacts`, and others."""
    return {name: f"artifacts/{name}" for name in names} | others


QUERY_CODE = _code(
    "corpus",
    "distributed",
    "encoding",
    "evaluation",
    "hierarchy",
    "losses",
    "queries",
    "retrieval",
    "text",
    "training",
)
RETRIEVER_CODE = (*QUERY_CODE, *_code("dense", "dsi", "lexical", "mlr", "retriever_settings.py"))
BASE_VECTORS = "artifacts/base_index/index"


@dataclass(frozen=True)
class Stage:
    """One row of the table. In `inputs`, `output` and `groups`, `{retriever}` stands for the
    retriever's name.

    each: the row is there once for every retriever, or for every fusion of retrievers.

    `groups` are the keys of `params.yaml` that the stage may read, dotted ones being parts of a
    group; it is given no others. `code` are the files and folders whose edit makes the stage run
    again, beside `BASE_CODE` and the stage's own module.
    """

    name: str
    description: str
    groups: tuple[str, ...]
    inputs: Mapping[str, str]
    output: str
    code: tuple[str, ...]
    each: Literal["retrievers", "fusions"] | None = None
    pool: str | None = None
    retriever: str | None = field(default=None, kw_only=True)

    @property
    def module(self) -> str:
        """The module whose `run` does the work."""
        return f"model_code.stages.{self.name}"

    @property
    def address(self) -> str:
        """The name that DVC and the command line use, such as `corpus` or `train@hce`."""
        return f"{self.name}@{self.retriever}" if self.retriever else self.name

    @property
    def command(self) -> str:
        """The shell command that runs it, from the project's root."""
        return f"python -m orchestration.pipeline.run_stage {self.address}"

    @property
    def code_files(self) -> tuple[str, ...]:
        """Files and folders of code that its output depends on, sorted."""
        return tuple(sorted({*BASE_CODE, *self.code, self.module.replace(".", "/") + ".py"}))

    def of(self, name: str) -> Stage:
        """This row with the name of a retriever, or of a fusion, filled in."""
        return replace(
            self,
            groups=tuple(group.format(retriever=name) for group in self.groups),
            inputs={key: path.format(retriever=name) for key, path in self.inputs.items()},
            output=self.output.format(retriever=name),
            retriever=name,
        )


CORPUS = Stage(
    name="corpus",
    description="Documents, passages, queries and qrels, cleaned and merged; rejected rows quarantined with a reason.",
    groups=("corpus", "passages"),
    inputs={"lock": "corpus.lock.json"},
    output="artifacts/corpus",
    code=_code("corpus", "text"),
)
QUERY_GENERATOR = Stage(
    name="query_generator",
    description="A model that writes queries, trained on the corpus's own pairs; only a report if none is asked for.",
    groups=("pseudo_queries.training", "pseudo_queries.sequence_to_sequence", "encoder", "seed"),
    inputs=_read("corpus"),
    output="artifacts/query_generator",
    code=QUERY_CODE,
)
PSEUDO_QUERIES = Stage(
    name="pseudo_queries",
    description="Queries generated from the documents themselves, to train on.",
    groups=("pseudo_queries", "encoder", "seed"),
    inputs=_read("corpus", "query_generator"),
    output="artifacts/pseudo_queries",
    code=QUERY_CODE,
)
ACCEPTANCE = Stage(
    name="acceptance",
    description="Great Expectations' verdict on the corpus; no retriever is trained on data that fails it.",
    groups=("acceptance",),
    inputs=_read("corpus"),
    output="artifacts/acceptance",
    code=_code("corpus", "text"),
)
BASE_INDEX = Stage(
    name="base_index",
    description="Every passage encoded by the untrained base encoder: the zero-shot retriever.",
    groups=("encoder", "index"),
    inputs=_read("corpus", "acceptance"),
    output="artifacts/base_index",
    code=_code("corpus", "distributed", "encoding", "retrieval", "text"),
)
HIERARCHY = Stage(
    name="hierarchy",
    description="The documents clustered into a tree by spherical k-means.",
    groups=("hierarchy", "seed"),
    inputs=_read("corpus", base_index=BASE_VECTORS),
    output="artifacts/hierarchy",
    code=_code("corpus", "distributed", "encoding/hardware.py", "hierarchy", "text"),
)
TRAIN = Stage(
    name="train",
    description="The encoder after training, with its learning curve; the best checkpoint by dev metric.",
    groups=("encoder", "hierarchy", "training", "retrievers.{retriever}", "seed"),
    inputs=_read("corpus", "pseudo_queries", "hierarchy", base_index=BASE_VECTORS),
    output="artifacts/train/{retriever}",
    code=RETRIEVER_CODE,
    each="retrievers",
    pool="gpu",
)
INDEX = Stage(
    name="index",
    description="Every passage encoded by the trained encoder, in a FAISS index that knows its encoder's fingerprint.",
    groups=("encoder", "index", "retrievers.{retriever}", "training"),
    inputs=_read("corpus", trained="artifacts/train/{retriever}"),
    output="artifacts/index/{retriever}",
    code=RETRIEVER_CODE,
    each="retrievers",
)
BASELINES = Stage(
    name="baselines",
    description="BM25, with generated queries too if there are any, the untrained encoder, and both fused.",
    groups=("bm25", "encoder", "evaluation", "pseudo_queries.generators"),
    inputs=_read("corpus", "pseudo_queries", "hierarchy", base_index=BASE_VECTORS),
    output="artifacts/baselines",
    code=(*RETRIEVER_CODE, "model_code/stages/evaluate.py", "model_code/stages/fuse.py"),
)
EVALUATE = Stage(
    name="evaluate",
    description="Ranking of every dev, gate and test query by this retriever, with per-query scores.",
    groups=("encoder", "evaluation"),
    inputs=_read(
        "corpus",
        "baselines",
        trained="artifacts/train/{retriever}",
        index="artifacts/index/{retriever}/index",
    ),
    output="artifacts/evaluate/{retriever}",
    code=RETRIEVER_CODE,
    each="retrievers",
)
FUSE = Stage(
    name="fuse",
    description="Several retrievers as one: weights learned on dev, and its ranking of every dev, gate and test query.",
    groups=("encoder", "evaluation", "fusions.{retriever}"),
    inputs=_read(
        "corpus", "hierarchy", "baselines", trained="artifacts/train", indexes="artifacts/index"
    ),
    output="artifacts/evaluate/{retriever}",
    code=(*RETRIEVER_CODE, "model_code/stages/evaluate.py"),
    each="fusions",
)
COMPARISON = Stage(
    name="comparison",
    description="All systems on the same queries: intervals, paired tests with Holm's correction, and a picture.",
    groups=("evaluation", "fusions", "retrievers", "seed"),
    inputs=_read("corpus", "baselines", evaluations="artifacts/evaluate"),
    output="artifacts/comparison",
    code=_code("corpus", "evaluation", "retrieval", "text"),
)

TABLE: tuple[Stage, ...] = (
    CORPUS,
    QUERY_GENERATOR,
    PSEUDO_QUERIES,
    ACCEPTANCE,
    BASE_INDEX,
    HIERARCHY,
    TRAIN,
    INDEX,
    BASELINES,
    EVALUATE,
    FUSE,
    COMPARISON,
)


def expand(retrievers: Iterable[str], fusions: Iterable[str] = ()) -> tuple[Stage, ...]:
    """Every stage that exists with these retrievers and fusions of them, in an order in which they
    can run.

    >>> [stage.address for stage in expand(["hce"], ["fused"])][6:]
    ['train@hce', 'index@hce', 'baselines', 'evaluate@hce', 'fuse@fused', 'comparison']
    """
    names = {"retrievers": tuple(retrievers), "fusions": tuple(fusions)}
    rows: list[Stage] = []
    for stage in TABLE:
        rows += [stage.of(name) for name in names[stage.each]] if stage.each else [stage]
    return tuple(rows)


def find(address: str, stages: Iterable[Stage]) -> tuple[Stage, ...]:
    """The stages that `address` names: `train@hce` is one, `train` is that stage for every
    retriever.

    >>> [stage.address for stage in find("index", expand(["contrastive", "hce"]))]
    ['index@contrastive', 'index@hce']
    """
    stages = tuple(stages)
    matching = tuple(stage for stage in stages if address in (stage.address, stage.name))
    if not matching:
        raise FreshetError(
            f"{address!r} is not a stage. Stages: {', '.join(stage.address for stage in stages)}"
        )
    return matching


def upstream(stage: Stage, stages: Iterable[Stage]) -> tuple[Stage, ...]:
    """The stages whose output `stage` reads directly."""
    return tuple(
        each
        for each in stages
        if any(_overlap(path, each.output) for path in stage.inputs.values())
    )


def _overlap(first: str, second: str) -> bool:
    """Whether two paths are the same or one lies inside the other."""
    return f"{first}/".startswith(f"{second}/") or f"{second}/".startswith(f"{first}/")
