"""psycopg 3, synchronous and asynchronous, on Lien's own connections and on the caller's."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import pq
from psycopg.rows import tuple_row

from lien.commands import Begin, Command, Commit, Copy, Fetch, Many, Pipe, Rollback, Script, Settings
from lien.drivers.listener import Listener

if TYPE_CHECKING:
    from lien.drivers.psycopg_block import AsyncOwnedTransaction, OwnedTransaction

_STYLE = "pyformat"
_OWN = {
    "connect_timeout": 10,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
_SESSION = {
    "plan_cache_mode": "force_generic_plan",
    "lock_timeout": "2s",
    "idle_in_transaction_session_timeout": "15s",  # a frozen process must not hold rows for ever
    "default_transaction_isolation": "read committed",
    "datestyle": "ISO",
}
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
_HANDLER = "lien handler"
_IDLE = pq.TransactionStatus.IDLE


def _sql(command: Fetch | Settings) -> str:
    return command.statement.render(_STYLE)


class PsycopgDriver:
    """Commands on a synchronous connection.

    Args:
        connection: Lien's own one (autocommit) or the caller's.
        borrowed: it is the caller's: never commit, never close, work inside the caller's transaction.
        settled: the connection has Lien's settings for good, or must not get them.
    """

    def __init__(self, connection: psycopg.Connection[Any], *, borrowed: bool, settled: bool = False) -> None:
        self.connection = connection
        self._borrowed = borrowed
        self._settled = settled or borrowed  # the settings of the caller's connection are the caller's
        self._begun = False
        self._savepoint = False
        self.worn = False

    def execute(self, command: Command) -> Any:  # noqa: C901, PLR0912 - one case for each command
        match command:
            case Fetch():
                return self._rows(self._send(command))
            case Pipe(commands):
                # Between two syncs the server makes one transaction of it without a BEGIN; where a pooler stands
                # between, BEGIN has to say the isolation level, which is no setting of the session there.
                if self._settled:
                    try:
                        with self.connection.pipeline():
                            sent = [self._send(step) for step in commands if type(step) is Fetch]
                    except psycopg.Error:
                        self._wear()
                        raise
                else:
                    self._begun = True
                    with self.connection.pipeline():
                        self.connection.execute(_BEGIN)
                        cursors = [(step, self._send(step)) for step in commands]
                        self.connection.execute("COMMIT")
                    self._begun = False
                    sent = [cursor for step, cursor in cursors if type(step) is Fetch]
                return [self._rows(cursor) for cursor in sent]
            case Many(statement, params):
                return [self._rows(self._send(Fetch(statement, p))) for p in params]
            case Copy(rows=rows):
                with psycopg.Cursor(self.connection) as cursor, cursor.copy(command.statement.text) as copy:
                    for row in rows:
                        copy.write_row(row)
            case Script(statement):
                self.connection.execute(statement.text)
            case Settings():
                if not self._settled:
                    self._send(command)
            case Begin():
                self._begin()
            case Commit():
                self._begun = False
                self.connection.execute("RELEASE lien_op" if self._savepoint else "COMMIT")
            case Rollback():
                self._begun = False
                self.connection.execute("ROLLBACK TO lien_op; RELEASE lien_op" if self._savepoint else "ROLLBACK")
        return None

    def _send(self, command: Fetch | Settings) -> psycopg.Cursor[Any]:
        # Made by hand: connection.cursor() would hand on the caller's cursor_factory.
        cursor = psycopg.Cursor(self.connection, row_factory=tuple_row)
        cursor.execute(_sql(command), command.params if type(command) is Fetch else None)
        return cursor

    @staticmethod
    def _rows(cursor: psycopg.Cursor[Any]) -> list[Any]:
        return cursor.fetchall() if cursor.description else []

    def _wear(self) -> None:
        """What an aborted pipeline has skipped psycopg believes prepared: prepare nothing more on this connection."""
        if not self._borrowed:
            self.worn = True
            self.connection.prepare_threshold = None

    def _begin(self) -> None:
        # In a transaction of the caller's, or where psycopg opens one by itself: a savepoint inside it.
        self._savepoint = self._borrowed and (
            not self.connection.autocommit or self.connection.info.transaction_status != _IDLE
        )
        self._begun = True
        self.connection.execute("SAVEPOINT lien_op" if self._savepoint else _BEGIN)

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
        if self.worn:
            return False
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

    def __init__(self, connection: psycopg.AsyncConnection[Any], *, borrowed: bool, settled: bool = False) -> None:
        self.connection = connection
        self._borrowed = borrowed
        self._settled = settled or borrowed  # the settings of the caller's connection are the caller's
        self._begun = False
        self._savepoint = False
        self.worn = False

    async def execute(self, command: Command) -> Any:  # noqa: C901, PLR0912 - one case for each command
        match command:
            case Fetch():
                return await self._rows(await self._send(command))
            case Pipe(commands):
                if self._settled:
                    try:
                        async with self.connection.pipeline():
                            sent = [await self._send(step) for step in commands if type(step) is Fetch]
                    except psycopg.Error:
                        self._wear()
                        raise
                else:
                    self._begun = True
                    async with self.connection.pipeline():
                        await self.connection.execute(_BEGIN)
                        cursors = [(step, await self._send(step)) for step in commands]
                        await self.connection.execute("COMMIT")
                    self._begun = False
                    sent = [cursor for step, cursor in cursors if type(step) is Fetch]
                return [await self._rows(cursor) for cursor in sent]
            case Many(statement, params):
                return [await self._rows(await self._send(Fetch(statement, p))) for p in params]
            case Copy(rows=rows):
                async with psycopg.AsyncCursor(self.connection) as cursor, cursor.copy(command.statement.text) as copy:
                    for row in rows:
                        await copy.write_row(row)
            case Script(statement):
                await self.connection.execute(statement.text)
            case Settings():
                if not self._settled:
                    await self._send(command)
            case Begin():
                await self._begin()
            case Commit():
                self._begun = False
                await self.connection.execute("RELEASE lien_op" if self._savepoint else "COMMIT")
            case Rollback():
                self._begun = False
                await self.connection.execute("ROLLBACK TO lien_op; RELEASE lien_op" if self._savepoint else "ROLLBACK")
        return None

    async def _send(self, command: Fetch | Settings) -> psycopg.AsyncCursor[Any]:
        cursor = psycopg.AsyncCursor(self.connection, row_factory=tuple_row)
        await cursor.execute(_sql(command), command.params if type(command) is Fetch else None)
        return cursor

    @staticmethod
    async def _rows(cursor: psycopg.AsyncCursor[Any]) -> list[Any]:
        return await cursor.fetchall() if cursor.description else []

    def _wear(self) -> None:
        if not self._borrowed:
            self.worn = True
            self.connection.prepare_threshold = None

    async def _begin(self) -> None:
        self._savepoint = self._borrowed and (
            not self.connection.autocommit or self.connection.info.transaction_status != _IDLE
        )
        self._begun = True
        await self.connection.execute("SAVEPOINT lien_op" if self._savepoint else _BEGIN)

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
        if self.worn:
            return False
        try:
            await self.connection.execute("SELECT 1")
        except psycopg.Error:
            return False
        return True

    async def close(self) -> None:
        with contextlib.suppress(psycopg.Error, OSError):
            await self.connection.close()


class PsycopgConnector:
    """Connections to one PostgreSQL database.

    Args:
        url: ``postgresql://…`` as libpq takes it.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._pooled = False
        self._settings_hold = False

    def connect(self) -> PsycopgDriver:
        connection = self._open("lien")
        return PsycopgDriver(connection, borrowed=False, settled=not self._pooled)

    async def aconnect(self) -> AsyncPsycopgDriver:
        return await self._aopen("lien")

    async def _aopen(self, name: str) -> AsyncPsycopgDriver:
        try:
            connection = await psycopg.AsyncConnection.connect(self._url, autocommit=True, **self._options(name))
        except psycopg.OperationalError as error:
            if not self._learn(error):
                raise
            return await self._aopen(name)
        return AsyncPsycopgDriver(connection, borrowed=False, settled=not self._pooled)

    def begin(self) -> OwnedTransaction:
        from lien.drivers.psycopg_block import OwnedTransaction  # it is made of the drivers here

        connection = self._open(_HANDLER)
        try:
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            return OwnedTransaction(connection)
        except BaseException:
            connection.close()
            raise

    async def abegin(self) -> AsyncOwnedTransaction:
        from lien.drivers.psycopg_block import AsyncOwnedTransaction

        connection = (await self._aopen(_HANDLER)).connection
        try:
            await connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
            return await AsyncOwnedTransaction(connection).open()
        except BaseException:
            await connection.close()
            raise

    def wakeup(self, channel: str) -> Listener:
        return Listener(self._open("lien listener"), channel)

    def _open(self, name: str) -> psycopg.Connection[Any]:
        try:
            connection = psycopg.connect(self._url, autocommit=True, **self._options(name))
        except psycopg.OperationalError as error:
            if not self._learn(error):
                raise
            return self._open(name)
        if self._pooled or self._settings_hold:
            return connection
        try:
            ((mode,),) = connection.execute("SHOW plan_cache_mode").fetchall()
        except BaseException:
            connection.close()
            raise
        if mode == "force_generic_plan":
            self._settings_hold = True
            return connection
        self._pooled = True  # a pooler took the settings, and dropped them
        connection.close()
        return self._open(name)

    def _learn(self, error: psycopg.OperationalError) -> bool:
        """A pooler in transaction mode does not take settings for a session: there each transaction brings them."""
        if self._pooled or "startup parameter" not in str(error):
            return False
        self._pooled = True
        return True

    def _options(self, name: str) -> dict[str, Any]:
        given = psycopg.conninfo.conninfo_to_dict(self._url)
        options: dict[str, Any] = {key: value for key, value in _OWN.items() if key not in given}
        if "application_name" not in given:
            options["application_name"] = name
        if "client_encoding" not in given:
            options["client_encoding"] = "utf8"
        if self._pooled:
            options["prepare_threshold"] = None
        else:
            options["prepare_threshold"] = 1
            # A handler's transaction may be idle for as long as the handler likes.
            session = {k: v for k, v in _SESSION.items() if name != _HANDLER or not k.startswith("idle")}
            words = " ".join(f"-c {k}=" + v.replace(" ", "\\ ") for k, v in session.items())
            options["options"] = f"{given.get('options') or ''} {words}".strip()
        return options
