"""The model card of a trained encoder: what it began with and saw, what came of it, and whose rights it is under."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from model_code.context import StageContext
from model_code.corpus.tables import load_corpus
from model_code.encoding.base_models import locate
from model_code.files import canonical_json, write_text

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
- **Corpus**: {documents:,} documents in {passages:,} passages; {supervised_pairs:,} pairs that people judged and
  {unsupervised_pairs:,} made ones.
- **Results**: {results}
- **Licence**: the base states {licence}. What holds for your documents and judgements holds beside it.

## Settings

```json
{settings}```
"""
RESULTS = (
    "{dev_metric} {best_dev:.3f} [{low:.3f}, {high:.3f}] (95 % over queries) on {dev_queries:,} dev queries, "
    "{start_dev:.3f} before training. These queries chose the step, so ask `freshet results` for those of the test."
)


def write_card(context: StageContext, report: dict[str, Any]) -> None:
    """Write the card into `encoder/` of the stage `train`, of whose `report` it tells."""
    retriever, corpus = context.settings["retriever"], load_corpus(context.inputs["corpus"])
    given, sparse = context.settings["encoder"].base, retriever.kind == "lexical"
    base = Path(given).name if Path(given).is_dir() else given  # where it lies says nothing of it
    settings = {name: context.settings[name].model_dump(mode="json") for name in ("encoder", "retriever")}
    settings["encoder"]["base"] = base
    results = "none: there were no dev queries."
    if bounds := report["best_dev_interval"]:
        results = RESULTS.format(**report, low=bounds[0], high=bounds[1])
    facts = {
        "base": base,
        "name": context.name,
        "licence": _licence(given),
        "loader": "SparseEncoder" if sparse else "SentenceTransformer",
        "options": ", trust_remote_code=True" if sparse else "",
        "documents": len(corpus.documents),
        "passages": len(corpus.passages),
        "results": results,
        "settings": canonical_json(settings),
    }
    card = TEXT.format(**report | facts)
    write_text(context.output / "encoder" / CARD, card)


def _licence(base: str) -> str:
    """What the base's own card states."""
    card = locate(base) / CARD
    found = LICENCE.match(card.read_text(encoding="utf-8")) if card.is_file() else None
    return found[1] if found else "unknown"
