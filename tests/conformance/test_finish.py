"""Finish: each end of an attempt, once, by the holder of the token, and a clear word to everybody else."""

from __future__ import annotations

import datetime
import uuid
from typing import Any

import pytest

import lien
from lien.machine import AttemptOutcome, Reason
from lien.model import Ack, Claim, Ended
from lien.policy import MAX_DELAY
from tests.conformance.kit import Database, Threads, ack, together, wait_for

SECOND = datetime.timedelta(seconds=1)
CLAIM_COLUMNS = ("claim_token", "claimed_by", "claimed_at", "lease_expires_at")

# name: kind, fields, state after, reason after
ENDS: dict[str, tuple[str, dict[str, Any], str, str | None]] = {
    "succeed": ("succeed", {}, "succeeded", None),
    "result": ("succeed", {"result": '{"a":1}'}, "succeeded", None),
    "retry": ("fail", {"delay": 100.0, "error": "e", "traceback": "t"}, "scheduled", None),
    "timeout": ("fail", {"outcome": AttemptOutcome.TIMEOUT, "error": "e"}, "scheduled", None),
    "permanent": ("fail", {"final": True, "error": "e", "traceback": "t"}, "failed", "permanent"),
    "exhausted": (
        "fail", {"final": True, "reason": Reason.EXHAUSTED, "error": "e"}, "failed", "exhausted",
    ),
    "snooze": ("snooze", {"delay": 100.0}, "scheduled", None),
    "unstarted": ("release", {"started": False}, "runnable", None),
    "interrupted": ("release", {"started": True, "error": "drained"}, "runnable", None),
}  # fmt: skip
each_end = pytest.mark.parametrize("end", list(ENDS))


def acked(claim: Claim, end: str, **more: Any) -> Ack:
    kind, fields, _, _ = ENDS[end]
    return ack(claim, kind, **{**fields, **more})


@each_end
def test_an_end(db: Database, end: str) -> None:
    kind, fields, state, reason = ENDS[end]
    claim = db.claimed(unique_key="k")
    held = db.job(claim.id)
    assert held is not None
    before = db.now()
    cycle = db.finish(acked(claim, end))
    after = db.now()
    assert cycle.unacknowledged == []
    ((id, attempt, said_state, said_reason, at),) = cycle.ended
    assert attempt == claim.attempt
    assert (id, said_state, said_reason) == (claim.id, state, reason)
    record = db.jobs.job(claim.id)
    assert (record.state, record.reason) == (state, reason)
    assert (record.attempt, record.fence) == (1, claim.fence)
    assert record.failures == (kind == "fail")
    assert record.interrupted == (end == "interrupted")
    assert record.lost == 0
    assert record.last_error == fields.get("error", None) if kind == "fail" else True
    assert record.result == fields.get("result")
    assert record.claimed_by is record.claimed_at is record.lease_expires_at is None
    if state in {"succeeded", "failed"}:
        assert db.job(claim.id) is None
        assert record.finished_at is not None
        assert before <= record.finished_at <= after
        assert record.unique_key == "k"
    else:
        assert record.finished_at is None
        assert db.time(at) == record.available_at
    if state == "scheduled":
        delay = fields.get("delay", 0.0) * SECOND
        assert before + delay <= record.available_at <= after + delay
    if state == "runnable":
        assert record.available_at == db.time(held["available_at"])
    (attempt,) = db.jobs.attempts(claim.id)
    expected = {"timeout": "timeout", "unstarted": "released", "interrupted": "interrupted"}
    plain = {"succeed": "succeeded", "fail": "failed", "snooze": "snoozed"}
    assert attempt.outcome == expected.get(end, plain.get(kind))
    assert (attempt.attempt, attempt.worker, attempt.fence) == (1, "worker-1", claim.fence)
    assert attempt.error == fields.get("error")
    assert attempt.traceback == fields.get("traceback")
    assert attempt.started_at == db.time(held["claimed_at"])
    assert before <= attempt.ended_at <= after
    assert attempt.reason == reason


@each_end
def test_a_repeated_ack_changes_nothing_and_is_said_to_be_done(db: Database, end: str) -> None:
    """P4, ACK-07."""
    claim = db.claimed()
    mine = acked(claim, end)
    db.finish(mine)
    before = db.everything()
    for _ in range(2):
        cycle = db.finish(mine)
        assert (cycle.ended, cycle.unacknowledged) == ([], [mine])
        assert db.find_closed(mine) == {claim.id}
    assert db.everything() == before


