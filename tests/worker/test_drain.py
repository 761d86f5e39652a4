"""Drain: what is done is written, what is not is given back, the process goes in time."""

from __future__ import annotations

import signal
import threading
from itertools import cycle

import pytest

import lien
from lien.machine import Reason, State
from lien.worker.outcome import release
from tests.worker.apps import astep, step
from tests.worker.kit import AT_ONCE, Place, wait_until
from tests.worker.proxy import Proxy


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_handlers_that_end_within_the_grace_are_written(place, number):
    job = place.task("hold").enqueue(name="a").id
    worker = place.process().ready()
    place.wait_starts(1)
    worker.signal(number)
    worker.wait_for("draining", count=1)
    place.folder.allow("a")
    assert worker.exit() == 0
    assert place.job(job).state is State.SUCCEEDED


def test_drain_01_async_jobs_in_flight_are_back_in_the_queue_before_exit(place):
    ids = [place.task("ahold").enqueue(name="a").id for _ in range(8)]
    worker = place.process(concurrency=8, grace=0.3).ready()
    place.wait_starts(8)
    assert worker.drain() == 0
    for id in ids:
        job = place.job(id)
        assert (job.state, job.interrupted, job.failures, job.lost) == (State.RUNNABLE, 1, 0, 0)
        assert place.outcomes(id) == ["interrupted"]
    place.folder.allow("a")
    place.burst(concurrency=8)
    assert {place.job(id).state for id in ids} == {State.SUCCEEDED}


def test_drain_03_a_handler_that_ignores_its_cancellation(place):
    job = place.task("stubborn").enqueue(name="a").id
    worker = place.process(grace=0.2, cancel_grace=0.3).ready()
    place.wait_starts(1)
    assert worker.drain() == 7
    assert place.folder.notes("refusals")
    assert place.job(job).state is State.RUNNABLE
    assert place.outcomes(job) == ["interrupted"]
    place.folder.allow("a")
    place.burst()
    assert place.job(job).state is State.SUCCEEDED


def test_a_thread_that_cannot_be_stopped_keeps_no_process_alive(place):
    job = place.task("hold").enqueue(name="a").id
    worker = place.process(grace=0.2, cancel_grace=0.3).ready()
    place.wait_starts(1)
    assert worker.drain() == 7
    assert place.job(job).state is State.RUNNABLE


def test_drain_05_claims_without_a_handler_cost_nothing(place):
    """With many stops at random moments no claim is left, and what never started is not charged."""
    ids = {place.task("mark").enqueue(n=n).id for n in range(600)}
    for _ in range(12):
        worker = place.start(concurrency=50)
        wait_until(lambda: place.claimed() or not place.live(), "a claim")
        worker.stop()
        assert place.claimed() == 0
    place.burst()
    place.check(ids)
    assert place.sql("SELECT count(*) FROM lien_history WHERE interrupted > 0 OR lost > 0") == [(0,)]
    assert sorted(map(int, place.folder.notes("marks"))) == list(range(600))


def test_drain_05_a_claim_that_was_under_way_at_the_signal(postgres: Place, proxy: Proxy):
    """Its answer comes after the signal: the job is given back unstarted, and at once."""
    job = postgres.task("hold").enqueue(name="a").id
    proxy.hold_after = lambda data: b"held-claim" in data and b"ahold" in data
    worker = postgres.process(url=proxy.url, lease=60.0, identity="held-claim")
    assert proxy.held.wait(20)
    postgres.wait_state(job, State.CLAIMED)
    worker.signal(signal.SIGTERM)
    threading.Event().wait(0.3)  # the signal must come first: nothing tells that it has
    proxy.release()
    assert worker.exit() == 0
    assert postgres.job(job).state is State.RUNNABLE
    assert postgres.outcomes(job) == ["released"]
    assert postgres.starts() == []
    assert postgres.job(job).interrupted == 0


def test_a_second_signal_skips_the_grace(place):
    job = place.task("ahold").enqueue(name="a").id
    worker = place.process(grace=300.0).ready()
    place.wait_starts(1)
    worker.signal(signal.SIGTERM)
    worker.wait_for("draining")
    worker.signal(signal.SIGTERM)
    assert worker.exit() == 0
    assert place.outcomes(job) == ["interrupted"]


def test_a_hail_of_signals_does_not_lock_the_worker_up(place):
    place.task("ahold").enqueue(name="a")
    worker = place.process(grace=0.2).ready()
    place.wait_starts(1)
    for number, _ in zip(cycle((signal.SIGTERM, signal.SIGINT)), range(20_000), strict=False):
        if worker.process.poll() is not None:
            break
        worker.signal(number)
    worker.exit()
    assert place.claimed() == 0


def test_unstarted_claims_are_released(place):
    """More coroutines claimed than a blocked loop can start."""
    blocker = place.task("blocks_the_loop").enqueue(name="a").id
    waiting = [place.task("ahold").enqueue(name="b").id for _ in range(5)]
    worker = place.process(concurrency=6).ready()
    place.wait_starts(1)
    wait_until(lambda: place.claimed() == 6, "six claims")
    worker.signal(signal.SIGTERM)
    for id in waiting:
        place.wait_state(id, State.RUNNABLE)
        job = place.job(id)
        assert (job.interrupted, job.failures, job.lost) == (0, 0, 0)
        assert place.outcomes(id) == ["released"]
    place.folder.allow("a")
    assert worker.exit() == 0
    assert place.job(blocker).state is State.SUCCEEDED


