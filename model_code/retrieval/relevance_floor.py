"""The relevance floor: the fit below which a hit is probably no answer to its query.

A fit is a number that tells how well a document matches a query, and that can be compared between
queries. A dense retriever ranks documents for every query, even if no document answers it. So a
search needs a smallest fit of an answer, which is called the floor. It is learned in two steps:

1. Everyday questions about many subjects are searched, such as "how long to boil an egg". Most
   collections do not answer them, so their hits show how large the fit of a wrong answer can be.
   The floor is a high quantile of the fits of their best hits.
2. This misleads if the collection is about everyday subjects, or shares no word with the questions.
   So random queries are searched as well, which join words of random documents and mean nothing.
   Let r be the median fit of their best hits. If the floor is above r, it is lowered to r. If it
   is below r / 2, it is raised to r / 2.

A fusion adds up scores of several components, such as BM25 and a dense retriever. Its scores are
not fits, because they are normalised per query: the best document by BM25 always has the score 1.
So a floor is learned for each component, from the component's own fits. A hit is below the floor of
a fusion if it is below the floors of all components.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from model_code.retrieval.protocol import Retriever
from model_code.text.words import split_search_words

# Number of random queries, and the range of their lengths in words.
RANDOM_QUERIES = 16
MIN_QUERY_WORDS = 3
MAX_QUERY_WORDS = 10
# Number of first hits of a query that are considered. The largest of their fits is used.
HITS_PER_QUERY = 10
# The floor is this quantile of the best fits of everyday queries. Its upper limit is the other
# quantile, of the best fits of random queries.
EVERYDAY_QUANTILE = 0.85
RANDOM_QUANTILE = 0.5
# Lower limit of the floor, as a share of its upper limit.
MIN_SHARE_OF_RANDOM = 0.5
# Smallest number of documents for which a floor is learned. The fits of random queries from fewer
# documents are not reliable.
MIN_DOCUMENTS = 20


EVERYDAY_QUERIES = (
    "how long to boil an egg",
    "cheap hotels near the beach",
    "best running shoes for flat feet",
    "how to remove red wine from a carpet",
    "train times to the airport",
    "birthday present for a ten year old",
    "why does my knee hurt when I climb stairs",
    "vegetarian lasagne recipe",
    "latest football results",
    "how to prune roses in winter",
    "who wrote pride and prejudice",
    "weather forecast for the weekend",
    "how many players are in a volleyball team",
    "symptoms of a cold in toddlers",
    "movie with a talking donkey",
    "how to get a visa for australia",
    "what to wear to a wedding",
    "how to paint a wooden fence",
    "price of gold today",
    "is coconut oil healthy",
    "learn to play the guitar",
    "haircut for curly hair",
    "how tall is mount everest",
    "opening hours of the swimming pool",
    "dog barks at night",
    "how to fold a fitted sheet",
    "names for a baby girl",
    "second hand bicycles",
    "when do the clocks change",
    "how to quit smoking",
    "who painted the sunflowers",
    "divorce lawyer free consultation",
)


@dataclass(frozen=True)
class RelevanceFloor:
    """Thresholds below which hits are probably no answers.

    Attributes:
        thresholds: Smallest fit of an answer, by component; see `Retriever.fits`. If it is empty,
            no hit is below the floor.
    """

    thresholds: Mapping[str, float]

    @classmethod
    def learn(cls, retriever: Retriever, texts: Sequence[str], seed: int = 0) -> RelevanceFloor:
        """Learn the floor of a retriever: how well a hit must fit its query to be relevant.

        A fit is a score that is comparable between queries. Most corpora do not answer the everyday
        queries, so their best fits show how well unrelated documents fit. The floor is a high
        quantile of these fits.

        A corpus may answer everyday queries, or share no word with them. Then their fits say
        little. So the floor is kept between two limits, which are learned from queries of random
        corpus words: the median of the best fits of these queries, and half of it.

        Args:
            retriever: The retriever.
            texts: Texts of some of its documents, whose words make the random queries. The floor is
                empty if there are fewer than `MIN_DOCUMENTS`.
            seed: Seed of the random queries.
        """
        queries = random_queries(texts, seed)
        if len(texts) < MIN_DOCUMENTS or not queries:
            return cls({})

        # For each component, how well the best hit of each query fits.
        everyday_fits = _best_fits(retriever, EVERYDAY_QUERIES)
        random_fits = _best_fits(retriever, queries)

        thresholds = {}
        for component, fits in everyday_fits.items():
            everyday_fit = np.quantile(fits, EVERYDAY_QUANTILE)
            highest_floor = np.quantile(random_fits[component], RANDOM_QUANTILE)
            lowest_floor = MIN_SHARE_OF_RANDOM * highest_floor
            thresholds[component] = float(np.clip(everyday_fit, lowest_floor, highest_floor))
        return cls(thresholds)

    def is_below(self, fits: Mapping[str, np.ndarray], count: int) -> list[bool]:
        """Return whether each of `count` documents is below the floor for every component.

        Args:
            fits: Fit of each document, shape (n,), by component.
            count: Number n of documents.
        """
        # Start with all documents below the floor, or with none if there are no thresholds.
        is_below = np.full(count, bool(self.thresholds))
        for name, threshold in self.thresholds.items():
            is_below &= fits[name] < threshold
        return is_below.tolist()


def _best_fits(retriever: Retriever, queries: Sequence[str]) -> dict[str, list[float]]:
    """Return the best fit among the first hits of each query, by component; 0 without hits."""
    encoded = retriever.encode_queries(queries)
    rankings = retriever.search_and_rerank(encoded, HITS_PER_QUERY)
    hits = [sorted(document for document, _ in ranking) for ranking in rankings]

    best_fits: dict[str, list[float]] = {}
    for fits_of_query in retriever.fits(encoded, hits):
        for component, fits in fits_of_query.items():
            best_fit = float(fits.max()) if len(fits) else 0.0
            best_fits.setdefault(component, []).append(best_fit)
    return best_fits


def random_queries(texts: Sequence[str], seed: int) -> list[str]:
    """Return queries whose words are drawn from random texts; an empty list if no text has a word.

    >>> random_queries(["river bank", "tax law"], seed=1)[0].split()[0] in "river bank tax law"
    True
    """
    words_of_texts = []
    for text in texts:
        words_of_text = split_search_words(text)
        if words_of_text:
            words_of_texts.append(words_of_text)
    if not words_of_texts:
        return []

    generator = random.Random(seed)
    queries = []
    for _ in range(RANDOM_QUERIES):
        length = generator.randint(MIN_QUERY_WORDS, MAX_QUERY_WORDS)
        words = []
        for _ in range(length):
            words_of_text = generator.choice(words_of_texts)
            words.append(generator.choice(words_of_text))
        queries.append(" ".join(words))
    return queries
