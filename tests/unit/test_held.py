"""Held claims: one decision at the gate, one reason to stop, a set that knows when it is empty."""

from __future__ import annotations

import threading
import uuid

import pytest

import lien
from lien.context import Context
from lien.model import Claim
from lien.worker.held import Cause, HeldClaims, Running


def running(id: int = 1, attempt: int = 1) -> Running:
    claim = Claim(id, attempt, "t", "{}", "q", 2, 0, attempt, 0, 20, 0, 60.0, 5.0, 60.0, uuid.uuid4())
    return Running(claim, Context(claim, "n", threading.Event()), float("inf"), 0.0)


class Task:
    """What `Running.cancel` needs of a task and its loop, here both at once."""

    def __init__(self, calls: list[int]) -> None:
        self.calls = calls

    def get_loop(self):
        return self

    def call_soon_threadsafe(self, call):
        call()

    def cancel(self):
        self.calls.append(1)


def test_the_gate_opens_once():
    one = running()
    assert one.begin()
    assert not one.begin()
    assert not one.withdraw()
    other = running()
    assert other.withdraw()
    assert not other.begin()


@pytest.mark.parametrize("round_", range(5))
def test_one_of_many_threads_passes_the_gate(round_):
    claims = [running(n) for n in range(200)]
    passed: list[int] = []
    start = threading.Barrier(6)

    def race(verb: str) -> None:
        start.wait()
        passed.extend(claim.claim.id for claim in claims if getattr(claim, verb)())

    threads = [threading.Thread(target=race, args=(verb,)) for verb in ("begin", "withdraw") * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(passed) == list(range(200))


@pytest.mark.parametrize("first", Cause)
@pytest.mark.parametrize("second", Cause)
def test_the_first_reason_to_stop_stands(first, second):
    one = running()
    calls: list[int] = []
    one.task = Task(calls)
    one.stop(first)
    one.stop(second)
    assert one.cause is first
    assert calls == [1]


def test_the_context_is_told():
    lost, cancelled, late = running(), running(), running()
    lost.stop(Cause.LOST)
    cancelled.stop(Cause.CANCELLED)
    late.stop(Cause.TIMEOUT)
    assert lost.context.stale
    with pytest.raises(lien.LeaseLost, match="job 1"):
        lost.context.check()
    assert cancelled.context.cancel_requested
    assert not cancelled.context.stale
    late.context.check()


def test_the_context_of_a_stopped_handler_hears_of_a_lost_lease_too():
    """A thread past its timeout goes on; that its claim is gone is the more important news."""
    for cause in (Cause.TIMEOUT, Cause.CANCELLED, Cause.SHUTDOWN):
        one = running()
        one.stop(cause)
        one.stop(Cause.LOST)
        assert one.context.stale, cause


def test_the_context_of_a_late_handler_hears_of_a_cancel_request_too():
    one = running()
    one.stop(Cause.TIMEOUT)
    one.stop(Cause.CANCELLED)
    assert one.context.cancel_requested


def test_held_claims_by_id():
    held = HeldClaims()
    one, two = running(1), running(2)
    assert held.empty.is_set()
    held.add([one, two])
    assert not held.empty.is_set()
    assert len(held) == 2
    assert held.holds(one)
    assert held.all() == [one, two]


def test_nothing_added_is_still_empty():
    held = HeldClaims()
    held.add([])
    assert held.empty.is_set()
