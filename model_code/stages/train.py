"""Stage `train`, once per retriever: train it on the corpus's pairs, and keep the best checkpoint.

Output: `encoder/`, the trained encoder with its card, and `history.json`, the rows of the training
curve; some kinds add their own.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from model_code.context import StageContext, mark_left_out
from model_code.corpus.tables import load_corpus
from model_code.distributed.training import train
from model_code.encoding.base_models import locate_model
from model_code.files import canonical_json, write_text
from model_code.retrieval.kinds import trained_kind
from model_code.training.tables import TrainingTables

NOT_TRAINED = (
    "{name} is not trained: {known} training queries of this corpus have judgements by people, and {least} are the "
    "least; bring qrels, or set training.min_judged_queries: 0 to train on made queries all the same"
)


def run(context: StageContext) -> dict[str, Any]:
    """Train the retriever `context.name`; the report says what it saw and which step was best.

    Where people judged too few queries, it is left out: trained on made queries alone, encoders
    lost as often as they won, and nothing tells which.
    """
    retriever = context.settings["retriever"]
    least, qrels = (
        retriever.training.min_judged_queries,
        load_corpus(context.inputs["corpus"]).qrels,
    )
    judged = qrels.loc[qrels["split"] == "train", "query_id"].nunique()
    if judged < least:
        return mark_left_out(
            context.output, NOT_TRAINED.format(name=context.name, known=judged, least=least)
        )
    kind = trained_kind(retriever.kind)
    shared_batches = retriever.training.accumulation if kind.shares_steps else 1
    report = train(_train, context, shared_batches)
    write_card(context, report)
    return report


def _train(context: StageContext) -> dict[str, Any]:
    kind = trained_kind(context.settings["retriever"].kind)
    return kind.train(context, TrainingTables.load(context))


CARD = "README.md"
LICENCE = re.compile(r"\A---\n.*?^license: *(\S+) *$.*?^---$", re.DOTALL | re.MULTILINE)
TEXT = """---
base_model: {base}
library_name: sentence-transformers
license: {licence}
pipeline_tag: feature-extraction
---
# {name}

An encoder that Freshet trained on one corpus, to search that one.

    from sentence_transformers import {loader}
    encoder = {loader}("this folder"{options})

- **Base**: {base}
- **Corpus**: {documents:,} documents in {passages:,} passages{pairs}.
- **Results**: {results}
- **Licence**: the base states {licence}. What holds for your documents and judgements holds beside it.

## Settings

```json
{settings}```
"""
PAIRS = "; {supervised_pairs:,} pairs that people judged and\n  {unsupervised_pairs:,} made ones"
RESULTS = (
    "{dev_metric} {best_dev:.3f} [{low:.3f}, {high:.3f}] (95 % over queries) on {dev_queries:,} dev queries, "
    "{start_dev:.3f} before training. These queries chose the step, so ask `freshet results` for those of the test."
)


def write_card(context: StageContext, report: dict[str, Any]) -> None:
    """Write into `encoder/` what it began with and saw, what came of it (`report`), and whose
    rights it is under.
    """
    retriever, corpus = context.settings["retriever"], load_corpus(context.inputs["corpus"])
    kind = trained_kind(retriever.kind)
    location = context.settings["encoder"].base
    # where it lies says nothing of it
    base = Path(location).name if Path(location).is_dir() else location
    settings = {
        name: context.settings[name].model_dump(mode="json") for name in ("encoder", "retriever")
    }
    settings["encoder"]["base"] = base
    results = "none on dev queries."
    if bounds := report.get("best_dev_interval"):
        results = RESULTS.format(**report, low=bounds[0], high=bounds[1])
    facts = {
        "base": base,
        "name": context.name,
        "licence": _licence(location),
        "loader": kind.loader,
        "options": ", trust_remote_code=True" if kind.trust_remote_code else "",
        "documents": len(corpus.documents),
        "passages": len(corpus.passages),
        "pairs": PAIRS.format(**report) if "supervised_pairs" in report else "",
        "results": results,
        "settings": canonical_json(settings),
    }
    write_text(context.output / "encoder" / CARD, TEXT.format(**facts))


def _licence(base: str) -> str:
    """What the base's own card states."""
    card = locate_model(base) / CARD
    match = LICENCE.match(card.read_text(encoding="utf-8")) if card.is_file() else None
    return match[1] if match else "unknown"
