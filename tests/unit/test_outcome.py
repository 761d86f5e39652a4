"""Outcomes: every way in which a handler can end, for every reason the worker may have had to stop it."""

from __future__ import annotations

import asyncio
import datetime
import json
import threading
import uuid

import pytest

import lien
from lien import outcomes
from lien.codec import Codec
from lien.context import Context
from lien.machine import AttemptOutcome, Reason
from lien.model import Ack, Claim
from lien.worker.held import Cause, Running
from lien.worker.outcome import raised, release, returned, unstorable

O = AttemptOutcome  # noqa: E741
TOKEN = uuid.uuid4()
UNTIL = datetime.datetime(2200, 1, 1, tzinfo=datetime.UTC)
ERRORS = {
    "error": ValueError("no"),
    "timeout": TimeoutError("mine"),
    "cancelled": asyncio.CancelledError(),
    "interrupt": KeyboardInterrupt(),
    "exit": SystemExit(0),
    "generator": GeneratorExit(),
    "stop": StopIteration(),
    "payload": lien.PayloadError("unreadable"),
    "signature": lien.SignatureError("changed"),
    "lost": lien.LeaseLost("said by the handler itself"),
    "snooze": lien.Snooze(7),
    "until": lien.Snooze(until=UNTIL),
    "retry": lien.Retry("later", after=9),
    "discard": lien.Discard("useless"),
    "cancel": lien.Cancel("unwanted"),
    "outcome": outcomes.Outcome("a word without meaning"),
}
ORDINARY = {
    "error", "timeout", "cancelled", "interrupt", "exit", "generator", "stop", "signature", "lost",
    "outcome",
}  # fmt: skip


def running(cause: Cause | None = None, **fields: object) -> Running:
    values = {
        "id": 1,
        "attempt": 3,
        "task": "t",
        "args": "{}",
        "queue": "q",
        "priority": 2,
        "available_at": 0,
        "fence": 1,
        "failures": 0,
        "max_failures": 20,
        "lost": 0,
        "timeout": 60.0,
        "backoff_base": 4.0,
        "backoff_cap": 60.0,
        "token": TOKEN,
        **fields,
    }
    claim = Claim(**values)  # type: ignore[arg-type]
    result = Running(claim, Context(claim, "n", threading.Event()), 0.0, 0.0)
    result.cause = cause
    return result


def proven(ack: Ack | None) -> Ack:
    assert ack is not None
    assert (ack.id, ack.attempt, ack.token) == (1, 3, TOKEN)
    return ack


@pytest.mark.parametrize("name", ERRORS)
def test_raised_by_the_handler_alone(name):
    ack = proven(raised(running(), ERRORS[name]))
    found = (ack.kind, ack.outcome, ack.final, ack.reason)
    if name in ORDINARY:
        assert found == ("fail", O.FAILED, False, None)
        assert 2.0 <= ack.delay <= 4.0
        assert ack.error
        assert ack.traceback
        return
    assert (
        found
        == {
            "payload": ("fail", O.FAILED, True, Reason.PERMANENT),
            "snooze": ("snooze", O.SNOOZED, False, None),
            "until": ("snooze", O.SNOOZED, False, None),
            "retry": ("fail", O.FAILED, False, None),
            "discard": ("fail", O.FAILED, True, Reason.PERMANENT),
            "cancel": ("fail", O.CANCELLED, True, Reason.CANCELLED),
        }[name]
    )
    assert ack.until == (UNTIL if name == "until" else None)
    if name in {"snooze", "retry"}:
        assert ack.delay == {"snooze": 7, "retry": 9}[name]


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("cause", Cause)
def test_raised_after_the_worker_stopped_it(name, cause):
    """The worker's reason decides, whatever is raised."""
    ack = raised(running(cause), ERRORS[name])
    if cause is Cause.LOST:
        assert ack is None
        return
    ack = proven(ack)
    found = (ack.kind, ack.outcome, ack.final, ack.reason)
    assert (
        found
        == {
            Cause.SHUTDOWN: ("release", O.INTERRUPTED, False, None),
            Cause.CANCELLED: ("fail", O.CANCELLED, True, Reason.CANCELLED),
            Cause.TIMEOUT: ("fail", O.TIMEOUT, False, None),
        }[cause]
    )
    if cause is Cause.SHUTDOWN:
        assert ack.started


