"""The database goes, refuses, or cuts connections: work goes on when it is back, nothing runs twice."""

from __future__ import annotations

import gc
import logging
import random
import threading

import pytest

from lien.machine import State
from tests.worker.kit import Place, wait_until

CUT = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    " AND application_name LIKE 'lien%'"
)


@pytest.mark.parametrize("cuts", [15, pytest.param(300, marks=pytest.mark.full)])
def test_backends_are_killed_under_load(postgres: Place, cuts: int):
    postgres.with_app().guard()
    ids: set[int] = set()
    workers = [postgres.process(concurrency=10).ready() for _ in range(2)]
    dice = random.Random(cuts)
    for _ in range(cuts):
        calls = [postgres.task(dice.choice(("works", "aworks"))).call(n=n) for n in range(20)]
        ids |= {done.id for done in postgres.jobs.enqueue_many(calls)}
        before = postgres.finished()
        wait_until(lambda b=before: postgres.finished() > b, "work goes on")
        # One at a time: this test's own connection of Lien must not be among them.
        postgres.jobs.close()
        postgres.sql(CUT)
    postgres.wait_finished(len(ids), 100)
    for worker in workers:
        assert worker.drain() == 0
    postgres.check(ids)
    assert postgres.sql("SELECT count(*) FROM lien_history WHERE state = 'failed'") == [(0,)]


@pytest.mark.parametrize("crashes", [2, pytest.param(20, marks=pytest.mark.full)])
def test_the_server_crashes_under_load(owned: Place, own_postgres_server, crashes: int):
    owned.with_app().guard()
    calls = [owned.task("works").call(n=n) for n in range(300 * crashes)]
    ids = {done.id for done in owned.jobs.enqueue_many(calls)}
    workers = [owned.process(concurrency=10, lease=3.0).ready() for _ in range(2)]
    for _ in range(crashes):
        before = owned.finished()
        wait_until(lambda b=before: owned.finished() > min(b + 20, len(ids) - 1), "work goes on")
        own_postgres_server.restart("immediate")
    owned.wait_finished(len(ids), 100)
    for worker in workers:
        assert worker.drain() == 0
    owned.check(ids)


