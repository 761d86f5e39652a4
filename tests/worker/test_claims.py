"""Claims: each job once, never more than there are free slots, nothing in anybody's way."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

import lien
from lien.machine import Reason, State
from tests.worker.apps import astep, step
from tests.worker.kit import AT_ONCE, Place, wait_until

BIGGEST = 2**31 - 1


def _enqueue_marks(place: Place, n: int) -> set[int]:
    jobs = ({"n": i} for i in range(n))
    return {done.id for done in place.task("mark").enqueue_many(jobs)}


@pytest.mark.parametrize("jobs", [400, pytest.param(2000, marks=pytest.mark.full)])
def test_claim_03_many_processes_run_each_job_once(place, jobs):
    ids = _enqueue_marks(place, jobs)
    workers = [place.process(concurrency=20) for _ in range(4 if jobs < 1000 else 8)]
    place.wait_finished(jobs, 100)
    assert {worker.ready().drain() for worker in workers} == {0}
    assert Counter(map(int, place.folder.notes("marks"))) == dict.fromkeys(range(jobs), 1)
    place.check(ids)


def test_claim_03_many_threads_of_one_process(place):
    ids = _enqueue_marks(place, 500)
    workers = [place.start(concurrency=5) for _ in range(8)]
    place.wait_finished(500)
    assert {worker.stop() for worker in workers} == {0}
    assert sorted(map(int, place.folder.notes("marks"))) == list(range(500))
    place.check(ids)


def test_claim_05_saturated_counters_stand_in_nobodys_way(place):
    bad = place.task("mark").enqueue(n=-1).id
    place.sql(
        "UPDATE lien_job SET attempt = :top, failures = :top, lost = :top, interrupted = :top",
        top=BIGGEST,
    )
    _enqueue_marks(place, 100)
    with place.worker() as worker:
        place.wait_finished(101)
    assert not worker.seen("disconnected")
    assert len(place.folder.notes("marks")) == 101
    assert place.job(bad).attempt == BIGGEST


@pytest.mark.parametrize("word", ["retry", "snooze", "release", "lost"])
def test_claim_05_saturated_counters_at_every_other_end(place, word):
    ends: list[str] = []

    @place.jobs.task(retry=AT_ONCE, max_failures=10**6)
    async def turn() -> None:
        ends.append(word)
        if len(ends) > 1:
            return
        if word == "retry":
            raise lien.Retry(after=0)
        if word == "snooze":
            raise lien.Snooze(0)
        while True:
            await astep()

    job = turn.enqueue().id
    # The budgets are larger than any counter of theirs, so that the job goes on.
    place.sql(
        "UPDATE lien_job SET attempt = :top, failures = :top, lost = :top, interrupted = :top,"
        " max_failures = :top, max_lost = :top, max_interrupted = :top",
        top=BIGGEST,
    )
    with place.worker(grace=0.0) as worker:
        if word == "lost":
            wait_until(lambda: ends, "it has started")
            place.sql(f"UPDATE lien_job SET lease_expires_at = {place.ago(1)}")
            wait_until(lambda: place.run(place.engine.reap, 10), "it is taken back")
        if word == "release":
            wait_until(lambda: ends, "it has started")
        else:
            place.wait_finished(1)
    assert not worker.seen("disconnected")
    record = place.job(job)
    assert record.attempt == BIGGEST
    assert record.state in {State.SUCCEEDED, State.FAILED, State.RUNNABLE}
    assert max(record.failures, record.lost, record.interrupted) <= BIGGEST


def test_claim_09_no_worker_holds_more_than_it_has_free_slots(place):
    long = place.task("hold").enqueue(name="a").id
    first = place.process(concurrency=1).ready()
    place.wait_starts(1)
    ids = _enqueue_marks(place, 7)
    second = place.process(concurrency=1).ready()
    place.wait_finished(7)
    assert place.job(long).state is State.CLAIMED
    assert place.claimed() == 1
    place.folder.allow("a")
    place.wait_finished(8)
    assert first.drain() == second.drain() == 0
    workers = dict(place.sql("SELECT job_id, worker FROM lien_attempt"))
    assert {workers[id] for id in ids} != {workers[long]}
    assert all(workers[id] != workers[long] for id in ids)


@pytest.mark.parametrize("kind", ["thread", "loop", "mixed"])
def test_concurrency_is_never_exceeded(place, kind):
    lock, now, most = threading.Lock(), [0], [0]

    def change(by: int) -> None:
        with lock:
            now[0] += by
            most[0] = max(most[0], now[0])

    @place.jobs.task
    def thread() -> None:
        change(+1)
        step()
        change(-1)

    @place.jobs.task
    async def loop() -> None:
        change(+1)
        await astep()
        change(-1)

    tasks = {"thread": [thread], "loop": [loop], "mixed": [thread, loop]}[kind]
    place.jobs.enqueue_many([tasks[n % len(tasks)].call() for n in range(60)])
    held: list[int] = []
    with place.worker(concurrency=7) as worker:
        while place.finished() < 60:
            held.append(place.claimed())
            assert len(worker.worker._held) <= 7
    assert max(held) <= 7
    assert most[0] <= 7
    assert most[0] > 1


@pytest.mark.parametrize("unique", ["", "start-up"])
def test_claim_11_workers_that_start_at_once(place, unique):
    workers = [place.process(startup=unique) for _ in range(6)]
    for worker in workers:
        worker.ready()
    expected = 1 if unique else 6
    wait_until(lambda: place.finished() >= expected and not place.live(), "the jobs are over")
    for worker in workers:
        assert worker.drain() == 0
    marks = place.folder.notes("marks")
    assert len(marks) == len(set(marks)) == place.finished()
    if not unique:
        assert len(marks) == 6
    # With the key: one live job at a time; who starts after its end enqueues the next.
    assert set(marks) <= {str(worker.pid) for worker in workers}


def test_claim_11_one_unique_job_runs_once(place):
    for _ in range(6):
        place.task("mark").using(unique="start-up").enqueue(n=1)
    workers = [place.start() for _ in range(6)]
    place.wait_finished(1)
    assert {worker.stop() for worker in workers} == {0}
    assert place.folder.notes("marks") == ["1"]


def _unknown(place: Place, n: int) -> list[int]:
    other = place.other()

    @other.task
    def new_in_the_next_release() -> None:
        pass

    ids = [done.id for done in new_in_the_next_release.enqueue_many({} for _ in range(n))]
    other.close()
    return ids


def test_an_unknown_task_is_parked_with_the_reason(place):
    (job,) = _unknown(place, 1)
    with place.with_app().worker() as worker:
        record = place.wait_state(job, State.SCHEDULED)
        worker.wait_for("parked")
    assert record.reason is Reason.UNKNOWN_TASK
    assert (record.attempt, record.failures) == (0, 0)
    assert record.available_at > record.created_at
    assert place.outcomes(job) == []


def test_a_parked_job_runs_when_a_worker_that_knows_it_starts(place):
    (job,) = _unknown(place, 1)
    with place.with_app().worker():
        place.wait_state(job, State.SCHEDULED)

    @place.jobs.task
    def new_in_the_next_release() -> None:
        pass

    with place.worker():
        record = place.wait_state(job, State.SUCCEEDED, 10)
    assert record.attempt == 1


def test_unknown_tasks_in_front_stop_nobody(place):
    unknown = _unknown(place, 500)
    ids = _enqueue_marks(place, 20)
    with place.worker(concurrency=2) as worker:
        wait_until(lambda: place.finished() == 20, "the known ones have run")
    assert {place.job(id).state for id in ids} == {State.SUCCEEDED}
    assert place.sql("SELECT count(*) FROM lien_job WHERE state = 'scheduled' AND reason = 'unknown_task'") == [
        (len(unknown),)
    ]
    assert not worker.seen("disconnected")


def test_only_the_queues_it_serves(place):
    mine = place.task("mark").using(queue="mine").enqueue(n=1).id
    other = place.task("mark").using(queue="other").enqueue(n=2).id
    place.burst(queues=("mine",))
    assert place.job(mine).state is State.SUCCEEDED
    assert place.job(other).state is State.RUNNABLE


def test_every_class_is_served_under_a_flood_of_the_highest(place):
    low = place.task("mark").using(priority="low").enqueue(n=-1).id
    place.task("mark").using(priority="critical").enqueue_many({"n": n} for n in range(400))
    with place.worker(concurrency=1):
        place.wait_finished(401)
    order = [row[0] for row in place.sql("SELECT job_id FROM lien_attempt ORDER BY ended_at")]
    assert order.index(low) < 400


def test_oldest_first_within_a_class(place):
    place.task("mark").enqueue_many({"n": n} for n in range(30))
    place.burst(concurrency=1)
    assert place.folder.notes("marks") == [str(n) for n in range(30)]


def test_an_expired_job_is_not_run(place):
    job = place.task("mark").using(expires=0.3).enqueue(n=1).id
    wait_until(lambda: place.sql(f"SELECT 1 FROM lien_job WHERE expires_at < {place.now}"), "it expires")
    with place.worker(lease=1.0):
        record = place.wait_state(job, State.FAILED)
    assert record.reason is Reason.EXPIRED
    assert place.folder.notes("marks") == []


def test_a_claim_that_the_database_refuses_is_no_empty_queue(place):
    """P11: it is said, again and again without spinning, and over when the cause is gone."""
    place.task("mark").enqueue(n=1)
    if place.is_postgres:
        place.sql(
            "CREATE FUNCTION public.no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no claims today'; END $$"
        )
        place.sql("CREATE TRIGGER no BEFORE UPDATE ON lien_job FOR EACH ROW EXECUTE FUNCTION public.no()")
    else:
        place.sql("CREATE TRIGGER no BEFORE UPDATE ON lien_job BEGIN SELECT RAISE(ABORT, 'no claims today'); END")
    with place.worker() as worker:
        assert "no claims today" in str(worker.wait_for("disconnected").error)
        threading.Event().wait(2.0)
        assert len(worker.seen("disconnected")) <= 8
        place.sql("DROP TRIGGER no" + (" ON lien_job" if place.is_postgres else ""))
        place.wait_finished(1)
