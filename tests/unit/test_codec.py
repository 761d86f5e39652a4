"""Payloads come back as they went in or are refused with the path to the bad value; errors can always be told."""

import datetime
import decimal
import enum
import json
import math
import re
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lien.codec import (
    MAX_ERROR_CHARS,
    MAX_PAYLOAD_BYTES,
    MAX_TRACEBACK_CHARS,
    Codec,
    as_object,
    checked_text,
    describe_error,
    storable,
)
from lien.errors import PayloadError

CODEC = Codec()

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**400), 10**400)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
payloads = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=30)


def same(one: object, other: object) -> bool:
    """Equal in value and in kind: 1, 1.0 and True differ, and so do the zeros."""
    return repr(one) == repr(other)


@given(payloads)
def test_json_comes_back_as_it_went_in(value: object) -> None:
    text = CODEC.encode(value, "args")
    assert same(CODEC.decode(text), value)
    assert same(json.loads(text), value)


@given(st.text())
def test_any_text_is_kept_or_refused(text: str) -> None:
    bad = "\x00" in text or re.search("[\ud800-\udfff]", text)
    if bad:
        with pytest.raises(PayloadError):
            CODEC.encode([text], "args")
    else:
        assert CODEC.decode(CODEC.encode([text], "args")) == [text]


@pytest.mark.parametrize(
    "value",
    [2**53 + 1, -(2**53) - 1, 2**63, 2**64 + 1, 10**3999, -(10**4000) + 1, 0, -1, True, -0.0, 1e-320],
    ids=lambda v: str(v)[:12],
)
def test_numbers_are_exact(value: float) -> None:
    assert same(CODEC.decode(CODEC.encode(value, "x")), value)


def test_text_is_stored_as_it_is_read() -> None:
    assert CODEC.encode({"a": ["ü🦊", 1]}, "args") == '{"a":["ü🦊",1]}'


class Colour(enum.StrEnum):
    RED = "red"


LOOP: list[object] = []
LOOP.append(LOOP)
NEST: object = 0
for _ in range(5_000):
    NEST = [NEST]
RING: dict[str, object] = {}
RING["r"] = [RING]

NOT_JSON = (
    "which is not JSON: pass str, int, float, bool, None, list or dict, or register an encoder with codec.register()"
)
NO_WORD = "which JSON has no word for: pass None or text"
NUL = "contains NUL (\\x00), which databases cannot store as text: remove it"
SURROGATE = "contains a lone surrogate, which is not Unicode text: decode the bytes it came from properly"
NUMERIC_KEY = "JSON keys are strings; write str(key) yourself"
DEEP = "is nested deeper than 100 levels or contains itself"
LONG = "is an integer of more than 4000 digits: pass it as text"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("a\x00b", f"args {NUL}"),
        ({"a": [1, "\x00"]}, f"args['a'][1] {NUL}"),
        ({"a": {"k\x00": 1}}, f"key 'k\\x00' of args['a'] {NUL}"),
        ("\ud800", f"args {SURROGATE}"),
        (["ok", "x\udfff"], f"args[1] {SURROGATE}"),
        ({"a": {"\udc80": 1}}, f"key '\\udc80' of args['a'] {SURROGATE}"),
        (math.nan, f"args is nan, {NO_WORD}"),
        ([math.inf], f"args[0] is inf, {NO_WORD}"),
        ({"x": -math.inf}, f"args['x'] is -inf, {NO_WORD}"),
        (float("1e400"), f"args is inf, {NO_WORD}"),
        (10**4000, f"args {LONG}"),
        ([-(10**4000)], f"args[0] {LONG}"),
        (2**1_000_000, f"args {LONG}"),
        (decimal.Decimal("1.5"), f"args is a decimal.Decimal, {NOT_JSON}"),
        ({"id": uuid.UUID(int=1)}, f"args['id'] is a uuid.UUID, {NOT_JSON}"),
        ([datetime.datetime(2026, 1, 1)], f"args[0] is a datetime.datetime, {NOT_JSON}"),  # noqa: DTZ001
        ((1, 2), f"args is a builtins.tuple, {NOT_JSON}"),
        ({1, 2}, f"args is a builtins.set, {NOT_JSON}"),
        (b"x", f"args is a builtins.bytes, {NOT_JSON}"),
        (Colour.RED, f"args is a {__name__}.Colour, {NOT_JSON}"),
        ({1: "a"}, f"args has the key 1: {NUMERIC_KEY}"),
        ({"a": {None: 1}}, f"args['a'] has the key None: {NUMERIC_KEY}"),
        ({True: 1}, f"args has the key True: {NUMERIC_KEY}"),
        (LOOP, f"args{'[0]' * 101} {DEEP}"),
        (NEST, f"args{'[0]' * 101} {DEEP}"),
        (RING, f"args{''.join(['[', chr(39), 'r', chr(39), '][0]']) * 50}['r'] {DEEP}"),
    ],
    ids=range(26),
)
def test_what_cannot_be_stored_is_refused_by_path(value: object, said: str) -> None:
    with pytest.raises(PayloadError) as caught:
        CODEC.encode(value, "args")
    assert str(caught.value) == said


