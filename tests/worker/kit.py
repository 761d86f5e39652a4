"""One database and the workers on it, as the tests of this folder see them.

SQL of the tests names tables without a place (`lien_job`) and parameters as `:name`.
"""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest

import lien
from lien import clock
from lien.machine import AttemptOutcome, Reason, State
from lien.model import JobRecord
from lien.worker import Event, Settings, Worker
from tests.worker.apps import Folder, register

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
AT_ONCE = lien.Backoff(base=0.0, cap=0.0)
LEASE = 1.5
PATIENCE = 20.0
_PAUSE = threading.Event()


def wait_until(condition: Callable[[], T], what: str, seconds: float = PATIENCE) -> T:
    """The first true answer; fails when there is none in time."""
    deadline = clock.monotonic() + seconds
    while True:
        if answer := condition():
            return answer
        if clock.monotonic() > deadline:
            pytest.fail(f"waited {seconds:g} s in vain: {what}")
        _PAUSE.wait(0.01)


def settings(**given: Any) -> dict[str, Any]:
    """Settings of a worker in a hurry."""
    return {
        "lease": LEASE,
        "poll": 0.1,
        "grace": 10.0,
        "cancel_grace": 1.0,
        "concurrency": 4,
        **given,
    }


class Running:
    """A worker in a thread of this process."""

    def __init__(self, jobs: lien.Lien, **given: Any) -> None:
        self.events: list[Event] = []
        self.worker = Worker(jobs, Settings(**settings(**given)), hooks=(self.events.append,))
        self.code: int | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.code = self.worker.run()
        except BaseException as error:  # noqa: BLE001 - for the test to look at
            self.error = error

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self, seconds: float = PATIENCE) -> int | None:
        """Drain it and wait for its end."""
        if self.alive:
            self.worker.stop()
        return self.join(seconds)

    def join(self, seconds: float = PATIENCE) -> int | None:
        self._thread.join(seconds)
        assert not self.alive, "the worker did not end"
        return self.code

    def seen(self, what: str, **fields: Any) -> list[Event]:
        return [
            event
            for event in list(self.events)
            if event.what == what and all(getattr(event, key) == value for key, value in fields.items())
        ]

    def wait_for(self, what: str, **fields: Any) -> Event:
        def found() -> list[Event]:
            return self.seen(what, **fields)

        return wait_until(found, f"{what} {fields} among {self.events}")[0]


