"""One producer: `python -m chaos.producer URL NAME JOBS SECONDS POISON SEED LOG`.

It enqueues within business transactions on its own connections, through Lien's, and logs before each step what it is
about to do and after it what came of it, one line of JSON each.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import lien
from chaos.app import QUEUES, open_lien, sign
from lien import clock
from lien.drivers.classify import from_driver

_WEIGHTS = {
    "noop": 40,
    "effect": 22,
    "flaky": 8,
    "hopeless": 2,
    "slow": 3,
    "blocking": 2,
    "snoozer": 5,
    "asker": 5,
    "discarded": 3,
    "result": 10,
}


class Refused(Exception):
    """The business says no: roll back."""


@dataclass(slots=True)
class Written:
    """What one step wrote, for its line in the log."""

    created: list[str] = field(default_factory=list)
    undone: list[str] = field(default_factory=list)


class Producer:
    """Enqueues in every way that there is.

    Args:
        url: the database.
        name: begins every mark, and names its connections.
        poison: how many of its jobs kill their worker.
        seed: of its dice.
        log: the file for its lines.
    """

    def __init__(self, url: str, name: str, poison: int, seed: int, log: str) -> None:
        self.jobs = open_lien(url, name)
        self._url = url
        self._name = name
        self._poison = poison
        self._dice = random.Random(seed)
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._connection: Any = None
        self._count = 0

    def run(self, jobs: int, seconds: float) -> None:
        """Enqueue so many jobs, evenly over so many seconds."""
        started = clock.monotonic()
        ways = (self.business, self.business, self.savepoints, self.bulk, self.own, self.own_bulk, self.unique)
        while self._count < jobs:
            self._dice.choice(ways)()
            ahead = self._count / jobs * seconds - (clock.monotonic() - started)
            if ahead > 0:
                clock.sleep(ahead)

    # ── the ways ──

    def business(self) -> None:
        """An order and its jobs, in the caller's transaction; some are rolled back."""
        calls = [self._call() for _ in range(self._dice.randint(1, 4))]
        refused = self._chance(0.2)
        with self._step("business", [mark for _, mark in calls]) as written, self._transaction() as connection:
            for (task, options, arguments), mark in calls:
                task.using(connection, **options).enqueue(**arguments)
                self._order(connection, mark)
                written.created.append(mark)
            if self._chance(0.1):
                clock.sleep(self._dice.random() * 0.1)  # a transaction that takes its time commits low ids late
            if refused:
                raise Refused

    def savepoints(self) -> None:
        """Part of a transaction is rolled back, the rest commits."""
        calls = [self._call() for _ in range(4)]
        with self._step("savepoints", [mark for _, mark in calls]) as written, self._transaction() as connection:
            for i, ((task, options, arguments), mark) in enumerate(calls):
                connection.execute("SAVEPOINT maybe")
                task.using(connection, **options).enqueue(**arguments)
                self._order(connection, mark)
                if i % 2:
                    connection.execute("ROLLBACK TO SAVEPOINT maybe")
                    written.undone.append(mark)
                else:
                    written.created.append(mark)
                connection.execute("RELEASE SAVEPOINT maybe")

    def bulk(self) -> None:
        """Many at once in the caller's transaction; some are rolled back."""
        calls = [self._call() for _ in range(self._dice.randint(2, 25))]
        refused = self._chance(0.2)
        marks = [mark for _, mark in calls]
        with self._step("bulk", marks) as written, self._transaction() as connection:
            self.jobs.enqueue_many(
                [task.using(**options).call(**arguments) for (task, options, arguments), _ in calls], on=connection
            )
            for mark in marks:
                self._order(connection, mark)
            written.created += marks
            if refused:
                raise Refused

    def own(self) -> None:
        """One job on a connection of Lien's own."""
        (task, options, arguments), mark = self._call()
        with self._step("own", [mark]) as written:
            task.using(**options).enqueue(**arguments)
            written.created.append(mark)

    def own_bulk(self) -> None:
        """Many on a connection of Lien's own."""
        calls = [self._call() for _ in range(self._dice.randint(2, 25))]
        with self._step("own_bulk", [mark for _, mark in calls]) as written:
            self.jobs.enqueue_many([task.using(**options).call(**arguments) for (task, options, arguments), _ in calls])
            written.created += [mark for _, mark in calls]

    def unique(self) -> None:
        """One of a few unique keys: mostly an older job is found."""
        (task, options, arguments), mark = self._call()
        options["unique"] = f"key-{self._dice.randint(0, 9)}"
        mine = self._chance(0.5)
        with self._step("unique" if mine else "own_unique", [mark]) as written:
            if mine:
                with self._transaction() as connection:
                    created = task.using(connection, **options).enqueue(**arguments).created
                    if created:
                        self._order(connection, mark)
            else:
                created = task.using(**options).enqueue(**arguments).created
            (written.created if created else written.undone).append(mark)

    # ── parts ──

    def _chance(self, share: float) -> bool:
        return self._dice.random() < share

    def _call(self) -> tuple[tuple[Any, dict[str, Any], dict[str, Any]], str]:
        dice = self._dice
        self._count += 1
        if self._poison and self._chance(0.02):
            self._poison -= 1
            name = "poison"
        else:
            name = dice.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        mark = f"{name}:{self._name}:{self._count}"
        arguments: dict[str, Any] = {"mark": mark}
        if name == "flaky":
            arguments["fails"] = dice.randint(1, 3)
        elif name in {"slow", "blocking"}:
            arguments["leases"] = dice.uniform(0.2, 1.8)
        elif name == "poison":
            arguments["odds"] = 0.7
        options: dict[str, Any] = {"priority": dice.randint(0, 3)}
        if self._chance(0.1):
            options["queue"] = dice.choice(QUEUES)
        if self._chance(0.15):
            options["delay"] = dice.uniform(0.1, 3.0)
            self._not_before(mark, options["delay"])
        if self._chance(0.03):
            options["expires"] = dice.uniform(0.01, 1.0)
        if self._chance(0.15):
            options["max_lost"] = 1
        if self._chance(0.25):
            options["max_interrupted"] = 1
        return (self.jobs.task_named(name), options, arguments), mark

    def _not_before(self, mark: str, delay: float) -> None:
        self._write({"mark": mark, "not_before": clock.host_time_us() + round(delay * 1_000_000)})

    @contextmanager
    def _step(self, way: str, marks: list[str]) -> Iterator[Written]:
        """Log the intention, then what came of it: committed, rolled back, or unknown."""
        number = self._count
        self._write({"step": number, "way": way, "marks": marks})
        written = Written()
        outcome = "committed"
        try:
            yield written
        except Refused:
            outcome = "rolled_back"
        except lien.DatabaseError as error:
            outcome = "unknown"
            self._drop(error)
        except Exception as error:
            if not from_driver(error):
                raise
            outcome = "unknown"
            self._drop(error)
        self._write({"step": number, "outcome": outcome, "created": written.created, "undone": written.undone})

    def _drop(self, error: Exception) -> None:
        self._connection = None
        self._write({"trouble": f"{type(error).__name__}: {error}"[:200]})
        clock.sleep(0.05)

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        """The caller's own transaction on the caller's own connection."""
        connection = self._connection = self._connection or self._connect()
        connection.execute("BEGIN IMMEDIATE" if isinstance(connection, sqlite3.Connection) else "BEGIN")
        try:
            yield connection
        except Refused:
            connection.execute("ROLLBACK")
            raise
        except BaseException:
            connection.close()
            raise
        connection.execute("COMMIT")

    def _connect(self) -> Any:
        if self._url.startswith("postgresql"):
            import psycopg

            return psycopg.connect(self._url, autocommit=True, connect_timeout=5, application_name=self._name)
        connection = sqlite3.connect(self._url.removeprefix("sqlite:///"), timeout=15, isolation_level=None)
        sign(connection, self._name)
        return connection

    def _order(self, connection: Any, mark: str) -> None:
        place = "?" if isinstance(connection, sqlite3.Connection) else "%s"
        connection.execute(f"INSERT INTO chaos_order (mark) VALUES ({place})", (mark,))  # noqa: S608 - a placeholder

    def _write(self, line: dict[str, Any]) -> None:
        os.write(self._log, json.dumps(line).encode() + b"\n")


if __name__ == "__main__":
    url, name, jobs, seconds, poison, seed, log = sys.argv[1:]
    Producer(url, name, int(poison), int(seed), log).run(int(jobs), float(seconds))
