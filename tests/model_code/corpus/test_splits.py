"""Guards that splits depend on ids alone, have the stated shares, and respect dates."""

from __future__ import annotations

from collections import Counter

import pytest

from model_code.corpus.rows import Unfit
from model_code.corpus.settings import PartSettings, QuerySplitSettings
from model_code.corpus.splits import part_of, position, split_queries
from model_code.documents import Document

IDS = [f"id-{i}" for i in range(20_000)]


def document(name: str, date: str | None = None) -> Document:
    return Document(name, "", name, date=date)


def test_positions_are_uniform_and_independent_between_purposes():
    first, second = ([position(name, 0, purpose) for name in IDS] for purpose in ("parts", "queries"))
    deciles = Counter(int(place * 10) for place in first)
    assert max(abs(count - 2_000) for count in deciles.values()) < 4 * (20_000 * 0.1 * 0.9) ** 0.5  # 4 sigma
    both = sum(a < 0.5 and b < 0.5 for a, b in zip(first, second, strict=True))
    assert abs(both - 5_000) < 4 * (20_000 * 0.25 * 0.75) ** 0.5


def test_parts_have_their_shares_and_do_not_move_when_documents_come():
    settings = PartSettings(by="share")
    parts = {name: part_of(document(name), settings) for name in IDS}
    counts = Counter(parts.values())
    assert abs(counts["new"] / 20_000 - 0.09) < 0.01
    assert abs(counts["tuning"] / 20_000 - 0.01) < 0.005
    assert all(part_of(document(name), settings) == parts[name] for name in reversed(IDS[:100]))
    assert {part_of(document(name), PartSettings()) for name in IDS[:100]} == {"initial"}


def test_parts_by_date_stream_the_future():
    settings = PartSettings(by="date", tuning_from="2024-07-01", new_from="2025-01-01")
    dates = {"2024-06-30": "initial", "2024-07-01": "tuning", "2024-12-31T23:59:59Z": "tuning", "2025-01-01": "new"}
    assert {date: part_of(document("d", date), settings) for date in dates} == dates
    assert part_of(document("d", "2024-12-31"), PartSettings(by="date", new_from="2025-01-01")) == "initial"
    with pytest.raises(Unfit, match="bad date"):
        part_of(document("d"), settings)


def test_given_splits_are_kept_and_missing_ones_are_drawn():
    given = dict.fromkeys(IDS) | {"a": "test", "b": "train", "c": "dev"}
    splits = split_queries(given, QuerySplitSettings())
    assert (splits["a"], splits["b"], splits["c"]) == ("test", "train", "dev")
    counts = Counter(splits.values())
    assert abs(counts["test"] / 20_000 - 0.5) < 0.02
    assert abs(counts["dev"] / 20_000 - 0.1) < 0.01


def test_dev_is_carved_out_of_train_only_where_it_is_missing():
    given = {**dict.fromkeys(IDS[:5_000], "train"), **dict.fromkeys(IDS[5_000:6_000], "test")}
    splits = split_queries(given, QuerySplitSettings(dev_share=0.1))
    carved = {query for query, split in splits.items() if split == "dev"}
    assert abs(len(carved) / 5_000 - 0.1) < 0.02
    assert carved < set(IDS[:5_000])
    assert split_queries(given, QuerySplitSettings(dev_share=0.0)) == given
    assert split_queries(given | {"d": "dev"}, QuerySplitSettings()) == given | {"d": "dev"}
    assert split_queries({"q": "test"}, QuerySplitSettings()) == {"q": "test"}
