"""Park and unpark: a job whose task nobody here knows steps aside, at no cost, and comes back."""

from __future__ import annotations

import datetime

import pytest

from tests.conformance.kit import Database, together

SECOND = datetime.timedelta(seconds=1)


def test_only_unknown_tasks_of_the_lane(db: Database) -> None:
    strange = db.enqueue("strange")
    others = [
        db.enqueue("known"),
        db.enqueue("strange", queue="other"),
        db.enqueue("strange", priority=1),
        db.enqueue("strange", delay=60.0),
    ]
    before = [db.snapshot(id) for id in others]
    assert db.park("known", "known too") == 1
    record = db.jobs.job(strange)
    assert (record.state, record.reason, record.attempt) == ("scheduled", "unknown_task", 0)
    assert [db.snapshot(id) for id in others] == before
    assert db.jobs.attempts(strange) == []


def test_nothing_but_its_place_changes(db: Database) -> None:
    id = db.enqueue("strange", unique_key="k", max_failures=3)
    before = db.job(id)
    db.park("work")
    after = db.job(id)
    assert before is not None
    assert after is not None
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"state", "reason", "available_at"}


@pytest.mark.parametrize(("age", "least", "most"), [(0, 15, 16), (60, 60, 62), (9999, 300, 301)])
@pytest.mark.parametrize("way", ["park", "claim"])
def test_it_waits_as_long_as_it_is_old_within_bounds(
    db: Database, way: str, age: float, least: float, most: float
) -> None:
    id = db.enqueue("strange")
    db.set(id, created_at=db.moment(-age))
    before = db.now()
    db.park("work") if way == "park" else db.claim()
    after = db.now()
    record = db.jobs.job(id)
    assert record.reason == "unknown_task"
    assert before + (least - 0.01) * SECOND <= record.available_at <= after + most * SECOND


def test_a_parked_job_is_looked_at_again(db: Database) -> None:
    id = db.enqueue("strange")
    db.park("work")
    db.make_due(id)
    assert db.promote().promoted == 1
    record = db.jobs.job(id)
    assert (record.state, record.reason) == ("runnable", None)
    (claim,) = db.claim(tasks=["strange"])
    assert (claim.id, claim.attempt) == (id, 1)


def test_a_worker_that_knows_it_brings_it_back_at_once(db: Database) -> None:
    strange, later, known = db.enqueue("strange"), db.enqueue("strange", delay=60.0), db.enqueue()
    other = db.enqueue("other")
    assert db.park("work") == 2
    assert db.unpark("strange") == 1
    record = db.jobs.job(strange)
    assert (record.state, record.reason) == ("runnable", None)
    assert record.available_at <= db.now()
    assert db.jobs.job(later).state == "scheduled"
    assert db.jobs.job(other).reason == "unknown_task"
    assert db.jobs.job(known).state == "runnable"
    assert db.unpark("strange") == 0


def test_limits(db: Database) -> None:
    for _ in range(5):
        db.enqueue("strange")
    assert [db.park("work", limit=2), db.park("work", limit=2), db.park("work")] == [2, 2, 1]
    assert [db.unpark("strange", limit=4), db.unpark("strange", limit=4)] == [4, 1]


def test_two_at_once_park_each_once(db: Database) -> None:
    for _ in range(60):
        db.enqueue("strange")

    def parker() -> int:
        done = 0
        while n := db.park("work", limit=7):
            done += n
        return done

    assert sum(together(*[parker] * 4)) == 60


@pytest.mark.only("postgresql")
@pytest.mark.parametrize("way", ["park", "unpark"])
def test_a_locked_row_keeps_nobody_waiting(db: Database, way: str) -> None:
    locked, free = db.enqueue("strange"), db.enqueue("strange")
    if way == "unpark":
        db.park("work")
    connection = db.connect()
    db.on(connection, "SELECT id FROM lien_job WHERE id = :id FOR UPDATE", id=locked)
    assert (db.park("work") if way == "park" else db.unpark("strange")) == 1
    assert db.jobs.job(free).state == ("scheduled" if way == "park" else "runnable")
    connection.rollback()


def test_a_parked_job_can_be_cancelled_and_expires(db: Database) -> None:
    one, two = db.enqueue("strange"), db.enqueue("strange")
    db.park("work")
    assert db.jobs.cancel(one) == "failed"
    db.end_life(two)
    assert db.expire() == 1
    assert [db.jobs.job(id).reason for id in (one, two)] == ["cancelled", "expired"]