def test_a_server_turned_read_only_counts_as_lost(postgres: Place):
    """DRIVER-09, with DRIVER-03: one line for each change of state, and the ack is written after."""
    name = postgres.sql("SELECT current_database()")[0][0]
    job = postgres.task("hold").enqueue(name="a").id
    worker = postgres.process(lease=60.0).ready()
    postgres.wait_starts(1)
    postgres.sql(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    postgres.sql(CUT)
    postgres.folder.allow("a")
    worker.wait_for("disconnected")
    assert not worker.seen("reconnected")
    postgres.sql(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
    # Those that it made in the meantime stay as they are: it must let go of them by itself.
    worker.wait_for("reconnected")
    postgres.wait_state(job, State.SUCCEEDED)
    assert postgres.outcomes(job) == ["succeeded"]
    assert len(worker.seen("disconnected")) <= 2
    assert worker.drain() == 0


def _warnings(caplog: pytest.LogCaptureFixture, words: str) -> int:
    return sum(words in record.getMessage() for record in caplog.records)


def test_the_lease_thread_says_once_that_it_cannot_renew(postgres: Place, caplog):
    """DRIVER-03: reconnecting works and renewing does not; that must neither spin nor fill the log."""
    caplog.set_level(logging.WARNING)
    name = postgres.sql("SELECT current_database()")[0][0]
    job = postgres.task("hold").enqueue(name="a").id
    with postgres.worker(lease=0.9) as worker:
        postgres.wait_starts(1)
        postgres.sql(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        postgres.sql(CUT)
        worker.wait_for("lost", job_id=job)
        threading.Event().wait(2.0)
        lines = _warnings(caplog, "leases cannot be renewed")
        postgres.sql(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
        postgres.folder.allow("a")
        postgres.wait_state(job, State.SUCCEEDED)
    assert lines == 1


def test_tables_that_vanish_are_reported_without_spinning(postgres: Place, caplog):
    caplog.set_level(logging.WARNING)
    postgres.task("hold").enqueue(name="a")
    worker = postgres.start(grace=0.2, cancel_grace=0.2)
    postgres.wait_starts(1)
    postgres.sql("DROP SCHEMA lien CASCADE")
    postgres.folder.allow("a")
    event = worker.wait_for("disconnected")
    assert "lien" in str(event.error)
    threading.Event().wait(2.0)
    said = len(worker.seen("disconnected"))
    lines = _warnings(caplog, "leases cannot be renewed")
    assert worker.alive
    worker.stop()
    assert said <= 2
    assert lines <= 2


def test_driver_01_a_killed_listener_listens_again(postgres: Place):
    postgres.with_app()
    listener = "application_name = 'lien listener'"
    count = f"SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND {listener}"
    with postgres.worker(poll=30.0):
        (first,) = wait_until(lambda: postgres.sql(count), "it listens")
        postgres.sql("SELECT pg_terminate_backend(:pid)", pid=first[0])
        wait_until(lambda: [row for row in postgres.sql(count) if row != first], "it listens again")
        _asleep(postgres)
        postgres.task("mark").enqueue(n=1)
        postgres.wait_finished(1, 5)


def _asleep(place: Place) -> None:
    wait_until(lambda: place.sql("SELECT 1 FROM lien_sleeper"), "the worker sleeps")


def test_the_number_of_connections_stays_flat(postgres: Place):
    postgres.with_app()
    count = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    with postgres.worker(concurrency=20):
        most = 0
        for round_ in range(10):
            postgres.task("mark").enqueue_many({"n": n} for n in range(50))
            postgres.wait_finished(50 * (round_ + 1))
            most = max(most, postgres.sql(count)[0][0])
            postgres.sql(CUT.replace("lien%", "lien listener"))
        # pump, leases, listener (two while one is being replaced), and what enqueues here
        assert most <= 6
    postgres.jobs.close()
    wait_until(lambda: postgres.sql(count) == [(0,)], "all are closed")


def test_idle_connections_that_were_dropped(postgres: Place):
    """DRIVER-07: the next poll and the next enqueue both work."""
    postgres.with_app()
    with postgres.worker():
        for round_ in range(3):
            postgres.sql(CUT)
            wait_until(lambda: _enqueued(postgres), "the enqueue works")
            postgres.wait_finished(round_ + 1)


def _enqueued(place: Place) -> bool:
    import lien

    try:
        place.task("mark").enqueue(n=1)
    except lien.DatabaseUnavailable:
        return False
    return True


def test_a_worker_cannot_start_without_a_database(owned: Place, own_postgres_server):
    import lien

    owned.with_app()
    own_postgres_server.stop()
    owned.jobs.close()
    worker = owned.start()
    worker.join()
    assert isinstance(worker.error, lien.DatabaseUnavailable)


def test_a_worker_cannot_start_without_tables(engine_url):
    import lien
    from lien.worker import Worker

    jobs = lien.Lien(engine_url)

    @jobs.task
    def anything() -> None:
        pass

    with pytest.raises(lien.SchemaError, match="migrate"):
        Worker(jobs).run()
    jobs.close()


def test_ops_03_collecting_garbage_takes_nothing_away(place):
    """Everything of the worker's own is owned by somebody."""
    ids = [place.task("aworks").enqueue(n=n * 5 + 1).id for n in range(100)]
    stop = threading.Event()

    def collect() -> None:
        while not stop.wait(0.01):
            gc.collect()

    collector = threading.Thread(target=collect)
    gc.freeze()  # what was there before would make each collection take a tenth of a second
    collector.start()
    try:
        with place.worker(concurrency=10) as worker:
            place.wait_finished(100)
    finally:
        stop.set()
        collector.join()
        gc.unfreeze()
    assert worker.code == 0
    place.check(ids)


def test_a_locked_row_keeps_no_other_claim_from_renewal(postgres: Place):
    """DESIGN 10.2: some transaction sits on one claimed row."""
    place = postgres
    ids = [place.task("hold").enqueue(name="a").id for _ in range(5)]
    with place.worker(concurrency=5) as worker:
        place.wait_starts(5)
        other = place.raw()
        other.autocommit = False
        other.execute("SELECT 1 FROM lien.lien_job WHERE id = %s FOR UPDATE", [ids[0]])
        wait_until(place.renewed(ids[1], 3), "the others are renewed")
        assert not worker.seen("lost", job_id=ids[1])
        other.close()
        place.folder.allow("a")
        place.wait_finished(5)
    assert {tuple(place.outcomes(id)) for id in ids[1:]} == {("succeeded",)}


def test_a_writer_that_sits_on_sqlite_longer_than_a_lease(sqlite: Place):
    """DESIGN 10.6: time in which the write lock could not be had does not count."""
    job = sqlite.task("hold").enqueue(name="a").id
    workers = [sqlite.process(lease=1.0).ready() for _ in range(2)]
    sqlite.wait_starts(1)
    other = sqlite.raw()
    other.execute("BEGIN IMMEDIATE")
    wait_until(lambda: sqlite.job(job).lease_expired, "the lease is over")
    other.execute("COMMIT")
    other.close()
    sqlite.folder.allow("a")
    sqlite.wait_state(job, State.SUCCEEDED)
    assert sqlite.outcomes(job) == ["succeeded"]
    assert len(sqlite.starts()) == 1
    assert [worker.drain() for worker in workers] == [0, 0]