@each_end
def test_a_repeated_ack_is_done_though_the_job_went_on(db: Database, end: str) -> None:
    claim = db.claimed()
    mine = acked(claim, end)
    db.finish(mine)
    if ENDS[end][2] in {"scheduled", "runnable"}:
        again = db.reclaim(claim.id)
        before = db.everything()
        assert db.finish(mine).unacknowledged == [mine]
        assert db.find_closed(mine) == {claim.id}
        assert db.find_closed(acked(again, end)) == set()
        assert db.everything() == before
        db.ack(again)
    before = db.everything()
    assert db.finish(mine).unacknowledged == [mine]
    assert db.everything() == before


@each_end
@pytest.mark.parametrize("how", ["reaped", "claimed again", "over", "made up", "other job"])
def test_a_stale_token_changes_nothing_and_is_told(db: Database, end: str, how: str) -> None:
    """P5."""
    claim = db.claimed()
    if how in {"reaped", "claimed again", "over"}:
        db.end_lease(claim)
        assert len(db.reap()) == 1
    if how in {"claimed again", "over"}:
        again = db.reclaim(claim.id)
        if how == "over":
            db.ack(again)
    if how == "made up":
        claim = claim._replace(token=uuid.uuid4())
    if how == "other job":
        claim = claim._replace(token=db.claimed().token)
    before = db.everything()
    stale = acked(claim, end)
    cycle = db.finish(stale)
    assert (cycle.ended, cycle.unacknowledged) == ([], [stale])
    assert db.everything() == before
    # A reaper closes the attempt under this very token: what it wrote is "lost", whatever the ack says.
    closed = {claim.id} if how in {"reaped", "claimed again", "over"} else set()
    assert db.find_closed(stale) <= closed
    assert [str(a.outcome) for a in db.jobs.attempts(claim.id)][:1] == ["lost"] * len(closed)


@each_end
def test_a_late_ack_whose_token_stands_is_accepted(db: Database, end: str) -> None:
    """P5: time alone takes nothing away."""
    claim = db.claimed()
    db.end_lease(claim, ago=10_000.0)
    assert len(db.finish(acked(claim, end)).ended) == 1
    assert db.reap() == []


@each_end
def test_a_cancel_request_ends_everything_but_a_success(db: Database, end: str) -> None:
    kind, fields, _, _ = ENDS[end]
    claim = db.claimed()
    assert db.jobs.cancel(claim.id) == "claimed"
    mine = acked(claim, end)
    cycle = db.finish(mine)
    expected = ("succeeded", None) if kind == "succeed" else ("failed", "cancelled")
    assert [(e.id, e.state, e.reason) for e in cycle.ended] == [(claim.id, *expected)]
    record = db.jobs.job(claim.id)
    assert (record.state, record.reason) == expected
    assert record.result == fields.get("result")
    assert len(db.jobs.attempts(claim.id)) == 1
    before = db.everything()
    assert db.finish(mine).unacknowledged == [mine]
    assert db.find_closed(mine) == {claim.id}
    assert db.everything() == before


def test_a_success_keeps_the_story_of_its_failures(db: Database) -> None:
    claim = db.claimed()
    db.ack(claim, "fail", error="first", delay=1.0)
    db.ack(db.reclaim(claim.id))
    record = db.jobs.job(claim.id)
    assert (record.state, record.failures, record.attempt) == ("succeeded", 1, 2)
    assert [str(a.outcome) for a in db.jobs.attempts(claim.id)] == ["failed", "succeeded"]


@pytest.mark.parametrize(("end", "lost"), [("retry", 0), ("snooze", 0), ("unstarted", 2)])
def test_an_attempt_that_ends_normally_forgets_silence(db: Database, end: str, lost: int) -> None:
    id = db.enqueue()
    db.set(id, lost=2)
    (claim,) = db.claim()
    assert claim.lost == 2
    db.finish(acked(claim, end))
    assert db.jobs.job(id).lost == lost


def test_the_budget_of_interruptions(db: Database) -> None:
    id = db.enqueue(max_interrupted=3)
    for n in range(3):
        (claim,) = db.claim()
        unstarted = db.finish(acked(claim, "unstarted"))
        assert unstarted.ended[0].state == "runnable"  # costs nothing, however often
        (claim,) = db.claim()
        cycle = db.finish(acked(claim, "interrupted"))
        assert cycle.ended[0].state == ("failed" if n == 2 else "runnable")
    record = db.jobs.job(id)
    assert (record.state, record.reason, record.interrupted) == ("failed", "interrupted", 3)
    assert record.attempt == len(db.jobs.attempts(id)) == 6


@pytest.mark.parametrize(
    "until",
    [
        datetime.datetime(2055, 1, 2, 3, 4, 5, 678_901, datetime.UTC),
        datetime.datetime(2001, 1, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=-9))),
        datetime.datetime(8999, 12, 31, tzinfo=datetime.UTC),
    ],
)
def test_snooze_until_a_moment(db: Database, until: datetime.datetime) -> None:
    claim = db.claimed()
    db.ack(claim, "snooze", until=until, delay=5.0)
    record = db.jobs.job(claim.id)
    assert (record.state, record.available_at) == ("scheduled", until)
    assert (record.failures, record.interrupted) == (0, 0)


