"""Leases: kept while the process lives, taken back when it does not, decided by the database."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from lien.machine import Reason, State
from lien.worker import Settings
from tests.worker.apps import astep, step
from tests.worker.kit import AT_ONCE, LEASE, Place, wait_until


def test_lease_01_fifty_jobs_longer_than_several_leases_are_claimed_once(place):
    ids = [place.task("ahold").enqueue(name="a").id for _ in range(50)]
    with place.worker(concurrency=50):
        place.wait_starts(50)
        wait_until(place.renewed(ids[0]), "three leases have passed")
        wait_until(place.renewed(ids[-1]), "three leases have passed")
        place.folder.allow("a")
        place.wait_finished(50)
    place.check(ids)
    assert {tuple(place.outcomes(id)) for id in ids} == {("succeeded",)}
    assert len(place.starts()) == 50


def test_lease_01_renewal_is_a_third_of_the_lease():
    for lease in (0.3, 1.0, 60.0, 86_400.0):
        settings = Settings(lease=lease)
        assert settings.renew_every <= lease / 3
        assert settings.margin + settings.renew_every <= lease


def test_lease_03_a_delayed_job_is_not_claimed_before_it_is_due(place):
    place.task("mark").using(delay=2.5 * LEASE).enqueue(n=1)
    with place.worker(poll=0.05):
        place.wait_finished(1)
    started, due = place.sql(
        "SELECT a.started_at, h.available_at FROM lien_attempt a JOIN lien_history h ON h.id = a.job_id"
    )[0]
    assert started >= due
    assert place.folder.notes("marks") == ["1"]


def test_lease_03_a_long_job_has_one_claimant(place):
    job = place.task("hold").enqueue(name="a").id
    workers = [place.start() for _ in range(3)]
    wait_until(place.renewed(job, 3), "several leases have passed")
    place.folder.allow("a")
    place.wait_state(job, State.SUCCEEDED)
    assert [worker.stop() for worker in workers] == [0, 0, 0]
    assert place.outcomes(job) == ["succeeded"]
    assert len(place.starts()) == 1


def test_lease_05_a_restart_under_the_same_name_does_not_vouch_for_the_dead(place):
    job = place.task("hold").using(retry=AT_ONCE).enqueue(name="a").id
    first = place.process(identity="pod-0").ready()
    place.wait_starts(1)
    first.kill()
    place.process(identity="pod-0").ready()
    place.wait_starts(2)
    place.folder.allow("a")
    assert place.wait_state(job, State.SUCCEEDED).attempt == 2
    assert place.outcomes(job) == ["lost", "succeeded"]
    assert len({start.split()[2] for start in place.starts()}) == 2


def test_every_start_has_an_identity_of_its_own():
    assert Settings().identity != Settings().identity
    assert str(os.getpid()) in Settings().identity


@pytest.mark.parametrize("shift", [3600, -3600])
def test_lease_07_the_clock_of_the_host_does_not_matter(postgres: Place, shift):
    late = postgres.task("mark").using(delay=2.0).enqueue(n=1).id
    long = postgres.task("hold").enqueue(name="a").id
    workers = [postgres.process(shift=shift).ready(), postgres.process().ready()]
    postgres.wait_starts(1)
    wait_until(postgres.renewed(long, 2), "the long job went on")
    postgres.wait_state(late, State.SUCCEEDED)
    postgres.folder.allow("a")
    postgres.wait_state(long, State.SUCCEEDED)
    assert [worker.drain() for worker in workers] == [0, 0]
    assert postgres.outcomes(long) == postgres.outcomes(late) == ["succeeded"]
    assert postgres.sql(
        "SELECT a.started_at >= h.available_at FROM lien_attempt a JOIN lien_history h ON h.id = a.job_id"
    ) == [(True,), (True,)]


def test_lease_11_the_orphan_behind_many_long_jobs_is_found(place):
    """Live claims, more than one batch of the reaper, then one dead: only expired ones are read."""
    jobs = [{"name": "a"} for _ in range(251)]
    ids = [done.id for done in place.task("hold").using(retry=AT_ONCE).enqueue_many(jobs)]
    other = "0" * 32
    place.sql(
        "UPDATE lien_job SET state = 'claimed', attempt = 1, fence = 1, claim_token = :token,"
        f" claimed_by = 'somebody', claimed_at = {place.now},"
        f" lease_expires_at = {place.ago(-3600)}",
        token=other,
    )
    place.sql(f"UPDATE lien_job SET lease_expires_at = {place.ago(1)} WHERE id = {max(ids)}")
    with place.worker():
        place.wait_starts(1, max(ids))
        place.folder.allow("a")
        place.wait_state(max(ids), State.SUCCEEDED)
    assert place.claimed() == 250


def test_lease_13_two_reapers_take_a_job_back_once(place):
    job = place.task("hold").using(retry=AT_ONCE).enqueue(name="a").id
    worker = place.process().ready()
    place.wait_starts(1)
    worker.kill()
    wait_until(lambda: place.job(job).lease_expired, "the lease is over")
    taken: list[object] = []
    gate = threading.Barrier(6)

    def reap() -> None:
        gate.wait()
        taken.extend(place.run(place.engine.reap, 100))

    threads = [threading.Thread(target=reap) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 1
    assert place.outcomes(job) == ["lost"]
    assert place.job(job).lost == 1


def test_lease_13_a_reaper_takes_no_job_that_was_claimed_again(place):
    job = place.task("hold").using(retry=AT_ONCE).enqueue(name="a").id
    worker = place.process().ready()
    place.wait_starts(1)
    worker.kill()
    place.start()
    place.wait_starts(2)
    assert place.run(place.engine.reap, 100) == []
    place.folder.allow("a")
    place.wait_state(job, State.SUCCEEDED)
    assert place.outcomes(job) == ["lost", "succeeded"]


def test_a_blocked_event_loop_loses_no_lease(place):
    job = place.task("blocks_the_loop").enqueue(name="a").id
    beside = place.task("ahold").enqueue(name="a").id
    workers = [place.process(concurrency=1), place.process(concurrency=1)]
    place.wait_starts(2)
    wait_until(place.renewed(job), "three leases have passed")
    place.folder.allow("a")
    for id in (job, beside):
        place.wait_state(id, State.SUCCEEDED)
        assert place.outcomes(id) == ["succeeded"]
    for worker in workers:
        assert worker.drain() == 0
        assert not worker.seen("lost")


def test_busy_threads_lose_no_lease(place):
    ids = [place.task("spins").enqueue(name="a").id for _ in range(4)]
    worker = place.process(lease=2.0).ready()
    place.wait_starts(4)
    wait_until(place.renewed(ids[0], lease=2.0), "three leases have passed", 60)
    place.folder.allow("a")
    for id in ids:
        place.wait_state(id, State.SUCCEEDED)
        assert place.outcomes(id) == ["succeeded"]
    assert worker.drain() == 0
    assert not worker.seen("lost")


def test_a_stopped_process_finds_its_claim_gone(place):
    """SIGSTOP past the lease, then SIGCONT: its success is stale and said to be so."""
    job = place.task("hold").using(retry=AT_ONCE).enqueue(name="a").id
    frozen = place.process().ready()
    place.wait_starts(1)
    frozen.signal(signal.SIGSTOP)
    other = place.process().ready()
    place.wait_starts(2)
    frozen.signal(signal.SIGCONT)
    frozen.wait_for("lost", job_id=job)
    place.folder.allow("a")
    place.wait_state(job, State.SUCCEEDED)
    frozen.wait_for("stale", job_id=job, attempt=1)
    other.wait_for("succeeded", job_id=job, attempt=2)
    assert place.outcomes(job) == ["lost", "succeeded"]
    place.check([job])


def test_a_killed_worker_is_noticed(place):
    job = place.task("hold").using(retry=AT_ONCE).enqueue(name="a").id
    worker = place.process().ready()
    place.wait_starts(1)
    worker.kill()
    other = place.process().ready()
    event = other.wait_for("reaped", job_id=job)
    assert "fell silent" in event["error"]
    place.folder.allow("a")
    record = place.wait_state(job, State.SUCCEEDED)
    assert (record.attempt, record.failures) == (2, 0)
    assert place.outcomes(job) == ["lost", "succeeded"]


def test_ack_09_one_worker_cleans_up_after_an_unclean_end(place):
    ids = [place.task("hold").using(retry=AT_ONCE).enqueue(name="a").id for _ in range(8)]
    worker = place.process(concurrency=8).ready()
    place.wait_starts(8)
    worker.kill()
    place.folder.allow("a")
    wait_until(lambda: all(place.job(id).lease_expired for id in ids), "all are seen as expired")
    assert {place.job(id).state for id in ids} == {State.CLAIMED}
    with place.worker(concurrency=8):
        place.wait_finished(8)
    place.check(ids)
    assert {tuple(place.outcomes(id)) for id in ids} == {("lost", "succeeded")}


def _taken_over(place: Place, job: int) -> None:
    """Time passes for this claim alone, and a reaper comes by."""
    place.sql(f"UPDATE lien_job SET lease_expires_at = {place.ago(1)} WHERE id = {job}")
    wait_until(lambda: place.run(place.engine.reap, 100), "the claim is taken back")


@pytest.mark.parametrize("kind", ["thread", "loop"])
def test_a_job_claimed_again_by_the_same_process_keeps_its_lease(place, kind):
    """The end of the first, lost attempt must not make the process forget the second."""
    first, second = threading.Event(), threading.Event()
    gates, starts = [first, second], []

    @place.jobs.task(name="thread", retry=AT_ONCE)
    def in_thread() -> None:
        gate = gates[min(len(starts), 1)]
        starts.append(gate)
        gate.wait(60)

    @place.jobs.task(name="loop", retry=AT_ONCE)
    async def on_loop() -> None:
        gate = gates[min(len(starts), 1)]
        starts.append(gate)
        while not gate.is_set():
            try:
                await astep()
            except BaseException:  # noqa: BLE001 - one that clings to its work
                step()

    job = place.task(kind).enqueue().id
    with place.worker(concurrency=2) as worker:
        wait_until(lambda: len(starts) == 1, "the first start")
        _taken_over(place, job)
        wait_until(lambda: len(starts) == 2, "the second start, in the same process")
        first.set()
        wait_until(
            lambda: [e for e in worker.events if e.attempt == 1 and e.what != "lost"],
            "the end of the first attempt is dealt with",
        )
        wait_until(place.renewed(job, 2), "the second claim stands for two leases")
        second.set()
        place.wait_state(job, State.SUCCEEDED)
    assert place.outcomes(job) == ["lost", "succeeded"]


@pytest.mark.parametrize("number", range(3))
def test_a_withdrawn_or_cancelled_lost_claim_does_not_take_the_new_one_along(place, number):
    """The same when the lost handler ends by its cancellation, with nothing to say."""
    starts: list[int] = []
    go = threading.Event()

    @place.jobs.task(retry=AT_ONCE)
    async def dies() -> None:
        starts.append(1)
        if len(starts) == 1:
            while True:
                await astep()
        while not go.is_set():
            await astep()

    job = dies.enqueue().id
    with place.worker(concurrency=2, lease=3.0):
        wait_until(lambda: len(starts) == 1, "the first start")
        _taken_over(place, job)
        wait_until(lambda: len(starts) == 2, "the second start")
        wait_until(place.renewed(job, 1, lease=3.0), "the second claim is renewed")
        go.set()
        place.wait_state(job, State.SUCCEEDED)
    assert place.outcomes(job) == ["lost", "succeeded"]


def test_a_healthy_run_reports_no_lost_claim(place):
    """Renewals run beside acknowledgements all the time: that race is no news."""
    ids = [place.task("aworks").enqueue(n=n * 5 + 1).id for n in range(400)]
    with place.worker(concurrency=8, lease=0.5) as worker:
        place.wait_finished(400)
    assert worker.seen("lost") == worker.seen("stale") == []
    place.check(ids)


def test_a_cancel_request_reaches_a_handler(place):
    job = place.task("ahold").enqueue(name="a").id
    with place.worker():
        place.wait_starts(1)
        assert place.jobs.cancel(job) is State.CLAIMED
        record = place.wait_state(job, State.FAILED)
    assert record.reason is Reason.CANCELLED
    assert place.outcomes(job) == ["cancelled"]


def test_lease_15_postgresql_restarts_while_jobs_run(owned: Place, own_postgres_server):
    ids = [owned.task("hold").enqueue(name="a").id for _ in range(10)]
    workers = [owned.process(concurrency=10, lease=6.0).ready() for _ in range(2)]
    owned.wait_starts(10)
    own_postgres_server.restart("fast")
    before = owned.sql("SELECT max(lease_expires_at) FROM lien_job")[0][0]
    wait_until(
        lambda: owned.sql("SELECT min(lease_expires_at) FROM lien_job")[0][0] > before,
        "all claims are renewed again",
    )
    owned.folder.allow("a")
    owned.wait_finished(10)
    assert len(owned.starts()) == 10
    assert {tuple(owned.outcomes(id)) for id in ids} == {("succeeded",)}
    assert [worker.drain() for worker in workers] == [0, 0]
    owned.check(ids)
