"""Where operations meet connections: Lien's own, opened when needed and kept for the next call, or the caller's."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar
from urllib.parse import unquote, urlsplit

from lien import clock
from lien.commands import AsyncDriver, Driver, Op, arun, run
from lien.drivers.classify import Kind, classify, from_driver, translate
from lien.drivers.contract import Connector, OwnAsyncDriver, OwnDriver
from lien.drivers.urls import checked_url, masked
from lien.engines.contract import Engine
from lien.errors import LienError, UnsupportedConnection, UsageError

P = ParamSpec("P")
R = TypeVar("R")

_ROUNDS = 8
# Operations that may be sent again whatever became of the first try: a kept connection may have died unnoticed.
_REPEATABLE = frozenset({"attempts", "list", "namespace", "reserve", "schema_versions", "server", "show"})
_IDLE_CHECK = 1.0
_MAX_KEPT = 10


class Store:
    """One database: an engine, a way to connect, and a few open connections.

    Args:
        url: where the database is.
        schema: the PostgreSQL schema of the tables, or elsewhere their prefix (None: the default).
    """

    def __init__(self, url: str, schema: str | None = None) -> None:
        self.url = checked_url(url, "the database URL")
        self.masked_url = masked(url)
        self.engine, self.connector = _open(url, schema)
        self._lock = threading.Lock()
        self._kept: list[tuple[OwnDriver, float]] = []
        self._akept: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, list[tuple[OwnAsyncDriver, float]]]
        self._akept = weakref.WeakKeyDictionary()
        _STORES.add(self)
        self._in_block: ContextVar[bool] = ContextVar("lien_in_block", default=False)

    # ── own connections ──

    def run(self, verb: Callable[P, Op[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """Carry out one operation on a connection of Lien's own.

        Raises:
            DatabaseUnavailable: no connection, or it broke on the way: the outcome of a write is unknown.
            SchemaError: the tables are missing or older.
            DatabaseError: anything else that the database refused.
        """
        self._refuse_second_writer()
        for round_ in range(_ROUNDS):
            try:
                driver = self._take()
                try:
                    result = run(verb(*args, **kwargs), driver)
                except BaseException as error:
                    if classify(error) is Kind.DISCONNECTED or not isinstance(error, Exception):
                        driver.close()
                    else:
                        self._keep(driver)
                    raise
            except LienError:
                raise
            except Exception as error:
                if self._again(verb, error, round_):
                    clock.sleep(_pause(round_))
                    continue
                if not from_driver(error):
                    raise
                raise translate(error, self.masked_url) from error
            self._keep(driver)
            return result
        raise AssertionError("unreachable")

    async def arun(self, verb: Callable[P, Op[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """The same on the running event loop."""
        self._refuse_second_writer()
        for round_ in range(_ROUNDS):
            try:
                driver = await self._atake()
                if driver is None:  # an embedded database: the whole operation is carried to a thread, in one hop
                    return await asyncio.to_thread(lambda: self.run(verb, *args, **kwargs))
                try:
                    result = await arun(verb(*args, **kwargs), driver)
                except BaseException as error:
                    if classify(error) is Kind.DISCONNECTED or not isinstance(error, Exception):
                        await driver.close()
                    else:
                        await self._akeep(driver)
                    raise
            except LienError:
                raise
            except Exception as error:
                if self._again(verb, error, round_):
                    await asyncio.sleep(_pause(round_))  # noqa: TID251 - a back-off, not a wait for something
                    continue
                if not from_driver(error):
                    raise
                raise translate(error, self.masked_url) from error
            await self._akeep(driver)
            return result
        raise AssertionError("unreachable")

    def block_opened(self) -> None:
        """This thread or coroutine has a handler's transaction open."""
        self._in_block.set(True)

    def block_closed(self) -> None:
        """It is over."""
        self._in_block.set(False)

    def _refuse_second_writer(self) -> None:
        if self._in_block.get() and self.engine.name == "sqlite":
            raise UsageError(
                "inside ctx.transaction() on SQLite everything goes through its connection, as it holds the only write "
                "lock: task.using(connection).enqueue(…)"
            )

    def connect(self) -> OwnDriver:
        """A connection for somebody who keeps it: the pump, the lease thread. Raises DatabaseUnavailable."""
        with self.translated():
            return self.connector.connect()

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Turn the driver's errors inside into Lien's own."""
        try:
            yield
        except Exception as error:
            if not from_driver(error):
                raise
            raise translate(error, self.masked_url) from error

    def close(self) -> None:
        """Close the connections kept for synchronous calls."""
        with self._lock:
            kept, self._kept = self._kept, []
        for driver, _ in kept:
            driver.close()

    async def aclose(self) -> None:
        """Close the connections kept for this event loop, and those for synchronous calls."""
        await self.leave_loop()
        self.close()

    async def leave_loop(self) -> None:
        """Close the connections kept for this event loop, which is about to end."""
        for driver, _ in self._akept.pop(asyncio.get_running_loop(), []):
            await driver.close()

    @staticmethod
    def _again(verb: Callable[..., Any], error: Exception, round_: int) -> bool:
        kind = classify(error)
        if kind is Kind.DISCONNECTED:
            return round_ == 0 and getattr(verb, "__name__", "") in _REPEATABLE
        return kind is Kind.RETRYABLE and round_ < _ROUNDS - 1

    def forget(self) -> object:
        """Start with no connections; answers with those that there were. For a forked child."""
        before = (self._kept, dict(self._akept))
        self._lock = threading.Lock()
        self._kept = []
        self._akept = weakref.WeakKeyDictionary()
        return before

    def _take(self) -> OwnDriver:
        with self._lock:
            kept = self._kept.pop() if self._kept else None
        if kept is None:
            return self.connector.connect()
        driver, since = kept
        embedded = self.engine.name == "sqlite"  # asking costs nothing there
        if (embedded or clock.monotonic() - since > _IDLE_CHECK) and not driver.alive():
            driver.close()
            return self._take()
        return driver

    def _keep(self, driver: OwnDriver) -> None:
        with self._lock:
            if len(self._kept) < _MAX_KEPT:
                self._kept.append((driver, clock.monotonic()))
                return
        driver.close()

    async def _atake(self) -> OwnAsyncDriver | None:
        kept = self._akept.setdefault(asyncio.get_running_loop(), [])
        while kept:
            driver, since = kept.pop()
            if clock.monotonic() - since <= _IDLE_CHECK or await driver.alive():
                return driver
            await driver.close()
        return await self.connector.aconnect()

    async def _akeep(self, driver: OwnAsyncDriver) -> None:
        kept = self._akept.setdefault(asyncio.get_running_loop(), [])
        if len(kept) < _MAX_KEPT:
            kept.append((driver, clock.monotonic()))
        else:
            await driver.close()

    # ── the caller's connection ──

    def run_on(self, connection: object, verb: Callable[P, Op[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """Carry out one operation inside the transaction of the caller's connection.

        Errors are the driver's own, but for missing tables and lost connections.

        Raises:
            UnsupportedConnection: the object is no connection to this database that Lien knows.
        """
        driver = self._borrow(connection)
        if isinstance(driver, _Async):
            raise UnsupportedConnection(
                f"{_name(connection)} is asynchronous: call the verb with `a` before it (aenqueue) and await it"
            )
        try:
            return run(verb(*args, **kwargs), driver)
        except Exception as error:
            if (known := self._known(error)) is error:
                raise
            raise known from error

    async def arun_on(self, connection: object, verb: Callable[P, Op[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """The same for asynchronous connections; a synchronous one is used directly and blocks for its round trip."""
        driver = self._borrow(connection)
        try:
            if isinstance(driver, _Async):
                return await arun(verb(*args, **kwargs), driver.driver)
            return run(verb(*args, **kwargs), driver)
        except Exception as error:
            if (known := self._known(error)) is error:
                raise
            raise known from error

    def _known(self, error: Exception) -> Exception:
        if isinstance(error, LienError) or classify(error) not in {Kind.SCHEMA, Kind.DISCONNECTED}:
            return error
        return translate(error, "the given connection")

    def _borrow(self, connection: object) -> Driver | _Async:
        """A driver for the caller's connection, by its type; never imports what the caller has not imported."""
        psycopg: Any = sys.modules.get("psycopg")
        engine = ""
        if psycopg is not None and isinstance(connection, psycopg.Connection | psycopg.AsyncConnection):
            engine = "postgresql"
        elif isinstance(connection, sqlite3.Connection):
            engine = "sqlite"
        if not engine:
            raise UnsupportedConnection(
                f"cannot enqueue through {_name(connection)}: give a psycopg.Connection, a psycopg.AsyncConnection or "
                "a sqlite3.Connection, or nothing to use a connection of Lien's own"
            )
        if engine != self.engine.name:
            raise UnsupportedConnection(
                f"{_name(connection)} is a connection to {engine}, but this Lien is on {self.masked_url}"
            )
        if engine == "postgresql" and connection.pgconn.pipeline_status:  # type: ignore[attr-defined]
            raise UnsupportedConnection(
                "this connection is in pipeline mode, where answers come later: enqueue before or after the pipeline"
            )
        if engine == "sqlite":
            from lien.drivers.sqlite import SqliteDriver

            return SqliteDriver(connection, borrowed=True)  # type: ignore[arg-type]
        from lien.drivers.psycopg import AsyncPsycopgDriver, PsycopgDriver

        if isinstance(connection, psycopg.AsyncConnection):
            return _Async(AsyncPsycopgDriver(connection, borrowed=True))
        return PsycopgDriver(connection, borrowed=True)  # type: ignore[arg-type]


