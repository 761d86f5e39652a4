"""Claim: never more than asked for, each job by one claimant, in order, under a fence that only grows."""

from __future__ import annotations

import datetime
import threading
import uuid
from typing import Any

import pytest

from lien.commands import Fetch, Pipe, Settings
from lien.errors import LienError
from lien.model import Claim, Lane, Promote
from lien.sqlfile import Statement
from tests.conformance.kit import Database, Threads, ack, together, wait_for

MAX_INT = 2**31 - 1


def test_a_claim_is_what_the_row_says(db: Database) -> None:
    id = db.enqueue(args='{"a":1}', priority=1, timeout=7.5, max_failures=3, backoff_base=2.0, backoff_cap=9.0)
    token = uuid.uuid4()
    before = db.now()
    (claim,) = db.claim(token=token, lease=30.0, worker="w é")
    after = db.now()
    record = db.jobs.job(id)
    assert claim == Claim(
        id, 1, "work", '{"a":1}', "default", 1, claim.available_at, record.fence, 0, 3, 0, 7.5,
        2.0, 9.0, token,
    )  # fmt: skip
    assert claim.fence > 0
    assert db.time(claim.available_at) == record.available_at
    assert (record.state, record.attempt, record.claimed_by) == ("claimed", 1, "w é")
    assert record.claimed_at is not None
    assert record.lease_expires_at is not None
    assert before <= record.claimed_at <= after
    lease = datetime.timedelta(seconds=30)
    assert before + lease <= record.lease_expires_at <= after + lease
    assert not record.lease_expired


def test_an_empty_queue_gives_nothing(db: Database) -> None:
    assert db.claim(10) == []
    assert db.cycle(claim=db.request(10)).parked == 0


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("workers", [1, 8])
@pytest.mark.parametrize("indexes", [True, False])
def test_never_more_than_n(own: Database, n: int, workers: int, indexes: bool) -> None:
    """CLAIM-01: statistics of an almost empty table, then a burst."""
    db = own
    if db.is_postgres:
        db.query("ALTER TABLE lien_job SET (autovacuum_enabled = off)")
    if not indexes:
        names = "SELECT indexname FROM pg_indexes WHERE tablename = 'lien_job'"
        if not db.is_postgres:
            names = "SELECT name FROM sqlite_master WHERE type = 'index' AND tbl_name = 'lien_job'"
        for (name,) in db.query(names):
            if "pkey" not in name and "autoindex" not in name:
                db.query(f"DROP INDEX {name}")
    for _ in range(2):
        db.query("DELETE FROM lien_job")
        db.enqueue()
        db.query("VACUUM")
        db.query("ANALYZE")
        db.enqueue_n(150)
        lock = threading.Lock()
        claims: list[Claim] = []

        def worker(claims: list[Claim] = claims, lock: Any = lock) -> list[int]:
            sizes = []
            while got := db.claim(n):
                sizes.append(len(got))
                with lock:
                    claims += got
            return sizes

        for sizes in together(*[worker] * workers):
            assert all(size <= n for size in sizes)
        assert len(claims) == len({c.id for c in claims}) == 151
        assert db.value("SELECT count(*) FROM lien_job WHERE state = 'claimed'") == 151


def test_claimed_rows_are_those_returned(db: Database) -> None:
    db.enqueue_n(50)
    for n in (1, 2, 3, 5, 8, 13):
        before = db.value("SELECT count(*) FROM lien_job WHERE state = 'claimed'")
        claims = db.claim(n)
        rows = db.query("SELECT id FROM lien_job WHERE state = 'claimed'")
        assert len(claims) == n
        assert len(rows) - before == n
        assert {(claim.id,) for claim in claims} <= set(rows)


def test_no_job_is_claimed_twice_under_a_frozen_clock(db: Database) -> None:
    """CLAIM-03: every time equal, 8 claimants."""
    ids = db.enqueue_n(2_000)
    db.query("UPDATE lien_job SET available_at = :at, created_at = :at", at=db.moment(-5.0))

    def worker() -> list[Claim]:
        claims: list[Claim] = []
        while got := db.claim(17):
            assert [c.id for c in got] == sorted(c.id for c in got)
            assert len({(c.token, c.fence) for c in got}) == 1
            claims += got
        return claims

    claims = [claim for got in together(*[worker] * 8) for claim in got]
    assert sorted(claim.id for claim in claims) == ids
    fences: dict[int, set[uuid.UUID]] = {}
    for claim in claims:
        fences.setdefault(claim.fence, set()).add(claim.token)
    assert all(len(tokens) == 1 for tokens in fences.values())  # one fence, one claim statement


