"""The model card of a trained encoder: its base, its training data, its results and its licence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from model_code.context import StageContext
from model_code.corpus.tables import load_corpus
from model_code.encoding.base_models import locate_model
from model_code.files import canonical_json, write_text
from model_code.retrieval.kinds import trained_kind

CARD = "README.md"
# Finds the key `license` in the YAML header of a model card.
LICENCE = re.compile(r"\A---\n.*?^license: *(\S+) *$.*?^---$", re.DOTALL | re.MULTILINE)
TEXT = """---
base_model: {base}
library_name: sentence-transformers
license: {licence}
pipeline_tag: feature-extraction
---
# {name}

An encoder that Freshet trained on one corpus, to search that corpus.

    from sentence_transformers import {loader}
    encoder = {loader}("this folder"{options})

- **Base**: {base}
- **Corpus**: {documents:,} documents in {passages:,} passages{pairs}.
- **Results**: {results}
- **Licence**: the base states {licence}. The terms of your documents and judgements apply as well.

## Settings

```json
{settings}```
"""
PAIRS = (
    "; {supervised_pairs:,} pairs that people judged and\n  {unsupervised_pairs:,} generated ones"
)
RESULTS = (
    "{dev_metric} {best_dev:.3f} [{low:.3f}, {high:.3f}] (95 % over queries) on {dev_queries:,} "
    "dev queries, {start_dev:.3f} before training. These queries chose the step: `freshet results` "
    "has the results on test."
)
NO_RESULTS = "none on dev queries."


def write_model_card(context: StageContext, report: dict[str, Any]) -> None:
    """Write `encoder/README.md`.

    Args:
        context: Context of the stage `train`.
        report: Report of the training, with the number of pairs and the dev metric.
    """
    corpus = load_corpus(context.inputs["corpus"])
    retriever = context.settings["retriever"]
    kind = trained_kind(retriever.kind)
    location = retriever.encoder_settings(context.settings["encoder"]).base
    base = _public_name(location)

    options = ""
    if kind.trust_remote_code:
        options = ", trust_remote_code=True"
    pairs = ""
    if "supervised_pairs" in report:
        pairs = PAIRS.format(**report)

    text = TEXT.format(
        base=base,
        name=context.name,
        licence=_licence(location),
        loader=kind.loader,
        options=options,
        documents=len(corpus.documents),
        passages=len(corpus.passages),
        pairs=pairs,
        results=_results(report),
        settings=_settings_json(context, base),
    )
    write_text(context.output / "encoder" / CARD, text)


def _public_name(location: str) -> str:
    """Return the name of the base encoder, without the path of a local folder."""
    if Path(location).is_dir():
        return Path(location).name
    return location


def _results(report: dict[str, Any]) -> str:
    """Return the card's sentence about the dev metric, from the report of the training."""
    interval = report.get("best_dev_interval")
    if not interval:
        return NO_RESULTS
    low, high = interval
    return RESULTS.format(**report, low=low, high=high)


def _settings_json(context: StageContext, base: str) -> str:
    """Return the settings of the encoder and the training as JSON.

    The base encoder is given by its public name, so that the card shows no path of this machine.
    """
    retriever = context.settings["retriever"]
    encoder = retriever.encoder_settings(context.settings["encoder"])
    settings = {
        "encoder": encoder.model_dump(mode="json"),
        "retriever": retriever.model_dump(mode="json"),
    }
    settings["encoder"]["base"] = base
    if retriever.base is not None:
        settings["retriever"]["base"] = base
    return canonical_json(settings)


def _licence(base: str) -> str:
    """Return the licence that the model card of the base encoder names, or "unknown"."""
    card = locate_model(base) / CARD
    if not card.is_file():
        return "unknown"
    match = LICENCE.match(card.read_text(encoding="utf-8"))
    return match[1] if match else "unknown"