def test_long_delays_are_stored(db: Database) -> None:
    """RETRY-01: a delay is finite and the job stays visible."""
    one, two = db.claimed(), db.claimed()
    db.finish(ack(one, "fail", delay=MAX_DELAY, error="e"), ack(two, "snooze", delay=MAX_DELAY))
    for claim in (one, two):
        assert db.jobs.job(claim.id).available_at > db.now() + 36_000 * 86_400 * SECOND


def test_errors_are_cut_on_the_row_and_kept_in_the_attempt(db: Database) -> None:
    text = "ü\U0001f600'\"\\%s\t" * 300
    for final in (False, True):
        claim = db.claimed()
        db.ack(claim, "fail", final=final, error=text, traceback=text * 5)
        (attempt,) = db.jobs.attempts(claim.id)
        assert (attempt.error, attempt.traceback) == (text, text * 5)
        assert db.jobs.job(claim.id).last_error == text[:500]


# -- many together --


def test_all_kinds_and_several_tokens_in_one_finish(db: Database) -> None:
    claims = [db.claimed() for _ in range(2 * len(ENDS))]
    acks = [acked(claim, end) for claim, end in zip(claims, [*ENDS, *ENDS], strict=True)]
    db.enqueue_n(40)
    shared = db.claim(40)
    ends = [list(ENDS)[i % len(ENDS)] for i in range(40)]
    acks += [acked(claim, end) for claim, end in zip(shared, ends, strict=True)]
    cycle = db.finish(*reversed(acks))
    assert cycle.unacknowledged == []
    assert sorted(e.id for e in cycle.ended) == sorted(a.id for a in acks)
    wanted = [ENDS[end] for end in [*ENDS, *ENDS, *ends]]
    said = {e.id: e for e in cycle.ended}
    for a, (_, fields, state, reason) in zip(acks, wanted, strict=True):
        record = db.jobs.job(a.id)
        assert (record.state, record.reason) == (said[a.id].state, said[a.id].reason)
        assert (record.state, record.reason) == (state, reason)
        assert record.result == fields.get("result")
        assert len(db.jobs.attempts(a.id)) == 1


def test_each_ack_carries_its_own_values(db: Database) -> None:
    db.enqueue_n(10)
    claims = db.claim(10)
    db.finish(*[ack(c, "succeed", result=f'{{"i":{c.id}}}') for c in claims[:5]],
              *[ack(c, "fail", error=f"e{c.id}", delay=1000.0 * i) for i, c in enumerate(claims[5:])])  # fmt: skip
    for claim in claims[:5]:
        assert db.jobs.job(claim.id).result == f'{{"i":{claim.id}}}'
    times = [db.jobs.job(claim.id).available_at for claim in claims[5:]]
    assert times == sorted(times)
    assert times[-1] - times[0] > 3_999 * SECOND
    for claim in claims[5:]:
        assert db.jobs.job(claim.id).last_error == f"e{claim.id}"


def test_good_and_stale_acks_in_one_finish(db: Database) -> None:
    db.enqueue_n(6)
    claims = db.claim(6)
    db.end_lease(claims[1], claims[4])
    db.reap()
    ends = ["succeed", "succeed", "result", "retry", "retry", "snooze"]
    acks = [acked(claim, end) for claim, end in zip(claims, ends, strict=True)]
    cycle = db.finish(*acks)
    assert sorted(e.id for e in cycle.ended) == [claims[i].id for i in (0, 2, 3, 5)]
    assert sorted(a.id for a in cycle.unacknowledged) == [claims[1].id, claims[4].id]
    for i in (1, 4):
        assert [str(a.outcome) for a in db.jobs.attempts(claims[i].id)] == ["lost"]


@each_end
def test_an_ack_given_twice_in_one_finish_counts_once(db: Database, end: str) -> None:
    """P7: one record for one attempt, whatever the worker's buffer holds."""
    claim = db.claimed()
    mine = acked(claim, end)
    db.finish(mine, mine)
    assert db.counts()[2] == 1
    record = db.jobs.job(claim.id)
    assert record.failures + record.interrupted <= 1
    assert db.value("SELECT count(*) FROM lien_jobs") == 1


def test_two_words_on_one_claim_in_one_finish(db: Database) -> None:
    claim = db.claimed()
    first, second = acked(claim, "retry"), acked(claim, "succeed")
    cycle = db.finish(first, second)
    assert [e.id for e in cycle.ended] == [claim.id]
    assert len(cycle.unacknowledged) == 1
    assert len(db.jobs.attempts(claim.id)) == 1


