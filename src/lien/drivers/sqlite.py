"""The standard library's sqlite3: Lien's own connections, the caller's, and hints of commits.

The driver is the database's clock: it binds ``:now``, the host's time in microseconds, wherever a
statement asks for it; one moment for all statements between Begin and Commit.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sqlite3
import weakref
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
from lien.drivers.commit_watch import CommitWatch
from lien.drivers.contract import ENDED_INSIDE
from lien.errors import UsageError
from lien.sqlfile import Statement

_FILE_CHECK_SECONDS = 1.0
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


def _gone(path: str) -> sqlite3.OperationalError:
    """The file was deleted or replaced while a connection was open."""
    error = sqlite3.OperationalError(f"{path} was deleted or replaced")
    error.sqlite_errorcode = 14  # as for a file that cannot be opened
    return error


_OPEN: weakref.WeakSet[SqliteDriver] = weakref.WeakSet()
_FORKED_WITH: set[str] = set()


def _after_fork() -> None:
    """SQLite forbids to go on with a connection in a forked child, and to open the same file there meanwhile."""
    _FORKED_WITH.update(driver.path for driver in list(_OPEN) if driver.path is not None)


os.register_at_fork(after_in_child=_after_fork)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


class SqliteDriver:
    """Commands on a connection.

    Args:
        connection: Lien's own one (isolation_level None) or the caller's, however it is set.
        borrowed: it is the caller's: never commit, never close, work inside its transaction.
    """

    def __init__(self, connection: sqlite3.Connection, *, borrowed: bool, path: str | None = None) -> None:
        self.connection = connection
        self._borrowed = borrowed
        self._path = path
        self._file = None if path is None else _identity(path)
        self._checked_at = clock.monotonic()
        self.worn = False
        if not borrowed:
            _OPEN.add(self)
        self._begun = False
        self._savepoint = False
        self._moment: int | None = None

    @property
    def path(self) -> str | None:
        """The file, if the connection is Lien's own and open."""
        return self._path

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
        self._still_there()
        sql, timed, writes = _plan(statement)
        if writes:
            self._join()
        if timed:
            params = {**params, "now": self._moment or clock.host_time_us()}
        # Made by hand: connection.cursor() would hand on the caller's row_factory.
        rows: list[Row] = sqlite3.Cursor(self.connection).execute(sql, params).fetchall()
        return rows if self.connection.text_factory is str else [tuple(map(_text, row)) for row in rows]

    def _still_there(self) -> None:
        """A file that was deleted or replaced can still be written to through an old connection: nobody would know."""
        if self._path is not None and clock.monotonic() - self._checked_at > _FILE_CHECK_SECONDS:
            self._checked_at = clock.monotonic()
            if _identity(self._path) != self._file:
                raise _gone(self._path)

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
        try:
            sqlite3.Cursor(self.connection).execute("PRAGMA schema_version")  # reads the file
        except sqlite3.Error:
            return False
        return self._path is None or _identity(self._path) == self._file

    def close(self) -> None:
        _OPEN.discard(self)
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
        return SqliteDriver(self._open(), borrowed=False, path=self._path)

    async def aconnect(self) -> None:
        """Nothing: operations are carried to a thread."""

    def begin(self) -> OwnedTransaction:
        return OwnedTransaction(self._open())

    async def abegin(self) -> AwaitedTransaction:
        return AwaitedTransaction(self.begin())

    def wakeup(self, channel: str) -> CommitWatch:  # noqa: ARG002 - every commit to the file is a hint
        return CommitWatch(self._open(), self._path)

    def _open(self) -> sqlite3.Connection:
        if self._path in _FORKED_WITH:
            raise UsageError(
                f"this process was forked while {self._path} was open, which SQLite does not survive: start it by "
                "spawn (multiprocessing.set_start_method('spawn')) or close() the Lien before the fork"
            )
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
