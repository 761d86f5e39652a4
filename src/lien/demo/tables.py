"""The shop's own tables, on SQLite or PostgreSQL. What differs between the two is in this file."""

from __future__ import annotations

import sqlite3
from typing import Any
from urllib.parse import quote, unquote, urlsplit

Connection = Any
"""A sqlite3.Connection or a psycopg.Connection."""

TABLES = (
    # Who comes to the till, and whether the order will be committed; written before the story.
    "CREATE TABLE checkout (order_id integer PRIMARY KEY, committed integer NOT NULL)",
    "CREATE TABLE shop_order (id integer PRIMARY KEY, cents integer NOT NULL)",
    # One receipt per order: a second one for the same order is refused by the key.
    """CREATE TABLE receipt (order_id integer PRIMARY KEY, job_id bigint NOT NULL,
        attempt integer NOT NULL, fence bigint NOT NULL)""",
    # Every start of a handler, also of those that did not get any further.
    """CREATE TABLE job_start (job_id bigint NOT NULL, attempt integer NOT NULL, order_id integer,
        fence bigint NOT NULL, worker text NOT NULL)""",
    "CREATE TABLE printer_ready (order_id integer PRIMARY KEY)",
    # Acknowledgements that were refused, as the workers told it.
    """CREATE TABLE late_ack (job_id bigint NOT NULL, attempt integer NOT NULL,
        worker text NOT NULL)""",
    # Lien's jobs by the order in their arguments.
    """CREATE VIEW order_job AS
        SELECT c.order_id, c.committed, j.id, j.task, j.state FROM checkout c
        JOIN lien_jobs j ON CAST(j.args AS text) = '{"order_id":' || c.order_id || '}'""",
)


def sqlite_url(path: str) -> str:
    """The URL of a SQLite file given by its absolute path."""
    return f"sqlite:///{quote(path)}"


def connect(url: str, schema: str | None = None) -> Connection:
    """A plain connection, as any application opens one."""
    if url.startswith("sqlite:"):
        return sqlite3.connect(unquote(urlsplit(url).path)[1:], timeout=10.0)
    import psycopg

    connection = psycopg.connect(url.replace("+psycopg", "", 1), connect_timeout=5)
    connection.execute("SELECT set_config('search_path', %s, false)", [schema])
    connection.commit()
    return connection


def run(connection: Connection, sql: str, *values: object) -> Any:
    """One statement with ``?`` for each value; its cursor."""
    if not isinstance(connection, sqlite3.Connection):
        sql = sql.replace("?", "%s")
    return connection.execute(sql, values)


def ask(connection: Connection, sql: str, *values: object) -> list[Any]:
    """The rows of a query that stands alone: no transaction is left open behind it."""
    rows: list[Any] = run(connection, sql, *values).fetchall()
    connection.commit()
    return rows


def number(connection: Connection, sql: str, *values: object) -> int:
    """The one number that such a query answers."""
    return int(ask(connection, sql, *values)[0][0])


def can_be_written(connection: Connection, job_id: int) -> bool:
    """Whether nobody holds a lock that keeps this job from being taken over."""
    try:
        if isinstance(connection, sqlite3.Connection):
            run(connection, "PRAGMA busy_timeout = 100")
            run(connection, "BEGIN IMMEDIATE")
        else:
            run(connection, "SELECT FROM lien_job WHERE id = ? FOR UPDATE NOWAIT", job_id)
    except Exception as error:
        if not _locked(error):
            raise
        return False
    finally:
        connection.rollback()
        if isinstance(connection, sqlite3.Connection):
            run(connection, "PRAGMA busy_timeout = 10000")
    return True


def _locked(error: Exception) -> bool:
    if isinstance(error, sqlite3.OperationalError):
        return "locked" in str(error)
    return getattr(error, "sqlstate", None) == "55P03"  # lock_not_available


def create_schema(url: str, schema: str) -> None:
    """Make a schema on PostgreSQL."""
    from psycopg import sql

    connection = connect(url, schema)
    try:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        connection.commit()
    finally:
        connection.close()


def drop_schema(url: str, schema: str) -> None:
    """Remove a schema of PostgreSQL with all that is in it."""
    from psycopg import sql

    connection = connect(url, schema)
    try:
        connection.execute("SET lock_timeout = '5s'")
        connection.execute("SET statement_timeout = '10s'")
        name = sql.Identifier(schema)
        connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(name))
        connection.commit()
    finally:
        connection.close()