def test_a_hundred_levels_are_allowed() -> None:
    nest: object = 0
    for _ in range(101):
        nest = [nest]
    assert CODEC.decode(CODEC.encode(nest, "args")) == nest
    with pytest.raises(PayloadError, match="nested deeper than 100 levels"):
        CODEC.encode([nest], "args")


def test_the_limit_counts_bytes() -> None:
    codec = Codec(max_bytes=10)
    assert codec.encode("12345678", "args") == '"12345678"'
    assert codec.encode("éééé", "args") == '"éééé"'
    with pytest.raises(PayloadError) as caught:
        codec.encode("ééééé", "args")
    assert str(caught.value) == (
        "args is 12 bytes of JSON, more than the limit of 10: "
        "store the data elsewhere and pass its key, or raise max_payload_bytes"
    )


def test_the_usual_limit() -> None:
    CODEC.encode("x" * (MAX_PAYLOAD_BYTES - 2), "args")
    with pytest.raises(PayloadError, match="more than the limit of 262144"):
        CODEC.encode("x" * (MAX_PAYLOAD_BYTES - 1), "args")


def test_encoders() -> None:
    codec = Codec()
    codec.register(datetime.date, lambda d: {"date": d.isoformat()})
    codec.register(datetime.datetime, lambda t: [t.isoformat()])
    codec.register(tuple, list)
    day = datetime.date(2026, 12, 1)
    noon = datetime.datetime(2026, 12, 1, 12, tzinfo=datetime.UTC)
    assert codec.encode((day, noon), "args") == ('[{"date":"2026-12-01"},["2026-12-01T12:00:00+00:00"]]')


def test_what_an_encoder_gives_is_checked_too() -> None:
    codec = Codec()
    codec.register(complex, lambda _: [math.nan])
    codec.register(bytes, lambda b: b)
    with pytest.raises(PayloadError, match=re.escape("args['z'][0] is nan")):
        codec.encode({"z": 1j}, "args")
    with pytest.raises(PayloadError, match="contains itself"):
        codec.encode(b"", "args")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Expecting value: line 1 column 1 (char 0)"),
        ("{", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("NaN", "NaN is not a number"),
        ("[-Infinity]", "-Infinity is not a number"),
        ("1e400", "1e400 is too large a number"),
        ("[-1.5e999]", "-1.5e999 is too large a number"),
        ("[" * 100_000, None),
        ("1" * 5_000, None),
        (None, None),
    ],
    ids=range(9),
)
def test_stored_text_that_is_no_json(text: str, said: str | None) -> None:
    with pytest.raises(PayloadError, match=r"^stored payload is not JSON: ") as caught:
        CODEC.decode(text)
    if said is not None:
        assert str(caught.value) == f"stored payload is not JSON: {said}"


def test_arguments_are_an_object() -> None:
    assert as_object({"a": 1}) == {"a": 1}
    with pytest.raises(PayloadError, match=r"^stored arguments are a JSON list, not an object$"):
        as_object([1])


def test_checked_text() -> None:
    assert checked_text("ü", "queue") == "ü"
    with pytest.raises(PayloadError, match=r"^queue contains NUL"):
        checked_text("\x00", "queue")


