"""Stage `train`, once per retriever: train it on the corpus's pairs, and keep the best checkpoint.

The output holds `encoder/`, the trained encoder with its model card, and `history.json`, the rows
of the training curve. Some kinds of retrievers add files.
"""

from __future__ import annotations

from typing import Any

from model_code.context import StageContext, mark_left_out
from model_code.stages.stage import (
    BASE_VECTORS,
    RETRIEVER_CODE,
    Stage,
    artifact_paths,
    code_paths,
)

STAGE = Stage(
    name="train",
    description="The encoder after training, with its learning curve; "
    "the best checkpoint by dev metric.",
    groups=("encoder", "hierarchy", "training", "retrievers.{retriever}", "seed"),
    inputs=artifact_paths("corpus", "pseudo_queries", "hierarchy", base_index=BASE_VECTORS),
    output="artifacts/train/{retriever}",
    code=(*RETRIEVER_CODE, *code_paths("stages/model_card.py")),
    expand_by="retrievers",
    pool="gpu",
)
TRANSFORMER_MODULES = ("Transformer", "Normalize")


def run(context: StageContext) -> dict[str, Any]:
    """Train the retriever `context.name`.

    If people judged too few training queries, the retriever is left out: encoders that were trained
    on generated queries alone got worse as often as better, and nothing predicts which.

    Returns:
        The number of training pairs, and the best step with its dev metric.
    """
    retriever = context.settings["retriever"]
    minimum = retriever.training.min_judged_queries
    judged = _count_judged_training_queries(context)
    if judged < minimum:
        reason = (
            f"the retriever {context.name} is not trained: {judged} training queries have "
            f"judgements by people, and at least {minimum} are needed; record more with freshet "
            "judge, or set training.min_judged_queries: 0 to train on generated queries alone"
        )
        return mark_left_out(context.output, reason)

    # These modules import torch, which takes seconds. A retriever that is left out needs none.
    from model_code.distributed.training import train
    from model_code.retrieval.kinds import trained_kind
    from model_code.stages.model_card import write_model_card

    kind = trained_kind(retriever.kind)
    shared_batches = 1
    if kind.shares_steps:
        shared_batches = retriever.training.accumulation
    report = train(_train, context, shared_batches)
    write_model_card(context, report)
    return report


def check(context: StageContext) -> None:
    """Require the training curve, the encoder's folder, and the further files of the kind."""
    from model_code.checks.models import (
        LAYOUT_FILES,
        TRANSFORMER_FILES,
        check_history,
        check_model,
    )
    from model_code.checks.rules import require_files
    from model_code.files import read_json
    from model_code.retrieval.kinds import trained_kind

    check_history(context.output / "history.json")
    encoder = context.output / "encoder"
    check_model(encoder, (*TRANSFORMER_FILES, *LAYOUT_FILES))

    for module in read_json(encoder / "modules.json"):
        name = module["type"].rpartition(".")[2]
        if name in TRANSFORMER_MODULES:
            # The transformer's files, in the top folder, are checked above. `Normalize` has no
            # files.
            continue
        files = ["config.json"]
        if name == "Dense":
            files.append("model.safetensors")
        require_files(encoder / module["path"], files)

    trained_kind(context.settings["retriever"].kind).check_trained(context)


def _train(context: StageContext) -> dict[str, Any]:
    """Train the retriever in this process, and return the report of its kind.

    A worker process of Ray calls this function as well.
    """
    from model_code.retrieval.kinds import trained_kind
    from model_code.training.tables import TrainingTables

    kind = trained_kind(context.settings["retriever"].kind)
    return kind.train(context, TrainingTables.load(context))


def _count_judged_training_queries(context: StageContext) -> int:
    """Return the number of training queries that people judged.

    With too few of them, the stage ends without training. It should then end at once. So this
    function reads only two columns of one table, and does not import pandas, which is slow.
    """
    import pyarrow.parquet as pq

    path = context.inputs["corpus"] / "qrels.parquet"
    qrels = pq.read_table(path, columns=["query_id", "split"]).to_pydict()
    judged = set()
    for query_id, split in zip(qrels["query_id"], qrels["split"], strict=True):
        if split == "train":
            judged.add(query_id)
    return len(judged)