class Process:
    """A worker process."""

    def __init__(self, url: str, folder: Folder, **given: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self._log = (folder.path / f"log-{id(self)}").open("w+")
        command = [sys.executable, "-m", "tests.worker.apps", url, str(folder.path)]
        self.process = subprocess.Popen(
            [*command, json.dumps(settings(**given))],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with suppress(ValueError):  # cut short by SIGKILL
                self.events.append(json.loads(line))

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def seen(self, what: str, **fields: Any) -> list[dict[str, Any]]:
        wanted = {"what": what, **fields}
        return [event for event in list(self.events) if wanted.items() <= event.items()]

    def wait_for(self, what: str, **fields: Any) -> dict[str, Any]:
        def found() -> list[dict[str, Any]]:
            found = self.seen(what, **fields)
            if not found and self.process.poll() is not None:
                self._reader.join(5)
                found = self.seen(what, **fields)
                assert found, f"ended with {self.process.returncode}: {self.log}"
            return found

        return wait_until(found, f"{what} {fields} among {self.events}")[0]

    def ready(self) -> Process:
        self.wait_for("ready")
        return self

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def exit(self, seconds: float = PATIENCE) -> int:
        """Its exit code, once it has ended by itself."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the worker process did not end in {seconds:g} s: {self.log}")
        self._reader.join(5)
        return code

    def drain(self) -> int:
        self.signal(signal.SIGTERM)
        return self.exit()

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        self._reader.join(5)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log.close()


class Place:
    """A migrated database, a folder, and workers that end with the test."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = Folder(folder)
        self.jobs = lien.Lien(url)
        self.jobs.migrate()
        self.engine = self.jobs.store.engine
        self.workers: list[Running] = []
        self.processes: list[Process] = []
        self._raw: Any = None
        self._lock = threading.Lock()

    @property
    def is_postgres(self) -> bool:
        return self.engine.name == "postgresql"

    def close(self) -> None:
        for process in self.processes:
            process.close()
        for worker in self.workers:
            worker.worker.stop()
            worker.stop()
        if self._raw is not None:
            self._raw.close()
        self.jobs.close()

    # -- workers --

    def with_app(self) -> Place:
        """Register the tasks of the worker processes here too."""
        register(self.jobs, self.folder)
        return self

    def task(self, name: str) -> lien.Task[..., Any]:
        if name not in self.jobs.tasks:
            self.with_app()
        return self.jobs.tasks[name]

    def start(self, jobs: lien.Lien | None = None, **given: Any) -> Running:
        """A worker in a thread."""
        worker = Running(jobs or self.jobs, **given)
        self.workers.append(worker)
        worker.start()
        return worker

    @contextmanager
    def worker(self, **given: Any) -> Iterator[Running]:
        """The same, drained at the end of the block."""
        worker = self.start(**given)
        try:
            yield worker
        finally:
            worker.stop()
        assert worker.error is None

    def burst(self, **given: Any) -> Running:
        """Run all that can run now."""
        worker = self.start(burst=True, **given)
        worker.join()
        assert worker.error is None
        assert worker.code == 0
        return worker

    def process(self, **given: Any) -> Process:
        """A worker in a process of its own."""
        process = Process(given.pop("url", self.url), self.folder, **given)
        self.processes.append(process)
        return process

    def other(self) -> lien.Lien:
        """Another application on the same database."""
        return lien.Lien(self.url)

    # -- storage --

    def raw(self) -> Any:
        """A connection in autocommit, not Lien's; the caller closes it."""
        if self.is_postgres:
            import psycopg

            return psycopg.connect(self.url, autocommit=True)
        path = self.url.partition("///")[2]
        return sqlite3.connect(path, timeout=20, isolation_level=None, check_same_thread=False)

    def sql(self, text: str, /, **params: Any) -> list[tuple[Any, ...]]:
        """Run one statement, committed at once."""
        with self._lock:
            if self._raw is None or not self._answers():
                self._raw = self.raw()
            if self.is_postgres:
                text = re.sub(r"(?<![.\w'\"])(?=lien_\w)", "lien.", text)
                text = re.sub(r"(?<![:\w]):(\w+)", r"%(\1)s", text)
                cursor = self._raw.execute(text, params or None)
                return cursor.fetchall() if cursor.description else []
            rows: list[tuple[Any, ...]] = self._raw.execute(text, params).fetchall()
            return rows

    def _answers(self) -> bool:
        try:
            self._raw.execute("SELECT 1")
        except Exception:  # noqa: BLE001 - whatever it is, another connection is wanted
            self._raw.close()
            return False
        return True

    @property
    def now(self) -> str:
        """The database's clock, as an expression."""
        return "clock_timestamp()" if self.is_postgres else str(clock.host_time_us())

    def ago(self, seconds: float) -> str:
        """A moment as an expression."""
        if self.is_postgres:
            return f"(clock_timestamp() - interval '{seconds} seconds')"
        return str(clock.host_time_us() - int(seconds * 1e6))

    def run(self, verb: Callable[..., Any], *args: Any) -> Any:
        return self.jobs.store.run(verb, *args)

    def job(self, id: int) -> JobRecord:
        return self.jobs.job(id)

    def outcomes(self, id: int) -> list[str]:
        """How its attempts ended, oldest first."""
        rows = self.sql("SELECT outcome FROM lien_attempt WHERE job_id = :id ORDER BY attempt, ended_at", id=id)
        return [row[0] for row in rows]

    def finished(self) -> int:
        return int(self.sql("SELECT count(*) FROM lien_history")[0][0])

    def live(self) -> int:
        return int(self.sql("SELECT count(*) FROM lien_job")[0][0])

    def claimed(self) -> int:
        return int(self.sql("SELECT count(*) FROM lien_job WHERE state = 'claimed'")[0][0])

    def wait_state(self, id: int, state: State, seconds: float = PATIENCE) -> JobRecord:
        def there() -> JobRecord | None:
            job = self.job(id)
            return job if job.state is state else None

        return wait_until(there, f"job {id} is {state}", seconds)

    def wait_finished(self, n: int, seconds: float = PATIENCE * 2) -> None:
        wait_until(lambda: self.finished() >= n, f"{n} jobs are over", seconds)

    def wait_attempts(self, id: int, n: int) -> list[str]:
        wait_until(lambda: len(self.outcomes(id)) >= n, f"{n} attempts of job {id}")
        return self.outcomes(id)

    def starts(self, id: int | None = None) -> list[str]:
        """Starts of handlers in processes."""
        lines = self.folder.notes("starts")
        return [line for line in lines if id is None or line.split()[0] == str(id)]

    def wait_starts(self, n: int, id: int | None = None) -> None:
        wait_until(lambda: len(self.starts(id)) >= n, f"{n} starts")

    def renewed(self, id: int, times: float = 3.0, lease: float = LEASE) -> Callable[[], bool]:
        """A condition: the claim has stood for so many leases by the database's clock."""
        self.wait_state(id, State.CLAIMED)

        def long_enough() -> bool:
            job = self.job(id)
            if job.lease_expires_at is None or job.claimed_at is None:
                return True  # lost on the way: the test looks at the attempts
            return (job.lease_expires_at - job.claimed_at).total_seconds() > (times + 1) * lease

        return long_enough

    def check(self, ids: Iterable[int]) -> None:
        """The invariants that hold whatever was killed on the way (all jobs must be over)."""
        check_history(self, sorted(ids))

    def guard(self) -> None:
        """Make storage refuse any change of what is written once."""
        for table in ("lien_history", "lien_attempt"):
            if not self.is_postgres:
                for verb in ("UPDATE", "DELETE"):
                    self.sql(
                        f"CREATE TRIGGER {table}_{verb} BEFORE {verb} ON {table}"
                        f" BEGIN SELECT RAISE(ABORT, 'written once'); END"
                    )
                continue
            self.sql(
                "CREATE OR REPLACE FUNCTION public.once() RETURNS trigger LANGUAGE plpgsql AS"
                " $$ BEGIN RAISE 'written once'; END $$"
            )
            self.sql(
                f"CREATE TRIGGER once BEFORE UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION public.once()"
            )

    def poison(self, table: str, id: int, column: str = "id") -> None:
        """Make storage refuse an insert for one job."""
        if self.is_postgres:
            self.sql(
                "CREATE OR REPLACE FUNCTION public.poison() RETURNS trigger LANGUAGE plpgsql AS"
                " $$ BEGIN RAISE 'poisoned' USING ERRCODE = '23514'; END $$"
            )
            self.sql(
                f"CREATE TRIGGER poison BEFORE INSERT ON {table} FOR EACH ROW"
                f" WHEN (NEW.{column} = {id}) EXECUTE FUNCTION public.poison()"
            )
        else:
            self.sql(
                f"CREATE TRIGGER poison BEFORE INSERT ON {table} WHEN NEW.{column} = {id}"
                " BEGIN SELECT RAISE(ABORT, 'poisoned'); END"
            )


def check_history(place: Place, ids: list[int]) -> None:
    """A small checker of the invariants 1 to 7 and 10."""
    assert place.sql("SELECT id, state FROM lien_job") == [], "every job is over"
    rows = place.sql(
        "SELECT id, state, reason, attempt, fence, failures, max_failures, lost, max_lost,"
        " interrupted, max_interrupted FROM lien_history ORDER BY id"
    )
    assert [row[0] for row in rows] == ids, "1, 3: each job ended, once"
    attempts: dict[int, list[tuple[Any, ...]]] = {}
    for attempt in place.sql(
        "SELECT job_id, attempt, outcome, claim_token, fence, started_at, ended_at"
        " FROM lien_attempt ORDER BY job_id, attempt"
    ):
        attempts.setdefault(attempt[0], []).append(attempt[1:])
    assert set(attempts) <= set(ids)
    for id, state, reason, attempt, fence, failures, max_f, lost, max_l, cut, max_c in rows:
        mine = attempts.get(id, [])
        assert [a[0] for a in mine] == list(range(1, attempt + 1)), f"4: attempts of {id}: {mine}"
        won = [a for a in mine if a[1] == AttemptOutcome.SUCCEEDED]
        assert len(won) == (state == State.SUCCEEDED), f"2, 7: {id} is {state} and has {won}"
        assert mine[-1][3] == fence, f"2: the last claim ended {id}"
        if won:
            assert won == mine[-1:], f"3: {id} was claimed after its success"
        fences = [a[3] for a in mine]
        assert fences == sorted(set(fences)), f"5: fences of {id}: {fences}"
        for before, after in pairwise(mine):
            assert before[5] <= after[4], f"6: claims of {id} overlap: {before} {after}"
        failed = sum(a[1] in {"failed", "timeout", "cancelled"} for a in mine)
        assert failures == failed <= max_f, f"10: failures of {id}: {mine}"
        assert lost <= max_l, f"10: losses of {id}"
        assert cut == sum(a[1] == "interrupted" for a in mine) <= max_c, f"10: drains of {id}"
        if reason is not None:
            assert reason in set(Reason)