@pytest.mark.parametrize("cause", [None, Cause.CANCELLED, Cause.SHUTDOWN, Cause.LOST])
@pytest.mark.parametrize("value", [None, 0, "", [], {"a": 1}])
def test_a_return_is_success_even_when_it_was_to_stop(cause, value):
    """Work that is done is done; of a lost claim the token decides."""
    ack = proven(returned(running(cause), value, Codec()))
    assert (ack.kind, ack.outcome) == ("succeed", O.SUCCEEDED)
    assert (None if ack.result is None else json.loads(ack.result)) == value


def test_a_return_after_the_timeout_is_a_timeout():
    ack = proven(returned(running(Cause.TIMEOUT), 1, Codec()))
    assert (ack.kind, ack.outcome, ack.result) == ("fail", O.TIMEOUT, None)


@pytest.mark.parametrize("name", ["snooze", "until", "retry", "discard", "cancel"])
@pytest.mark.parametrize("cause", [None, *Cause])
def test_a_word_returned_is_a_word_raised(name, cause):
    one = returned(running(cause), ERRORS[name], Codec())
    other = raised(running(cause), ERRORS[name])
    if one is None or other is None:
        assert one is other
        return
    assert one[:5] == other[:5]
    assert (one.until, one.final, one.reason) == (other.until, other.final, other.reason)


@pytest.mark.parametrize("cause", [None, Cause.TIMEOUT])
@pytest.mark.parametrize(
    ("failures", "most", "final"),
    [
        (0, 1, True),
        (0, 2, False),
        (18, 20, False),
        (19, 20, True),
        (20, 20, True),
        (2**31 - 1, 2**31 - 1, True),
    ],
)
def test_the_budget_of_failures(cause, failures, most, final):
    ack = proven(raised(running(cause, failures=failures, max_failures=most), ValueError()))
    assert ack.final is final
    assert ack.reason is (Reason.EXHAUSTED if final else None)


def test_a_retry_that_is_asked_for_spends_the_budget_too():
    ack = proven(raised(running(failures=19), lien.Retry(after=1)))
    assert (ack.final, ack.reason) == (True, Reason.EXHAUSTED)


@pytest.mark.parametrize("base", [0.0, 5.0, 1e300])
@pytest.mark.parametrize("failures", [0, 16, 1075, 2**31 - 2])
def test_the_delay_is_always_a_number(base, failures):
    job = running(failures=failures, max_failures=2**31 - 1, backoff_base=base, backoff_cap=1e9)
    ack = proven(raised(job, ValueError()))
    assert 0.0 <= ack.delay <= 1e9


@pytest.mark.parametrize("base", [float("inf"), float("nan"), -1.0])
def test_a_backoff_written_by_hand_does_not_break_the_failure(base):
    ack = raised(running(backoff_base=base), ValueError())
    assert proven(ack).kind == "fail"


@pytest.mark.parametrize("value", [float("nan"), {1}, object(), "a\x00", {1: 2}])
def test_a_result_that_cannot_be_stored_is_marked(value):
    ack = proven(returned(running(), value, Codec()))
    assert ack.kind == "succeed"
    assert json.loads(str(ack.result))["lien"] == "result not stored"


def test_the_mark_itself_can_be_stored():
    ack = proven(returned(running(), {"\ud800" * 400: 1}, Codec()))
    str(ack.result).encode()
    ack = proven(returned(running(), "x" * 500, Codec(max_bytes=400)))
    assert ack.kind == "succeed"


def test_a_tiny_limit_on_payloads_loses_no_success():
    ack = proven(returned(running(), "x" * 500, Codec(max_bytes=20)))
    assert ack.kind == "succeed"


def test_an_encoder_that_raises_loses_no_success():
    codec = Codec()

    class Thing:
        pass

    def encode(thing: Thing) -> object:
        raise RuntimeError("broken encoder")

    codec.register(Thing, encode)
    assert proven(returned(running(), Thing(), codec)).kind == "succeed"


@pytest.mark.parametrize("started", [True, False])
def test_a_release_says_whether_it_had_started(started):
    ack = proven(release(running().claim, started=started))
    assert (ack.kind, ack.started) == ("release", started)
    assert ack.outcome is (O.INTERRUPTED if started else O.RELEASED)


def test_what_storage_refuses_becomes_a_permanent_failure():
    ack = proven(returned(running(), 1, Codec()))
    ack = proven(unstorable(ack, ValueError("no\x00" + "x" * 10_000)))
    assert (ack.kind, ack.final, ack.reason, ack.result) == ("fail", True, Reason.PERMANENT, None)
    assert str(ack.error).startswith("result not storable: ValueError")
    assert len(str(ack.error)) <= 2000
