"""Guards known queries: equal texts are one query, evidence against a query cancels it, and the
result depends on the set of queries alone.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from model_code.text.known_queries import (
    KnownQuery,
    KnownQueryLimits,
    QuerySource,
    normalize_query,
    resolve_queries,
    select_queries,
)

TEXTS = ("sort a list", "Sort a list!", "read a file", "read a csv file", "排序")
# Each text is a near-duplicate of its neighbours only, so this is no equivalence relation.
CHAIN = ("a b c d e", "b c d e", "b c d e f", "c d e f", "c d e f g")

QUERIES = st.lists(
    st.builds(
        KnownQuery,
        document_id=st.sampled_from(["a", "b"]),
        text=st.sampled_from(TEXTS + CHAIN),
        source=st.sampled_from(list(QuerySource)),
        weight=st.sampled_from([-1.0, 0.5, 1.0, 2.0]),
        date=st.sampled_from([None, "2024-01-01", "2025-06-30"]),
    ),
    max_size=12,
)


def test_case_punctuation_and_width_are_ignored() -> None:
    assert normalize_query("Sort  a LIST?") == normalize_query("sort a ｌｉｓｔ")
    assert normalize_query("sort a list") != normalize_query("sort a set")


def test_text_without_words_keeps_its_characters() -> None:
    assert normalize_query("?!") != normalize_query("...")


@given(QUERIES, st.randoms())
def test_order_of_arrival_changes_nothing(queries: list[KnownQuery], random: object) -> None:
    shuffled = list(queries)
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    assert resolve_queries(shuffled) == resolve_queries(queries)
    for limits in (KnownQueryLimits(), KnownQueryLimits(max_queries=1, max_words=4)):
        assert select_queries(shuffled, limits) == select_queries(queries, limits)


@given(QUERIES)
def test_query_stays_while_evidence_outweighs(queries: list[KnownQuery]) -> None:
    resolved = {query.key: query.weight for query in resolve_queries(queries)}

    totals: dict[tuple[str, str], float] = {}
    for query in queries:
        totals[query.key] = totals.get(query.key, 0.0) + query.weight
    assert resolved == {key: total for key, total in totals.items() if total > 0}


def test_thumb_down_cancels_the_query_of_a_row() -> None:
    row = KnownQuery("a", "sort a list", QuerySource.ROW)
    down = KnownQuery("a", "Sort a list?", QuerySource.FEEDBACK, weight=-1)

    assert resolve_queries([row]) == [row]
    assert resolve_queries([row, down]) == []


def test_heavy_queries_come_first_then_old_ones() -> None:
    judged = KnownQuery("a", "z", QuerySource.QRELS, weight=2)
    old = KnownQuery("a", "y", QuerySource.ROW, date="2024-01-01")
    young = KnownQuery("a", "x", QuerySource.ROW, date="2025-01-01")

    assert resolve_queries([young, old, judged]) == [judged, old, young]


def test_public_text_stands_for_a_group() -> None:
    row = KnownQuery("a", "Sort a list", QuerySource.ROW)
    thumbs = KnownQuery("a", "sort a list", QuerySource.FEEDBACK, weight=5)

    (resolved,) = resolve_queries([thumbs, row])
    assert resolved.text == "Sort a list"
    assert resolved.is_public
    assert resolved.weight == 6


def test_selected_queries_share_the_limit_of_words() -> None:
    texts = ("sort a list", "read the file", "order rows")
    queries = [
        KnownQuery("a", text, QuerySource.ROW, weight=weight)
        for text, weight in zip(texts, (3.0, 2.0, 1.0), strict=True)
    ]

    selected = select_queries(queries, KnownQueryLimits(max_queries=3, max_words=5))

    # The second query would exceed five words. The third one still fits.
    assert [query.text for query in selected] == ["sort a list", "order rows"]


def test_limits_hold_for_each_document_alone() -> None:
    queries = [KnownQuery(document, "sort a list", QuerySource.ROW) for document in ("a", "b")]

    selected = select_queries(queries, KnownQueryLimits(max_queries=1, max_words=3))

    assert [query.document_id for query in selected] == ["a", "b"]


def rows(*texts: str, source: QuerySource = QuerySource.ROW) -> list[KnownQuery]:
    return [KnownQuery("a", text, source) for text in texts]


def test_near_duplicates_share_their_weight() -> None:
    alone = KnownQuery("a", "cut a cake", QuerySource.QRELS, weight=1.5)
    merged = rows("how to sort a list", "how to sort a list quickly")

    (selected,) = select_queries([alone, *merged], KnownQueryLimits(max_queries=1))

    assert selected.text == "how to sort a list"
    assert selected.weight == 2.0


def test_chain_of_near_duplicates_is_merged_in_order() -> None:
    selected = select_queries(rows(*CHAIN))

    # "a b c d e" takes its neighbour, "b c d e f" the next one, and the last one is left.
    weights = {query.text: query.weight for query in selected}
    assert weights == {"a b c d e": 2.0, "b c d e f": 2.0, "c d e f g": 1.0}


def test_thumbs_on_near_duplicates_count_once() -> None:
    """One person may have given all of them."""
    row = KnownQuery("a", "cut a cake", QuerySource.ROW)
    texts = [f"how to sort a list of very many things {i}" for i in range(9)]
    thumbs = rows(*texts, source=QuerySource.FEEDBACK)

    selected = select_queries([row, *thumbs])

    assert [(query.text, query.weight) for query in selected] == [
        ("cut a cake", 1.0),
        (texts[0], 1.0),
    ]


def test_public_query_keeps_its_text_beside_a_near_duplicate_with_more_thumbs() -> None:
    judged = KnownQuery("a", "how to sort a list", QuerySource.QRELS)
    thumbs = KnownQuery("a", "how to sort a list quickly", QuerySource.FEEDBACK, weight=2)

    (selected,) = select_queries([thumbs, judged])

    assert selected == replace(judged, weight=3.0)


def test_many_public_queries_displace_no_thumbs() -> None:
    public = rows(*[f"query{i:05}" for i in range(200)])
    thumbs = KnownQuery("a", "sort a list", QuerySource.FEEDBACK, weight=2)

    selected = select_queries([*public, thumbs])

    assert selected[0] == thumbs


def test_thumb_down_spares_near_duplicates() -> None:
    start = "how do i start the server of the site now"
    stop = start.replace("start", "stop")
    down = KnownQuery("a", stop, QuerySource.FEEDBACK, weight=-3)

    selected = select_queries([*rows(start, stop), down])

    assert [(query.text, query.weight) for query in selected] == [(start, 1.0)]


def test_many_thumbs_are_compared_with_few_queries() -> None:
    thumbs = rows(*[f"query{i:05}" for i in range(20_000)], source=QuerySource.FEEDBACK)

    selected = select_queries(thumbs)

    assert [query.text for query in selected] == [f"query{i:05}" for i in range(16)]
