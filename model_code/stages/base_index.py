"""Stage `base_index`: encode and index the passages with the base encoder, without training.

The document hierarchy is clustered from these vectors, and the baseline `zero_shot` searches them.
"""

from __future__ import annotations

from typing import Any

from model_code.context import StageContext
from model_code.stages.stage import Stage, artifact_paths, code_paths

STAGE = Stage(
    name="base_index",
    description="Every passage encoded by the base encoder: the index of the zero-shot retriever.",
    groups=("encoder", "index"),
    inputs=artifact_paths("corpus", "acceptance"),
    output="artifacts/base_index",
    code=code_paths(
        "corpus", "distributed", "encoding", "mapped_tensors.py", "retrieval", "row_file.py", "text"
    ),
)


def run(context: StageContext) -> dict[str, Any]:
    """Read `inputs["corpus"]`, write the folder `index/`, and return its counts."""
    from model_code.encoding.encoder import Encoder
    from model_code.retrieval.indexing import index_passages

    encoder = Encoder.from_settings(context.settings["encoder"], for_search=True)
    return index_passages(context, encoder)


def check(context: StageContext) -> None:
    """Require the index of a dense retriever over the passages of the corpus."""
    from model_code.checks.indexes import check_index_folder
    from model_code.retrieval.kinds import DEFAULT_KIND

    check_index_folder(context.output / "index", DEFAULT_KIND, context)
