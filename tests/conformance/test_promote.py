"""Promote: scheduled jobs become runnable when their time has come by the database's clock."""

from __future__ import annotations

import datetime

import pytest

from lien.model import Promote
from tests.conformance.kit import Database, together

SECOND = datetime.timedelta(seconds=1)


def test_only_what_is_due(db: Database) -> None:
    due, later = db.enqueue(delay=60.0), db.enqueue(delay=60.0)
    db.make_due(due)
    cycle = db.promote()
    assert cycle.promoted == 1
    assert db.time(cycle.promoted_floor) == db.jobs.job(due).available_at
    assert (db.jobs.job(due).state, db.jobs.job(later).state) == ("runnable", "scheduled")
    assert cycle.next_due is not None
    assert 0 < cycle.next_due <= 60


def test_nothing_to_promote(db: Database) -> None:
    db.enqueue()
    cycle = db.promote()
    assert (cycle.promoted, cycle.promoted_floor, cycle.next_due) == (0, None, None)


def test_the_oldest_first_up_to_the_limit(db: Database) -> None:
    ids = [db.enqueue(delay=60.0) for _ in range(5)]
    for ago, id in enumerate(ids):
        db.make_due(id, ago=10.0 + ago)
    cycle = db.promote(limit=2)
    assert cycle.promoted == 2
    assert {id for id, state in db.states().items() if state == "runnable"} == set(ids[-2:])
    assert db.time(cycle.promoted_floor) == db.jobs.job(ids[-1]).available_at
    assert db.promote().promoted == 3


def test_from_the_floor_on(db: Database) -> None:
    old, young = db.enqueue(delay=60.0), db.enqueue(delay=60.0)
    db.make_due(old, ago=10.0)
    db.make_due(young, ago=5.0)
    assert db.promote(floor=db.moment(-7.0)).promoted == 1
    assert db.jobs.job(young).state == "runnable"
    row = db.job(old)
    assert row is not None
    assert db.promote(floor=row["available_at"]).promoted == 1  # the floor itself is inside


def test_what_was_promoted_is_what_it_was(db: Database) -> None:
    id = db.enqueue(delay=60.0, unique_key="k", expires=1e6)
    db.make_due(id)
    before = db.job(id)
    db.promote()
    after = db.job(id)
    assert before is not None
    assert after == before | {"state": "runnable"}


def test_a_retried_job_keeps_its_counters(db: Database) -> None:
    claim = db.claimed()
    db.ack(claim, "fail", delay=60.0, error="no luck")
    again = db.reclaim(claim.id)
    assert (again.attempt, again.failures) == (2, 1)
    assert db.jobs.job(claim.id).last_error == "no luck"


def test_promotion_and_claim_in_one_cycle(db: Database) -> None:
    id = db.enqueue(delay=60.0)
    db.make_due(id)
    cycle = db.cycle(claim=db.request(5), promote=Promote(None, 10))
    assert cycle.promoted == 1
    assert [claim.id for claim in cycle.claims] == [id]


def test_two_promoters_promote_each_once(db: Database) -> None:
    ids = db.enqueue_n(300, delay=60.0)
    db.query("UPDATE lien_job SET available_at = :past", past=db.moment(-1.0))

    def promoter() -> int:
        done = 0
        while n := db.promote(limit=7).promoted:
            done += n
        return done

    assert sum(together(*[promoter] * 4)) == 300
    assert set(db.states().values()) == {"runnable"}
    assert len(db.states()) == len(ids)


@pytest.mark.only("postgresql")
def test_a_locked_row_keeps_nobody_waiting(db: Database) -> None:
    locked, free = db.enqueue(delay=60.0), db.enqueue(delay=60.0)
    db.make_due(locked, free)
    connection = db.connect()
    db.on(connection, "SELECT id FROM lien_job WHERE id = :id FOR UPDATE", id=locked)
    assert db.promote().promoted == 1
    assert db.jobs.job(free).state == "runnable"
    connection.rollback()
    assert db.promote().promoted == 1
