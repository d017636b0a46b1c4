"""What can be an argument, a context or a result, and what happens to everything else."""

import dataclasses
import datetime
import decimal
import enum
import json
import math
import types
import uuid
from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Mapping

import pytest
from django.contrib.contenttypes.models import ContentType
from django.utils.functional import SimpleLazyObject
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy
from hypothesis import given
from hypothesis import strategies as st

from django_workpool.exceptions import InvalidWork, UnserializableWork
from django_workpool.serialization import (
    DEPTH_MAX,
    DIGITS_MAX,
    PAYLOAD_MAX,
    decode,
    encode,
    encode_call,
)

pytestmark = pytest.mark.anywhere

NUL = "a\0b"
SURROGATE = "\ud83d"


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Word(enum.StrEnum):
    YES = "yes"


class OldWord(str, enum.Enum):  # noqa: UP042 - still common in projects
    NO = "no"


@dataclasses.dataclass
class Point:
    x: int = 1


Pair = namedtuple("Pair", "a b")


def nested(depth):
    value = "bottom"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        False,
        0,
        -1,
        2**53 + 1,
        2**63,
        -(2**63),
        2**70,
        pytest.param(10**DIGITS_MAX - 1, id="as many digits as possible"),
        0.1,
        1e22,
        5e-324,
        "",
        "é日本🎉",
        "\\u0000",
        "\x01\x1f\x7f\u2028",
        [],
        {},
        {"": {"a": [1, [2, {"b": None}]]}},
        nested(DEPTH_MAX - 1),
    ],
)
def test_json_values_come_back_exactly(value):
    back = decode(encode(value, "v"))
    assert back == value
    assert type(back) is type(value)


def test_minus_zero_and_large_floats_stay_what_they_are():
    assert math.copysign(1, decode(encode(-0.0, "v"))) == -1.0
    assert type(decode(encode(1e22, "v"))) is float


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ((1, (2, 3)), "[1,[2,3]]"),
        (Pair(1, "b"), '[1,"b"]'),
        (Level.HIGH, "3"),
        (Word.YES, '"yes"'),
        (OldWord.NO, '"no"'),
        (mark_safe("<b>"), '"<b>"'),
        (OrderedDict(b=1, a=2), '{"b":1,"a":2}'),
        (UserDict(a=UserDict(b=1)), '{"a":{"b":1}}'),
        (types.MappingProxyType({"a": (1,)}), '{"a":[1]}'),
        ({Word.YES: 1}, '{"yes":1}'),
        ("é", '"é"'),
    ],
)
def test_subclasses_are_stored_as_the_json_type(value, stored):
    assert encode(value, "v") == stored


@pytest.mark.parametrize(
    ("value", "kind", "advice"),
    [
        (datetime.datetime(2024, 1, 1), "datetime", "isoformat"),
        (datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), "datetime", "isoformat"),
        (datetime.date(2024, 1, 1), "date", "isoformat"),
        (datetime.time(1), "time", "isoformat"),
        (datetime.timedelta(1), "timedelta", "total_seconds"),
        (uuid.uuid4(), "UUID", "str(value)"),
        (decimal.Decimal("NaN"), "Decimal", "str(value)"),
        ({1}, "set", "list"),
        (frozenset(), "frozenset", "list"),
        (b"x", "bytes", "base64"),
        (bytearray(), "bytearray", "base64"),
        (Colour.RED, "Colour", "value.value"),
        (ContentType(pk=1), "ContentType", "primary key"),
        (gettext_lazy("yes"), "__proxy__", "str(value)"),
        (SimpleLazyObject(lambda: "text"), "SimpleLazyObject", "pass"),
        (Point(), "Point", "asdict"),
        (object(), "object", "pass"),
        (1j, "complex", "pass"),
        (iter([1]), "list_iterator", "pass"),
        (len, "builtin_function_or_method", "pass"),
    ],
)
def test_other_types_are_refused_with_place_type_and_advice(value, kind, advice):
    with pytest.raises(UnserializableWork) as caught:
        encode([0, {"when": value}], "argument 2")
    assert str(caught.value).startswith(f"argument 2[1]['when']: {kind} is not JSON; ")
    assert advice in str(caught.value)
    assert isinstance(caught.value, (ValueError, TypeError))


