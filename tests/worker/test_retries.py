"""What an ended attempt means: another try, the end, and why."""

from __future__ import annotations

import asyncio
import concurrent.futures
import datetime
import queue
import threading

import pytest

import lien
from lien.machine import Reason, State
from lien.policy import Backoff
from lien.worker import Settings
from tests.worker.apps import astep
from tests.worker.kit import AT_ONCE, wait_until

ORDINARY = [
    TimeoutError,
    asyncio.TimeoutError,
    concurrent.futures.TimeoutError,
    asyncio.CancelledError,
    concurrent.futures.CancelledError,
    queue.Empty,
    StopIteration,
    StopAsyncIteration,
    GeneratorExit,
    KeyboardInterrupt,
    SystemExit,
    MemoryError,
    BrokenPipeError,
    BaseException,
    lien.LeaseLost,
    lien.StaleClaim,
    lien.DatabaseUnavailable,
]


def test_retry_01_no_number_of_failures_breaks_the_backoff(place):
    @place.jobs.task(max_failures=10**6)
    def fails() -> None:
        raise ValueError("again")

    ids: dict[int, tuple[int, float]] = {}
    for failures in (0, 1, 16, 43, 1075, 2**31 - 1):
        for cap in (3600.0, 1e9):
            job = fails.using(retry=Backoff(base=5.0, cap=cap)).enqueue().id
            ids[job] = failures, cap
            place.sql(
                "UPDATE lien_job SET failures = :failures, max_failures = :top WHERE id = :id",
                failures=failures,
                top=2**31 - 1,
                id=job,
            )
    with place.worker() as worker:
        wait_until(lambda: all(place.outcomes(job) for job in ids), "the attempts have ended")
    assert not worker.seen("disconnected")
    for job, (failures, cap) in ids.items():
        record = place.job(job)
        if failures == 2**31 - 1:
            assert (record.state, record.reason) == (State.FAILED, Reason.EXHAUSTED)
            continue
        assert record.state is State.SCHEDULED
        wait = record.available_at - record.created_at
        assert datetime.timedelta(seconds=2) < wait < datetime.timedelta(seconds=cap + 60)


def test_retry_03_a_handler_that_kills_its_process(place):
    job = place.task("kills").using(max_lost=3).enqueue().id
    for n in range(1, 4):
        worker = place.process()
        place.wait_starts(n, job)
        worker.exit()
    with place.worker():
        record = place.wait_state(job, State.FAILED)
    assert record.reason is Reason.LOST
    assert "worker lost" in str(record.last_error)
    assert len(place.starts(job)) == 3
    assert place.outcomes(job) == ["lost"] * 3
    place.check([job])


def test_retry_05_five_ways_to_be_cancelled(place):
    began = {name: threading.Event() for name in ("shutdown", "limit", "user")}

    @place.jobs.task(max_failures=1)
    async def inner() -> None:
        task = asyncio.ensure_future(astep())
        task.cancel()
        await task

    @place.jobs.task(max_failures=1)
    async def itself() -> None:
        raise asyncio.CancelledError

    @place.jobs.task
    async def waits(name: str) -> None:
        began[name].set()
        while True:
            await astep()

    ids = {
        "inner": inner.enqueue().id,
        "itself": itself.enqueue().id,
        "limit": waits.using(timeout=0.2, max_failures=1).enqueue(name="limit").id,
        "user": waits.enqueue(name="user").id,
        "shutdown": waits.enqueue(name="shutdown").id,
    }
    with place.worker(concurrency=5, grace=0.0):
        assert all(event.wait(20) for event in began.values())
        place.jobs.cancel(ids["user"])
        place.wait_finished(4)
    outcomes = {name: place.outcomes(id) for name, id in ids.items()}
    assert outcomes == {
        "inner": ["failed"],
        "itself": ["failed"],
        "limit": ["timeout"],
        "user": ["cancelled"],
        "shutdown": ["interrupted"],
    }
    assert place.job(ids["shutdown"]).state is State.RUNNABLE
    assert place.job(ids["shutdown"]).failures == 0
    assert place.job(ids["user"]).reason is Reason.CANCELLED
    assert "timeout of 0.2 s" in str(place.job(ids["limit"]).last_error)