class TwoNeeded(Exception):
    def __init__(self, code: int, what: str) -> None:
        super().__init__(code, what)
        self.handle = lambda: None  # cannot be pickled


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class Quitter(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


class NotText(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value] # noqa: PLE0307 - that is the point


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause  # noqa: TRY301 - it needs a traceback
    except BaseException as caught:  # noqa: BLE001
        return caught


@pytest.mark.parametrize(
    ("error", "line", "end"),
    [
        (ValueError("no such order"), "ValueError: no such order", "ValueError: no such order\n"),
        (ValueError(), "ValueError", "ValueError\n"),
        (KeyError("x"), "KeyError: 'x'", "KeyError: 'x'\n"),
        (TwoNeeded(3, "cups"), "TwoNeeded: (3, 'cups')", "TwoNeeded: (3, 'cups')\n"),
        (Mute(), "Mute: (its str() raised)", "Mute: <exception str() failed>\n"),
        (Quitter(), "Quitter: (its str() raised)", "Quitter: <exception str() failed>\n"),
        (NotText(), "NotText: (its str() raised)", "NotText: <exception str() failed>\n"),
        (SystemExit(3), "SystemExit: 3", "SystemExit: 3\n"),
        (ValueError("a\nb\r\nc\u2028d"), "ValueError: a b c d", "ValueError: a\nb\r\nc\u2028d\n"),
        (ValueError("a\x00b"), "ValueError: a\\x00b", "ValueError: a\\x00b\n"),
        (ValueError("\ud800x"), "ValueError: \\ud800x", "ValueError: \\ud800x\n"),
        (ValueError("ü🦊"), "ValueError: ü🦊", "ValueError: ü🦊\n"),
    ],
    ids=range(12),
)
def test_errors_are_told(error: BaseException, line: str, end: str) -> None:
    said, trace = describe_error(raised(error))
    assert said == line
    assert trace.startswith("Traceback (most recent call last):\n")
    assert trace.endswith(end)


def test_a_chain_is_told_whole() -> None:
    error = raised(ValueError("outer"), raised(Mute(), raised(KeyError("inner"))))
    line, trace = describe_error(error)
    assert line == "ValueError: outer"
    assert trace.count("The above exception was the direct cause of the following exception") == 2
    assert trace.index("KeyError: 'inner'") < trace.index("Mute: ") < trace.index("ValueError")


def test_a_group_is_told() -> None:
    line, trace = describe_error(raised(ExceptionGroup("both", [ValueError("a"), Mute()])))
    assert line == "ExceptionGroup: both (2 sub-exceptions)"
    assert "ValueError: a" in trace


def test_a_very_long_chain_does_no_harm() -> None:
    error: BaseException = ValueError("first")
    for i in range(5_000):
        later = ValueError(i)
        later.__cause__ = error
        error = later
    line, trace = describe_error(error)
    assert line == "ValueError: 4999"
    assert len(trace) <= MAX_TRACEBACK_CHARS


@pytest.mark.parametrize("char", ["x", "\x00", "\udfff", "🦊", "\n"])
def test_five_megabytes_are_cut(char: str) -> None:
    line, trace = describe_error(raised(ValueError("begin" + char * 5_000_000 + "end")))
    assert len(line) <= MAX_ERROR_CHARS
    assert len(trace) <= MAX_TRACEBACK_CHARS
    assert line.startswith("ValueError: begin")
    assert line.endswith("end")
    assert trace.endswith("end\n")
    assert " characters left out … " in line
    assert "\n" not in line
    assert not set(line + trace) & {"\x00", "\udfff"}


@given(st.text(), st.integers(60, 300))
def test_storable_text_is_short_and_clean(text: str, limit: int) -> None:
    clean = storable(text, limit)
    assert len(clean) <= limit
    assert checked_text(clean, "error") == clean
    if len(text) <= limit and text.isprintable():
        assert clean == text


def test_a_cut_says_how_much_is_missing() -> None:
    assert storable("a" * 50 + "b" * 50, 60) == "a" * 10 + "\n… 80 characters left out …\n" + "b" * 10
