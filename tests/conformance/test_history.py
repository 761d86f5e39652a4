"""The record as a whole: every state against every verb of the table, and a history that is only added to.

The cases are made from `lien.machine.TABLE`: a new arrow or state asks for its line here by failing.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import lien
from lien.machine import LIVE, TABLE, TERMINAL, State
from lien.model import Ack, Claim, Held, Promote
from tests.conformance.kit import Database, ack, new, together

STATES = [*State]
WAITING_COLUMNS = {"state", "claim_token", "claimed_by", "claimed_at", "lease_expires_at"}
CLAIM_COLUMNS = WAITING_COLUMNS | {"attempt", "fence"}

# What each arrow may change on a row that stays live.
TOUCHES: dict[str, set[str]] = {
    "promote": {"state", "reason"},
    "park": {"state", "reason", "available_at"},
    "unpark": {"state", "reason", "available_at"},
    "claim": CLAIM_COLUMNS,
    "renew": {"lease_expires_at"},
    "fail": WAITING_COLUMNS | {"failures", "available_at", "last_error"},
    "snooze": WAITING_COLUMNS | {"available_at"},
    "release": WAITING_COLUMNS,
    "reap": WAITING_COLUMNS | {"lost", "available_at", "last_error"},
    "request_cancel": {"cancel_requested"},
    "succeed": set(),
    "expire": set(),
    "cancel": set(),
    "enqueue": set(),
}


def stage(db: Database, state: State, verb: str) -> Claim:
    """A job in this state for which every other guard of the verb holds; its last claim."""
    claim = db.claimed(unique_key="k", headers='{"h":1}')
    if state in TERMINAL:
        fields: dict[str, Any] = {"final": True, "error": "e"} if state is State.FAILED else {}
        db.ack(claim, "fail" if state is State.FAILED else "succeed", **fields)
        return claim
    if state is not State.CLAIMED:
        db.ack(claim, "snooze" if state is State.SCHEDULED else "release")
        assert db.jobs.job(claim.id).state == state
    if verb == "promote":
        db.make_due(claim.id)
    if verb == "unpark" and state is State.SCHEDULED:
        db.set(claim.id, reason="unknown_task")
    if verb == "expire":
        db.end_life(claim.id)
    if verb == "reap" and state is State.CLAIMED:
        db.end_lease(claim)
    return claim


def do(db: Database, verb: str, claim: Claim) -> None:
    """The verb, aimed at this job with everything that it could have to prove its right."""
    verbs: dict[str, Callable[[], Any]] = {
        "enqueue": lambda: db.run(db.engine.enqueue_again, [new(args='{"x":1}')], [claim.id]),
        "promote": lambda: db.cycle(promote=Promote(None, 100)),
        "park": lambda: db.park("another"),
        "unpark": lambda: db.unpark("work"),
        "claim": lambda: db.claim(100),
        "renew": lambda: db.renew(claim, lease=1e6),
        "succeed": lambda: db.ack(claim),
        "fail": lambda: db.ack(claim, "fail", error="x", delay=5.0),
        "snooze": lambda: db.ack(claim, "snooze", delay=5.0),
        "release": lambda: db.ack(claim, "release", started=False),
        "reap": db.reap,
        "expire": db.expire,
        "cancel": lambda: db.run(db.engine.cancel, claim.id),
        "request_cancel": lambda: db.run(db.engine.cancel, claim.id),
    }
    verbs[verb]()


def arrows_of(verb: str) -> list[str]:
    """`cancel` and `request_cancel` are one verb: the state decides which."""
    return ["cancel", "request_cancel"] if verb in {"cancel", "request_cancel"} else [verb]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("verb", list(TABLE))
def test_every_state_against_every_verb(db: Database, state: State, verb: str) -> None:
    claim = stage(db, state, verb)
    bystanders = [db.enqueue("bystander", queue="elsewhere", delay=1e6) for _ in range(2)]
    spared = [db.snapshot(id) for id in bystanders]
    before, row = db.snapshot(claim.id), db.job(claim.id)
    do(db, verb, claim)
    assert [db.snapshot(id) for id in bystanders] == spared
    arrow = next((TABLE[a] for a in arrows_of(verb) if state in TABLE[a].source), None)
    if arrow is None:
        assert db.snapshot(claim.id) == before
        return
    after = db.jobs.job(claim.id)
    assert after.state in arrow.target
    assert len(db.jobs.attempts(claim.id)) == len(before["lien_attempt"]) + arrow.closes
    if after.state in LIVE:
        live = db.job(claim.id)
        assert live is not None
        assert row is not None
        changed = {name for name in live if live[name] != row[name]}
        assert changed <= TOUCHES[arrow.name]
        assert changed
    else:
        assert db.job(claim.id) is None
        (over,) = db.rows("SELECT * FROM lien_history WHERE id = :id", id=claim.id)
        assert row is not None
        for name in over.keys() & row.keys():
            if name not in {"state", "reason", "last_error", "failures", "lost", "interrupted"}:
                assert over[name] == row[name], name


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("verb", [v for v, arrow in TABLE.items() if arrow.token])
def test_only_the_holder_of_the_token(db: Database, state: State, verb: str) -> None:
    claim = stage(db, state, verb)
    before = db.everything()
    for token in (uuid.uuid4(), uuid.UUID(int=0)):
        do(db, verb, claim._replace(token=token))
        do(db, verb, claim._replace(id=claim.id + 1))
        assert db.everything() == before


@pytest.mark.parametrize("verb", ["promote", "reap", "expire", "unpark", "park"])
def test_only_when_the_guard_holds(db: Database, verb: str) -> None:
    """Each in its source state, with the one condition that is not met."""
    (source,) = [s for s in TABLE[verb].source if s is not State.SCHEDULED or verb != "expire"]
    claim = stage(db, source, "nothing")
    if verb == "promote":
        db.set(claim.id, available_at=db.moment(60.0))
    if verb == "expire":
        db.set(claim.id, expires_at=db.moment(60.0))
    before = db.everything()
    for _ in range(2):
        if verb == "park":
            db.park("work")
        else:
            do(db, verb, claim)
        assert db.everything() == before


def test_terminal_jobs_absorb(db: Database) -> None:
    """P4: every verb at once on one job of each terminal state."""
    for state in TERMINAL:
        claim = stage(db, state, "nothing")
        before = db.everything()
        for verb in TABLE:
            do(db, verb, claim)
        if state is State.SUCCEEDED:
            with pytest.raises(lien.TransitionRefused):
                db.jobs.retry(claim.id)
        assert db.everything() == before


def silence(db: Database, claim: Claim) -> None:
    db.end_lease(claim)
    db.reap()


ENDS: list[Callable[[Database, Claim], object]] = [
    lambda db, claim: db.ack(claim, "fail", error="e", delay=1.0),
    lambda db, claim: db.ack(claim, "snooze", delay=1.0),
    lambda db, claim: db.ack(claim, "release", started=True),
    lambda db, claim: db.ack(claim, "release", started=False),
    lambda db, claim: db.ack(claim) if claim.attempt > 9 else db.ack(claim, "snooze"),
    silence,
]


def test_attempts_are_dense_and_written_once(db: Database) -> None:
    """P7, and the budgets add up: outcomes = attempts, counters = outcomes of their kind."""
    ids = db.enqueue_n(30, max_failures=10**6, max_lost=10**6, max_interrupted=10**6)
    dice = random.Random(3)
    written: dict[tuple[int, int], str] = {}
    for _ in range(25):
        db.query("UPDATE lien_job SET available_at = :past", past=db.moment(-1.0))
        db.promote(limit=100)
        claims = db.claim(dice.randrange(1, 40))
        for claim in claims:
            ENDS[dice.randrange(len(ENDS))](db, claim)
        for row in db.rows("SELECT * FROM lien_attempt"):
            key, text = (row["job_id"], row["attempt"]), repr(sorted(row.items()))
            assert written.setdefault(key, text) == text
    for id in ids:
        record, attempts = db.jobs.job(id), db.jobs.attempts(id)
        assert [a.attempt for a in attempts] == list(range(1, record.attempt + 1))
        outcomes = [str(a.outcome) for a in attempts]
        assert record.failures == outcomes.count("failed")
        assert record.interrupted == outcomes.count("interrupted")
        assert record.lost <= outcomes.count("lost")
        assert [a.fence for a in attempts] == sorted({a.fence for a in attempts})
        assert all(a.started_at <= a.ended_at for a in attempts)


def test_everybody_at_once(db: Database) -> None:
    """Workers, reapers and an operator on the same few jobs: each attempt ends once, each job once."""
    ids = db.enqueue_n(40, backoff_base=0.0, backoff_cap=0.0)
    accepted: list[Ack] = []

    def worker(seed: int) -> None:
        dice = random.Random(seed)
        for _ in range(60):
            cycle = db.cycle(claim=db.request(5, lease=0.001), promote=Promote(None, 50))
            acks = [ack(c, dice.choice(["succeed", "fail", "snooze", "release"]), error="e") for c in cycle.claims]
            done = db.finish(*acks)
            ended = {e.id for e in done.ended}
            accepted.extend(a for a in acks if a.id in ended)

    def reaper() -> int:
        return sum(len(db.reap(10)) for _ in range(60))

    def operator() -> None:
        for id in ids[::7]:
            with suppress(lien.TransitionRefused):
                db.jobs.cancel(id)

    *_, reaped, _ = together(*[lambda i=i: worker(i) for i in range(3)], reaper, operator)  # type: ignore[misc]
    assert db.counts()[2] == len(accepted) + reaped
    keys = db.query("SELECT job_id, attempt FROM lien_attempt")
    assert len(set(keys)) == len(keys)
    assert sorted(db.states()) == ids
    assert db.value("SELECT count(*) FROM lien_jobs") == len(ids)
    for id in ids:
        record = db.jobs.job(id)
        numbers = [a.attempt for a in db.jobs.attempts(id)]
        expected = record.attempt - (record.state == "claimed")
        assert numbers == list(range(1, expected + 1))
    succeeded = [a for a in accepted if a.kind == "succeed"]
    assert len({a.id for a in succeeded}) == len(succeeded)
    assert {id for id, s in db.states().items() if s == "succeeded"} == {a.id for a in succeeded}


def test_the_table_is_the_one_tested_here() -> None:
    assert set(TOUCHES) == set(TABLE)
    assert Held(1, uuid.UUID(int=1)).id == 1
