"""What a worker survives that is neither its handlers' fault nor a lost connection."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import psycopg
import pytest

import lien
from lien import State
from lien.machine import Reason
from tests.worker.kit import Place, wait_until


def test_a_passing_trouble_of_the_database_condemns_no_result(postgres: Place) -> None:
    """A cancelled statement says nothing about the value: the success is written when the trouble is over."""
    postgres.sql(
        "CREATE FUNCTION trouble() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'canceling statement' USING ERRCODE = '57014'; END $$"
    )

    @postgres.jobs.task(name="answer")
    def answer() -> int:
        return 42

    job = answer.enqueue().id
    postgres.sql("CREATE TRIGGER trouble BEFORE INSERT ON lien_history FOR EACH ROW EXECUTE FUNCTION trouble()")
    with postgres.worker(lease=5.0) as worker:
        worker.wait_for("disconnected")
        postgres.sql("DROP TRIGGER trouble ON lien_history")
        assert postgres.wait_state(job, State.SUCCEEDED).result == "42"
    assert postgres.outcomes(job) == ["succeeded"]


def test_a_row_that_somebody_holds_stops_no_other(postgres: Place) -> None:
    """One acknowledgement waits; those of other jobs and new claims go on."""
    go = threading.Event()

    @postgres.jobs.task(name="wait")
    def wait() -> None:
        go.wait(30)

    ids = [wait.enqueue().id for _ in range(4)]
    with postgres.worker(lease=20.0, concurrency=4):
        wait_until(lambda: postgres.claimed() == 4, "all are claimed")
        holder = psycopg.connect(postgres.url, options="-c search_path=lien")
        holder.execute("SELECT 1 FROM lien_job WHERE id = %s FOR UPDATE", (ids[0],))
        go.set()
        for id in ids[1:]:
            postgres.wait_state(id, State.SUCCEEDED)
        later = wait.enqueue().id
        postgres.wait_state(later, State.SUCCEEDED)
        assert postgres.job(ids[0]).state is State.CLAIMED
        holder.rollback()
        holder.close()
        postgres.wait_state(ids[0], State.SUCCEEDED)
    assert all(postgres.outcomes(id) == ["succeeded"] for id in [*ids, later])


def test_a_full_worker_does_not_spin(place: Place) -> None:
    go = threading.Event()

    @place.jobs.task(name="wait")
    def wait() -> None:
        go.wait(30)

    job = wait.enqueue().id
    with place.worker(concurrency=1, lease=0.9) as running:
        wait_until(lambda: place.claimed() == 1, "it is claimed")
        finisher = running.worker._pump._finisher
        turns, collect = [0], finisher.collect

        def counted() -> None:
            turns[0] += 1
            collect()

        finisher.collect = counted  # type: ignore[method-assign]
        wait_until(place.renewed(job), "it was renewed for a while")
        go.set()
        place.wait_state(job, State.SUCCEEDED)
    assert turns[0] < 100


def test_a_task_left_behind_does_not_end_the_loop(place: Place) -> None:
    """SystemExit leaves run_forever(); the next coroutine must run all the same."""

    @place.jobs.task(name="leave")
    async def leave() -> None:
        async def end() -> None:
            raise SystemExit(3)

        asyncio.get_running_loop().leftover = asyncio.ensure_future(end())  # type: ignore[attr-defined]

    @place.jobs.task(name="after")
    async def after() -> None: ...

    first = leave.enqueue().id
    with place.worker():
        place.wait_state(first, State.SUCCEEDED)
        second = after.enqueue().id
        place.wait_state(second, State.SUCCEEDED)


def test_fences_behind_the_rows_are_raised(postgres: Place) -> None:
    """As after a restore that forgot the sequence: nothing would ever be claimed."""

    @postgres.jobs.task(name="work")
    def work() -> None: ...

    job = work.enqueue().id
    postgres.sql(f"UPDATE lien_job SET fence = 5000, attempt = 1 WHERE id = {job}")
    with postgres.worker():
        record = postgres.wait_state(job, State.SUCCEEDED)
    assert record.fence > 5000


def test_a_database_of_another_encoding_is_refused(postgres_url: str) -> None:
    name = postgres_url.rpartition("/")[2] + "_latin"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
        jobs = lien.Lien(postgres_url.rpartition("/")[0] + "/" + name)
        with pytest.raises(lien.ServerTooOld) as refused:
            jobs.migrate()
        jobs.close()
        connection.execute(f"DROP DATABASE {name}")
    assert "Lien needs a database with the encoding UTF8 (this one has LATIN1)" in str(refused.value)


@pytest.mark.parametrize("autocommit", [True, False])
def test_a_pipeline_of_the_callers_is_refused(postgres: Place, autocommit: bool) -> None:
    """Answers come later there, so nothing could be said of what was written; and nothing is."""

    @postgres.jobs.task(name="work")
    def work() -> None: ...

    with (
        psycopg.connect(postgres.url, autocommit=autocommit) as connection,
        connection.pipeline(),
        pytest.raises(lien.UnsupportedConnection, match="in pipeline mode"),
    ):
        work.using(connection).enqueue()
    assert postgres.live() == 0


def forked(place: Place, mode: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.worker.forks", place.url, mode],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def test_a_forked_child_has_connections_of_its_own(place: Place) -> None:
    said = forked(place, "idle")
    assert "child: enqueued" in said
    assert "parent: failed" in said  # its own connection still works
    assert sorted(record.state for record in place.jobs.list()) == ["failed", "runnable"]


def test_a_child_forked_from_a_running_worker(place: Place) -> None:
    """On SQLite it is refused: what it wrote would be lost, as SQLite's locks do not survive a fork."""
    said = forked(place, "worker")
    if place.is_postgres:
        assert "child: enqueued" in said
    else:
        assert "child: UsageError" in said
        assert "start it by spawn" in said
    assert "parent: failed" in said


def test_a_file_that_is_gone_is_no_empty_queue(sqlite: Place) -> None:
    sqlite.jobs.task(name="work")(lambda: None)
    path = Path(sqlite.url.removeprefix("sqlite:///"))
    with sqlite.worker() as worker:
        worker.wait_for("ready")
        for suffix in ("", "-wal", "-shm"):
            Path(f"{path}{suffix}").unlink()
        event = worker.wait_for("disconnected")
    assert "deleted or replaced" in str(event.error) or "no (or older) Lien tables" in str(event.error)


def test_an_unknown_task_is_named(place: Place) -> None:
    other = place.other()
    other.task(name="stranger")(lambda: None).enqueue()
    other.close()

    @place.jobs.task(name="known")
    def known() -> None: ...

    with place.worker() as worker:
        event = worker.wait_for("parked")
    assert event.task == "stranger"
    assert place.jobs.list()[0].reason is Reason.UNKNOWN_TASK
