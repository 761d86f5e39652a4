"""Databases for the bench: durable ones, of its own."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from lien import Lien
from tests.servers import PostgresServer


@contextlib.contextmanager
def database(engine: str) -> Iterator[str]:
    """The URL of a fresh database that really writes: fsync on, commits awaited."""
    if engine == "sqlite":
        folder = Path(tempfile.mkdtemp(prefix="lien-bench-"))
        try:
            yield f"sqlite:///{folder / 'jobs.db'}"
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return
    with contextlib.closing(PostgresServer()) as server:
        server.start(fsync=True, shared_buffers="512MB", max_wal_size="4GB")
        yield server.create_database()


PAYLOAD = {"order_id": 123456, "email": "someone@example.com", "note": "x" * 120}


def app(url: str) -> Lien:
    """A Lien with the tasks of the bench."""
    jobs = Lien(url)

    @jobs.task
    async def noop(order_id: int, email: str, note: str) -> None: ...

    return jobs


def fill(url: str, n: int) -> None:
    """An emptied, freshly analysed queue of n runnable jobs."""
    jobs = app(url)
    jobs.migrate()
    execute(url, ["DELETE FROM lien_job", "DELETE FROM lien_history", "DELETE FROM lien_attempt"])
    jobs.tasks["noop"].enqueue_many([PAYLOAD] * n)
    settle = ["VACUUM ANALYZE lien.lien_job", "CHECKPOINT"] if url.startswith("postgres") else ["ANALYZE"]
    execute(url, settle)
    jobs.close()


def execute(url: str, statements: list[str]) -> None:
    """Run statements, each on its own."""
    if url.startswith("postgres"):
        import psycopg

        with psycopg.connect(url, autocommit=True, options="-c search_path=lien") as connection:
            for statement in statements:
                connection.execute(statement.replace("DELETE FROM", "TRUNCATE"))
        return
    import sqlite3

    with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
