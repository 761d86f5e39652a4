"""The tasks of a run: what handlers do in the wild, and what they should not do."""

# ruff: noqa: ARG001 - every job has its mark, though few tasks read it

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sqlite3
import threading
from typing import Any
from urllib.parse import urlencode

import lien
from chaos import mutants
from chaos.settings import LEASE
from lien import clock
from lien.drivers.sqlite import SqliteConnector

QUICK = lien.Backoff(base=0.05, cap=0.4)
QUEUES = ("default", "side")


def open_lien(url: str, who: str) -> lien.Lien:
    """A Lien with all tasks, whose every connection writes `who` into the shadow log.

    Args:
        url: the database.
        who: the name of this process's part in the run.
    """
    if url.startswith("postgresql"):
        jobs = lien.Lien(f"{url}?{urlencode({'application_name': who})}")
    else:
        jobs = lien.Lien(url)
        connector = jobs.store.connector
        if isinstance(connector, SqliteConnector):
            _sign_connections(connector, who)
    mutants.mutate(jobs.store.engine)
    logging.getLogger("psycopg").setLevel(logging.ERROR)  # cut connections are no news here
    register(jobs, url, who)
    return jobs


def _sign_connections(connector: Any, who: str) -> None:
    plain = connector._open  # noqa: SLF001 - SQLite has no name for a connection, so each one gets a function

    def signed() -> sqlite3.Connection:
        connection: sqlite3.Connection = plain()
        sign(connection, who)
        return connection

    connector._open = signed  # noqa: SLF001


def sign(connection: sqlite3.Connection, who: str) -> None:
    """Tell the triggers who writes through this connection."""
    connection.create_function("chaos_who", 0, lambda: who)


class Effects:
    """Rows that handlers write on connections of their own, one for each thread.

    Args:
        url: the database.
        who: the worker.
    """

    _SQL = "INSERT INTO chaos_effect (job_id, attempt, fence, mark, who) VALUES ({0}, {0}, {0}, {0}, {0})"

    def __init__(self, url: str, who: str) -> None:
        self._url = url
        self._who = who
        self._local = threading.local()

    def write(self, ctx: lien.Context, mark: str) -> None:
        """Write one, committed at once; a connection that failed is not used again."""
        connection = getattr(self._local, "connection", None) or self._connect()
        self._local.connection = None
        row = (ctx.job_id, ctx.attempt, ctx.fence, mark, self._who)
        connection.execute(self._SQL.format("%s" if self._url.startswith("postgresql") else "?"), row)
        self._local.connection = connection

    def _connect(self) -> Any:
        if self._url.startswith("postgresql"):
            import psycopg

            return psycopg.connect(self._url, autocommit=True, connect_timeout=5)
        path = self._url.removeprefix("sqlite:///")
        return sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)


def register(jobs: lien.Lien, url: str, who: str) -> None:  # noqa: C901 - a list of tasks
    """The tasks; a job's mark begins with the name of its task."""
    effects = Effects(url, who)

    @jobs.task
    async def noop(mark: str) -> None: ...

    @jobs.task(retry=QUICK)
    def effect(ctx: lien.Context, mark: str) -> None:
        effects.write(ctx, mark)

    @jobs.task(retry=QUICK, queue="side")
    def flaky(ctx: lien.Context, mark: str, fails: int) -> None:
        if ctx.attempt <= fails:
            raise RuntimeError(f"attempt {ctx.attempt} of {mark} fails")

    @jobs.task(retry=QUICK, max_failures=3)
    async def hopeless(mark: str) -> None:
        raise RuntimeError(f"{mark} never works")

    @jobs.task(retry=QUICK, max_interrupted=3)
    async def slow(mark: str, leases: float) -> None:
        await asyncio.sleep(leases * LEASE)  # noqa: TID251 - it is what this task is for

    @jobs.task(retry=QUICK, queue="side", max_interrupted=2)
    def blocking(ctx: lien.Context, mark: str, leases: float) -> None:
        until = clock.monotonic() + leases * LEASE
        while clock.monotonic() < until and not ctx.stale and not ctx.cancel_requested:
            clock.sleep(0.05)

    @jobs.task(retry=QUICK)
    async def snoozer(ctx: lien.Context, mark: str) -> None:
        if ctx.attempt == 1:
            raise lien.Snooze(after=0.3)

    @jobs.task(retry=QUICK, queue="side")
    async def asker(ctx: lien.Context, mark: str) -> None:
        if ctx.attempt == 1:
            raise lien.Retry("not yet", after=0.2)

    @jobs.task(queue="side")
    async def discarded(mark: str) -> None:
        raise lien.Discard("no use")

    @jobs.task(retry=QUICK)
    def result(mark: str) -> dict[str, str]:
        return {"mark": mark}

    @jobs.task(retry=QUICK, max_lost=2)
    def poison(ctx: lien.Context, mark: str, odds: float) -> None:
        if (hash((ctx.job_id, ctx.attempt)) % 100) / 100 < odds:
            os.kill(os.getpid(), signal.SIGKILL)