def test_retry_07_whatever_a_handler_raises_is_an_ordinary_failure(place):
    @place.jobs.task(max_failures=1)
    def thread(n: int) -> None:
        raise ORDINARY[n]("from a handler")

    @place.jobs.task(max_failures=1)
    async def loop(n: int) -> None:
        raise ORDINARY[n]("from a handler")

    calls = [task.call(n=n) for n in range(len(ORDINARY)) for task in (thread, loop)]
    ids = [done.id for done in place.jobs.enqueue_many(calls)]
    with place.worker() as worker:
        place.wait_finished(len(ids))
        after = place.task("mark").enqueue(n=1).id if "mark" in place.jobs.tasks else None
    assert worker.code == 0
    assert after is None
    for id in ids:
        record = place.job(id)
        assert (record.state, record.reason) == (State.FAILED, Reason.EXHAUSTED), record
        assert place.outcomes(id) == ["failed"]
    place.check(ids)


def test_retry_07_the_worker_lives_on_after_system_exit(place):
    @place.jobs.task(max_failures=1)
    def leaves() -> None:
        raise SystemExit(3)

    @place.jobs.task
    def stays() -> str:
        return "still here"

    with place.worker(concurrency=1):
        for _ in range(3):
            bad, good = leaves.enqueue().id, stays.enqueue().id
            place.wait_state(good, State.SUCCEEDED)
            place.wait_state(bad, State.FAILED)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"lease": 0}, ["lease", "seconds"]),
        ({"lease": -1}, ["lease"]),
        ({"lease": float("nan")}, ["lease"]),
        ({"lease": float("inf")}, ["lease"]),
        ({"lease": "60"}, ["lease"]),
        ({"lease": True}, ["lease"]),
        ({"poll": 0}, ["poll"]),
        ({"poll": -1}, ["poll"]),
        ({"grace": -1}, ["grace"]),
        ({"cancel_grace": -0.1}, ["cancel_grace"]),
        ({"concurrency": 0}, ["concurrency", "from 1"]),
        ({"concurrency": 1.5}, ["concurrency"]),
        ({"concurrency": True}, ["concurrency"]),
        ({"concurrency": 10**9}, ["concurrency", "10000"]),
        ({"queues": ("",)}, ["queue"]),
        ({"queues": ("a\x00",)}, ["queue"]),
        ({"queues": "mail"}, ["queues"]),
        ({"identity": ""}, ["identity"]),
        ({"identity": "a\x00b"}, ["identity"]),
    ],
)
def test_retry_09_settings_that_cannot_work_are_refused(given, words):
    with pytest.raises(lien.UsageError) as error:
        Settings(**given)
    for word in words:
        assert word in str(error.value)


def test_retry_09_unknown_settings_are_refused():
    with pytest.raises(TypeError, match="leese"):
        Settings(leese=1)  # type: ignore[call-arg]


WORDS = {
    "retry": (lambda: lien.Retry("not yet", after=3600), State.SCHEDULED, None, "failed"),
    "snooze": (lambda: lien.Snooze(3600), State.SCHEDULED, None, "snoozed"),
    "until": (
        lambda: lien.Snooze(until=datetime.datetime(2200, 1, 1, tzinfo=datetime.UTC)),
        State.SCHEDULED,
        None,
        "snoozed",
    ),
    "discard": (lambda: lien.Discard("no use"), State.FAILED, Reason.PERMANENT, "failed"),
    "cancel": (lambda: lien.Cancel("not wanted"), State.FAILED, Reason.CANCELLED, "cancelled"),
}


@pytest.mark.parametrize("word", WORDS)
def test_outcomes_are_raised_or_returned(place, word):
    make, state, reason, outcome = WORDS[word]

    @place.jobs.task
    def thread(how: str) -> object:
        if how == "raise":
            raise make()
        return make()

    @place.jobs.task
    async def loop(how: str) -> object:
        if how == "raise":
            raise make()
        return make()

    ids = [task.enqueue(how=how).id for task in (thread, loop) for how in ("raise", "return")]
    place.burst()
    for id in ids:
        record = place.job(id)
        assert (record.state, record.reason) == (state, reason)
        assert place.outcomes(id) == [outcome]
        assert record.failures == (outcome != "snoozed")
        if state is State.SCHEDULED:
            later = record.available_at - record.created_at
            assert later >= datetime.timedelta(seconds=3590)


def test_a_snoozed_job_spends_no_budget_and_comes_again(place):
    turns: list[int] = []

    @place.jobs.task(max_failures=1)
    def later(ctx: lien.Context) -> int:
        turns.append(ctx.attempt)
        if len(turns) < 4:
            raise lien.Snooze(0.01)
        return len(turns)

    job = later.enqueue().id
    with place.worker(poll=0.05):
        record = place.wait_state(job, State.SUCCEEDED)
    assert turns == [1, 2, 3, 4]
    assert record.failures == 0
    assert place.outcomes(job) == ["snoozed"] * 3 + ["succeeded"]