def test_the_budget_of_interruptions_is_spent(place):
    started = threading.Semaphore(0)

    @place.jobs.task(max_interrupted=2)
    async def cut() -> None:
        started.release()
        while True:
            await astep()

    job = cut.enqueue().id
    for _ in range(2):
        worker = place.start(grace=0.0)
        assert started.acquire(timeout=20)
        worker.stop()
    record = place.job(job)
    assert (record.state, record.reason) == (State.FAILED, Reason.INTERRUPTED)
    assert place.outcomes(job) == ["interrupted", "interrupted"]


def test_a_handler_hears_of_the_drain_and_ends_by_itself(place):
    began = threading.Event()

    @place.jobs.task
    def listens(ctx: lien.Context) -> str:
        began.set()
        while not ctx.shutting_down:
            step()
        return "saved"

    job = listens.enqueue().id
    with place.worker():
        assert began.wait(20)
    assert place.job(job).result == '"saved"'


def test_a_handler_may_finish_its_work_when_cancelled(place):
    """Success wins over the shutdown's cancellation."""
    began = threading.Event()

    @place.jobs.task
    async def cleans_up() -> str:
        began.set()
        while True:
            try:
                await astep()
            except BaseException:  # noqa: BLE001 - what a careful handler does
                return "done all the same"

    job = cleans_up.enqueue().id
    worker = place.start(grace=0.0)
    assert began.wait(20)
    assert worker.stop() == 0
    assert place.job(job).result == '"done all the same"'


def test_a_thread_past_its_timeout_is_not_left_claimed(place):
    """P10: the process ends, so the timeout is written now."""
    go, began = threading.Event(), threading.Event()

    @place.jobs.task(timeout=0.2, retry=AT_ONCE)
    def stuck(ctx: lien.Context) -> None:
        began.set()
        go.wait(60)

    job = stuck.enqueue().id
    worker = place.start(grace=1.0, cancel_grace=0.2)
    assert began.wait(20)
    try:
        worker.stop()
        assert place.job(job).state in {State.SCHEDULED, State.RUNNABLE, State.FAILED}
        assert place.outcomes(job) in (["timeout"], ["interrupted"])
    finally:
        go.set()


def test_a_cancelled_thread_that_does_not_look_is_not_left_claimed(place):
    go, began = threading.Event(), threading.Event()

    @place.jobs.task
    def deaf(ctx: lien.Context) -> None:
        began.set()
        go.wait(60)

    job = deaf.enqueue().id
    worker = place.start(grace=0.5, cancel_grace=0.2)
    assert began.wait(20)
    place.jobs.cancel(job)
    wait_until(lambda: all(r.cause for r in worker.worker._held.all()), "the request is seen")
    try:
        worker.stop()
        record = place.job(job)
        assert (record.state, record.reason) == (State.FAILED, Reason.CANCELLED)
    finally:
        go.set()


def test_a_drained_worker_leaves_no_claim_under_load(place):
    ids = {place.task("amark").enqueue(n=n).id for n in range(300)}
    workers = [place.process(concurrency=20).ready() for _ in range(2)]
    wait_until(lambda: len(place.folder.notes("marks")) > 20, "work goes on")
    assert [worker.drain() for worker in workers] == [0, 0]
    assert place.claimed() == 0
    place.burst()
    place.check(ids)


def test_drain_with_the_database_down_ends_by_the_deadline(owned: Place, own_postgres_server):
    owned.task("hold").enqueue(name="a")
    worker = owned.process(grace=0.5, cancel_grace=0.5).ready()
    owned.wait_starts(1)
    own_postgres_server.stop("immediate")
    owned.folder.allow("a")
    worker.wait_for("disconnected")
    worker.signal(signal.SIGTERM)
    worker.exit(20)


def test_exit_code_7_is_kept_for_handlers_that_ignored_it(owned: Place, own_postgres_server):
    """A handler that had ended and could not be written has ignored nothing."""
    owned.task("hold").enqueue(name="a")
    worker = owned.process(grace=0.5, cancel_grace=0.5).ready()
    owned.wait_starts(1)
    own_postgres_server.stop("immediate")
    owned.folder.allow("a")
    worker.wait_for("disconnected")
    threading.Event().wait(0.2)  # the handler looks every 20 ms, and tells nobody of its end
    worker.signal(signal.SIGTERM)
    assert worker.exit(20) != 7


def test_a_worker_in_a_thread_ends_by_stop(place):
    with place.with_app().worker() as worker:
        worker.wait_for("ready")
    assert worker.code == 0
    assert worker.seen("stopped")


def test_a_worker_without_tasks_says_so(place):
    with pytest.raises(lien.UsageError, match="no tasks are registered"):
        place.start()


def test_what_is_reported_just_before_the_stop_is_written(place):
    """P10: the last report comes when the pump has looked for reports and not yet for the stop."""
    go = threading.Event()

    @place.jobs.task(name="wait")
    def wait() -> None:
        go.wait(60)

    job = wait.enqueue().id
    running = place.start(grace=0.1, cancel_grace=0.1, lease=60.0)
    wait_until(lambda: place.claimed() == 1, "it is claimed")
    pump, (held,) = running.worker._pump, running.worker._held.all()
    finisher, retry, late = pump._finisher, pump._finisher.retry_stuck, [True]

    def report_late(driver):
        retry(driver)
        if late.pop() if late else False:
            finisher.report(held, release(held.claim, started=True))
            pump.stop()

    finisher.retry_stuck = report_late
    pump.hint()
    try:
        wait_until(lambda: place.claimed() == 0, "the release is written")
        assert place.job(job).state is State.RUNNABLE
        assert place.outcomes(job) == ["interrupted"]
    finally:
        go.set()
        running.stop()