@pytest.mark.only("postgresql")
def test_a_claim_in_an_open_transaction_is_nobody_elses(db: Database) -> None:
    ids = db.enqueue_n(4)
    connection = db.connect()
    first = db.store.run_on(connection, db.engine.cycle, [], db.request(2), None).claims
    assert [c.id for c in first] == ids[:2]
    assert [c.id for c in db.claim(10)] == ids[2:]
    connection.rollback()
    assert [c.id for c in db.claim(10)] == ids[:2]


@pytest.mark.only("postgresql")
def test_a_row_locked_by_somebody_is_skipped(db: Database) -> None:
    locked, free = db.enqueue_n(2)
    connection = db.connect()
    db.on(connection, "SELECT id FROM lien_job WHERE id = :id FOR UPDATE", id=locked)
    assert [c.id for c in db.claim(10)] == [free]
    connection.rollback()
    assert [c.id for c in db.claim(10)] == [locked]


@pytest.mark.only("postgresql")
@pytest.mark.parametrize("change", ["claimed_elsewhere", "cancelled", "other_queue"])
def test_a_row_changed_under_the_claim_is_looked_at_again(db: Database, change: str) -> None:
    """The claim's snapshot is older than the change; what no longer matches is not taken."""
    (id,) = db.enqueue_n(1)
    gate = db.autocommit()
    db.on(gate, "SELECT pg_advisory_lock(77)")
    # The claim stops inside its statement, after its snapshot, before it reaches the row.
    db.query(
        "CREATE FUNCTION lien_pause() RETURNS boolean LANGUAGE sql AS"
        " $$ SELECT pg_advisory_lock(77) IS NOT NULL AND pg_advisory_unlock(77) $$"
    )
    claim = db.engine.statements["claim"]
    slow = claim.text.replace(
        "WHERE state = 'runnable' AND tenant", "WHERE (SELECT lien.lien_pause()) AND state = 'runnable' AND tenant", 1
    )
    assert slow != claim.text
    try:
        other = Database(db.url)
        other.engine.statements["claim"] = Statement("claim", slow)
        claiming = Threads(lambda: other.claim(5))
        wait_for(db.blocked)
        if change == "claimed_elsewhere":
            (mine,) = db.claim(1)
        elif change == "cancelled":
            db.jobs.cancel(id)
        else:
            db.set(id, queue="other")
        db.on(gate, "SELECT pg_advisory_unlock(77)")
        (claims,) = claiming.join()
        assert claims == []
        if change == "claimed_elsewhere":
            row = db.job(id)
            assert row is not None
            assert (row["claim_token"], row["attempt"], row["fence"]) == (mine.token, 1, mine.fence)
        other.close()
    finally:
        db.query("DROP FUNCTION lien_pause()")


# -- which jobs, in which order --


def test_the_oldest_first_then_by_id(db: Database) -> None:
    ids = db.enqueue_n(6)
    same = db.moment(-100.0)
    for id, at in zip(ids, [-1.0, -3.0, None, None, -200.0, -2.0], strict=True):
        db.set(id, available_at=same if at is None else db.moment(at))
    expected = [ids[4], ids[2], ids[3], ids[1], ids[5], ids[0]]
    first = db.claim(2)
    rest = db.claim(10)
    assert [c.id for c in [*first, *rest]] == expected


def test_lanes_are_tried_in_order(db: Database) -> None:
    low, high = db.enqueue(priority=3), db.enqueue(priority=0)
    other = db.enqueue(queue="other", priority=3)
    lanes = [Lane("other", 3, None), Lane("default", 3, None), Lane("default", 0, None)]
    assert [c.id for c in db.claim(3, lanes=lanes)] == [other, low, high]


def test_the_limit_goes_over_lanes(db: Database) -> None:
    ids = [db.enqueue(priority=p) for p in (0, 1, 1, 2, 3)]
    assert [c.id for c in db.claim(3)] == ids[:3]
    assert [c.id for c in db.claim(10)] == ids[3:]


def test_only_the_lanes_asked_for(db: Database) -> None:
    mine = db.enqueue(priority=1)
    db.enqueue(priority=2)
    db.enqueue(queue="Default", priority=1)
    assert [c.id for c in db.claim(10, lanes=[Lane("default", 1, None)])] == [mine]


