"""One migrated database as the conformance tests see it, the same words on every engine.

SQL of the tests names tables without a place (`lien_job`), parameters as `:name`, and gives times
as `db.moment(seconds_from_now)`; what an engine wants instead is known here and nowhere else.
"""

from __future__ import annotations

import datetime
import re
import sqlite3
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import lien
from lien import machine
from lien.machine import AttemptOutcome
from lien.model import (
    Ack,
    Claim,
    ClaimRequest,
    Cycle,
    Enqueued,
    Held,
    Lane,
    NewJob,
    Promote,
    Reaped,
    Renewal,
)
from lien.sqlfile import Statement

TABLES = ("lien_job", "lien_history", "lien_attempt")
UTC = datetime.UTC
OUTCOMES = {
    "succeed": AttemptOutcome.SUCCEEDED,
    "fail": AttemptOutcome.FAILED,
    "snooze": AttemptOutcome.SNOOZED,
    "release": AttemptOutcome.RELEASED,
}


def new(task: str = "work", **fields: Any) -> NewJob:
    """A job to enqueue, already checked."""
    return NewJob(task=task, **{"args": "{}", **fields})


def ack(claim: Claim, kind: str = "succeed", **fields: Any) -> Ack:
    """The end of a claim; `final=True` gives a reason unless there is one."""
    if fields.get("final"):
        fields.setdefault("reason", machine.Reason.PERMANENT)
    if kind == "release" and fields.setdefault("started", False):
        fields.setdefault("outcome", AttemptOutcome.INTERRUPTED)
    fields.setdefault("outcome", OUTCOMES[kind])
    return Ack(claim.id, claim.attempt, claim.token, kind, **fields)


def held(*claims: Claim) -> list[Held]:
    return [Held(claim.id, claim.token) for claim in claims]