_STORES: weakref.WeakSet[Store] = weakref.WeakSet()
_INHERITED: list[object] = []


def _after_fork() -> None:
    """In a forked child the parent's connections stay the parent's: kept, so that nothing closes them here."""
    _INHERITED.extend(store.forget() for store in list(_STORES))


def _before_fork() -> None:
    """Idle connections to a file are closed: SQLite forbids to take them along."""
    for store in list(_STORES):
        if store.engine.name == "sqlite":
            store.close()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)


class _Async:
    """Marks a driver that must be awaited."""

    __slots__ = ("driver",)

    def __init__(self, driver: AsyncDriver) -> None:
        self.driver = driver


def _name(connection: object) -> str:
    cls = type(connection)
    return f"{cls.__module__}.{cls.__qualname__}"


def _pause(round_: int) -> float:
    return random.random() * 0.01 * 2.0**round_  # noqa: S311 - not a secret


def _open(url: str, schema: str | None) -> tuple[Engine, Connector]:
    if schema is not None and (not schema or len(schema.encode()) > 63 or "\x00" in schema):  # noqa: PLR2004
        raise UsageError(f"schema {schema!r}: give a name of 1 to 63 bytes")
    scheme = url.partition("://")[0].partition("+")[0]
    match scheme:
        case "postgresql" | "postgres":
            from lien.engines.postgres import Postgres

            try:
                from lien.drivers.psycopg import PsycopgConnector
            except ImportError as error:
                raise UsageError(f"postgresql:// needs psycopg 3: pip install 'lien[postgres]' ({error})") from error
            return Postgres(schema or "lien"), PsycopgConnector(url.replace("+psycopg", "", 1))
        case "sqlite":
            from lien.drivers.sqlite import SqliteConnector
            from lien.engines.sqlite import Sqlite

            parts = urlsplit(url)
            path = unquote(parts.path)[1:]  # sqlite:///relative.db, sqlite:////absolute.db
            if parts.netloc or not path or path == ":memory:":
                raise UsageError(
                    f"{masked(url)} names no file: write sqlite:///file.db or sqlite:////absolute/path/file.db"
                )
            normal = "durability=normal" in parts.query.split("&")
            return Sqlite(schema or "lien_"), SqliteConnector(path, durability="normal" if normal else "full")
    raise AssertionError(f"unchecked scheme {scheme}")
