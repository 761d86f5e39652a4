"""Hints on SQLite: a commit of another connection to the same file."""

from __future__ import annotations

import contextlib
import math
import os
import select
import sqlite3

from lien import clock
from lien.drivers.inotify import FileWatch, Unwatchable


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
