"""Enqueue: what is written, when it is due, and by whose clock."""

from __future__ import annotations

import asyncio
import datetime
import socket

import pytest

import lien
from lien.errors import DatabaseUnavailable, SchemaError, UsageError
from tests.conformance.kit import Database, new, wait_for

SECOND = datetime.timedelta(seconds=1)


def test_a_job_is_runnable_at_once(db: Database) -> None:
    before = db.now()
    record = db.jobs.job(db.enqueue())
    after = db.now()
    assert record.state == "runnable"
    assert before <= record.available_at <= after
    assert before <= record.created_at <= after
    assert (record.attempt, record.failures, record.lost, record.interrupted) == (0, 0, 0, 0)
    assert record.fence == 0
    assert record.claimed_by is record.claimed_at is record.lease_expires_at is None
    assert record.reason is record.finished_at is record.result is record.origin is None
    assert record.cancel_requested is False
    assert record.lease_expired is False


def test_every_field_travels_with_the_row(db: Database) -> None:
    job = new(
        "mail",
        args='{"a":[1,2.5,null]}',
        queue="q",
        headers='{"trace":"t"}',
        priority=0,
        unique_key="k",
        expires=60.0,
        timeout=0.25,
        max_failures=7,
        max_lost=8,
        max_interrupted=9,
        backoff_base=0.125,
        backoff_cap=1e9,
        origin=2**62,
    )
    id = db.run(db.engine.enqueue, job).id
    record = db.jobs.job(id)
    for field in (
        "task",
        "args",
        "queue",
        "priority",
        "unique_key",
        "timeout",
        "max_failures",
        "max_lost",
        "max_interrupted",
        "origin",
    ):
        assert getattr(record, field) == getattr(job, field), field
    assert record.expires_at == record.available_at + 60 * SECOND
    row = db.job(id)
    assert row is not None
    assert (row["backoff_base"], row["backoff_cap"]) == (0.125, 1e9)
    assert row["headers"] in ({"trace": "t"}, '{"trace":"t"}')
    assert row["tenant"] is row["ordering_key"] is None


def test_a_delay_counts_from_the_statement(db: Database) -> None:
    before = db.now()
    record = db.jobs.job(db.enqueue(delay=100.0))
    after = db.now()
    assert record.state == "scheduled"
    assert before + 100 * SECOND <= record.available_at <= after + 100 * SECOND


def test_a_delay_in_an_old_transaction_counts_from_the_statement(db: Database) -> None:
    connection = db.connect()
    db.on(connection, "SELECT count(*) FROM lien_job")  # PostgreSQL's now() stands still from here
    started = db.now()
    wait_for(lambda: db.now() > started + 0.05 * SECOND)
    id = db.store.run_on(connection, db.engine.enqueue, new()).id
    connection.commit()
    assert db.jobs.job(id).available_at > started + 0.05 * SECOND
    assert db.jobs.job(id).state == "runnable"


@pytest.mark.parametrize(("offset", "state"), [(-3600, "runnable"), (3600, "scheduled")])
def test_a_moment_is_kept_exactly(db: Database, offset: int, state: str) -> None:
    at = (db.now() + offset * SECOND).replace(microsecond=123_457)
    record = db.jobs.job(db.enqueue(at=at, expires=5.0))
    assert record.state == state
    assert record.available_at == at
    assert record.expires_at == at + 5 * SECOND


def test_a_moment_of_another_zone_is_the_same_moment(db: Database) -> None:
    zone = datetime.timezone(datetime.timedelta(hours=5, minutes=45))
    at = datetime.datetime(2031, 2, 3, 4, 5, 6, 7, zone)
    record = db.jobs.job(db.enqueue(at=at))
    assert record.available_at == at
    assert record.available_at.utcoffset() == datetime.timedelta(0)


@pytest.mark.parametrize("year", [1971, 9000])
def test_the_outermost_years_work(db: Database, year: int) -> None:
    at = datetime.datetime(year, 1, 1, tzinfo=datetime.UTC)
    assert db.jobs.job(db.enqueue(at=at)).available_at == at


def test_ids_grow(db: Database) -> None:
    ids = [db.enqueue() for _ in range(5)]
    assert ids == sorted(set(ids))
    assert all(type(id) is int and id > 0 for id in ids)


def test_a_job_is_written_under_its_reserved_id(db: Database) -> None:
    if not db.engine.reserves_ids:
        id = db.enqueue() + 100
    else:
        first, id = db.run(db.engine.reserve, 2)
        assert first != id
    assert db.run(db.engine.enqueue, new(), id=id).id == id
    assert db.jobs.job(id).state == "runnable"
    assert db.enqueue() != id


def test_options_of_task_and_using(db: Database) -> None:
    @db.jobs.task(queue="mail", timeout=30, max_failures=3, retry=lien.Backoff(base=1, cap=9))
    def send(order: int) -> None: ...

    first = db.jobs.job(send.enqueue(order=7).id)
    assert (first.task, first.queue, first.timeout, first.max_failures) == ("send", "mail", 30.0, 3)
    assert (first.args, first.priority) == ('{"order":7}', 2)
    second = db.jobs.job(send.using(queue="slow", priority="low", max_failures=1).enqueue(8).id)
    assert (second.queue, second.priority, second.max_failures) == ("slow", 3, 1)
    assert (second.args, second.timeout) == ('{"order":8}', 30.0)


