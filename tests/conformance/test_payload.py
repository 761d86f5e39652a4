"""Payloads: kept exactly, type included, on every engine; or refused before any SQL, with the path named."""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import math
import uuid
from typing import Any

import pytest

import lien
from tests.conformance.kit import Database, ack

KEPT: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 2**64, 10**400, -(10**400) + 7,
    10**3000 + 1, 0.0, -0.0, 1.0, 0.1, 1e16, 1e22, 1e23, -1e22, 1e308, 1.7976931348623157e308, 5e-324,
    2.2250738585072014e-308, 1 / 3, 123456789.123456789, 1e-7, 100.0, 1e15 + 0.3,
    "", " ", "a", "ü", "e\u0301", "\u00e9", "\U0001f600", "\ufeff", "\u2028\u2029", "\u200b", "\ud7ff\ue000",
    "\uffff", "\x01\x1f\x7f\x80", "\t\n\r\b\f", "'", '"', "\\", "\\u0000", "\\x00", "\\N", "%s %(a)s %%", ":id",
    "{}", "$1", "null", "NaN", "1", "2030-01-01", "a" * 10_000, "\U0010ffff" * 500,
    [], {}, [[]], [{}], {"": ""}, {"a": {"": [None, {"b": [1.0, 1, True]}]}}, [1, 1.0, True, "1"],
    {"z": 1, "a": 2, "m": {"z": 1, "a": 2}}, {"A": 1, "a": 2}, {"a.b": 1, "a": {"b": 2}}, {"%s": "%"}, {"'": "'"},
    {"é": 1, "e\u0301": 2}, {"1": 1, "01": 2}, {"$": 1, "*args": 2}, {"__proto__": 1}, list(range(1000)),
]  # fmt: skip
REFUSED: list[tuple[Any, str]] = [
    ("a\x00b", "NUL"),
    ({"a": ["x", "\x00"]}, r"\['a'\]\[1\]"),
    ({"a\x00": 1}, "key"),
    ("\ud800", "surrogate"),
    ("\udc00\ud800", "surrogate"),
    ({"\udfff": 1}, "surrogate"),
    (math.nan, "nan"),
    (math.inf, "inf"),
    ([-math.inf], r"\[0\]"),
    ({"a": {"b": [1, math.nan]}}, r"\['a'\]\['b'\]\[1\]"),
    (10**5000, "digits"),
    (decimal.Decimal(1), "Decimal"),
    (datetime.date(2030, 1, 1), "date"),
    (uuid.UUID(int=1), "UUID"),
    ({1: 2}, "key 1"),
    ({None: 2}, "key None"),
    ({True: 2}, "key True"),
    ((1, 2), "tuple"),
    ({1, 2}, "set"),
    (b"x", "bytes"),
    (object, "type"),
    (1j, "complex"),
    (enum.IntEnum("E", "A").A, "E"),  # type: ignore[attr-defined]
    ("x" * 300_000, "262144"),
]


def name(value: Any) -> str:
    if isinstance(value, int) and value.bit_length() > 1000:
        return f"{value.bit_length()} bits"
    return ascii(value)[:40].replace(" at 0x", " ").split("0x")[0]


