"""Enqueue through the caller's own connection: the job shares the fate of the caller's transaction."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

import lien
from lien.model import Enqueued
from tests.conformance.kit import Database, new, wait_for

only_postgres = pytest.mark.only("postgresql")
only_sqlite = pytest.mark.only("sqlite")


@pytest.fixture
def shop(db: Database) -> Iterator[Database]:
    """A database with a table of the caller's."""
    db.query("CREATE TABLE shop_order (id integer PRIMARY KEY)")
    db.jobs.task(lambda order: None, name="work")
    yield db
    for connection in db._open[1:]:
        connection.close()
    db.query("DROP TABLE shop_order")


@pytest.fixture
def task(shop: Database) -> lien.Task[Any, Any]:
    return shop.jobs.tasks["work"]


def orders(shop: Database) -> int:
    count: int = shop.value("SELECT count(*) FROM shop_order")
    return count


def order(shop: Database, connection: Any, id: int = 1) -> None:
    shop.on(connection, "INSERT INTO shop_order VALUES (:id)", id=id)


@pytest.mark.parametrize("first", ["order", "job"])
@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("bulk", [False, True])
def test_one_fate(shop: Database, task: lien.Task[Any, Any], first: str, end: str, bulk: bool) -> None:
    """ENQUEUE-01: not visible before commit, never after rollback."""
    connection = shop.connect()
    if first == "order":
        order(shop, connection)
    bound = task.using(connection)
    found = bound.enqueue_many([{"order": i} for i in range(3)]) if bulk else [bound.enqueue(1)]
    if first == "job":
        order(shop, connection)
    assert shop.counts() == (0, 0, 0)
    assert orders(shop) == 0
    assert shop.claim(10) == []
    getattr(connection, end)()
    committed = end == "commit"
    assert shop.counts() == (len(found) * committed, 0, 0)
    assert orders(shop) == committed
    claims = shop.claim(10)
    assert [claim.id for claim in claims] == [job.id for job in found if committed]


@pytest.mark.parametrize("bulk", [False, True])
def test_the_caller_sees_the_job_before_commit(shop: Database, bulk: bool) -> None:
    connection = shop.connect()
    task = shop.jobs.tasks["work"]
    task.using(connection).enqueue_many([{"order": i} for i in range(1 + bulk)])
    assert shop.on(connection, "SELECT count(*) FROM lien_job") == [(1 + bulk,)]
    connection.rollback()


@pytest.mark.parametrize("bulk", [False, True])
@pytest.mark.parametrize("kept", [False, True])
def test_savepoints(shop: Database, task: lien.Task[Any, Any], kept: bool, bulk: bool) -> None:
    """TX-01."""
    connection = shop.connect()
    order(shop, connection, 1)
    shop.on(connection, "SAVEPOINT inner_part")
    order(shop, connection, 2)
    task.using(connection).enqueue_many([{"order": i} for i in range(1 + bulk)])
    if not kept:
        shop.on(connection, "ROLLBACK TO inner_part")
    shop.on(connection, "RELEASE inner_part")
    connection.commit()
    assert orders(shop) == 1 + kept
    assert shop.counts() == ((1 + bulk) * kept, 0, 0)


@only_postgres
@pytest.mark.parametrize("bulk", [False, True])
def test_nested_blocks_of_the_driver(shop: Database, task: lien.Task[Any, Any], bulk: bool) -> None:
    connection = shop.autocommit()
    with connection.transaction():
        order(shop, connection, 1)
        task.using(connection).enqueue(1)
        with connection.transaction():
            order(shop, connection, 2)
            task.using(connection).enqueue_many([{"order": i} for i in range(1 + bulk)])
            raise psycopg.Rollback
    assert orders(shop) == 1
    assert shop.counts() == (1, 0, 0)


@pytest.mark.parametrize("bulk", [False, True])
def test_in_autocommit_each_call_commits(shop: Database, task: lien.Task[Any, Any], bulk: bool) -> None:
    connection = shop.autocommit()
    task.using(connection).enqueue_many([{"order": i} for i in range(1 + bulk)])
    assert shop.counts() == (1 + bulk, 0, 0)
    order(shop, connection)
    assert orders(shop) == 1


