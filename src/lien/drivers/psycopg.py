"""psycopg 3, synchronous and asynchronous, on Lien's own connections and on the caller's."""

from __future__ import annotations

import contextlib
import os
import select
from typing import Any

import psycopg
from psycopg import pq
from psycopg.rows import tuple_row

from lien.commands import Begin, Command, Commit, Copy, Fetch, Many, Pipe, Rollback, Script

_STYLE = "pyformat"
_OWN = {
    "connect_timeout": 10,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
_IDLE = pq.TransactionStatus.IDLE


def _sql(command: Fetch | Many | Copy) -> str:
    return command.statement.render(_STYLE)


class PsycopgDriver:
    """Commands on a synchronous connection.

    Args:
        connection: Lien's own one (autocommit) or the caller's.
        borrowed: it is the caller's: never commit, never close, work inside the caller's transaction.
    """

    def __init__(self, connection: psycopg.Connection[Any], *, borrowed: bool) -> None:
        self.connection = connection
        self._borrowed = borrowed
        self._begun = False

    def execute(self, command: Command) -> Any:
        match command:
            case Fetch():
                return self._rows(self._send(command))
            case Pipe(commands):
                with self.connection.pipeline():
                    sent = [self._step(step) for step in commands]
                return [[self._rows(c) for c in s] if isinstance(s, list) else self._rows(s) for s in sent]
            case Copy(rows=rows):
                with self.connection.cursor() as cursor, cursor.copy(_sql(command)) as copy:
                    for row in rows:
                        copy.write_row(row)
                return None
            case Script(statement):
                self.connection.execute(statement.text)
                return None
            case _:
                answer = self._step(command)
                return [self._rows(c) for c in answer] if isinstance(answer, list) else self._rows(answer)

    def _step(self, command: Command) -> Any:
        match command:
            case Fetch():
                return self._send(command)
            case Many(params=params):
                return [self._send(Fetch(command.statement, p)) for p in params]
            case Begin():
                return self._begin()
            case Commit():
                self._begun = False
                return self.connection.execute("RELEASE lien_op" if self._savepoint else "COMMIT")
            case Rollback():
                self._begun = False
                return self.connection.execute(
                    "ROLLBACK TO lien_op; RELEASE lien_op" if self._savepoint else "ROLLBACK"
                )
        raise TypeError(f"not a command: {command!r}")

    def _send(self, command: Fetch) -> psycopg.Cursor[Any]:
        cursor = self.connection.cursor(row_factory=tuple_row)
        cursor.execute(_sql(command), command.params)
        return cursor

    @staticmethod
    def _rows(cursor: psycopg.Cursor[Any]) -> list[Any]:
        return cursor.fetchall() if cursor.description else []

    def _begin(self) -> psycopg.Cursor[Any]:
        # In a transaction of the caller's, or where psycopg opens one by itself: a savepoint inside it.
        self._savepoint = self._borrowed and (
            not self.connection.autocommit or self.connection.info.transaction_status != _IDLE
        )
        self._begun = True
        return self.connection.execute(
            "SAVEPOINT lien_op" if self._savepoint else "BEGIN ISOLATION LEVEL READ COMMITTED"
        )

    _savepoint = False

    def abandon(self) -> None:
        if not self._begun:
            return
        self._begun = False
        try:
            if self._savepoint:
                self.connection.execute("ROLLBACK TO lien_op; RELEASE lien_op")
            else:
                self.connection.rollback()
        except psycopg.Error:
            if not self._borrowed:
                self.close()

    def alive(self) -> bool:
        try:
            self.connection.execute("SELECT 1")
        except psycopg.Error:
            return False
        return True

    def close(self) -> None:
        with contextlib.suppress(psycopg.Error, OSError):
            self.connection.close()


class AsyncPsycopgDriver:
    """Commands on an asynchronous connection; arguments as for `PsycopgDriver`."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], *, borrowed: bool) -> None:
        self.connection = connection
        self._borrowed = borrowed
        self._begun = False
        self._savepoint = False

    async def execute(self, command: Command) -> Any:
        match command:
            case Fetch():
                return await self._rows(await self._send(command))
            case Pipe(commands):
                async with self.connection.pipeline():
                    sent = [await self._step(step) for step in commands]
                return [[await self._rows(c) for c in s] if isinstance(s, list) else await self._rows(s) for s in sent]
            case Copy(rows=rows):
                async with self.connection.cursor() as cursor, cursor.copy(_sql(command)) as copy:
                    for row in rows:
                        await copy.write_row(row)
                return None
            case Script(statement):
                await self.connection.execute(statement.text)
                return None
            case _:
                answer = await self._step(command)
                return [await self._rows(c) for c in answer] if isinstance(answer, list) else await self._rows(answer)

    async def _step(self, command: Command) -> Any:
        match command:
            case Fetch():
                return await self._send(command)
            case Many(params=params):
                return [await self._send(Fetch(command.statement, p)) for p in params]
            case Begin():
                return await self._begin()
            case Commit():
                self._begun = False
                return await self.connection.execute("RELEASE lien_op" if self._savepoint else "COMMIT")
            case Rollback():
                self._begun = False
                return await self.connection.execute(
                    "ROLLBACK TO lien_op; RELEASE lien_op" if self._savepoint else "ROLLBACK"
                )
        raise TypeError(f"not a command: {command!r}")

    async def _send(self, command: Fetch) -> psycopg.AsyncCursor[Any]:
        cursor = self.connection.cursor(row_factory=tuple_row)
        await cursor.execute(_sql(command), command.params)
        return cursor

    @staticmethod
    async def _rows(cursor: psycopg.AsyncCursor[Any]) -> list[Any]:
        return await cursor.fetchall() if cursor.description else []

    async def _begin(self) -> psycopg.AsyncCursor[Any]:
        self._savepoint = self._borrowed and (
            not self.connection.autocommit or self.connection.info.transaction_status != _IDLE
        )
        self._begun = True
        return await self.connection.execute(
            "SAVEPOINT lien_op" if self._savepoint else "BEGIN ISOLATION LEVEL READ COMMITTED"
        )

    async def abandon(self) -> None:
        if not self._begun:
            return
        self._begun = False
        try:
            if self._savepoint:
                await self.connection.execute("ROLLBACK TO lien_op; RELEASE lien_op")
            else:
                await self.connection.rollback()
        except psycopg.Error:
            if not self._borrowed:
                await self.close()

    async def alive(self) -> bool:
        try:
            await self.connection.execute("SELECT 1")
        except psycopg.Error:
            return False
        return True

    async def close(self) -> None:
        with contextlib.suppress(psycopg.Error, OSError):
            await self.connection.close()


class Listener:
    """LISTEN on a connection of its own."""

    def __init__(self, connection: psycopg.Connection[Any], channel: str) -> None:
        self._connection = connection
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        connection.execute(f'LISTEN "{channel}"')

    def wait(self, seconds: float) -> bool:
        pgconn = self._connection.pgconn
        ready, _, _ = select.select([pgconn.socket, self._read], [], [], seconds)
        if self._read in ready:
            os.read(self._read, 4096)
        if pgconn.socket not in ready:
            return False
        pgconn.consume_input()  # raises when the server has gone
        woken = False
        while pgconn.notifies() is not None:
            woken = True
        return woken

    def check(self) -> None:
        """Ask the server: a connection cut without a word shows itself here. Raises when it is gone."""
        self._connection.execute("SELECT 1")

    def interrupt(self) -> None:
        with contextlib.suppress(OSError):  # the pipe is full of interruptions, or closed: either will do
            os.write(self._write, b"x")

    def close(self) -> None:
        with contextlib.suppress(psycopg.Error, OSError):
            self._connection.close()
        os.close(self._read)
        os.close(self._write)


class PsycopgConnector:
    """Connections to one PostgreSQL database.

    Args:
        url: ``postgresql://…`` as libpq takes it.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    def connect(self) -> PsycopgDriver:
        return PsycopgDriver(self._open("lien"), borrowed=False)

    async def aconnect(self) -> AsyncPsycopgDriver:
        connection = await psycopg.AsyncConnection.connect(self._url, autocommit=True, **self._options("lien"))
        return AsyncPsycopgDriver(connection, borrowed=False)

    def wakeup(self, channel: str) -> Listener:
        return Listener(self._open("lien listener"), channel)

    def _open(self, name: str) -> psycopg.Connection[Any]:
        return psycopg.connect(self._url, autocommit=True, **self._options(name))

    def _options(self, name: str) -> dict[str, Any]:
        given = psycopg.conninfo.conninfo_to_dict(self._url)
        options: dict[str, Any] = {key: value for key, value in _OWN.items() if key not in given}
        if "application_name" not in given:
            options["application_name"] = name
        return options
