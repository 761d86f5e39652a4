"""Pickup: from the commit of an enqueue to the start of its handler, on an idle queue.

`python -m bench.pickup URL N` runs a worker in this process and enqueues from a child; prints the medians of the
pickup and of one commit of one small row in the same database, in milliseconds.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time

from bench.databases import app
from lien.worker import Settings, Worker


def enqueuer(url: str, n: int) -> None:
    """The child: enqueue, tell when it was committed, wait for the word that it ran, pause, again."""
    jobs = app(url)

    @jobs.task
    def mark(n: int) -> None: ...

    for i in range(n):
        before = time.monotonic_ns()
        mark.enqueue(n=i)
        print(time.monotonic_ns(), time.monotonic_ns() - before, flush=True)
        sys.stdin.readline()


def commits(url: str, n: int) -> list[float]:
    """Milliseconds of n single-row transactions."""
    took = []
    if url.startswith("sqlite"):
        import sqlite3

        connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE IF NOT EXISTS commits (n INTEGER)")
        for i in range(n):
            started = time.perf_counter()
            connection.execute("INSERT INTO commits VALUES (?)", (i,))
            took.append((time.perf_counter() - started) * 1000)
        return took
    import psycopg

    with psycopg.connect(url, autocommit=True) as postgres:
        postgres.execute("CREATE TABLE IF NOT EXISTS commits (n integer)")
        for i in range(n):
            started = time.perf_counter()
            postgres.execute("INSERT INTO commits VALUES (%s)", (i,))
            took.append((time.perf_counter() - started) * 1000)
    return took


def measure(url: str, n: int) -> dict[str, float]:
    """Medians of pickup and commit, in milliseconds."""
    jobs = app(url)
    jobs.migrate()
    begun: list[int] = []
    ran = threading.Event()

    @jobs.task
    def mark(n: int) -> None:
        begun.append(time.monotonic_ns())
        ran.set()

    worker = Worker(jobs, Settings(concurrency=10))
    thread = threading.Thread(target=lambda: worker.run(signals=False))
    thread.start()
    child = subprocess.Popen(
        [sys.executable, "-m", "bench.pickup", url, str(n), "enqueue"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    pickups = []
    for _ in range(n):
        committed = int(child.stdout.readline().split()[0])
        ran.wait(10)
        ran.clear()
        pickups.append((begun[-1] - committed) / 1e6)
        time.sleep(0.03)  # noqa: TID251 - lets the worker become idle
        child.stdin.write("\n")
        child.stdin.flush()
    child.wait()
    worker.stop()
    thread.join()
    return {"pickup": statistics.median(pickups[n // 5 :]), "commit": statistics.median(commits(url, 200))}


if __name__ == "__main__":
    if sys.argv[3:] == ["enqueue"]:
        enqueuer(sys.argv[1], int(sys.argv[2]))
    else:
        print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