@pytest.mark.parametrize("bulk", [False, True])
def test_a_transaction_begun_by_hand_in_autocommit(shop: Database, task: lien.Task[Any, Any], bulk: bool) -> None:
    connection = shop.autocommit()
    for end, jobs in (("ROLLBACK", 0), ("COMMIT", 1 + bulk)):
        shop.on(connection, "BEGIN")
        task.using(connection).enqueue_many([{"order": i} for i in range(1 + bulk)])
        assert shop.counts() == (0, 0, 0)
        shop.on(connection, end)
        assert shop.counts() == (jobs, 0, 0)


@pytest.mark.parametrize("bulk", [False, True])
def test_a_refused_bulk_leaves_the_transaction_as_it_was(shop: Database, bulk: bool) -> None:
    connection = shop.connect()
    order(shop, connection)
    jobs = [new(), new(unique_key="k"), new(priority=9)]
    if bulk:
        with pytest.raises((psycopg.errors.CheckViolation, sqlite3.IntegrityError)):
            shop.store.run_on(connection, shop.engine.enqueue_many, jobs)
    else:
        shop.on(connection, "SAVEPOINT mine")
        with pytest.raises((psycopg.errors.CheckViolation, sqlite3.IntegrityError)):
            shop.store.run_on(connection, shop.engine.enqueue, jobs[2])
        shop.on(connection, "ROLLBACK TO mine")
    order(shop, connection, 2)
    connection.commit()
    assert orders(shop) == 2
    assert shop.counts() == (0, 0, 0)


@pytest.mark.parametrize("bulk", [False, True])
def test_a_duplicate_leaves_the_transaction_usable(shop: Database, task: lien.Task[Any, Any], bulk: bool) -> None:
    """TX-03."""
    connection = shop.connect()
    bound = task.using(connection, unique="K")
    if bulk:
        first, second = bound.enqueue_many([{"order": 1}, {"order": 2}])
    else:
        first, second = bound.enqueue(1), bound.enqueue(2)
    assert first.created
    assert second == Enqueued(first.id, created=False)
    order(shop, connection)
    connection.commit()
    assert orders(shop) == 1
    assert shop.counts() == (1, 0, 0)


@pytest.mark.parametrize("thing", [object, "postgresql://x", 7, False, 0, "", [], "cursor"], ids=repr)
def test_no_connection_at_all(shop: Database, task: lien.Task[Any, Any], thing: object) -> None:
    if thing == "cursor":
        thing = shop.connect().cursor()
    with pytest.raises(lien.UnsupportedConnection) as caught:
        task.using(thing).enqueue(1)
    assert isinstance(caught.value, TypeError)
    with pytest.raises(TypeError):
        task.using(thing).enqueue_many([{"order": 1}, {"order": 2}])
    assert shop.counts() == (0, 0, 0)


@only_postgres
def test_a_sqlite_connection_for_a_postgres_lien(shop: Database, task: lien.Task[Any, Any]) -> None:
    connection = sqlite3.connect(":memory:")
    with pytest.raises(lien.UnsupportedConnection, match=r"sqlite.*postgresql"):
        task.using(connection).enqueue(1)
    connection.close()


@only_sqlite
def test_a_postgres_connection_for_a_sqlite_lien(shop: Database, task: lien.Task[Any, Any], postgres_url: str) -> None:
    with (
        psycopg.connect(postgres_url) as connection,
        pytest.raises(lien.UnsupportedConnection, match=r"postgresql.*sqlite"),
    ):
        task.using(connection).enqueue(1)


def test_a_closed_connection(shop: Database, task: lien.Task[Any, Any]) -> None:
    connection = shop.connect()
    connection.close()
    with pytest.raises(lien.DatabaseUnavailable):
        task.using(connection).enqueue(1)
    assert shop.counts() == (0, 0, 0)


@only_postgres
def test_a_connection_cut_by_the_server(shop: Database, task: lien.Task[Any, Any]) -> None:
    connection = shop.connect()
    order(shop, connection)
    task.using(connection).enqueue(1)
    shop.query("SELECT pg_terminate_backend(:pid)", pid=connection.info.backend_pid)
    with pytest.raises(lien.DatabaseUnavailable):
        task.using(connection).enqueue(2)
    assert shop.counts() == (0, 0, 0)


