"""Reap: what a silent worker held comes back, once, and only after its lease is over."""

from __future__ import annotations

import datetime

import pytest

from tests.conformance.kit import Database, ack, held, together, wait_for

SECOND = datetime.timedelta(seconds=1)


def test_a_silent_workers_job_comes_back(db: Database) -> None:
    id = db.enqueue(backoff_base=100.0)
    (claim,) = db.claim(worker="gone-1")
    db.end_lease(claim)
    before = db.now()
    ((reaped),) = db.reap()
    after = db.now()
    assert reaped == (id, 1, "gone-1", "scheduled", None)
    record = db.jobs.job(id)
    assert (record.state, record.reason, record.lost, record.failures) == ("scheduled", None, 1, 0)
    assert record.claimed_by is record.claimed_at is record.lease_expires_at is None
    assert before + 50 * SECOND <= record.available_at <= after + 100.001 * SECOND
    assert record.last_error is not None
    assert "silent" in record.last_error
    (attempt,) = db.jobs.attempts(id)
    assert (attempt.outcome, attempt.worker, attempt.fence) == ("lost", "gone-1", claim.fence)
    assert attempt.reason is None


@pytest.mark.parametrize(
    ("lost", "base", "cap", "least", "most"),
    [
        (0, 10.0, 1e6, 5.0, 10.0),
        (3, 10.0, 1e6, 40.0, 80.0),
        (3, 10.0, 30.0, 15.0, 30.0),
        (70, 10.0, 3000.0, 1500.0, 3000.0),
        (2**31 - 2, 0.0, 0.0, 0.0, 0.0),
        (90, 3e9, 3e9, 1.5e9, 3e9),
    ],
)
def test_backoff_after_silence(db: Database, lost: int, base: float, cap: float, least: float, most: float) -> None:
    """RETRY-01: capped and finite, however often it was lost."""
    id = db.enqueue(backoff_base=base, backoff_cap=cap)
    db.set(id, lost=lost, max_lost=2**31 - 1)
    (claim,) = db.claim()
    db.end_lease(claim)
    before = db.now()
    assert [r.id for r in db.reap()] == [id]
    after = db.now()
    record = db.jobs.job(id)
    if lost == 2**31 - 2:  # the budget is spent just now
        assert record.reason == "lost"
        return
    assert before + least * SECOND <= record.available_at <= after + (most + 0.001) * SECOND


def test_a_lease_that_is_not_over_is_respected(db: Database) -> None:
    claims = [db.claimed() for _ in range(3)]
    db.end_lease(claims[1])
    assert [r.id for r in db.reap()] == [claims[1].id]
    assert db.reap() == []


def test_a_tiny_lease_is_over_by_itself(db: Database) -> None:
    db.enqueue()
    (claim,) = db.claim(lease=0.001)
    reaped = wait_for(db.reap)
    assert [r.id for r in reaped] == [claim.id]


def test_the_budget_of_silence(db: Database) -> None:
    """RETRY-03: a job that kills its workers ends; three starts, three records."""
    id = db.enqueue(max_lost=3, unique_key="k")
    for n in range(1, 4):
        db.make_due(id) if n > 1 else None
        db.promote()
        (claim,) = db.claim()
        assert claim.attempt == n
        db.end_lease(claim)
        (reaped,) = db.reap()
        assert reaped.state == ("failed" if n == 3 else "scheduled")
        assert reaped.reason == ("lost" if n == 3 else None)
    record = db.jobs.job(id)
    assert (record.state, record.reason, record.lost, record.attempt) == ("failed", "lost", 3, 3)
    assert [str(a.outcome) for a in db.jobs.attempts(id)] == ["lost"] * 3
    assert [a.reason for a in db.jobs.attempts(id)] == [None, None, "lost"]
    assert record.unique_key == "k"


def test_a_cancel_request_is_honoured_when_the_worker_is_gone(db: Database) -> None:
    claim = db.claimed()
    db.jobs.cancel(claim.id)
    db.end_lease(claim)
    (reaped,) = db.reap()
    assert (reaped.state, reaped.reason) == ("failed", "cancelled")
    assert db.jobs.job(claim.id).reason == "cancelled"
    assert len(db.jobs.attempts(claim.id)) == 1