def test_from_the_floor_on(db: Database) -> None:
    ids = db.enqueue_n(5)
    db.query("UPDATE lien_job SET available_at = :at", at=(at := db.moment(-50.0)))
    db.set(ids[0], available_at=db.moment(-10.0))  # younger than all others
    lane = Lane("default", 2, (at, ids[3]))
    assert [c.id for c in db.claim(10, lanes=[lane])] == [ids[3], ids[4], ids[0]]
    assert [c.id for c in db.claim(10, lanes=[Lane("default", 2, None)])] == ids[1:3]


def test_the_floor_is_the_claims_own_value(db: Database) -> None:
    ids = db.enqueue_n(4)
    (first,) = db.claim(1)
    floor = (first.available_at, first.id)
    assert [c.id for c in db.claim(10, lanes=[Lane("default", 2, floor)])] == ids[1:]


def test_a_floor_ahead_hides_the_rest(db: Database) -> None:
    db.enqueue_n(3)
    ahead = (db.moment(60.0), 0)
    assert db.claim(10, lanes=[Lane("default", 2, ahead)]) == []


@pytest.mark.parametrize("state", ["scheduled", "due", "claimed", "parked"])
def test_only_runnable_jobs(db: Database, state: str) -> None:
    id = db.enqueue(delay=60.0 if state in {"scheduled", "due"} else 0.0)
    if state == "due":
        db.make_due(id)
    if state == "claimed":
        db.claim()
    if state == "parked":
        db.park("other")
    before = db.snapshot(id)
    assert db.claim(10) == []
    assert db.snapshot(id) == before


def test_an_expired_job_is_not_claimed(db: Database) -> None:
    expired, fresh = db.enqueue(), db.enqueue(expires=1000.0)
    db.end_life(expired)
    assert [c.id for c in db.claim(10)] == [fresh]
    assert db.jobs.job(expired).state == "runnable"


def test_a_claim_whose_lease_is_over_is_not_taken_by_a_claim(db: Database) -> None:
    """Ownership changes by a row write, never by time passing."""
    claim = db.claimed()
    db.end_lease(claim, ago=3600.0)
    before = db.snapshot(claim.id)
    assert db.claim(10) == []
    assert db.snapshot(claim.id) == before
    assert db.jobs.job(claim.id).lease_expired


# -- unknown tasks --


def test_unknown_tasks_are_parked_by_the_claim(db: Database) -> None:
    known = [db.enqueue(), db.enqueue()]
    strange = db.enqueue("strange")
    cycle = db.cycle(claim=db.request(10))
    assert [c.id for c in cycle.claims] == known
    assert cycle.parked == 1
    record = db.jobs.job(strange)
    assert (record.state, record.reason, record.attempt) == ("scheduled", "unknown_task", 0)


def test_a_worker_that_knows_no_task_claims_nothing(db: Database) -> None:
    id = db.enqueue()
    cycle = db.cycle(claim=db.request(10, tasks=[]))
    assert (cycle.claims, cycle.parked) == ([], 1)
    assert db.jobs.job(id).reason == "unknown_task"


def test_what_was_parked_counts_toward_the_limit(db: Database) -> None:
    for _ in range(3):
        db.enqueue("strange")
    db.enqueue()
    cycle = db.cycle(claim=db.request(3))
    assert (cycle.claims, cycle.parked) == ([], 3)
    assert len(db.claim(3)) == 1


# -- attempt, fence, counters --


def test_attempt_and_fence_grow_with_every_claim(db: Database) -> None:
    ids = db.enqueue_n(3)
    last: dict[int, Claim] = {}
    fences = []
    for round_ in range(1, 8):
        claims = db.claim(3)
        assert sorted(c.id for c in claims) == ids
        for claim in claims:
            assert claim.attempt == round_
            if claim.id in last:
                assert claim.fence > last[claim.id].fence
                assert claim.token != last[claim.id].token
            last[claim.id] = claim
        fences.append(claims[0].fence)
        db.finish(*[ack(c, ["snooze", "release", "fail"][round_ % 3], error="e") for c in claims])
        db.make_due(*ids)
        db.promote()
    assert fences == sorted(set(fences))
    for id in ids:
        assert [a.attempt for a in db.jobs.attempts(id)] == list(range(1, 8))
        kept = [a.fence for a in db.jobs.attempts(id)]
        assert kept == sorted(set(kept))