@only_postgres
@pytest.mark.parametrize("bulk", [False, True])
def test_a_failed_transaction_is_the_drivers_own_error(shop: Database, task: lien.Task[Any, Any], bulk: bool) -> None:
    connection = shop.connect()
    with pytest.raises(psycopg.errors.DivisionByZero):
        shop.on(connection, "SELECT 1/0")
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        task.using(connection).enqueue_many([{"order": i} for i in range(1 + bulk)])
    assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INERROR
    connection.rollback()
    task.using(connection).enqueue(1)
    connection.commit()
    assert shop.counts() == (1, 0, 0)


def test_a_database_without_tables(empty_url: str) -> None:
    db = Database(empty_url)
    connection = db.connect()
    with pytest.raises(lien.SchemaError, match="lien migrate"):
        db.jobs.task(lambda: None, name="x").using(connection).enqueue()
    db.close()


@only_postgres
@pytest.mark.parametrize("bulk", [False, True])
def test_the_connection_is_left_as_it_was(shop: Database, task: lien.Task[Any, Any], bulk: bool) -> None:
    for autocommit in (False, True):
        connection = shop.connect(row_factory=dict_row, autocommit=autocommit)
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.prepare_threshold = None
        cursor_factory = connection.cursor_factory
        task.using(connection, unique=f"k{autocommit}").enqueue(1)
        task.using(connection).enqueue_many([{"order": i} for i in range(1 + bulk)])
        assert connection.row_factory is dict_row
        assert connection.cursor_factory is cursor_factory
        assert connection.autocommit is autocommit
        assert connection.isolation_level == psycopg.IsolationLevel.REPEATABLE_READ
        assert connection.prepare_threshold is None
        for name in ("lock_timeout", "plan_cache_mode", "statement_timeout", "search_path"):
            (default,) = shop.query(f"SHOW {name}")
            assert tuple(connection.execute(f"SHOW {name}").fetchone().values()) == default
        connection.commit()


@only_sqlite
@pytest.mark.parametrize("isolation", [None, "", "DEFERRED", "IMMEDIATE", "EXCLUSIVE"])
@pytest.mark.parametrize("bulk", [False, True])
def test_the_sqlite_connection_is_left_as_it_was(
    shop: Database, task: lien.Task[Any, Any], isolation: str | None, bulk: bool
) -> None:
    connection = shop.connect(isolation_level=isolation)
    connection.row_factory = sqlite3.Row
    connection.text_factory = str
    task.using(connection, unique="k").enqueue(1)
    task.using(connection).enqueue_many([{"order": i} for i in range(1 + bulk)])
    assert connection.row_factory is sqlite3.Row
    assert connection.isolation_level == isolation
    assert connection.in_transaction is (isolation is not None)
    assert shop.counts() == (0 if isolation is not None else 2 + bulk, 0, 0)
    connection.commit()
    assert shop.counts() == (2 + bulk, 0, 0)


@only_sqlite
def test_a_row_factory_of_dicts(shop: Database, task: lien.Task[Any, Any]) -> None:
    connection = shop.connect()
    connection.row_factory = lambda cursor, row: {
        column[0]: value for column, value in zip(cursor.description, row, strict=True)
    }
    first = task.using(connection, unique="k").enqueue(1)
    assert task.using(connection, unique="k").enqueue(1) == Enqueued(first.id, created=False)
    connection.commit()
    assert shop.counts() == (1, 0, 0)


@only_postgres
@pytest.mark.parametrize("level", ["REPEATABLE_READ", "SERIALIZABLE", "READ_UNCOMMITTED"])
@pytest.mark.parametrize("bulk", [False, True])
def test_stricter_callers(shop: Database, task: lien.Task[Any, Any], level: str, bulk: bool) -> None:
    connection = shop.connect()
    connection.isolation_level = psycopg.IsolationLevel[level]
    order(shop, connection)
    task.using(connection, unique="k").enqueue(1)
    assert not task.using(connection, unique="k").enqueue(1).created
    task.using(connection).enqueue_many([{"order": i} for i in range(1 + bulk)])
    connection.commit()
    assert orders(shop) == 1
    assert shop.counts() == (2 + bulk, 0, 0)


