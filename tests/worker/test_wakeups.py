"""Wake-ups: an idle worker that looks every 30 s starts what comes at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lien.machine import State
from tests.worker.kit import ROOT, Place, wait_until

SOON = 5.0


def _asleep(place: Place) -> None:
    """Wait until an idle worker would hear of an enqueue."""
    if place.is_postgres:
        wait_until(lambda: place.sql("SELECT 1 FROM lien_sleeper"), "the worker sleeps")
        return
    place.task("mark").enqueue(n=0)  # it has started, so it is awake no longer
    place.wait_finished(1)


@pytest.mark.parametrize("way", ["own", "borrowed", "many", "sql", "process", "scheduled"])
def test_an_idle_worker_hears_of(place, way):
    if way == "sql" and not place.is_postgres:
        return
    task = place.task("mark")
    with place.worker(poll=30.0):
        _asleep(place)
        before = place.finished()
        new = 1
        match way:
            case "own":
                task.enqueue(n=1)
            case "borrowed":
                with place.raw() as connection:
                    if place.is_postgres:
                        connection.autocommit = False
                    else:
                        connection.execute("BEGIN")
                    task.using(connection).enqueue(n=1)
                    connection.commit()
                if not place.is_postgres:
                    connection.close()
            case "many":
                new = 500
                task.enqueue_many({"n": n} for n in range(new))
            case "sql":
                place.sql("""SELECT lien.lien_enqueue('mark', '{"n": 1}')""")
            case "process":
                code = (
                    "import sys, lien\n"
                    "jobs = lien.Lien(sys.argv[1])\n"
                    "@jobs.task\n"
                    "def mark(n: int) -> None: ...\n"
                    "mark.enqueue(n=1)\n"
                    "jobs.close()\n"
                )
                subprocess.run([sys.executable, "-c", code, place.url], check=True, cwd=ROOT)
            case "scheduled":
                task.using(delay=1.0).enqueue(n=1)
        place.wait_finished(before + new, SOON)


def test_a_delayed_job_that_was_there_before_starts_when_due(place):
    job = place.task("mark").using(delay=1.5).enqueue(n=1).id
    with place.worker(poll=30.0):
        place.wait_state(job, State.SUCCEEDED, SOON)


def test_a_retry_starts_when_due(place):
    job = place.task("works").enqueue(n=5).id
    with place.worker(poll=30.0):
        place.wait_state(job, State.SUCCEEDED, SOON)


def test_work_that_waits_behind_a_full_worker_follows_at_once(place):
    place.task("mark").enqueue_many({"n": n} for n in range(50))
    with place.worker(poll=30.0, concurrency=3):
        place.wait_finished(50, SOON * 2)


def test_a_sleeper_that_sleeps_longer_than_its_record(postgres: Place):
    """The record of a sleeper ends after some seconds; with a long poll it must be renewed."""
    task = postgres.task("mark")
    with postgres.worker(poll=60.0):
        _asleep(postgres)
        (first,) = postgres.sql("SELECT max(until) FROM lien_sleeper")[0]
        wait_until(
            lambda: postgres.sql("SELECT 1 WHERE :first < clock_timestamp()", first=first),
            "the first record is over",
        )
        task.enqueue(n=1)
        postgres.wait_finished(1, SOON)


def test_an_enqueue_that_rolls_back_wakes_nobody_into_error(place):
    task = place.task("mark")
    with place.worker(poll=0.05) as worker:
        connection = place.raw()
        if place.is_postgres:
            connection.autocommit = False
        else:
            connection.execute("BEGIN")
        task.using(connection).enqueue(n=1)
        connection.rollback()
        connection.close()
        after = task.enqueue(n=2).id
        place.wait_state(after, State.SUCCEEDED)
    assert place.folder.notes("marks") == ["2"]
    assert not worker.seen("disconnected")
