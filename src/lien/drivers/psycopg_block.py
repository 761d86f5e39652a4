"""A handler's own transaction on PostgreSQL, synchronous and asynchronous."""

from __future__ import annotations

import contextlib
from typing import Any

import psycopg
from psycopg import pq

from lien.drivers.contract import ENDED_INSIDE
from lien.drivers.psycopg import AsyncPsycopgDriver, PsycopgDriver
from lien.errors import UsageError

_IDLE = pq.TransactionStatus.IDLE


def _still_open(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    if connection.info.transaction_status == _IDLE:
        raise UsageError(ENDED_INSIDE)


class OwnedTransaction:
    """A transaction for a handler: psycopg's own block refuses commit() inside it."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self.driver = PsycopgDriver(connection, borrowed=True)
        self._block = connection.transaction()
        self._block.__enter__()

    def seal(self) -> None:
        _still_open(self.connection)

    def commit(self) -> None:
        self._block.__exit__(None, None, None)

    def rollback(self) -> None:
        with contextlib.suppress(psycopg.Error, OSError):
            self._block.__exit__(psycopg.Rollback, psycopg.Rollback(), None)

    def close(self) -> None:
        with contextlib.suppress(psycopg.Error, OSError):
            self.connection.close()


class AsyncOwnedTransaction:
    """The same on an event loop."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self.connection = connection
        self.driver = AsyncPsycopgDriver(connection, borrowed=True)
        self._block = connection.transaction()

    async def open(self) -> AsyncOwnedTransaction:
        await self._block.__aenter__()
        return self

    def seal(self) -> None:
        _still_open(self.connection)

    async def commit(self) -> None:
        await self._block.__aexit__(None, None, None)

    async def rollback(self) -> None:
        with contextlib.suppress(psycopg.Error, OSError):
            await self._block.__aexit__(psycopg.Rollback, psycopg.Rollback(), None)

    async def close(self) -> None:
        with contextlib.suppress(psycopg.Error, OSError):
            await self.connection.close()