def test_a_row_with_a_larger_fence_is_not_taken_with_a_smaller_one(db: Database) -> None:
    ahead, plain = db.enqueue_n(2)
    fence = db.claimed(queue="elsewhere").fence
    db.set(ahead, fence=fence + 3)
    got = {}
    for _ in range(8):
        for claim in db.claim(2):
            got[claim.id] = claim.fence
    assert set(got) == {ahead, plain}
    assert got[ahead] > fence + 3


def test_no_fence_is_drawn_for_nothing(db: Database) -> None:
    first = db.claimed().fence
    for _ in range(5):
        db.claim(10)
    assert db.claimed().fence == first + 1


@pytest.mark.parametrize("end", ["succeed", "fail", "final", "release", "snooze", "reap"])
def test_counters_at_their_maximum_stop_nobody(db: Database, end: str) -> None:
    """CLAIM-05: the counters of one row at the column maximum, good jobs behind it."""
    full = db.enqueue()
    counters = ("attempt", "failures", "lost", "interrupted")
    budgets = ("max_failures", "max_lost", "max_interrupted")
    db.set(full, **dict.fromkeys([*counters, *budgets], MAX_INT))
    good = db.enqueue_n(100)
    claims = db.claim(200)
    assert [c.id for c in claims] == [full, *good]
    assert claims[0].attempt == MAX_INT
    if end == "reap":
        db.end_lease(*claims)
        assert len(db.reap(200)) == 101
    else:
        kind = "fail" if end == "final" else end
        fields: dict[str, Any] = {"error": "e", "final": end == "final"} if kind == "fail" else {}
        if kind == "release":
            fields["started"] = True
        done = db.finish(*[ack(c, kind, **fields) for c in claims])
        assert len(done.ended) == 101
        assert done.unacknowledged == []
    record = db.jobs.job(full)
    assert max(record.attempt, record.failures, record.lost, record.interrupted) == MAX_INT
    assert len(db.jobs.attempts(full)) == 1
    assert db.jobs.job(good[0]).attempt == 1


def test_the_whole_way_in_one_cycle(db: Database) -> None:
    first = db.claimed()
    due, ready = db.enqueue(delay=60.0), db.enqueue()
    db.make_due(due, ago=100.0)
    cycle = db.cycle([ack(first)], db.request(5), Promote(None, 5))
    assert [e.id for e in cycle.ended] == [first.id]
    assert cycle.promoted == 1
    assert [c.id for c in cycle.claims] == [due, ready]


def test_orphans_are_found_by_their_token(db: Database) -> None:
    mine, other = uuid.uuid4(), uuid.uuid4()
    ids = db.enqueue_n(3)
    db.claim(2, token=mine)
    db.claim(1, token=other)
    found = db.run(db.engine.orphans, [mine, uuid.uuid4()])
    assert sorted((a.id, a.attempt, a.token) for a in found) == [(id, 1, mine) for id in ids[:2]]
    assert len(db.finish(*found).ended) == 2
    assert [db.states()[id] for id in ids] == ["runnable", "runnable", "claimed"]
    assert db.run(db.engine.orphans, [mine]) == []
    assert all(db.jobs.job(id).interrupted == 0 for id in ids)


def test_a_failing_claim_is_never_no_jobs(own: Database) -> None:
    """CLAIM-07, P11."""
    own.enqueue()
    own.query("ALTER TABLE lien_job RENAME TO gone")
    with pytest.raises(LienError):
        own.claim()
    with pytest.raises(LienError):
        own.jobs.list()


def test_jobs_that_other_kinds_own_are_left_alone(db: Database) -> None:
    """Rows with a tenant or an ordering key are no plain jobs."""
    tenant, key, plain = db.enqueue_n(3)
    db.set(tenant, tenant="t")
    db.set(key, ordering_key="k")
    assert [c.id for c in db.claim(10)] == [plain]


@pytest.mark.only("postgresql")
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_claims_run_read_committed_whatever_the_server_prefers(own: Database, level: str) -> None:
    """Stricter levels fail a claim or an ack as soon as a renewal touched the row."""
    name = own.value("SELECT current_database()")
    own.autocommit().execute(f"ALTER DATABASE {name} SET default_transaction_isolation = '{level}'")
    other = Database(own.url)
    assert other.value("SHOW default_transaction_isolation") == level
    show = Statement("isolation", "SHOW transaction_isolation")

    def op() -> Any:
        settings = Settings(other.engine.statements["settings"])
        rows = yield Pipe((settings, Fetch(show, {})))
        return rows[-1]

    assert other.run(op) == [("read committed",)]
    other.close()
