"""The stage `base_index`: encode and index the passages with the base encoder, as it comes.

Its vectors are what the document hierarchy is clustered from, and its rankings the baseline
`zero_shot`.
"""

from __future__ import annotations

from typing import Any

from model_code.context import StageContext
from model_code.encoding.encoder import Encoder
from model_code.retrieval.indexing import index_passages


def run(context: StageContext) -> dict[str, Any]:
    """Read `inputs["corpus"]`, write the folder `index/`, return its counts."""
    return index_passages(
        context, Encoder.from_settings(context.settings["encoder"], for_search=True)
    )