def test_the_budget_of_failures_is_spent(place):
    @place.jobs.task(max_failures=3, retry=AT_ONCE)
    def fails() -> None:
        raise ValueError("always")

    job = fails.enqueue().id
    with place.worker() as worker:
        record = place.wait_state(job, State.FAILED)
        worker.wait_for("failed", job_id=job)
    assert record.reason is Reason.EXHAUSTED
    assert record.last_error == "ValueError: always"
    assert place.outcomes(job) == ["failed"] * 3
    assert len(worker.seen("retrying", job_id=job)) == 2
    assert "always" in str(place.jobs.attempts(job)[0].traceback)
    place.check([job])


def test_a_normal_end_forgives_the_lost_attempts(place):
    job = place.task("hold").using(retry=AT_ONCE).enqueue(name="a").id
    worker = place.process().ready()
    place.wait_starts(1)
    worker.kill()
    other = place.process(grace=0.0).ready()
    place.wait_starts(2)
    assert place.job(job).lost == 1
    assert other.drain() == 7
    assert place.job(job).interrupted == 1


def test_a_coroutine_past_its_timeout_is_cancelled(place):
    @place.jobs.task(timeout=0.2, max_failures=1)
    async def long() -> None:
        while True:
            await astep()

    job = long.enqueue().id
    with place.worker():
        record = place.wait_state(job, State.FAILED)
    assert place.outcomes(job) == ["timeout"]
    assert record.reason is Reason.EXHAUSTED


def test_a_thread_past_its_timeout_keeps_its_slot_until_it_ends(place):
    go, began = threading.Event(), threading.Event()

    @place.jobs.task(timeout=0.2, max_failures=1)
    def long() -> str:
        began.set()
        go.wait(60)
        return "late"

    @place.jobs.task
    def short() -> None:
        pass

    job = long.enqueue().id
    with place.worker(concurrency=1):
        assert began.wait(20)
        behind = short.enqueue().id
        wait_until(place.renewed(job, 1), "it is renewed past its timeout")
        assert place.job(behind).state is State.RUNNABLE
        assert place.job(job).state is State.CLAIMED
        go.set()
        record = place.wait_state(job, State.FAILED)
        place.wait_state(behind, State.SUCCEEDED)
    assert place.outcomes(job) == ["timeout"]
    assert record.result is None


def test_a_timeout_is_enforced_beside_a_long_one(place):
    """One timer serves all: the later deadline must not hide the earlier one, nor the other way."""

    @place.jobs.task(max_failures=1)
    async def long() -> None:
        while True:
            await astep()

    with place.worker(grace=0.0):
        slow = long.using(timeout=3600).enqueue().id
        place.wait_state(slow, State.CLAIMED)
        quick = [long.using(timeout=t).enqueue().id for t in (0.4, 0.2, 0.3)]
        for id in quick:
            place.wait_state(id, State.FAILED)
            assert place.outcomes(id) == ["timeout"]
        assert place.job(slow).state is State.CLAIMED


def test_a_cancelled_thread_sees_the_flag(place):
    began = threading.Event()

    @place.jobs.task
    def listens(ctx: lien.Context) -> None:
        began.set()
        while not ctx.cancel_requested:
            threading.Event().wait(0.01)
        raise lien.Cancel("as asked")

    job = listens.enqueue().id
    with place.worker():
        assert began.wait(20)
        place.jobs.cancel(job)
        record = place.wait_state(job, State.FAILED)
    assert record.reason is Reason.CANCELLED
    assert place.outcomes(job) == ["cancelled"]


@pytest.mark.parametrize("word", ["fails", "snoozes"])
def test_a_flagged_job_does_not_come_again(place, word):
    """Fail and snooze of a job that an operator cancelled end it."""
    began, go = threading.Event(), threading.Event()

    @place.jobs.task(retry=AT_ONCE)
    def ends() -> None:
        began.set()
        go.wait(60)
        if word == "snoozes":
            raise lien.Snooze(0)
        raise ValueError("no")

    job = ends.enqueue().id
    with place.worker(lease=30.0):
        assert began.wait(20)
        place.jobs.cancel(job)
        go.set()
        record = place.wait_state(job, State.FAILED)
    assert record.reason is Reason.CANCELLED
    assert len(place.outcomes(job)) == 1
