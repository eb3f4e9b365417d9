"""Test that encodings made ahead are those of the texts, are used once, and are made by one thread.

Run: python -m pytest tests/model_code/encoding/test_ahead.py
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from model_code.encoding import ahead
from model_code.encoding.ahead import Encoding, EncodingsAhead
from model_code.encoding.token_signs import TokenSigns


class FakeEncoder:
    """Makes two vectors and one token sign per letter for each text, and notes the texts."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.fails = False
        self.may_encode = threading.Event()
        self.may_encode.set()

    def __call__(self, texts: Sequence[str]) -> Encoding:
        self.calls.append(list(texts))
        assert self.may_encode.wait(30)
        if self.fails:
            raise OSError("no memory")
        vectors = [[float(len(text)), sign] for text in texts for sign in (-1.0, 1.0)]
        signs = [np.array([[ord(letter)] for letter in text], np.uint64) for text in texts]
        return Encoding(np.array(vectors, np.float32), TokenSigns.of(signs))


@pytest.fixture
def encode() -> FakeEncoder:
    return FakeEncoder()


def assert_same(encoding: Encoding, expected: Encoding) -> None:
    assert encoding.vectors.tolist() == expected.vectors.tolist()
    assert encoding.token_signs is not None
    assert expected.token_signs is not None
    assert encoding.token_signs.bits.tolist() == expected.token_signs.bits.tolist()
    assert encoding.token_signs.starts.tolist() == expected.token_signs.starts.tolist()


def test_encodings_are_those_of_the_texts_in_order(encode: FakeEncoder) -> None:
    encodings = EncodingsAhead()
    encodings.make(["bb", "dddd"], encode)

    taken = encodings.take(["a", "dddd", "ccc", "bb", "dddd"], encode)

    assert_same(taken, FakeEncoder()(["a", "dddd", "ccc", "bb", "dddd"]))
    assert encode.calls == [["bb", "dddd"], ["a", "ccc"]]


def test_encoding_is_used_once(encode: FakeEncoder) -> None:
    encodings = EncodingsAhead()
    encodings.make(["bb", "bb"], encode)
    encodings.make(["bb"], encode)
    encodings.take(["bb"], encode)
    encodings.take(["bb"], encode)

    assert encode.calls == [["bb"], ["bb"]]


def test_text_that_is_being_encoded_is_waited_for(encode: FakeEncoder) -> None:
    encodings = EncodingsAhead()
    encode.may_encode.clear()
    with ThreadPoolExecutor(2) as pool:
        made = pool.submit(encodings.make, ["bb"], encode)
        while not encode.calls:
            threading.Event().wait(0.001)
        taken = pool.submit(encodings.take, ["bb"], encode)
        encode.may_encode.set()
        made.result(30)

        assert_same(taken.result(30), FakeEncoder()(["bb"]))
    assert encode.calls == [["bb"]]


def test_failed_encoding_is_made_again(encode: FakeEncoder) -> None:
    encodings = EncodingsAhead()
    encode.fails = True
    with pytest.raises(OSError, match="no memory"):
        encodings.make(["bb"], encode)

    encode.fails = False

    assert_same(encodings.take(["bb"], encode), FakeEncoder()(["bb"]))


def test_oldest_encodings_are_forgotten(
    encode: FakeEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "MAX_WAITING_TEXTS", 2)
    encodings = EncodingsAhead()
    for text in ("a", "bb", "ccc"):
        encodings.make([text], encode)

    encodings.take(["a", "bb", "ccc"], encode)

    assert encode.calls[-1] == ["a"]


def test_kept_encodings_are_taken_once(encode: FakeEncoder) -> None:
    waiting = EncodingsAhead()
    known = encode(["known"])
    encode.calls.clear()

    waiting.keep({"known": known})
    first = waiting.take(["known", "new"], encode)
    waiting.take(["known"], encode)

    assert encode.calls == [["new"], ["known"]]
    assert first.vectors[:2].tolist() == known.vectors.tolist()


def test_kept_encodings_do_not_displace_waiting_ones(
    encode: FakeEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "MAX_WAITING_TEXTS", 1)
    waiting = EncodingsAhead()
    waiting.make(["first"], encode)
    encode.calls.clear()

    waiting.keep({"second": encode(["second"])})
    encode.calls.clear()
    waiting.take(["first", "second"], encode)

    assert encode.calls == [["second"]]