class Database:
    """A migrated, empty database: `jobs` over it, verbs in short, and raw SQL beside them."""

    def __init__(self, url: str, schema: str | None = None) -> None:
        self.url = url
        self.jobs = lien.Lien(url, schema=schema)
        self.store = self.jobs.store
        self.engine = self.store.engine
        self.name = self.engine.name
        self._open: list[Any] = []
        self._raw: Any = None
        self._lock = threading.Lock()

    @property
    def is_postgres(self) -> bool:
        return self.name == "postgresql"

    def close(self) -> None:
        for connection in self._open:
            with suppress(Exception):
                connection.close()
        self.jobs.close()

    # -- raw SQL --

    def connect(self, **options: Any) -> Any:
        """A connection as a caller has one: not ours, not in autocommit unless asked for."""
        if self.is_postgres:
            import psycopg

            connection: Any = psycopg.connect(self.url, **options)
        else:
            path = self.url.partition("///")[2].partition("?")[0]
            connection = sqlite3.connect(path, timeout=10, check_same_thread=False, **options)
        self._open.append(connection)
        return connection

    def autocommit(self) -> Any:
        """The same in autocommit."""
        if self.is_postgres:
            return self.connect(autocommit=True)
        return self.connect(isolation_level=None)

    async def aconnect(self, **options: Any) -> Any:
        """An asynchronous one, where the engine has any; the caller closes it."""
        import psycopg

        return await psycopg.AsyncConnection.connect(self.url, **options)

    def place(self, sql: str) -> str:
        """The text with its tables put where they are."""
        if self.is_postgres:
            sql = re.sub(r'(?<![.\w"])(?=lien_\w)', "lien.", sql)
        return self.engine.place(sql)

    def on(self, connection: Any, sql: str, **params: Any) -> list[tuple[Any, ...]]:
        """Run one statement on a connection; its rows as tuples."""
        style = "pyformat" if self.is_postgres else "named"
        cursor = connection.cursor()
        cursor.execute(Statement("test", self.place(sql)).render(style), params)
        rows = cursor.fetchall() if cursor.description else []
        cursor.close()
        return [tuple(row.values()) if isinstance(row, dict) else tuple(row) for row in rows]

    def query(self, sql: str, **params: Any) -> list[tuple[Any, ...]]:
        """Run one statement and commit; its rows."""
        with self._lock:
            if self._raw is None:
                self._raw = self.autocommit()
            return self.on(self._raw, sql, **params)

    execute = query

    def value(self, sql: str, **params: Any) -> Any:
        """The only value of the only row."""
        ((value,),) = self.query(sql, **params)
        return value

    def rows(self, sql: str, **params: Any) -> list[dict[str, Any]]:
        """Rows by column name."""
        with self._lock:
            if self._raw is None:
                self._raw = self.autocommit()
            style = "pyformat" if self.is_postgres else "named"
            cursor = self._raw.cursor()
            cursor.execute(Statement("test", self.place(sql)).render(style), params)
            names = [column[0] for column in cursor.description]
            found = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
            cursor.close()
            return found

    def moment(self, seconds: float = 0.0) -> Any:
        """The engine's own value for the database's time plus so many seconds."""
        if self.is_postgres:
            now: datetime.datetime = self.value("SELECT clock_timestamp()")
            return now + datetime.timedelta(seconds=seconds)
        from lien.clock import host_time_us

        return host_time_us() + round(seconds * 1e6)

    def now(self) -> datetime.datetime:
        """The database's time."""
        return self.time(self.moment())

    @staticmethod
    def time(value: Any) -> datetime.datetime:
        """An engine's own time as an aware datetime."""
        if isinstance(value, datetime.datetime):
            return value.astimezone(UTC)
        return datetime.datetime.fromtimestamp(value / 1e6, UTC)

    # -- rows --

    def job(self, id: int) -> dict[str, Any] | None:
        """The live row, all columns."""
        found = self.rows("SELECT * FROM lien_job WHERE id = :id", id=id)
        return found[0] if found else None

    def snapshot(self, id: int) -> dict[str, list[str]]:
        """Everything that storage has about a job, to be compared as it stands."""
        keys = {"lien_job": "id", "lien_history": "id", "lien_attempt": "job_id"}
        return {
            table: sorted(
                repr(sorted(row.items())) for row in self.rows(f"SELECT * FROM {table} WHERE {key} = :id", id=id)
            )
            for table, key in keys.items()
        }

    def everything(self) -> dict[str, list[str]]:
        """All rows of all three tables."""
        return {t: sorted(map(repr, self.query(f"SELECT * FROM {t}"))) for t in TABLES}

    def counts(self) -> tuple[int, int, int]:
        """How many live, terminal and attempt rows there are."""
        live, over, attempts = (self.value(f"SELECT count(*) FROM {t}") for t in TABLES)
        return live, over, attempts

    def states(self) -> dict[int, str]:
        """The state of each job, live or terminal."""
        return dict(self.query("SELECT id, state FROM lien_jobs"))

    def set(self, id: int, **columns: Any) -> None:
        """Change a live row by hand."""
        changes = ", ".join(f"{name} = :{name}" for name in columns)
        self.query(f"UPDATE lien_job SET {changes} WHERE id = :id", id=id, **columns)

    def make_due(self, *ids: int, ago: float = 1.0) -> None:
        for id in ids:
            self.set(id, available_at=self.moment(-ago))

    def end_lease(self, *claims: Claim | int, ago: float = 1.0) -> None:
        for claim in claims:
            id = claim if isinstance(claim, int) else claim.id
            self.set(id, lease_expires_at=self.moment(-ago))

    def end_life(self, *ids: int, ago: float = 1.0) -> None:
        for id in ids:
            self.set(id, expires_at=self.moment(-ago))

    # -- verbs --

    def run(self, verb: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self.store.run(verb, *args, **kwargs)

    def enqueue(self, task: str = "work", **fields: Any) -> int:
        """Enqueue one job of a name; its id."""
        found: Enqueued = self.run(self.engine.enqueue, new(task, **fields))
        assert found.created
        return found.id

    def enqueue_n(self, n: int, **fields: Any) -> list[int]:
        found: list[Enqueued] = self.run(self.engine.enqueue_many, [new(**fields)] * n)
        return [job.id for job in found]

    def request(  # every part of a wish
        self,
        n: int = 1,
        *,
        tasks: Sequence[str] = ("work",),
        queue: str = "default",
        lanes: Sequence[Lane] | None = None,
        lease: float = 60.0,
        worker: str = "worker-1",
        token: uuid.UUID | None = None,
    ) -> ClaimRequest:
        return ClaimRequest(
            lanes=tuple(lanes or [Lane(queue, priority, None) for priority in range(4)]),
            limit=n,
            tasks=tuple(tasks),
            token=token or uuid.uuid4(),
            worker=worker,
            lease=lease,
        )

    def cycle(
        self,
        acks: Iterable[Ack] = (),
        claim: ClaimRequest | None = None,
        promote: Promote | None = None,
    ) -> Cycle:
        done: Cycle = self.run(self.engine.cycle, list(acks), claim, promote)
        return done

    def claim(self, n: int = 1, **wish: Any) -> list[Claim]:
        """Claim up to n jobs, of every class of one queue unless lanes are given."""
        return self.cycle(claim=self.request(n, **wish)).claims

    def claimed(self, **fields: Any) -> Claim:
        """A new job, claimed."""
        id = self.enqueue(**fields)
        task, queue = fields.get("task", "work"), fields.get("queue", "default")
        (claim,) = self.claim(1, tasks=[task], queue=queue)
        assert claim.id == id
        return claim

    def reclaim(self, id: int, **wish: Any) -> Claim:
        """Bring a waiting job back to a worker, whatever it waits for."""
        self.make_due(id)
        self.promote()
        (claim,) = [c for c in self.claim(100, **wish) if c.id == id]
        return claim

    def promote(self, limit: int = 100, floor: Any = None) -> Cycle:
        return self.cycle(promote=Promote(floor, limit))

    def finish(self, *acks: Ack) -> Cycle:
        done: Cycle = self.run(self.engine.finish, list(acks))
        return done

    def ack(self, claim: Claim, kind: str = "succeed", **fields: Any) -> Cycle:
        return self.finish(ack(claim, kind, **fields))

    def find_closed(self, *acks: Ack) -> set[int]:
        closed: set[int] = self.run(self.engine.find_closed, list(acks))
        return closed

    def renew(self, *claims: Claim, lease: float = 60.0) -> Renewal:
        answer: Renewal = self.run(self.engine.renew, held(*claims), lease)
        return answer

    def reap(self, limit: int = 100) -> list[Reaped]:
        taken: list[Reaped] = self.run(self.engine.reap, limit)
        return taken

    def expire(self, limit: int = 100) -> int:
        ended: int = self.run(self.engine.expire, limit)
        return ended

    def park(self, *tasks: str, limit: int = 100) -> int:
        parked: int = self.run(self.engine.park, "default", 2, list(tasks), limit)
        return parked

    def unpark(self, *tasks: str, limit: int = 100) -> int:
        unparked: int = self.run(self.engine.unpark, list(tasks), limit)
        return unparked

    # -- other people --

    def blocked(self) -> bool:
        """Whether some session of PostgreSQL waits for a lock of another one."""
        return bool(
            self.value(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
        )


class Threads:
    """Real threads, started together; `join` gives their answers or raises their errors."""

    def __init__(self, *functions: Callable[[], Any]) -> None:
        self._start = threading.Barrier(len(functions))
        self._answers: list[Any] = [None] * len(functions)
        self._errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(i, function), daemon=True) for i, function in enumerate(functions)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, index: int, function: Callable[[], Any]) -> None:
        try:
            self._start.wait(30)
            self._answers[index] = function()
        except BaseException as error:  # noqa: BLE001 - raised again in join
            self._errors.append(error)

    @property
    def running(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def join(self) -> list[Any]:
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a thread is stuck"
        if self._errors:
            raise self._errors[0]
        return self._answers


def together(*functions: Callable[[], Any]) -> list[Any]:
    """Run functions at the same time; their answers in order."""
    return Threads(*functions).join()


def wait_for(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Ask until the answer is true; never a fixed pause."""
    pause = threading.Event()
    for _ in range(int(seconds / 0.005)):
        if answer := condition():
            return answer
        pause.wait(0.005)
    raise AssertionError("it did not come true")
