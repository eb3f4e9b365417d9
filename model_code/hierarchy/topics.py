"""Names of the nodes: the words by which a node's passages differ from those beside them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain, pairwise

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import CountVectorizer

from model_code.hierarchy.tree import Hierarchy
from model_code.text.words import UNSPACED_SCRIPTS, split_words

WORDS = 3  # of a name
# texts with one of a pair's characters alone that are thought to be there beside those that are
RARE = 2
SAME = 5  # letters at the beginning that make two words one: sort, sorted
CHARACTER = re.compile(f"[{UNSPACED_SCRIPTS}]")
KANA, KATAKANA = re.compile("[\u3041-\u30ff]"), re.compile("[\u30a1-\u30fa\u30fc]{2,}")
LONGEST = 20  # letters of a word that is one, and no identifier or number


def topic_names(tree: Hierarchy, texts: Sequence[str]) -> list[list[str]]:
    """A name for each node of each level, by the `texts` of the tree's passages.

    Class-based tf-idf with a node's parent as the collection: a word that a share p of the node's
    passages have, and a share q of the parent's, weighs p log(p / q), its part of the divergence of
    the two. So words that all have, such as "the", weigh nothing, and no list of them is needed. A
    node that is all of its parent keeps its name. Two characters weigh less where they mostly stand
    apart, as the last of a word and the first of the next one do.
    """
    presence, vocabulary = _presence(texts)
    wholeness = _wholeness(texts, vocabulary, presence)
    above, over = csr_matrix(presence.mean(axis=0)), np.zeros(len(texts), np.int64)
    named: list[list[str]] = []
    for level in range(1, tree.depth + 1):
        nodes, sizes = tree.paths()[:, level - 1], tree.sizes(level)
        member = csr_matrix(
            (1 / sizes[nodes], (nodes, np.arange(len(nodes)))), (len(sizes), len(nodes))
        )
        shares = (member @ presence).tocsr()
        parents = tree.parents[level - 1]
        named.append([])
        for node, (start, end) in enumerate(pairwise(shares.indptr)):
            p, terms = shares.data[start:end], shares.indices[start:end]
            weights = wholeness[terms] * p * np.log(p / above[parents[node], terms].toarray()[0])
            order = np.lexsort((terms, -weights.round(9)))[: (weights > 1e-9).sum()]
            best = [vocabulary[term] for term in terms[order]]
            alone = level > 1 and sizes[node] == over[parents[node]]
            named[-1].append(
                named[-2][parents[node]]
                if alone
                else ", ".join(_different(best)) or f"topic {node + 1}"
            )
        above, over = shares, sizes
    return named


def _presence(texts: Sequence[str]) -> tuple[csr_matrix, np.ndarray]:
    """Which passage has which word: 0 or 1 (N, V); and the words."""
    vectorizer = CountVectorizer(analyzer=_words_of, binary=True, dtype=np.float64)
    try:
        return vectorizer.fit_transform(texts), vectorizer.get_feature_names_out()
    except ValueError:  # no text has any word
        return csr_matrix((len(texts), 0)), np.array([])


def _words_of(text: str) -> set[str]:
    """The words of a text that may be part of a name; of scripts without blanks each two
    neighbours.

    In Japanese a run of katakana is a word, and hiragana are endings and particles, which name
    nothing.

    >>> sorted(_words_of("Sort it in 2024!")), sorted(_words_of("排序算法")), sorted(_words_of("駅前のバス"))
    (['sort'], ['序算', '排序', '算法'], ['バス', '駅前'])
    """
    tokens = split_words(text.lower())
    pairs = {
        first + second
        for first, second in pairwise(tokens)
        if _may_pair(first) and _may_pair(second)
    }
    spaced = {word for word in tokens if 2 < len(word) <= LONGEST and not word[0].isdigit()}
    return pairs | spaced | set(KATAKANA.findall(text))


def _may_pair(word: str) -> bool:
    """Whether it is a character of a script without blanks, and no kana."""
    return CHARACTER.match(word) is not None and not KANA.match(word)


def _wholeness(texts: Sequence[str], vocabulary: np.ndarray, presence: csr_matrix) -> np.ndarray:
    """How much of a word each is (V,): of a pair, how many of the texts with the commoner character
    have both together; 1 of all others. Of a pair that few texts have it is known less well, and
    thought to be less.
    """
    having = Counter(chain.from_iterable(map(set, texts)))
    both = np.asarray(presence.sum(axis=0)).ravel().tolist()
    return np.array(
        [
            n / (max(map(having.get, word[:2])) + RARE) if _may_pair(word) else 1.0
            for word, n in zip(vocabulary, both, strict=True)
        ]
    )


def _different(best: Sequence[str]) -> list[str]:
    """The first words of which none begins like another, and no pair has a character of another."""
    chosen: list[str] = []
    used: set[str] = set()
    for word in best:
        parts = set(word) if _may_pair(word) else {word[:SAME]}
        if len(chosen) < WORDS and not parts & used:
            chosen.append(word)
            used |= parts
    return chosen
