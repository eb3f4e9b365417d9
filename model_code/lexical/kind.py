"""Kind `lexical`: SVDR's weights over the vocabulary, searched by a token index or by embeddings.

Slow libraries are imported inside functions, because commands import this module to read settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model_code.lexical.settings import LexicalSettings
from model_code.retrieval.kinds import RetrieverKind
from model_code.settings import require

if TYPE_CHECKING:
    from model_code.context import StageContext
    from model_code.lexical.retriever import LexicalRetriever
    from model_code.training.settings import TrainingSettings
    from model_code.training.tables import TrainingTables


def train(context: StageContext, tables: TrainingTables) -> dict[str, Any]:
    """Train the lexical encoder, write `encoder/` and `history.json`, and return the report."""
    from model_code.lexical.fit import fit_lexical_encoder

    return fit_lexical_encoder(context, tables)


def index(context: StageContext) -> dict[str, Any]:
    """Build the indexes that the main search reads, with the trained encoder.

    If `known_queries.use` is set, the words of known queries are indexed with their documents. A
    known query is one that a document is known to answer. The stage `baselines` has chosen how much
    its words count beside the words of the text, for the BM25 index `bm25_known`.
    """
    from model_code.corpus.corpus_queries import CorpusQueries
    from model_code.corpus.tables import load_corpus, passage_texts
    from model_code.lexical.index import build_folder
    from model_code.lexical.layout import load_encoder
    from model_code.retrieval.bm25 import read_known_words
    from model_code.text.known_queries import KnownQuery

    known: dict[str, list[KnownQuery]] = {}
    words = None
    if context.settings["known_queries.use"]:
        known = CorpusQueries.of_corpus(context.inputs["corpus"]).by_document()
        words = read_known_words(context.inputs["bm25_known"])

    base = context.settings["encoder"]
    folder = context.inputs["trained"] / "encoder"
    encoder = load_encoder(folder, base.max_tokens, base.precision, base.device, for_search=True)

    passages = load_corpus(context.inputs["corpus"]).passages
    return build_folder(
        context.output / "index",
        encoder,
        passage_texts(passages, base.include_title),
        passages["document_id"].tolist(),
        context.settings["retriever"].lexical,
        context.checkpoints,
        context.progress("encode"),
        known,
        words,
    )


def open_folders(
    encoder: Path, index: Path, numpy: bool = False, **loading: Any
) -> LexicalRetriever:
    """Open a lexical retriever; `loading` is passed to `layout.load_encoder`.

    `numpy` has no effect, because lexical encoders need PyTorch.
    """
    from model_code.lexical.layout import load_encoder
    from model_code.lexical.retriever import LexicalRetriever

    return LexicalRetriever.open(index, load_encoder(encoder, for_search=True, **loading))


def check_index(folder: Path, manifest: Mapping[str, Any], documents: Sequence[str]) -> None:
    """Raise FreshetError if an index folder breaks the contract; see `lexical.contract`."""
    from model_code.lexical import contract

    contract.check_index(folder, manifest, documents)


def check_trained(context: StageContext) -> None:
    """Raise FreshetError if the trained encoder's head is not complete; see `lexical.contract`."""
    from model_code.lexical import contract

    contract.check_trained(context)


def check_settings(training: TrainingSettings, settings: LexicalSettings) -> None:
    """Refuse settings of dense training that a lexical encoder does not support.

    Training cannot start from a trained dense encoder, which has no lexical head. Co-training
    clusters passage vectors, which a lexical retriever does not have.

    Raises:
        SettingsError: If `training.start` is set, or co-training is switched on.
    """
    require(
        training.start is None,
        "start names a dense encoder to go on from, and a lexical one has a head beside it; "
        "leave start out",
    )
    require(
        not (training.cotraining and training.needs_hierarchy),
        "cotraining clusters vectors of passages, and a lexical retriever has none; set "
        "cotraining: false",
    )


KIND = RetrieverKind(
    name="lexical",
    description="SVDR: weights over the vocabulary",
    train=train,
    index=index,
    open_folders=open_folders,
    check_index=check_index,
    settings_group="lexical",
    settings_class=LexicalSettings,
    check_settings=check_settings,
    check_trained=check_trained,
    loader="SparseEncoder",
    trust_remote_code=True,
)
