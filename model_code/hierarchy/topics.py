"""Topics: names for the nodes of a hierarchy, made of the words that distinguish a node's passages.

A word is weighted by how much more frequent it is in a node than in the node's parent (class-based
tf-idf). If a share p of the node's passages and a share q of the parent's passages contain the
word, its weight is

    p log(p / q),

its part of the Kullback-Leibler divergence between the two. A word that all passages contain, such
as "the", has weight 0, so no list of stop words is needed. Words that many passages of the whole
corpus contain are left out, because they tell a reader little. Examples are numpy, array and import
in a corpus of Python packages.

Texts in scripts without blanks between words, such as Chinese, are split into pairs of neighbouring
characters. A pair may consist of the end of one word and the beginning of the next. So a pair
weighs less if its characters mostly occur without each other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import CountVectorizer

from model_code.hierarchy.tree import Hierarchy
from model_code.text.words import UNSPACED_SCRIPTS, split_words

# Largest number of words in the name of a node.
WORDS_PER_NAME = 3
# Smoothing of `_pair_cohesion`: this number is added to a count of texts, so that rare pairs get a
# low factor.
PAIR_SMOOTHING_TEXTS = 2
# Number of equal first letters from which two words of a name count as the same word.
STEM_PREFIX_LETTERS = 5
MIN_WORD_LETTERS = 3
# Largest number of letters of a word in a name. Longer words are identifiers or numbers.
MAX_WORD_LETTERS = 20
# Largest share of all passages that may contain a word of a name. The limit only applies from
# MIN_TEXTS_FOR_SHARES texts on, because shares of fewer texts are too coarse.
MAX_CORPUS_SHARE = 0.2
MIN_TEXTS_FOR_SHARES = 100
# A weight up to this number is a rounding error and counts as 0.
MIN_WEIGHT = 1e-9
# Smallest confidence of a name: the share of a node's passages that contain a word of it.
MIN_CONFIDENCE = 0.35

UNSPACED_CHARACTER = re.compile(f"[{UNSPACED_SCRIPTS}]")
KANA = re.compile("[\u3041-\u30ff]")
KATAKANA_RUN = re.compile("[\u30a1-\u30fa\u30fc]{2,}")


def topic_names(tree: Hierarchy, texts: Sequence[str]) -> list[list[str]]:
    """Name every node of every level by up to three words of its passages.

    A node with all passages of its parent gets the parent's name. The confidence of a name is the
    share of the node's passages that contain a word of it, averaged over the words. A node is
    called "topic" with its number if no word distinguishes it, or if the confidence is below
    `MIN_CONFIDENCE`.

    Args:
        tree: The hierarchy.
        texts: The text of each of its passages.

    Returns:
        The names of the nodes, level by level.
    """
    presence, vocabulary = _word_presence(texts)
    # The share of all passages that contain each word, (V,).
    corpus_shares = np.asarray(presence.mean(axis=0)).ravel()
    # Factor of each word's weight, (V,). Words of many passages get the factor 0.
    factors = _pair_cohesion(texts, vocabulary, presence)
    if len(texts) >= MIN_TEXTS_FOR_SHARES:
        factors = factors * (corpus_shares <= MAX_CORPUS_SHARE)

    # At level 1, the parent of all nodes is the root, which has all passages.
    parent_shares = csr_matrix(corpus_shares)
    parent_sizes = np.array([len(texts)])
    names_by_level: list[list[str]] = []
    for level in range(1, tree.depth + 1):
        sizes = tree.sizes(level)
        # The share of each node's passages that contain each word, (K, V).
        shares = _word_shares(presence, tree.paths()[:, level - 1], sizes)

        names: list[str] = []
        for node, parent in enumerate(tree.parents[level - 1].tolist()):
            # Nodes of level 1 have the root as parent, which has no name to take over.
            has_all_passages_of_parent = sizes[node] == parent_sizes[parent]
            if level > 1 and has_all_passages_of_parent:
                names.append(names_by_level[-1][parent])
                continue
            # Slicing the arrays of the sparse matrix is several times as fast as indexing it.
            row = slice(shares.indptr[node], shares.indptr[node + 1])
            words = shares.indices[row]
            shares_in_node = shares.data[row]
            shares_in_parent = parent_shares[parent, words].toarray()[0]
            ranked_words = _rank_words(words, shares_in_node, shares_in_parent, factors[words])

            share_of_word = dict(zip(vocabulary[words].tolist(), shares_in_node, strict=True))
            name = _join_words([vocabulary[word] for word in ranked_words], share_of_word)
            if name is None:
                name = f"topic {node + 1}"
            names.append(name)

        names_by_level.append(names)
        parent_shares = shares
        parent_sizes = sizes
    return names_by_level


def _join_words(ranked_words: Sequence[str], share_of_word: Mapping[str, float]) -> str | None:
    """Return the name that the best words of a node make, or None if it is not reliable.

    Args:
        ranked_words: Words that distinguish the node, best first.
        share_of_word: Share of the node's passages that contain a word, by word.
    """
    words = _choose_distinct_words(ranked_words)
    if not words:
        return None
    confidence = sum(share_of_word[word] for word in words) / len(words)
    if confidence < MIN_CONFIDENCE:
        return None
    return ", ".join(words)


def _word_presence(texts: Sequence[str]) -> tuple[csr_matrix, np.ndarray]:
    """Return a sparse matrix of which passage contains which word, (N, V), and the V words.

    An entry is 1 if the passage contains the word, and 0 otherwise.
    """
    vectorizer = CountVectorizer(analyzer=_candidate_words, binary=True, dtype=np.float64)
    try:
        presence = vectorizer.fit_transform(texts)
    except ValueError:
        # scikit-learn's vectorizer raises ValueError if no text has any word.
        return csr_matrix((len(texts), 0)), np.array([])
    return presence, vectorizer.get_feature_names_out()


def _candidate_words(text: str) -> set[str]:
    """Return the words of a text that may be part of a name.

    In scripts without blanks, these are pairs of neighbouring characters. In Japanese, a run of
    katakana is a word. Hiragana are left out, because they mostly are endings and particles.

    >>> sorted(_candidate_words("Sort it in 2024!"))
    ['sort']
    >>> sorted(_candidate_words("排序算法"))
    ['序算', '排序', '算法']
    >>> sorted(_candidate_words("駅前のバス"))
    ['バス', '駅前']
    """
    tokens = split_words(text.lower())

    candidates = set(KATAKANA_RUN.findall(text))
    for first, second in pairwise(tokens):
        if _may_pair(first) and _may_pair(second):
            candidates.add(first + second)
    for word in tokens:
        has_word_length = MIN_WORD_LETTERS <= len(word) <= MAX_WORD_LETTERS
        if has_word_length and not word[0].isdigit():
            candidates.add(word)
    return candidates


def _may_pair(word: str) -> bool:
    """Return whether a word begins with a character of a script without blanks that is not kana."""
    return UNSPACED_CHARACTER.match(word) is not None and not KANA.match(word)


def _pair_cohesion(
    texts: Sequence[str], vocabulary: np.ndarray, presence: csr_matrix
) -> np.ndarray:
    """Return a factor that lowers pairs of characters which are no word, (V,).

    Chinese and Japanese texts are split into overlapping pairs of characters, and some pairs span
    two words. The factor of a pair is the number of texts with the pair, divided by the number of
    texts with its more frequent character. It is smoothed, because counts of rare pairs are
    unreliable. The factor of all other words is 1.
    """
    texts_with_character: Counter[str] = Counter()
    for text in texts:
        texts_with_character.update(set(text))
    texts_with_word = np.asarray(presence.sum(axis=0)).ravel().tolist()

    cohesion = np.ones(len(vocabulary))
    for i, word in enumerate(vocabulary):
        if _may_pair(word):
            texts_with_either = [texts_with_character[character] for character in word[:2]]
            cohesion[i] = texts_with_word[i] / (max(texts_with_either) + PAIR_SMOOTHING_TEXTS)
    return cohesion


def _word_shares(presence: csr_matrix, nodes: np.ndarray, sizes: np.ndarray) -> csr_matrix:
    """Return the share of each node's passages that contain each word, (K, V)."""
    # A matrix (K, N) that has 1 / (size of the node) for each passage of a node.
    passages = np.arange(len(nodes))
    membership = csr_matrix((1 / sizes[nodes], (nodes, passages)), shape=(len(sizes), len(nodes)))
    return (membership @ presence).tocsr()