def test_awaited(db: Database) -> None:
    @db.jobs.task
    async def work(n: int) -> None: ...

    async def main() -> list[int]:
        first = await work.aenqueue(1)
        second = await work.using(delay=60).aenqueue(n=2)
        third = await db.jobs.ajob(second.id)
        assert third.state == "scheduled"
        await db.jobs.aclose()
        return [first.id, second.id]

    ids = asyncio.run(main())
    assert [db.jobs.job(id).args for id in ids] == ['{"n":1}', '{"n":2}']


def test_without_tables_the_fix_is_named(empty_url: str) -> None:
    jobs = lien.Lien(empty_url)
    task = jobs.task(lambda: None, name="x")
    with pytest.raises(SchemaError, match="lien migrate"):
        task.enqueue()
    jobs.close()


@pytest.mark.only("postgresql")
def test_an_unreachable_server_is_an_error_that_says_so(engine: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: nobody answers there
        port = taken.getsockname()[1]
        jobs = lien.Lien(f"postgresql://nobody:secret@127.0.0.1:{port}/x")
        with pytest.raises(DatabaseUnavailable) as caught:
            jobs.task(lambda: None, name="x").enqueue()
    assert "secret" not in str(caught.value)
    assert str(port) in str(caught.value)


def test_a_job_that_the_database_refuses_is_an_error(db: Database) -> None:
    before = db.everything()
    with pytest.raises(lien.DatabaseError):
        db.enqueue(priority=9)
    assert db.everything() == before


@pytest.mark.parametrize("id", [0, -1, 2**63, 1.5, "7", None, True])
def test_what_cannot_be_an_id_is_refused(db: Database, id: object) -> None:
    for verb in (db.jobs.job, db.jobs.cancel, db.jobs.retry, db.jobs.attempts):
        with pytest.raises(UsageError, match="not a job id"):
            verb(id)  # type: ignore[operator]


def test_an_unknown_id_is_said_to_be_unknown(db: Database) -> None:
    for verb in (db.jobs.job, db.jobs.cancel, db.jobs.retry):
        with pytest.raises(lien.JobNotFound, match="9223372036854775807"):
            verb(2**63 - 1)  # type: ignore[operator]
    assert db.jobs.attempts(2**63 - 1) == []


# -- waking sleepers: PostgreSQL's NOTIFY --


def heard(connection: object) -> list[str]:
    return [n.payload for n in connection.notifies(timeout=0.05)]  # type: ignore[attr-defined]


@pytest.mark.only("postgresql")
def test_an_enqueue_notifies_when_a_worker_sleeps_on_its_queue(db: Database) -> None:
    listener = db.autocommit()
    db.on(listener, f'LISTEN "{db.engine.channel}"')
    db.enqueue()
    assert heard(listener) == []
    db.run(db.engine.sleep, "w", ["default", "other"], 60.0)
    db.enqueue()
    assert heard(listener) == ["default"]
    db.enqueue_n(500)
    assert heard(listener) == ["default"]  # one for the whole transaction
    db.enqueue(queue="third")
    assert heard(listener) == []
    connection = db.connect()
    db.store.run_on(connection, db.engine.enqueue, new())
    connection.rollback()
    assert heard(listener) == []
    db.run(db.engine.awake, "w")
    db.enqueue()
    assert heard(listener) == []
    db.run(db.engine.sleep, "w", ["default"], -1.0)
    db.enqueue()
    assert heard(listener) == []


@pytest.mark.only("postgresql")
def test_a_notification_carries_nothing_that_grows(db: Database) -> None:
    queue = "\U0001f600" * 200
    listener = db.autocommit()
    db.on(listener, f'LISTEN "{db.engine.channel}"')
    db.run(db.engine.sleep, "w", [queue], 60.0)
    db.enqueue(queue=queue, args='{"a":"' + "x" * 1_000_000 + '"}')
    assert heard(listener) == [queue]


@pytest.mark.only("postgresql")
def test_upkeep_forgets_workers_long_gone(db: Database) -> None:
    db.run(db.engine.sleep, "old", ["default"], -3600.0)
    db.run(db.engine.sleep, "live", ["default"], 60.0)
    db.run(db.engine.upkeep)
    assert db.query("SELECT worker FROM lien_sleeper") == [("live",)]


def test_sleep_awake_and_upkeep_work_and_touch_no_job(db: Database) -> None:
    db.enqueue()
    before = db.everything()
    for _ in range(2):
        db.run(db.engine.sleep, "w", ["default"], 1.0)
        db.run(db.engine.awake, "w")
        db.run(db.engine.upkeep)
    assert db.everything() == before


def test_listing_is_newest_first_and_by_page(db: Database) -> None:
    ids = [db.enqueue(queue=q, task=t) for q in ("a", "b") for t in ("x", "y") for _ in range(3)]
    for claim in db.claim(6, queue="a", tasks=["x", "y"]):
        db.ack(claim) if claim.task == "x" else db.ack(claim, "fail", final=True, error="e")
    assert [r.id for r in db.jobs.list()] == ids[::-1]
    page = db.jobs.list(lien.JobFilter(limit=5, before=ids[7]))
    assert [r.id for r in page] == ids[2:7][::-1]
    assert {r.task for r in db.jobs.list(lien.JobFilter(task="x"))} == {"x"}
    assert len(db.jobs.list(lien.JobFilter(queue="b", task="y"))) == 3
    for state, n in (("succeeded", 3), ("failed", 3), ("runnable", 6), ("claimed", 0)):
        found = db.jobs.list(lien.JobFilter(state=lien.State(state)))
        assert [str(r.state) for r in found] == [state] * n
    for record in db.jobs.list():
        assert record == db.jobs.job(record.id)
