"""The standard library's sqlite3: Lien's own connections, the caller's, and hints of commits.

The driver is the database's clock: it binds ``:now``, the host's time in microseconds, wherever a
statement asks for it; one moment for all statements between Begin and Commit.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import re
import select
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lien import clock
from lien.commands import (
    Begin,
    Command,
    Commit,
    Copy,
    Fetch,
    Many,
    Params,
    Pipe,
    Rollback,
    Row,
    Script,
)
from lien.drivers.contract import ENDED_INSIDE
from lien.drivers.inotify import FileWatch, Unwatchable
from lien.errors import UsageError
from lien.sqlfile import Statement

_BUSY_SECONDS = 10.0
_CACHED_STATEMENTS = 256
_LEGACY = -1  # sqlite3.LEGACY_TRANSACTION_CONTROL, from Python 3.12 on
_NOW = re.compile(r"(?<![:\w]):now\b")
_SETTINGS = (
    "PRAGMA temp_store = MEMORY",
    "PRAGMA cache_size = -16000",
    "PRAGMA wal_autocheckpoint = 4000",
)


class _Plan(NamedTuple):
    sql: str
    timed: bool
    writes: bool


@functools.cache
def _plan(statement: Statement) -> _Plan:
    sql = statement.render("named").strip()
    return _Plan(sql, _NOW.search(sql) is not None, not sql.startswith("SELECT"))


class SqliteDriver:
    """Commands on a connection.

    Args:
        connection: Lien's own one (isolation_level None) or the caller's, however it is set.
        borrowed: it is the caller's: never commit, never close, work inside its transaction.
    """

    def __init__(self, connection: sqlite3.Connection, *, borrowed: bool) -> None:
        self.connection = connection
        self._borrowed = borrowed
        self._begun = False
        self._savepoint = False
        self._moment: int | None = None

    def execute(self, command: Command) -> Any:
        match command:
            case Fetch(statement, params):
                return self._rows(statement, params)
            case Many(statement, sets):
                return [self._rows(statement, params) for params in sets]
            case Begin():
                self._begin()
            case Commit():
                self._send("RELEASE lien_op" if self._savepoint else "COMMIT")
                self._ended()
            case Rollback():
                self._undo()
                self._ended()
            case Pipe(commands):
                return [self.execute(step) for step in commands]
            case Copy(statement, rows):
                self._join()
                sqlite3.Cursor(self.connection).executemany(statement.render("named"), rows)
            case Script(statement):
                self._join()
                for sql in _split(statement.text):
                    self._send(sql)
        return None if isinstance(command, Copy | Script) else []

    def _rows(self, statement: Statement, params: Params) -> list[Row]:
        sql, timed, writes = _plan(statement)
        if writes:
            self._join()
        if timed:
            params = {**params, "now": self._moment or clock.host_time_us()}
        # Made by hand: connection.cursor() would hand on the caller's row_factory.
        rows: list[Row] = sqlite3.Cursor(self.connection).execute(sql, params).fetchall()
        return rows if self.connection.text_factory is str else [tuple(map(_text, row)) for row in rows]

    def _send(self, sql: str) -> None:
        sqlite3.Cursor(self.connection).execute(sql)

    def _join(self) -> None:
        """Open what sqlite3 itself would open before a write: the caller commits it."""
        connection = self.connection
        if (
            self._borrowed
            and not connection.in_transaction
            and connection.isolation_level is not None
            and getattr(connection, "autocommit", _LEGACY) == _LEGACY
        ):
            self._send(f"BEGIN {connection.isolation_level}")

    def _begin(self) -> None:
        self._join()
        self._savepoint = self._borrowed and self.connection.in_transaction
        self._send("SAVEPOINT lien_op" if self._savepoint else "BEGIN IMMEDIATE")
        self._begun = True
        # Read behind the lock, which may have taken seconds to get.
        self._moment = clock.host_time_us()

    def _ended(self) -> None:
        self._begun = False
        self._moment = None

    def _undo(self) -> None:
        if self._savepoint:
            self._send("ROLLBACK TO lien_op")
            self._send("RELEASE lien_op")
        elif self.connection.in_transaction:  # some errors have rolled it back already
            self._send("ROLLBACK")

    def abandon(self) -> None:
        if not self._begun:
            return
        self._ended()
        try:
            self._undo()
        except sqlite3.Error:
            if not self._borrowed:
                self.close()

    def alive(self) -> bool:
        cursor = sqlite3.Cursor(self.connection)
        try:
            cursor.execute("PRAGMA schema_version")  # reads the file
            ((_, _, path), *_) = cursor.execute("PRAGMA database_list")
        except sqlite3.Error:
            return False
        return Path(path).exists()  # a deleted one can still be written to, and nobody would know

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self.connection.close()


def _text(value: Any) -> Any:
    # No column of Lien's holds bytes: they are the work of the caller's text_factory.
    return bytes(value).decode() if isinstance(value, bytes | bytearray) else value


def _split(script: str) -> Iterator[str]:
    """The statements of a script. executescript() would commit first."""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""
    if pending.strip():
        yield pending


class CommitWatch:
    """Waits until another connection commits.

    ``PRAGMA data_version`` decides: it differs after a commit of any other connection, also of
    this process. inotify on the write-ahead log says when to look; without it, a look every
    30 ms. A writer fills the log first, then syncs it, and only then shows the commit: after a write
    the look is repeated, soon at first, then at an eighth of the time waited, so that a commit is
    seen that little late.
    """

    _INTERVAL = 0.03
    _SOONEST = 0.0003
    _LATEST = 0.05
    _BURST_SECONDS = 0.005
    _SYNC_SECONDS = 2.0  # a sync that takes longer costs one poll of the worker

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._connection = connection
        self._version = self._look()  # makes the log, if there is none; this connection keeps it from being deleted
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._poll = select.poll()
        self._poll.register(self._read, select.POLLIN)
        self._pipe_poll = select.poll()
        self._pipe_poll.register(self._read, select.POLLIN)
        self._file: FileWatch | None = None
        self._since = self._written = -math.inf
        try:
            self._file = FileWatch(path + "-wal")
        except Unwatchable:
            return
        self._poll.register(self._file.fileno(), select.POLLIN)

    @property
    def told(self) -> bool:
        """Whether the system tells about writes (inotify), or the watch must look by itself."""
        return self._file is not None

    def wait(self, seconds: float) -> bool:
        deadline = clock.monotonic() + seconds
        while True:
            now = clock.monotonic()
            self._note_writes(now)
            version = self._look()
            if version != self._version:
                self._version = version
                self._since = now
                return True
            if now >= deadline or self._pause(now, deadline - now):
                return False

    def check(self) -> None:
        """Ask the file; raises when it is gone."""
        self._look()

    def _look(self) -> int:
        version: int = self._connection.execute("PRAGMA data_version").fetchone()[0]
        return version

    def _note_writes(self, now: float) -> None:
        if self._file is not None and self._file.written():
            if not self._within(self._BURST_SECONDS, now):
                self._since = now
            self._written = now

    def _within(self, seconds: float, now: float) -> bool:
        """Whether a write was seen in these last seconds."""
        return now - self._written < seconds

    def _pause(self, now: float, left: float) -> bool:
        """Wait for a reason to look again; True when it is an interruption."""
        if self._file is None:
            ready = self._pipe_poll.poll(min(left, self._INTERVAL) * 1000)
        elif self._within(self._SYNC_SECONDS, now):  # it may become a commit yet
            step = min(max((now - self._since) / 8, self._SOONEST), self._LATEST, left)
            if step < 0.001:  # noqa: PLR2004 - poll() counts in milliseconds
                clock.sleep(step)
                step = 0.0
            # A burst of writes is one write: its later ones do not shorten the step.
            burst = self._within(self._BURST_SECONDS, now)
            ready = (self._pipe_poll if burst else self._poll).poll(step * 1000)
        else:
            ready = self._poll.poll(left * 1000)
        if not any(fd == self._read for fd, _ in ready):
            return False
        os.read(self._read, 4096)
        return True

    def interrupt(self) -> None:
        with contextlib.suppress(OSError):  # a full pipe or a closed one: either will do
            os.write(self._write, b"x")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()
        os.close(self._read)
        os.close(self._write)


class OwnedTransaction:
    """A transaction for a handler. It holds the file's only write lock: everybody else's writes wait for its end."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.driver = SqliteDriver(connection, borrowed=True)
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("SAVEPOINT lien_block")  # gone, and missed, when somebody commits inside

    def seal(self) -> None:
        try:
            self.connection.execute("RELEASE lien_block")
        except sqlite3.OperationalError:
            raise UsageError(ENDED_INSIDE) from None

    def commit(self) -> None:
        self.connection.execute("COMMIT")

    def rollback(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self.connection.execute("ROLLBACK")

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self.connection.close()


class AwaitedTransaction:
    """The same for coroutines: nothing of it really waits, as the database is in the process."""

    def __init__(self, owned: OwnedTransaction) -> None:
        self.connection = owned.connection
        self.driver = self
        self._owned = owned

    async def execute(self, command: Command) -> Any:
        return self._owned.driver.execute(command)

    async def abandon(self) -> None:
        self._owned.driver.abandon()

    def seal(self) -> None:
        self._owned.seal()

    async def commit(self) -> None:
        self._owned.commit()

    async def rollback(self) -> None:
        self._owned.rollback()

    async def close(self) -> None:
        self._owned.close()


class SqliteConnector:
    """Connections to one SQLite file.

    Args:
        path: the file; it is made if it does not exist.
        durability: ``full`` survives a power cut; ``normal`` may then lose the last commits.

    Raises:
        UsageError: it is a database in memory, or another durability.
    """

    def __init__(self, path: str | os.PathLike[str], *, durability: Literal["full", "normal"] = "full") -> None:
        text = os.fspath(path)
        if not text or text.startswith((":memory:", "file:")):
            raise UsageError(f"SQLite database {text!r}: give the path of a file, as jobs outlive connections")
        if durability not in ("full", "normal"):
            raise UsageError(f"durability={durability!r}: give 'full' or 'normal'")
        self._path = str(Path(text).absolute())
        self._synchronous = f"PRAGMA synchronous = {durability.upper()}"

    def connect(self) -> SqliteDriver:
        return SqliteDriver(self._open(), borrowed=False)

    async def aconnect(self) -> None:
        """Nothing: operations are carried to a thread."""

    def begin(self) -> OwnedTransaction:
        return OwnedTransaction(self._open())

    async def abegin(self) -> AwaitedTransaction:
        return AwaitedTransaction(self.begin())

    def wakeup(self, channel: str) -> CommitWatch:  # noqa: ARG002 - every commit to the file is a hint
        return CommitWatch(self._open(), self._path)

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path,
            timeout=_BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=_CACHED_STATEMENTS,
        )
        try:
            _into_wal_mode(connection)
            for setting in (self._synchronous, *_SETTINGS):
                connection.execute(setting)
        except BaseException:
            connection.close()
            raise
        return connection


def _into_wal_mode(connection: sqlite3.Connection) -> None:
    """Write-ahead logging; two that switch a fresh file at once do not wait by themselves."""
    deadline = clock.monotonic() + _BUSY_SECONDS
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or clock.monotonic() >= deadline:
                raise
            clock.sleep(0.01)
            continue
        if mode != "wal":
            raise sqlite3.OperationalError(f"the file system does not support write-ahead logging (mode {mode})")
        return
