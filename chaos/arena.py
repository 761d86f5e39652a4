"""A database for one run, with the triggers that watch it, and what is read from it in the end."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import psycopg

from chaos.app import open_lien, sign
from chaos.checker import Attempt, Change, Effect, Ending, Job, Row
from lien import clock
from tests.servers import PostgresServer

R = TypeVar("R")
_HERE = Path(__file__).parent


class Arena:
    """One engine's database.

    Args:
        engine: `postgresql` or `sqlite`.
        folder: for logs, and for the database if it is a file.
        server: the server, if there is one.
    """

    def __init__(self, engine: str, folder: Path, server: PostgresServer | None) -> None:
        self.engine = engine
        self.folder = folder
        self.server = server
        self.url = server.create_database() if server is not None else f"sqlite:///{folder / 'jobs.db'}"
        jobs = open_lien(self.url, "chaos-setup")
        jobs.migrate()
        jobs.close()
        script = (_HERE / f"shadow_{engine}.sql").read_text("utf-8")
        self._with(lambda connection: _run_script(connection, script))

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of one statement, tried again while the database is away."""
        deadline = clock.monotonic() + 30.0
        while True:
            try:
                return self._with(lambda connection: list(connection.execute(sql).fetchall()))
            except (psycopg.OperationalError, sqlite3.OperationalError):
                if clock.monotonic() > deadline:
                    raise
                clock.sleep(0.2)

    def live(self) -> int:
        """How many jobs have not ended."""
        count: int = self.rows(f"SELECT count(*) FROM {self.table('job')}")[0][0]  # noqa: S608 - a table's name
        return count

    def table(self, name: str) -> str:
        """One of Lien's tables."""
        return f"lien.lien_{name}" if self.engine == "postgresql" else f"lien_{name}"

    def jobs(self) -> dict[int, Job]:
        """Every job that ever was, from the shadow log."""
        jobs: dict[int, Job] = {}
        sql = "SELECT seq, at, who, source, op, job_id, old, new FROM chaos_shadow ORDER BY seq"
        for seq, at, who, source, op, id, old, new in self.rows(sql):
            job = jobs.get(id) or jobs.setdefault(id, Job(id))
            match source:
                case "job":
                    job.changes.append(Change(seq, at, who, _row(old), _row(new)))
                case "attempt":
                    job.attempts.append(Attempt(seq, at, who, op, *_parsed(new)))
                case _:
                    job.endings.append(Ending(seq, at, who, op, *_parsed(new)))
        for id, attempt, fence, mark, who in self.rows("SELECT job_id, attempt, fence, mark, who FROM chaos_effect"):
            jobs.setdefault(id, Job(id)).effects.append(Effect(attempt, fence, mark, who))
        return jobs

    def orders(self) -> set[str]:
        """The marks of all orders that the business committed."""
        return {mark for (mark,) in self.rows("SELECT mark FROM chaos_order")}

    def _with(self, use: Callable[[Any], R]) -> R:
        if self.engine == "postgresql":
            with psycopg.connect(self.url, autocommit=True, connect_timeout=5) as server_connection:
                return use(server_connection)
        connection = sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=15, isolation_level=None)
        with contextlib.closing(connection):
            sign(connection, "chaos-setup")
            return use(connection)


def _run_script(connection: Any, script: str) -> None:
    if isinstance(connection, sqlite3.Connection):
        connection.executescript(script)
    else:
        connection.execute(script)


def _parsed(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    parsed: list[Any] = json.loads(value)
    return parsed


def _row(value: Any) -> Row | None:
    if value is None:
        return None
    row = Row(*_parsed(value))
    return row._replace(cancel=bool(row.cancel))


@contextlib.contextmanager
def arena(engine: str, *, fsync: bool = False) -> Iterator[Arena]:
    """A fresh database, gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="lien-chaos-"))
    try:
        if engine == "sqlite":
            yield Arena(engine, folder, None)
            return
        with contextlib.closing(PostgresServer()) as server:
            server.start(fsync=fsync, max_wal_size="2GB")
            yield Arena(engine, folder, server)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