def test_the_oldest_first_up_to_the_limit(db: Database) -> None:
    claims = [db.claimed() for _ in range(5)]
    for i, claim in enumerate(claims):
        db.end_lease(claim, ago=10.0 + i)
    assert {r.id for r in db.reap(2)} == {claims[4].id, claims[3].id}
    assert {r.id for r in db.reap(2)} == {claims[2].id, claims[1].id}
    assert {r.id for r in db.reap(2)} == {claims[0].id}


def test_live_long_jobs_hide_no_orphan(db: Database) -> None:
    """LEASE-11."""
    db.enqueue_n(2_001)
    claims = db.claim(2_001)
    orphan = max(claims)
    db.end_lease(orphan)
    assert [r.id for r in db.reap(10)] == [orphan.id]


def test_two_reapers_take_each_once(db: Database) -> None:
    """LEASE-13."""
    db.enqueue_n(200, max_lost=2)
    claims = db.claim(200)
    db.query("UPDATE lien_job SET lease_expires_at = :past", past=db.moment(-5.0))
    db.query("UPDATE lien_job SET lost = 1 WHERE id % 2 = 0")

    def reaper() -> list[int]:
        taken: list[int] = []
        while got := db.reap(7):
            taken += [r.id for r in got]
        return taken

    taken = [id for ids in together(*[reaper] * 4) for id in ids]
    assert sorted(taken) == sorted(c.id for c in claims)
    live, over, attempts = db.counts()
    assert (live, over, attempts) == (100, 100, 200)


def test_the_second_recoverer_of_one_list_changes_nothing(db: Database) -> None:
    """LEASE-13, LEASE-05: reaped, claimed anew, and its new claim is nobody's to take."""
    claim = db.claimed()
    db.end_lease(claim)
    db.reap()
    again = db.reclaim(claim.id)
    before = db.everything()
    assert db.reap() == []
    assert db.everything() == before
    assert len(db.ack(again).ended) == 1


def test_renewed_in_time_is_not_reaped(db: Database) -> None:
    claim = db.claimed()
    db.end_lease(claim)
    db.renew(claim)
    assert db.reap() == []


@pytest.mark.only("postgresql")
@pytest.mark.parametrize("verb", ["renew", "ack"])
def test_a_row_in_somebodys_hands_is_left_alone(db: Database, verb: str) -> None:
    claim, other = db.claimed(), db.claimed()
    db.end_lease(claim, other)
    connection = db.connect()
    if verb == "renew":
        db.store.run_on(connection, db.engine.renew, held(claim), 60.0)
    else:
        db.store.run_on(connection, db.engine.finish, [ack(claim)])
    assert [r.id for r in db.reap()] == [other.id]
    connection.commit()
    assert db.reap() == []
    assert len(db.jobs.attempts(claim.id)) == (verb == "ack")


def test_a_witness_leaves_the_reaper_nothing(db: Database) -> None:
    """A dead child's supervisor has closed the attempt by its token."""
    claim = db.claimed()
    db.end_lease(claim)
    db.ack(claim, "fail", error="killed by signal 9, peak 512 MB")
    assert db.reap() == []
    (attempt,) = db.jobs.attempts(claim.id)
    assert attempt.error == "killed by signal 9, peak 512 MB"


def test_terminal_by_reaping_a_failing_row_spares_the_rest(db: Database) -> None:
    """UNIQUE-07: rows with every oddity that a column allows, and a hundred normal orphans."""
    odd = [
        db.enqueue(backoff_base=3e9, backoff_cap=3.1e9),
        db.enqueue(backoff_base=0.0, backoff_cap=0.0),
        db.enqueue(timeout=0.001, unique_key="u" * 200),
    ]
    for id in odd:
        db.set(id, lost=2**31 - 1, max_lost=2**31 - 1, failures=2**31 - 1)
    db.enqueue_n(100)
    claims = db.claim(200)
    db.end_lease(*claims)
    assert len(db.reap(200)) == 103
    assert db.counts() == (100, 3, 103)
