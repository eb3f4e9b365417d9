"""Lexical retrieval (SVDR): texts as weights over the vocabulary, searched by tokens, by embeddings or by both."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model_code.index.top_k import Ranking
from model_code.retrievers.retriever import Search, TokenMatch
from model_code.stages.context import StageContext

if TYPE_CHECKING:
    from model_code.lexical.searches import Searches
    from model_code.lexical.settings import MainSearch
    from model_code.training.tables import TrainingTables


class LexicalRetriever:
    """A lexical encoder and the indexes of its passages; see `Retriever`.

    main: which of the searches is `search`; the others are variants.
    """

    def __init__(self, searches: Searches, main: MainSearch) -> None:
        self.searches, self.main, self.fingerprint = searches, main, searches.fingerprint

    def search(self, texts: Sequence[str], k: int, allowed: Collection[str] | None = None) -> list[Ranking]:
        """The k best documents for each query text, best first; of `allowed` documents only, unless None."""
        return self.searches.search(self.main, texts, k, allowed)

    def rerank(self, texts: Sequence[str], candidates: Sequence[Collection[str]]) -> list[Ranking]:
        """Each query's `candidates`, scored and sorted as `search` would."""
        return self.searches.rank(self.main, texts, candidates)

    def best_passage(self, text: str, document_id: str) -> int:
        """Which of the document's passages (0, 1, ...) answers the query best."""
        return self.searches.best_passage(self.main, text, document_id)

    def variants(self) -> Mapping[str, Search]:
        """The searches that the indexes allow, but for the main one: full, alpha, beta, beta_own, beta_rerank."""
        return {name: partial(self.searches.search, name) for name in self.searches.names if name != self.main}

    def explain(self, text: str, document_id: str) -> list[TokenMatch]:
        """The tokens that matched, the heaviest first; their weights sum to the document's score."""
        encoder = self.searches.encoder
        own, name = set(encoder.bags([text])[0].tolist()), encoder.tokenizer.convert_ids_to_tokens
        matches = self.searches.matches(self.main, text, document_id)
        return [TokenMatch(name(token), weight, token not in own) for token, weight in matches]


def train(context: StageContext, tables: TrainingTables) -> dict[str, Any]:
    """Train the lexical encoder; writes `encoder/`, `history.json` and, of two stages, `first_stage.json`."""
    from model_code.lexical.fit import fit_lexical_encoder

    return fit_lexical_encoder(context, tables)


def index(context: StageContext) -> dict[str, Any]:
    """Index the corpus's passages: their tokens, and with the encoder in `inputs["trained"]` their embeddings."""
    from model_code.corpus.tables import load_corpus, passage_texts
    from model_code.lexical.indexing import build_folder
    from model_code.lexical.layout import load_encoder

    base = context.settings["encoder"]
    encoder = load_encoder(context.inputs["trained"] / "encoder", base.max_tokens, base.precision, base.device)
    passages = load_corpus(context.inputs["corpus"]).passages
    return build_folder(
        context.output / "index",
        encoder,
        passage_texts(passages, base.include_title),
        passages["document_id"].tolist(),
        context.settings["retriever"].lexical,
        context.checkpoints,
        context.progress("encode"),
    )


def open_folders(encoder: Path, index: Path, for_search: bool = False, **loading: Any) -> LexicalRetriever:
    """The retriever in two folders; loading: `max_tokens`, `precision` and `device` of `load_encoder`.

    for_search: makes no difference here.
    """
    from model_code.lexical.indexing import open_folder
    from model_code.lexical.layout import load_encoder

    searches, manifest = open_folder(index, load_encoder(encoder, **loading))
    return LexicalRetriever(searches, manifest["search"])
