"""Texts that come from functions (results, errors): cleaned, not refused."""

import math
from collections import UserDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_workpool.exceptions import InvalidWork
from django_workpool.serialization import TEXT_MAX, clean, decode, encode_result

NUL = "a\0b"
SURROGATE = "\ud83d"


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (NUL, "a\\x00b"),
        (SURROGATE, "\\ud83d"),
        (["é🎉", {NUL: (SURROGATE, 1, None)}], ["é🎉", {"a\\x00b": ["\\ud83d", 1, None]}]),
        (b"\xff.txt".decode("utf-8", "surrogateescape"), "\\udcff.txt"),
        (UserDict({"a": NUL}), {"a": "a\\x00b"}),
        pytest.param("x" * 200_000, "x" * 200_000, id="long text"),
        ("\\u0000", "\\u0000"),
    ],
)
def test_texts_of_results_are_cleaned(value, stored):
    assert decode(encode_result(value)) == stored


@pytest.mark.parametrize("bad", [math.nan, {1}, {1: 2}, object(), pytest.param(10**5000, id="5001 digits")])
def test_results_that_json_cannot_carry_are_refused_even_behind_an_unclean_text(bad):
    for value in (bad, [NUL, bad]):
        with pytest.raises(InvalidWork, match="^the return value"):
            encode_result(value)


def test_keys_of_a_result_that_cleaning_would_merge_are_refused():
    with pytest.raises(InvalidWork, match="two keys"):
        encode_result({"\0": 1, "\\x00": 2})


def test_circular_result_with_unclean_text_is_refused():
    circle: list = [NUL]
    circle.append(circle)
    with pytest.raises(InvalidWork, match="circular"):
        encode_result(circle)


def test_clean_keeps_what_is_storable():
    text = "é日本🎉 \\x00 \x01\n"
    assert clean(text) == text
    assert clean("x" * TEXT_MAX) == "x" * TEXT_MAX


def test_clean_cuts_and_says_how_much():
    cut = clean("x" * 1000, 100)
    assert len(cut) <= 100
    head, note = cut.split("…")
    assert note == f" ({1000 - len(head)} characters left out)"


@given(st.text(st.characters(codec=None), max_size=200), st.integers(0, 120))
def test_clean_is_storable_and_never_longer_than_its_limit(text, limit):
    cleaned = clean(text, limit)
    assert len(cleaned) <= limit
    assert "\0" not in cleaned
    cleaned.encode("utf-8")