@only_postgres
def test_a_key_committed_after_the_callers_snapshot(shop: Database, task: lien.Task[Any, Any]) -> None:
    """At REPEATABLE READ the older job cannot be seen: the driver's own error, never a hang or a lie."""
    connection = shop.connect()
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    order(shop, connection)
    shop.enqueue(unique_key="k")
    with pytest.raises(psycopg.errors.SerializationFailure):
        task.using(connection, unique="k").enqueue(1)
    connection.rollback()
    assert not task.using(connection, unique="k").enqueue(1).created
    connection.rollback()


@only_postgres
@pytest.mark.parametrize("bulk", [False, True])
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_an_asynchronous_connection(shop: Database, task: lien.Task[Any, Any], end: str, bulk: bool) -> None:
    async def main() -> int:
        connection = await shop.aconnect(row_factory=dict_row)
        try:
            await connection.execute("INSERT INTO shop_order VALUES (1)")
            first = await task.using(connection, unique="k").aenqueue(order=1)
            again = await task.using(connection, unique="k").aenqueue(order=1)
            assert again == Enqueued(first.id, created=False)
            more = await task.using(connection).aenqueue_many([{"order": i} for i in range(1 + bulk)])
            more += await shop.jobs.aenqueue_many([task.call(1), task.call(2)], on=connection)
            assert connection.row_factory is dict_row
            assert not connection.autocommit
            assert shop.counts() == (0, 0, 0)
            await getattr(connection, end)()
        finally:
            await connection.close()
        await shop.jobs.aclose()
        return len(more) + 1

    n = asyncio.run(main())
    assert shop.counts() == (n * (end == "commit"), 0, 0)
    assert orders(shop) == (end == "commit")


@only_postgres
def test_an_asynchronous_savepoint_and_autocommit(shop: Database, task: lien.Task[Any, Any]) -> None:
    async def main() -> None:
        connection = await shop.aconnect(autocommit=True)
        try:
            await task.using(connection).aenqueue_many([{"order": 1}, {"order": 2}])
            assert shop.counts() == (2, 0, 0)
            async with connection.transaction():
                await task.using(connection).aenqueue(order=3)
                async with connection.transaction():
                    await task.using(connection).aenqueue(order=4)
                    await task.using(connection).aenqueue_many([{"order": 5}, {"order": 6}])
                    raise psycopg.Rollback
        finally:
            await connection.close()

    asyncio.run(main())
    assert shop.counts() == (3, 0, 0)


@only_postgres
def test_a_synchronous_verb_on_an_asynchronous_connection_names_the_fix(
    shop: Database, task: lien.Task[Any, Any]
) -> None:
    async def main() -> None:
        connection = await shop.aconnect()
        try:
            with pytest.raises(lien.UnsupportedConnection, match="aenqueue"):
                task.using(connection).enqueue(1)
        finally:
            await connection.close()

    asyncio.run(main())


def test_an_asynchronous_verb_on_a_synchronous_connection(shop: Database, task: lien.Task[Any, Any]) -> None:
    connection = shop.connect()

    async def main() -> None:
        await task.using(connection).aenqueue(1)
        await task.using(connection).aenqueue_many([{"order": 1}, {"order": 2}])

    asyncio.run(main())
    assert shop.counts() == (0, 0, 0)
    connection.commit()
    assert shop.counts() == (3, 0, 0)


def test_a_call_with_a_connection_of_its_own_is_refused(shop: Database, task: lien.Task[Any, Any]) -> None:
    with pytest.raises(lien.UsageError, match="on=connection"):
        task.using(shop.connect()).call(1)


@only_postgres
def test_a_lock_of_the_caller_delays_nobody_else(shop: Database, task: lien.Task[Any, Any]) -> None:
    connection = shop.connect()
    task.using(connection).enqueue(1)
    other = shop.enqueue()
    assert [claim.id for claim in shop.claim(10)] == [other]
    connection.commit()
    assert len(wait_for(lambda: shop.claim(10))) == 1
