"""Contract of a lexical retriever: conditions that its trained encoder and its index must meet.

`model_code.stages.contract` checks contracts when a stage has ended. An edit of this file makes DVC
train lexical retrievers again, because a stage depends on the whole package of its kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from model_code.checks.indexes import check_document_order, load_array
from model_code.checks.rules import require, require_files, require_finite
from model_code.context import StageContext
from model_code.files import MANIFEST, read_json
from model_code.lexical.settings import EMBEDDED, KNOWN_WORDS


def check_trained(context: StageContext) -> None:
    """Check that the encoder's configuration and the weights of its head exist."""
    encoder = context.output / "encoder"
    require_files(encoder, ["lexical.json"])
    require_files(encoder / "1_LexicalHead", ["config.json", "model.safetensors"])


def check_index(folder: Path, manifest: Mapping[str, Any], documents: Sequence[str]) -> None:
    """Check that the folder has the token index and exactly the parts that its main search reads.

    Args:
        folder: Folder of the indexes.
        manifest: Manifest of the folder.
        documents: Document id of each passage, in the order of the corpus.
    """
    search = manifest["search"]
    has_embeddings = search in EMBEDDED
    has_passages = search == "beta_rerank"
    for name, is_expected in (
        ("tokens", True),
        ("embeddings", has_embeddings),
        ("passages", has_passages),
    ):
        presence = "be there" if is_expected else "not be there"
        require(
            (folder / name).is_dir() == is_expected,
            f"index/{name}/ must {presence}, as search is {search} in its {MANIFEST}",
        )

    check_document_order(folder / "tokens", documents)
    if KNOWN_WORDS in manifest:
        check_document_order(folder / "known", documents)
    if has_embeddings:
        check_document_order(folder / "embeddings", documents)
        weights = load_array(folder / "embeddings", "weights.npy")
        require_finite("index/embeddings/weights.npy", weights)
    if has_passages:
        passages = read_json(folder / "passages" / MANIFEST)["passages"]
        require(
            passages == len(documents),
            f"index/passages/{MANIFEST} must state {len(documents):,} passages",
        )
