"""Cancel: a waiting job ends now, a running one is told, a finished one stays what it is."""

from __future__ import annotations

import asyncio

import pytest

import lien
from lien.model import Promote
from tests.conformance.kit import Database, Threads, ack, together, wait_for


@pytest.mark.parametrize("state", ["runnable", "scheduled", "parked", "retried"])
def test_a_waiting_job_ends_now(db: Database, state: str) -> None:
    id = db.enqueue(delay=60.0 if state == "scheduled" else 0.0)
    if state == "parked":
        db.park("other")
    if state == "retried":
        db.ack(db.claim()[0], "fail", delay=60.0, error="e")
    bystander = db.enqueue(queue="elsewhere")
    assert db.jobs.cancel(id) is lien.State.FAILED
    record = db.jobs.job(id)
    assert (record.state, record.reason) == ("failed", "cancelled")
    assert record.finished_at is not None
    assert db.job(id) is None
    assert len(db.jobs.attempts(id)) == (state == "retried")
    assert db.jobs.job(bystander).state == "runnable"


def test_a_claimed_job_is_flagged_and_keeps_running(db: Database) -> None:
    claim, other = db.claimed(), db.claimed()
    before = db.job(claim.id)
    assert before is not None
    for _ in range(2):
        assert db.jobs.cancel(claim.id) is lien.State.CLAIMED
        after = db.job(claim.id)
        assert after is not None
        assert {name for name in after if after[name] != before[name]} == {"cancel_requested"}
    assert db.jobs.job(claim.id).cancel_requested
    assert not db.jobs.job(other.id).cancel_requested
    assert db.renew(claim).renewed == {claim.id}


@pytest.mark.parametrize("end", ["succeed", "fail", "cancel"])
def test_a_finished_job_stays_what_it_is(db: Database, end: str) -> None:
    claim = db.claimed()
    if end == "cancel":
        db.jobs.cancel(claim.id)
        db.ack(claim, "fail", error="e")
    else:
        db.ack(claim, end, **({"final": True, "error": "e"} if end == "fail" else {}))
    before = db.everything()
    with pytest.raises(lien.TransitionRefused, match=f"job {claim.id} is already"):
        db.jobs.cancel(claim.id)
    assert db.everything() == before


def test_awaited(db: Database) -> None:
    id, claim = db.enqueue(queue="other"), db.claimed()

    async def main() -> None:
        assert await db.jobs.acancel(id) == "failed"
        assert await db.jobs.acancel(claim.id) == "claimed"
        with pytest.raises(lien.TransitionRefused):
            await db.jobs.acancel(id)
        with pytest.raises(lien.JobNotFound):
            await db.jobs.acancel(2**40)
        await db.jobs.aclose()

    asyncio.run(main())


def test_cancel_and_claim_at_once(db: Database) -> None:
    """Every job is either cancelled unrun or told while it runs; no request is lost."""
    ids = db.enqueue_n(60)

    def canceller() -> list[str]:
        return [str(db.jobs.cancel(id)) for id in ids]

    def claimer() -> list[int]:
        got: list[int] = []
        for _ in range(60):
            got += [c.id for c in db.claim(1)]
        return got

    said, claimed = together(canceller, claimer)
    for id, word in zip(ids, said, strict=True):
        record = db.jobs.job(id)
        if word == "claimed":
            assert id in claimed
            assert record.cancel_requested
        else:
            assert (record.state, record.reason) == ("failed", "cancelled")
            assert id not in claimed


@pytest.mark.only("postgresql")
@pytest.mark.parametrize("verb", ["claim", "fail", "release", "promote", "reap", "park"])
def test_a_request_waits_for_whoever_moves_the_job_and_is_not_lost(db: Database, verb: str) -> None:
    """The canceller meets the row in another transaction's hands, in a state that is about to change."""
    if verb in {"claim", "park"}:
        id = db.enqueue()
    elif verb == "promote":
        id = db.enqueue(delay=60.0)
        db.make_due(id)
    else:
        claim = db.claimed()
        id = claim.id
        db.end_lease(claim)
    connection = db.connect()
    engine = db.engine
    if verb == "claim":
        db.store.run_on(connection, engine.cycle, [], db.request(1), None)
    elif verb == "promote":
        db.store.run_on(connection, engine.cycle, [], None, Promote(None, 5))
    elif verb == "reap":
        db.store.run_on(connection, engine.reap, 5)
    elif verb == "park":
        db.store.run_on(connection, engine.park, "default", 2, ["other"], 5)
    else:
        fields = {"delay": 60.0, "error": "e"} if verb == "fail" else {}
        db.store.run_on(connection, engine.finish, [ack(claim, verb, **fields)])
    cancelling = Threads(lambda: db.jobs.cancel(id))
    wait_for(db.blocked)
    connection.commit()
    (said,) = cancelling.join()
    record = db.jobs.job(id)
    if verb == "claim":
        assert said == "claimed"
        assert record.cancel_requested
    else:
        assert said == "failed"
        assert (record.state, record.reason) == ("failed", "cancelled")


@pytest.mark.only("postgresql")
def test_a_request_that_comes_after_the_success_is_refused(db: Database) -> None:
    claim = db.claimed()
    connection = db.connect()
    db.store.run_on(connection, db.engine.finish, [ack(claim)])
    cancelling = Threads(lambda: db.jobs.cancel(claim.id))
    wait_for(db.blocked)
    connection.commit()
    with pytest.raises(lien.TransitionRefused, match="succeeded"):
        cancelling.join()
