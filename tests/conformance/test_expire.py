"""Expire: a job that nobody claimed in time ends without having run, and says so."""

from __future__ import annotations

import pytest

from tests.conformance.kit import Database, Threads, together, wait_for


@pytest.mark.parametrize("state", ["runnable", "scheduled", "parked", "retried"])
def test_a_waiting_job_expires(db: Database, state: str) -> None:
    id = db.enqueue(delay=60.0 if state == "scheduled" else 0.0, unique_key="k")
    if state == "parked":
        db.park("other")
    if state == "retried":
        db.ack(db.claim()[0], "fail", delay=60.0, error="e")
    db.end_life(id)
    before = db.job(id)
    assert before is not None
    assert db.expire() == 1
    record = db.jobs.job(id)
    assert (record.state, record.reason) == ("failed", "expired")
    assert record.finished_at is not None
    assert record.attempt == before["attempt"]
    assert len(db.jobs.attempts(id)) == (state == "retried")
    assert db.job(id) is None
    assert db.expire() == 0


def test_a_claimed_job_does_not(db: Database) -> None:
    claim = db.claimed()
    db.end_life(claim.id)
    before = db.snapshot(claim.id)
    assert db.expire() == 0
    assert db.snapshot(claim.id) == before
    assert len(db.ack(claim).ended) == 1


def test_only_when_the_time_has_come(db: Database) -> None:
    over, later, never = db.enqueue(expires=60.0), db.enqueue(expires=60.0), db.enqueue()
    db.end_life(over)
    assert db.expire() == 1
    assert db.states() == {over: "failed", later: "runnable", never: "runnable"}


def test_the_oldest_first_up_to_the_limit(db: Database) -> None:
    ids = db.enqueue_n(5, expires=60.0)
    for ago, id in enumerate(ids):
        db.end_life(id, ago=1.0 + ago)
    assert db.expire(2) == 2
    assert {id for id, state in db.states().items() if state == "failed"} == set(ids[-2:])
    assert db.expire(10) == 3


def test_two_at_once_expire_each_once(db: Database) -> None:
    db.enqueue_n(100, expires=60.0)
    db.query("UPDATE lien_job SET expires_at = :past", past=db.moment(-1.0))

    def expirer() -> int:
        done = 0
        while n := db.expire(7):
            done += n
        return done

    assert sum(together(*[expirer] * 4)) == 100
    assert db.counts() == (0, 100, 0)


@pytest.mark.only("postgresql")
def test_a_row_in_somebodys_hands_is_left_alone(db: Database) -> None:
    (id,) = db.enqueue_n(1)
    connection = db.connect()
    assert len(db.store.run_on(connection, db.engine.cycle, [], db.request(1), None).claims) == 1
    db.query("UPDATE lien_job SET expires_at = :past WHERE id <> :id", past=db.moment(-1.0), id=id)
    db.on(connection, "UPDATE lien_job SET expires_at = :past", past=db.moment(-1.0))
    assert db.expire() == 0
    connection.commit()
    assert db.expire() == 0
    assert db.jobs.job(id).state == "claimed"


@pytest.mark.only("postgresql")
def test_a_locked_row_keeps_nobody_waiting(db: Database) -> None:
    locked, free = db.enqueue_n(2, expires=60.0)
    db.end_life(locked, free)
    connection = db.connect()
    db.on(connection, "SELECT id FROM lien_job WHERE id = :id FOR UPDATE", id=locked)
    expiring = Threads(db.expire)
    wait_for(lambda: not expiring.running)
    assert expiring.join() == [1]
    connection.rollback()
    assert db.expire() == 1