@pytest.mark.parametrize("key", [1, None, True, 1.5, ("a",), b"a"])
def test_keys_must_be_text(key):
    with pytest.raises(UnserializableWork, match=r"^argument 1\['d'\]: a key is .*keys must be str"):
        encode({"d": {key: 1}}, "argument 1")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (math.nan, "nan"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (1e400, "inf"),
        (NUL, "NUL"),
        (SURROGATE, "surrogate"),
        pytest.param(10**5000, "digits", id="5001 digits"),
        pytest.param(-(10**DIGITS_MAX), "digits", id="one digit too many"),
    ],
)
def test_values_that_databases_disagree_on_are_refused_with_their_place(value, says):
    for shape, place in ((value, "the context"), ([value], "the context[0]"), ({"k": (0, value)}, "the context['k'][1]")):
        with pytest.raises(InvalidWork) as caught:
            encode(shape, "the context")
        assert not isinstance(caught.value, UnserializableWork)
        assert str(caught.value).startswith(f"{place}: ")
        assert says in str(caught.value)


@pytest.mark.parametrize("key", [NUL, SURROGATE])
def test_unstorable_keys_are_refused(key):
    with pytest.raises(InvalidWork, match=r"^v\[0\]: a key contains "):
        encode([{key: 1}], "v")


def test_error_texts_are_short_and_printable():
    deep = {SURROGATE.replace("\ud83d", "x") + "\n" * 1000: {"é" * 500: [[[[[[math.nan]]]]]]}}
    with pytest.raises(InvalidWork) as caught:
        encode(deep, "v")
    text = str(caught.value)
    assert text.isprintable()
    assert len(text) < 1000


def test_deep_and_circular_values_are_refused():
    circle: list = []
    circle.append([circle, circle])
    ring: dict = {}
    ring["a"] = ring
    for value in (nested(DEPTH_MAX + 1), circle, ring):
        with pytest.raises(InvalidWork, match=f"more than {DEPTH_MAX} deep, or circular"):
            encode(value, "v")
    assert decode(encode(nested(DEPTH_MAX), "v")) == nested(DEPTH_MAX)


def test_payload_limit_counts_bytes():
    text = "x" * (PAYLOAD_MAX - 2)
    assert len(encode(text, "v")) == PAYLOAD_MAX
    for value in (text + "x", "é" * (PAYLOAD_MAX // 2), "\n" * (PAYLOAD_MAX // 2)):
        with pytest.raises(InvalidWork, match="^v: more than"):
            encode(value, "v")


def test_shared_parts_cannot_multiply_into_an_endless_text():
    value: list = ["x" * 100]
    for _ in range(60):
        value = [value, value]
    with pytest.raises(InvalidWork, match="^v: more than"):
        encode(value, "v")


def test_an_interpreter_with_a_lower_limit_of_digits_is_an_error_of_the_package(monkeypatch):
    def refuse(value):
        raise ValueError("Exceeds the limit")

    monkeypatch.setattr("django_workpool.serialization._dump", refuse)
    with pytest.raises(InvalidWork, match="^v: Exceeds the limit"):
        encode(1, "v")


def test_encode_call_stores_args_and_kwargs():
    text = encode_call((1, ("a",)), {"when": None})
    assert text == '{"args":[1,["a"]],"kwargs":{"when":null}}'
    assert decode(encode_call((), {})) == {"args": [], "kwargs": {}}


@pytest.mark.parametrize(
    ("args", "kwargs", "place"),
    [
        ((1, {"when": datetime.date(2024, 1, 1)}), {}, "argument 2['when']: date"),
        ((), {"ids": [{1}]}, "argument 'ids'[0]: set"),
        ((), {"a\0": 1}, r"argument 'a\x00': a key contains NUL"),
        ((math.nan,), {}, "argument 1: nan"),
        pytest.param(("x" * (PAYLOAD_MAX // 2), "y" * (PAYLOAD_MAX // 2 + 1)), {}, "argument 2: more than", id="too long together"),
    ],
)
def test_encode_call_names_the_argument(args, kwargs, place):
    with pytest.raises(InvalidWork) as caught:
        encode_call(args, kwargs)
    assert str(caught.value).startswith(place)


def test_encode_call_refuses_keyword_names_that_are_not_text():
    with pytest.raises(UnserializableWork):
        encode_call((), {1: 2})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def same(left, right) -> bool:
    if isinstance(left, float):
        return type(right) is float and (left, math.copysign(1, left)) == (right, math.copysign(1, right))
    if isinstance(left, list):
        return isinstance(right, list) and len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, Mapping):
        return isinstance(right, Mapping) and list(left) == list(right) and all(same(left[k], right[k]) for k in left)
    return type(left) is type(right) and left == right


@given(json_values)
def test_whatever_is_accepted_comes_back_exactly(value):
    try:
        text = encode(value, "v")
    except InvalidWork:
        assert "\\u0000" in json.dumps(value)
    else:
        assert same(value, decode(text))
        assert "\0" not in text
