"""Unique keys: at most one live job of a key in a queue, whoever commits, rolls back or comes late."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from lien.model import Enqueued
from tests.conformance.kit import Database, Threads, ack, new, together, wait_for


def put(db: Database, key: str = "K", **fields: object) -> Enqueued:
    found: Enqueued = db.run(db.engine.enqueue, new(unique_key=key, **fields))
    return found


def test_an_equal_key_answers_with_the_older_job(db: Database) -> None:
    first = put(db, args='{"a":1}')
    before = db.everything()
    assert put(db, args='{"a":2}') == Enqueued(first.id, created=False)
    assert db.everything() == before


def test_keys_differ_by_queue(db: Database) -> None:
    assert put(db).created
    assert put(db, queue="other").created
    assert put(db, key="k").created  # the letter case counts
    assert put(db, key="K ").created
    assert db.counts() == (4, 0, 0)


def test_jobs_without_a_key_never_collide(db: Database) -> None:
    assert all(db.run(db.engine.enqueue, new()).created for _ in range(3))


@pytest.mark.parametrize("state", ["runnable", "scheduled", "claimed", "retried", "parked"])
def test_every_live_state_holds_the_key(db: Database, state: str) -> None:
    first = put(db, delay=60.0 if state == "scheduled" else 0.0)
    if state in {"claimed", "retried"}:
        (claim,) = db.claim()
        if state == "retried":
            db.ack(claim, "fail", delay=60.0, error="e")
    if state == "parked":
        assert db.park("other") == 1
    assert put(db) == Enqueued(first.id, created=False)
    assert db.counts()[0] == 1


@pytest.mark.parametrize("end", ["succeed", "fail", "cancel", "expire", "lost"])
def test_every_end_frees_the_key(db: Database, end: str) -> None:
    """UNIQUE-09 among them: one attempt and a dead worker."""
    first = put(db, max_lost=1)
    if end in {"succeed", "fail"}:
        (claim,) = db.claim()
        db.ack(claim, end, **({"final": True, "error": "e"} if end == "fail" else {}))
    elif end == "cancel":
        db.jobs.cancel(first.id)
    elif end == "expire":
        db.end_life(first.id)
        assert db.expire() == 1
    else:
        (claim,) = db.claim()
        db.end_lease(claim)
        assert [r.state for r in db.reap()] == ["failed"]
    second = put(db)
    assert second.created
    assert second.id != first.id


def test_a_key_meets_itself_on_no_way_back(db: Database) -> None:
    """UNIQUE-05, UNIQUE-07: no transition of a live job can collide."""
    ids = [put(db, key=f"k{i}").id for i in range(20)]
    for claim in db.claim(20):
        if claim.id % 2:
            db.ack(claim, "fail", delay=0.0, error="e")
        else:
            db.end_lease(claim)
    assert len(db.reap()) == 10
    for i in range(20):
        assert not put(db, key=f"k{i}").created
    db.make_due(*ids)
    assert db.promote().promoted == 20
    assert len(db.claim(20)) == 20


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_rival_waits_for_the_outcome(db: Database, end: str) -> None:
    """UNIQUE-01."""
    connection = db.connect()
    first = db.store.run_on(connection, db.engine.enqueue, new(unique_key="K"))
    assert first.created
    rival = Threads(lambda: put(db))
    if db.is_postgres:
        wait_for(db.blocked)
    getattr(connection, end)()
    (second,) = rival.join()
    assert second.created is (end == "rollback")
    assert end == "rollback" or second.id == first.id
    assert db.counts()[0] == 1


def test_rivals_with_random_outcomes(db: Database) -> None:
    """UNIQUE-01: if any enqueuer of K committed, exactly one job K exists."""
    connections = [db.connect() for _ in range(5)]
    dice = random.Random(1)
    for round_ in range(30):
        ends = [dice.random() < 0.5 for _ in connections]

        def rival(i: int, key: str, ends: list[bool] = ends) -> Enqueued:
            found = db.store.run_on(connections[i], db.engine.enqueue, new(unique_key=key))
            connections[i].commit() if ends[i] else connections[i].rollback()
            return found

        key = f"k{round_}"
        found = together(*[lambda i=i, key=key: rival(i, key) for i in range(5)])  # type: ignore[misc]
        jobs = db.query("SELECT id FROM lien_job WHERE unique_key = :key", key=key)
        assert len(jobs) == any(ends)
        for end, job in zip(ends, found, strict=True):
            assert not end or (job.id,) in jobs


def test_rivals_while_jobs_of_the_key_end(db: Database) -> None:
    """Each enqueue is answered with a job that lived at that moment; none is lost, none is double."""

    def enqueuer() -> list[int]:
        return [job.id for job in (put(db) for _ in range(60)) if job.created]

    stop: list[bool] = []

    def worker() -> int:
        done = 0
        while not stop or db.counts()[0]:
            done += len(db.finish(*[ack(claim) for claim in db.claim(5)]).ended)
        return done

    working = Threads(worker)
    made = [id for ids in together(*[enqueuer] * 3) for id in ids]
    stop.append(True)
    (done,) = working.join()
    assert len(made) == len(set(made)) == done
    assert db.counts() == (0, done, done)


SOME_KEYS = """
import sys, lien
jobs = lien.Lien(sys.argv[1])
task = jobs.task(lambda: None, name="work")
sys.stdin.readline()
print(sum(task.using(unique=f"k{i}").enqueue().created for i in range(50)))
jobs.close()
"""


def test_rivals_in_other_processes(db: Database) -> None:
    """CLAIM-11: with a key one row, from however many processes."""
    command = [sys.executable, "-c", SOME_KEYS, db.url]
    pipe = subprocess.PIPE
    rivals = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(4)]
    for rival in rivals:
        assert rival.stdin
        rival.stdin.write("go\n")
        rival.stdin.flush()
    said = [rival.communicate(timeout=60)[0] for rival in rivals]
    assert [rival.returncode for rival in rivals] == [0] * 4
    assert sum(map(int, said)) == 50
    assert db.counts() == (50, 0, 0)
