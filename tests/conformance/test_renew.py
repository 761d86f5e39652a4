"""Renew: the holder of the token stays the owner, and everybody else learns that he is not."""

from __future__ import annotations

import datetime
import uuid

import pytest

from lien.model import Held, Renewal
from tests.conformance.kit import Database, held, together


def test_the_lease_counts_from_the_statement(db: Database) -> None:
    claim = db.claimed()
    before = db.now()
    answer = db.renew(claim, lease=500.0)
    after = db.now()
    assert answer == Renewal(renewed=frozenset({claim.id}))
    expires = db.jobs.job(claim.id).lease_expires_at
    lease = datetime.timedelta(seconds=500)
    assert expires is not None
    assert before + lease <= expires <= after + lease


def test_nothing_else_changes(db: Database) -> None:
    claim = db.claimed()
    before = db.job(claim.id)
    db.renew(claim, lease=500.0)
    after = db.job(claim.id)
    assert before is not None
    assert after is not None
    assert {name for name in after if after[name] != before[name]} == {"lease_expires_at"}
    assert db.counts() == (1, 0, 0)


def test_nothing_to_renew(db: Database) -> None:
    assert db.renew() == Renewal()


def test_a_lease_that_is_over_is_renewed_while_the_token_stands(db: Database) -> None:
    """P3: ownership changes by a row write, never by time passing."""
    claim = db.claimed()
    db.end_lease(claim, ago=3600.0)
    assert db.renew(claim).renewed == {claim.id}
    assert db.reap() == []
    assert not db.jobs.job(claim.id).lease_expired


def test_many_at_once_under_several_tokens(db: Database) -> None:
    db.enqueue_n(300)
    claims = [*db.claim(100), *db.claim(100), *db.claim(100)]
    assert db.renew(*reversed(claims)).renewed == {claim.id for claim in claims}


@pytest.mark.parametrize("end", ["succeed", "fail", "final", "snooze", "release", "reap", "reaped"])
def test_what_is_no_longer_mine_is_lost(db: Database, end: str) -> None:
    mine, lost = db.claimed(), db.claimed()
    if end == "reap":
        db.end_lease(lost)
        db.reap()
    elif end == "reaped":
        db.end_lease(lost)
        db.reap()
        assert db.reclaim(lost.id).token != lost.token
    else:
        fields = {"final": end == "final", "error": "e"} if end in {"fail", "final"} else {}
        db.ack(lost, "fail" if end == "final" else end, **fields)
    before = db.snapshot(lost.id)
    answer = db.renew(mine, lost)
    assert answer == Renewal(renewed=frozenset({mine.id}), lost=frozenset({lost.id}))
    assert db.snapshot(lost.id) == before


def test_a_wrong_token_renews_nothing(db: Database) -> None:
    claim = db.claimed()
    before = db.snapshot(claim.id)
    answer = db.run(db.engine.renew, [Held(claim.id, uuid.uuid4()), Held(2**40, claim.token)], 500.0)
    assert answer == Renewal(lost=frozenset({claim.id, 2**40}))
    assert db.snapshot(claim.id) == before


def test_tokens_belong_to_their_jobs(db: Database) -> None:
    """Both tokens stand, each for the other job."""
    one, two = db.claimed(), db.claimed()
    before = db.everything()
    swapped = [Held(one.id, two.token), Held(two.id, one.token)]
    assert db.run(db.engine.renew, swapped, 500.0).lost == {one.id, two.id}
    assert db.everything() == before


def test_a_cancel_request_travels_with_the_answer(db: Database) -> None:
    one, two = db.claimed(), db.claimed()
    assert db.run(db.engine.cancel_requests, [one.id, two.id]) == set()
    assert db.jobs.cancel(one.id) == "claimed"
    answer = db.renew(one, two)
    assert answer.renewed == {one.id, two.id}
    assert answer.cancel_requested == {one.id}
    assert db.run(db.engine.cancel_requests, [one.id, two.id]) == {one.id}


@pytest.mark.only("postgresql")
def test_a_locked_row_keeps_no_other_claim_from_renewal(db: Database) -> None:
    """One open transaction on one row had blocked the renewal of fifty."""
    ids = db.enqueue_n(50)
    claims = db.claim(50)
    connection = db.connect()
    db.on(connection, "SELECT id FROM lien_job WHERE id = :id FOR UPDATE", id=ids[7])
    answer = db.renew(*claims)
    assert answer.locked == {ids[7]}
    assert answer.renewed == set(ids) - {ids[7]}
    assert answer.lost == frozenset()
    connection.rollback()
    assert db.renew(*claims).renewed == set(ids)


@pytest.mark.only("postgresql")
def test_locked_and_lost_are_told_apart(db: Database) -> None:
    locked, lost = db.claimed(), db.claimed()
    db.end_lease(lost)
    db.reap()
    connection = db.connect()
    db.on(connection, "SELECT id FROM lien_job FOR UPDATE")
    assert db.renew(locked, lost) == Renewal(lost=frozenset({lost.id}), locked=frozenset({locked.id}))
    connection.rollback()


def test_opposite_orders_do_not_deadlock(db: Database) -> None:
    db.enqueue_n(100)
    claims = db.claim(100)

    def renewer(claims: list[Held]) -> int:
        return sum(len(db.run(db.engine.renew, claims, 60.0).lost) for _ in range(20))

    forth, back = held(*claims), held(*reversed(claims))
    assert together(lambda: renewer(forth), lambda: renewer(back)) == [0, 0]