def _rank_words(
    words: np.ndarray, node_shares: np.ndarray, parent_shares: np.ndarray, factors: np.ndarray
) -> np.ndarray:
    """Return the words with a positive weight, the largest weight first.

    If a share p of the node's passages and a share q of the parent's passages contain a word, the
    weight of the word is factor * p * log(p / q). Words of equal weight keep the order of the
    vocabulary.

    Args:
        words: Numbers of the words that the node's passages contain, (n,).
        node_shares: Share of the node's passages that contain each word, (n,).
        parent_shares: Share of the parent's passages that contain each word, (n,).
        factors: Factor of each word's weight, (n,), between 0 and 1. It is 0 for a word that must
            not be in a name, and below 1 for a pair of characters that may be no word.

    Returns:
        Word numbers, at most n.
    """
    weights = factors * node_shares * np.log(node_shares / parent_shares)
    order = np.lexsort((words, -weights.round(9)))
    positive_count = int((weights > MIN_WEIGHT).sum())
    return words[order[:positive_count]]


def _choose_distinct_words(ranked: Sequence[str]) -> list[str]:
    """Take the first words that differ enough from all words that were taken before.

    A word is left out if an earlier word has the same first letters. A pair of characters, as in
    Chinese, is left out if an earlier pair contains one of them.
    """
    chosen: list[str] = []
    used_parts: set[str] = set()
    for word in ranked:
        # Words are similar if they share a part: the first letters, or a character of a pair.
        parts = set(word) if _may_pair(word) else {word[:STEM_PREFIX_LETTERS]}
        if parts.isdisjoint(used_parts):
            chosen.append(word)
            used_parts |= parts
        if len(chosen) == WORDS_PER_NAME:
            break
    return chosen