def same(one: Any, two: Any) -> bool:
    """Equal in value, type, sign and the order of keys; -0.0 is not 0.0 and True is not 1."""
    if type(one) is not type(two):
        return False
    if isinstance(one, dict):
        return list(one) == list(two) and all(same(one[k], two[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, float):
        return one == two and math.copysign(1, one) == math.copysign(1, two)
    return bool(one == two)


def test_the_measure_itself_is_strict() -> None:
    for one, two in ((0.0, -0.0), (1, 1.0), (1, True), ([1], [1.0]), ({"a": 1, "b": 2}, {"b": 2, "a": 1})):
        assert not same(one, two)


@pytest.mark.parametrize("value", KEPT, ids=name)
def test_arguments_are_kept_exactly(db: Database, value: Any) -> None:
    task = db.jobs.task(lambda value, **more: None, name="work")
    one = task.enqueue(value).id
    two, three = (j.id for j in task.enqueue_many([{"value": value}, {"value": [value]}]))
    connection = db.connect()
    four = task.using(connection).enqueue(value=value).id
    connection.commit()
    claims = {claim.id: db.jobs.codec.decode(claim.args) for claim in db.claim(10)}
    for id in (one, two, four):
        assert same(claims[id], {"value": value})
        assert same(db.jobs.codec.decode(db.jobs.job(id).args), {"value": value})
    assert same(claims[three], {"value": [value]})
    for record in db.jobs.list():
        assert record.args == db.jobs.job(record.id).args


def test_results_are_kept_exactly(db: Database) -> None:
    db.enqueue_n(len(KEPT))
    claims = db.claim(len(KEPT))
    texts = [db.jobs.codec.encode(value, "result") for value in KEPT]
    cycle = db.finish(*[ack(c, result=t) for c, t in zip(claims, texts, strict=True)])
    assert len(cycle.ended) == len(KEPT)
    for claim, value in zip(claims, KEPT, strict=True):
        result = db.jobs.job(claim.id).result
        assert result is not None
        assert same(db.jobs.codec.decode(result), value)


def test_a_copy_keeps_them_exactly(db: Database) -> None:
    task = db.jobs.task(lambda value: None, name="work")
    ids = [task.enqueue(value).id for value in KEPT]
    for id, value in zip(ids, KEPT, strict=True):
        db.jobs.cancel(id)
        copy = db.jobs.job(db.jobs.retry(id).id)
        assert same(db.jobs.codec.decode(copy.args), {"value": value})


@pytest.mark.parametrize(("value", "match"), REFUSED, ids=[name(v) for v, _ in REFUSED])
def test_what_is_refused_is_refused_everywhere(db: Database, value: Any, match: str) -> None:
    """PAYLOAD-01, PAYLOAD-03: at enqueue, with the path, and nothing is written."""
    task = db.jobs.task(lambda value=None, **more: None, name="work")
    connection = db.connect()
    for enqueue in (
        lambda: task.enqueue(value),
        lambda: task.enqueue(other=value),
        lambda: task.using(connection).enqueue(value=value),
        lambda: task.call(value),
        lambda: task.enqueue_many([{"value": 1}, {"value": value}]),
    ):
        with pytest.raises(lien.PayloadError, match=match):
            enqueue()
    connection.commit()
    assert db.counts() == (0, 0, 0)
    with pytest.raises(lien.PayloadError, match=match):
        db.jobs.codec.encode(value, "result")


def test_nesting_has_an_end(db: Database) -> None:
    task = db.jobs.task(lambda value: None, name="work")
    deep: Any = []
    for _ in range(90):
        deep = [deep]
    (claim,) = [c for c in (task.enqueue(deep), *db.claim()) if hasattr(c, "args")]
    assert db.jobs.codec.decode(claim.args) == {"value": deep}
    knot: list[Any] = []
    knot.append(knot)
    for value in (knot, [[[knot]]]):
        with pytest.raises(lien.PayloadError, match="nested"):
            task.enqueue(value)


def test_a_registered_encoder(db: Database) -> None:
    db.jobs.codec.register(uuid.UUID, str)
    task = db.jobs.task(lambda value: None, name="work")
    task.enqueue([uuid.UUID(int=7)])
    (claim,) = db.claim()
    assert json.loads(claim.args) == {"value": ["00000000-0000-0000-0000-000000000007"]}


def test_a_large_payload_when_asked_for(db: Database) -> None:
    jobs = lien.Lien(db.url, max_payload_bytes=20_000_000)
    text = "\U0001f600 abcdefg" * 400_000
    jobs.task(lambda value: None, name="work").enqueue(text)
    (claim,) = db.claim()
    assert jobs.codec.decode(claim.args) == {"value": text}
    jobs.close()


NAMES = [
    "self", "cls", "task", "job", "args", "kwargs", "context", "ctx", "queue", "priority", "key", "id",
    "timeout", "on", "delay", "unique", "name", "calls", "function", "options",
]  # fmt: skip


@pytest.mark.parametrize("keyword", NAMES)
def test_no_keyword_of_the_user_is_taken(db: Database, keyword: str) -> None:
    """PAYLOAD-07."""
    task = db.jobs.task(lambda **more: None, name="work")
    task.enqueue(**{keyword: 1})
    task.using(delay=0).enqueue(**{keyword: 2})
    task.enqueue_many([{keyword: 3}, {keyword: 4}])
    db.jobs.enqueue_many([task.call(**{keyword: 5})])
    claims = db.claim(10)
    assert [json.loads(c.args) for c in claims] == [{keyword: i} for i in (1, 2, 3, 4, 5)]
