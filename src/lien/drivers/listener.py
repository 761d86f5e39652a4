"""LISTEN on PostgreSQL: hints that work may have come."""

from __future__ import annotations

import contextlib
import os
import selectors
from typing import Any

import psycopg


class Listener:
    """One channel, on a connection of its own."""

    def __init__(self, connection: psycopg.Connection[Any], channel: str) -> None:
        self._connection = connection
        try:
            connection.execute(f'LISTEN "{channel}"')
        except BaseException:
            connection.close()
            raise
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)

    def wait(self, seconds: float) -> bool:
        pgconn = self._connection.pgconn
        with selectors.DefaultSelector() as selector:
            selector.register(self._read, selectors.EVENT_READ)
            selector.register(pgconn.socket, selectors.EVENT_READ)
            ready = {key.fd for key, _ in selector.select(seconds)}
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
