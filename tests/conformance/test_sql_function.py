"""`lien_enqueue`: the way in for programs in any language, inside their own transaction."""

from __future__ import annotations

import datetime
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from tests.conformance.kit import Database, new, together

pytestmark = pytest.mark.only("postgresql")


def call(connection: psycopg.Connection[Any], sql: str, *params: Any) -> int:
    row = connection.execute(f"SELECT lien.lien_enqueue({sql})", params).fetchone()
    assert row is not None
    id: int = row[0]
    return id


def test_a_job_from_plain_sql_is_the_job_of_the_library(db: Database) -> None:
    connection = db.autocommit()
    by_sql = db.job(call(connection, "'work'"))
    by_library = db.job(db.enqueue())
    assert by_sql is not None
    assert by_library is not None
    times = {"id", "available_at", "created_at"}
    assert {k: v for k, v in by_sql.items() if k not in times} == {
        k: v for k, v in by_library.items() if k not in times
    }
    assert len(db.claim(5)) == 2


def test_every_argument(db: Database) -> None:
    connection = db.autocommit()
    at = datetime.datetime(2100, 1, 2, tzinfo=datetime.UTC)
    id = call(
        connection,
        "task => 'mail', args => '{\"a\": 1}', queue => 'q', priority => 0, available_at => %s,"
        " unique_key => 'k', max_failures => 1, max_lost => 2, max_interrupted => 3,"
        " backoff_base => 4, backoff_cap => 5, timeout => 6",
        at,
    )
    record, row = db.jobs.job(id), db.job(id)
    assert row is not None
    assert (record.task, record.queue, record.priority, record.state) == ("mail", "q", 0, "scheduled")
    assert (record.available_at, record.unique_key, record.timeout) == (at, "k", 6.0)
    assert (record.max_failures, record.max_lost, record.max_interrupted) == (1, 2, 3)
    assert (row["backoff_base"], row["backoff_cap"]) == (4.0, 5.0)
    assert db.jobs.codec.decode(record.args) == {"a": 1}


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_it_shares_the_fate_of_the_transaction(db: Database, end: str) -> None:
    connection = db.connect()
    call(connection, "'work'")
    connection.execute("SAVEPOINT s")
    call(connection, "'work'")
    connection.execute("ROLLBACK TO s")
    assert db.counts() == (0, 0, 0)
    getattr(connection, end)()
    assert db.counts() == (int(end == "commit"), 0, 0)


def test_a_key_answers_with_the_older_job(db: Database) -> None:
    connection = db.connect()
    first = call(connection, "'work', unique_key => 'k'")
    assert call(connection, "'other', unique_key => 'k'") == first
    assert call(connection, "'work', unique_key => 'k', queue => 'other'") != first
    connection.commit()
    assert not db.run(db.engine.enqueue, new(unique_key="k")).created
    assert db.counts()[0] == 2


def test_rivals_by_sql_and_by_library(db: Database) -> None:
    task = db.jobs.task(lambda: None, name="work")
    connection = db.autocommit()
    for i in range(20):
        by_sql, by_library = together(
            lambda i=i: call(connection, f"'work', unique_key => 'k{i}'"),  # type: ignore[misc]
            lambda i=i: task.using(unique=f"k{i}").enqueue().id,  # type: ignore[misc]
        )
        assert by_sql == by_library
    assert db.counts()[0] == 20


@pytest.mark.parametrize(
    "arguments",
    [
        "'work', '{\"a\": \"\\u0000\"}'",
        "'work', '{\"a\\u0000\": 1}'",
        "'work', '{\"a\": \"\\ud800\"}'",
        "'work', '{\"a\": NaN}'",
        "'work', '[]'",
        "'work', '{'",
        "'work', 'null'",
        "'work', NULL",
        "''",
        "NULL",
        "'work', queue => ''",
        "'work', queue => NULL",
        "'work', unique_key => ''",
        "'work', priority => 4",
        "'work', priority => NULL",
        "'work', max_failures => 0",
        "'work', timeout => 0",
        "'work', timeout => 'NaN'",
        "'work', backoff_base => 'Infinity'",
        "'work', backoff_base => 1e300",
        "'work', backoff_cap => 1e300",
        "'work', available_at => 'infinity'",
        "'work', available_at => '-infinity'",
        "repeat('x', 201)",
        "'work', queue => repeat('x', 201)",
        "'work', unique_key => repeat('x', 201)",
    ],
)
def test_what_the_library_refuses_is_refused_here(db: Database, arguments: str) -> None:
    connection = db.autocommit()
    with pytest.raises(psycopg.Error) as caught:
        call(connection, arguments)
    assert str(caught.value.sqlstate)[:2] in {"22", "23"}
    assert db.counts() == (0, 0, 0)


@pytest.mark.parametrize("base", ["1e300", "'NaN'", "'Infinity'"])
@pytest.mark.parametrize("cap", ["3600", "1e300", "'Infinity'"])
def test_no_producer_can_stop_the_reaper(db: Database, base: str, cap: str) -> None:
    """CLAIM-05, UNIQUE-07: one odd row must not keep a hundred orphans from being recovered."""
    connection = db.autocommit()
    with suppress(psycopg.errors.IntegrityError):  # the better way: it never gets in
        call(connection, f"'work', backoff_base => {base}, backoff_cap => {cap}")
    db.enqueue_n(100)
    claims = db.claim(200)
    db.end_lease(*claims)
    assert len(db.reap(200)) == len(claims)


def test_a_sleeping_worker_is_woken_at_commit(db: Database) -> None:
    listener = db.autocommit()
    db.on(listener, f'LISTEN "{db.engine.channel}"')
    connection = db.connect()
    call(connection, "'work'")
    connection.commit()
    assert list(listener.notifies(timeout=0.05)) == []
    db.run(db.engine.sleep, "w", ["default"], 60.0)
    call(connection, "'work'")
    assert list(listener.notifies(timeout=0.05)) == []
    connection.commit()
    assert [n.payload for n in listener.notifies(timeout=5.0, stop_after=1)] == ["default"]


def test_an_empty_search_path(db: Database) -> None:
    connection = db.autocommit()
    connection.execute("SET search_path = ''")
    assert call(connection, "'work'") > 0


def test_a_producer_without_rights_on_the_tables(own: Database) -> None:
    """EXECUTE is enough; the tables stay closed."""
    connection = own.autocommit()
    role = "lien_producer_" + own.url.rpartition("_")[2]
    connection.execute(f"CREATE ROLE {role}")
    try:
        connection.execute(f"GRANT USAGE ON SCHEMA lien TO {role}")
        connection.execute(f"SET ROLE {role}")
        for function in ("lien_enqueue('work')", "lien_prepare_partitions(1)"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(f"SELECT lien.{function}")
        connection.execute("RESET ROLE")
        connection.execute(f"GRANT EXECUTE ON FUNCTION lien.lien_enqueue TO {role}")
        connection.execute(f"SET ROLE {role}")
        assert call(connection, "'work', unique_key => 'k'") == call(connection, "'work', unique_key => 'k'")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("INSERT INTO lien.lien_job (task) VALUES ('x')")
    finally:
        connection.execute("RESET ROLE")
        connection.execute(f"DROP OWNED BY {role}")
        connection.execute(f"DROP ROLE {role}")