def test_two_finishers_end_each_claim_once(db: Database) -> None:
    db.enqueue_n(200)
    claims = db.claim(200)
    acks = [acked(c, list(ENDS)[i % len(ENDS)]) for i, c in enumerate(claims)]
    one, two = together(lambda: db.finish(*acks), lambda: db.finish(*reversed(acks)))
    assert len(one.ended) + len(two.ended) == 200
    assert len(one.unacknowledged) + len(two.unacknowledged) == 200
    assert db.counts()[2] == 200


@pytest.mark.only("postgresql")
@each_end
def test_an_ack_waits_for_a_locked_row(db: Database, end: str) -> None:
    claim = db.claimed()
    connection = db.connect()
    db.on(connection, "SELECT id FROM lien_job WHERE id = :id FOR UPDATE", id=claim.id)
    finishing = Threads(lambda: db.finish(acked(claim, end)))
    wait_for(db.blocked)
    connection.commit()
    assert [e.id for e in finishing.join()[0].ended] == [claim.id]


@pytest.mark.only("postgresql")
@each_end
def test_an_ack_sees_what_happened_while_it_waited(db: Database, end: str) -> None:
    """A cancel request, and then a reaper, hold the row while the ack waits for it."""
    flagged, reaped = db.claimed(), db.claimed()
    for claim, verb in ((flagged, "cancel"), (reaped, "reap")):
        connection = db.connect()
        if verb == "cancel":
            db.store.run_on(connection, db.engine.cancel, claim.id)
        else:
            db.end_lease(claim)
            assert len(db.store.run_on(connection, db.engine.reap, 10)) == 1
        finishing = Threads(lambda claim=claim: db.finish(acked(claim, end)))  # type: ignore[misc]
        wait_for(db.blocked)
        connection.commit()
        (cycle,) = finishing.join()
        if verb == "reap":
            assert cycle.ended == []
            assert [str(a.outcome) for a in db.jobs.attempts(claim.id)] == ["lost"]
        elif ENDS[end][0] == "succeed":
            assert cycle.ended == [Ended(claim.id, claim.attempt, lien.State.SUCCEEDED, None)]
        else:
            assert [(e.state, e.reason) for e in cycle.ended] == [("failed", "cancelled")]
            assert db.jobs.job(claim.id).reason == "cancelled"


# -- a bad value --


@pytest.mark.parametrize("result", ["{bad", "", "NaN", "[1,]", "{'a':1}"])
def test_a_result_that_is_no_json_spoils_its_own_ack_only(db: Database, result: str) -> None:
    """It is found by bisecting: the batch fails whole, the rest passes, the one is then failed."""
    db.enqueue_n(3)
    claims = db.claim(3)
    acks = [ack(c, "succeed", result="1") for c in claims]
    acks[1] = ack(claims[1], "succeed", result=result)
    before = db.everything()
    with pytest.raises(lien.DatabaseError):
        db.finish(*acks)
    assert db.everything() == before
    assert len(db.finish(acks[0], acks[2]).ended) == 2
    with pytest.raises(lien.DatabaseError):
        db.finish(acks[1])
    cycle = db.ack(claims[1], "fail", final=True, error="result not storable")
    assert [e.reason for e in cycle.ended] == ["permanent"]


def test_an_ack_never_depends_on_a_claim(db: Database) -> None:
    """The combined round fails for the claim's sake; the ack alone goes through."""
    claim = db.claimed()
    bad = db.request(5, lease=float("inf"))
    db.enqueue()
    with pytest.raises((lien.DatabaseError, OverflowError, ValueError)):
        db.cycle([ack(claim)], bad)
    assert db.jobs.job(claim.id).state == "claimed"
    assert len(db.ack(claim).ended) == 1


def test_an_outcome_that_does_not_exist_is_refused(db: Database) -> None:
    claim = db.claimed()
    before = db.everything()
    with pytest.raises(lien.DatabaseError):
        db.ack(claim, "fail", outcome="nonsense", error="e")
    assert db.everything() == before


def test_a_final_failure_needs_a_reason(db: Database) -> None:
    claim = db.claimed()
    before = db.everything()
    bad = ack(claim, "fail", error="e")._replace(final=True)
    with pytest.raises(lien.DatabaseError):
        db.finish(bad)
    assert db.everything() == before


def test_find_closed_of_many(db: Database) -> None:
    db.enqueue_n(6)
    claims = [*db.claim(3), *db.claim(3)]
    acks = [ack(c) for c in claims]
    assert db.find_closed(*acks) == set()
    assert db.find_closed() == set()
    db.finish(acks[0], acks[4])
    assert db.find_closed(*acks) == {claims[0].id, claims[4].id}
