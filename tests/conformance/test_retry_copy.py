"""Retry by an operator: a failed job is never revived; a copy that names it is enqueued."""

from __future__ import annotations

import asyncio
import datetime

import pytest

import lien
from lien.model import Enqueued
from tests.conformance.kit import Database, together

COPIED = (
    "queue", "task", "args", "headers", "priority", "unique_key", "timeout", "max_failures", "max_lost",
    "max_interrupted", "backoff_base", "backoff_cap", "tenant", "ordering_key",
)  # fmt: skip


def failed(db: Database, **fields: object) -> int:
    claim = db.claimed(**fields)
    db.ack(claim, "fail", final=True, error="e")
    return claim.id


def test_a_copy_has_the_work_and_the_limits(db: Database) -> None:
    claim_args = {
        "args": '{"a":[1,"ü"]}', "headers": '{"t":"1"}', "queue": "q", "priority": 1,
        "unique_key": "k", "timeout": 5.0, "max_failures": 2, "max_lost": 3, "max_interrupted": 4,
        "backoff_base": 0.5, "backoff_cap": 7.0, "expires": 50.0,
    }  # fmt: skip
    id = failed(db, **claim_args)
    before = db.snapshot(id)
    (original,) = db.rows("SELECT * FROM lien_history WHERE id = :id", id=id)
    asked = db.now()
    found = db.jobs.retry(id)
    assert found.created
    assert found.id != id
    copy = db.job(found.id)
    assert copy is not None
    for name in COPIED:
        assert copy[name] == original[name], name
    record = db.jobs.job(found.id)
    assert (record.state, record.origin, record.reason) == ("runnable", id, None)
    assert (record.attempt, record.failures, record.lost, record.interrupted) == (0, 0, 0, 0)
    assert record.fence == 0
    assert record.last_error is None
    assert asked <= record.available_at <= db.now()
    assert asked <= record.created_at
    assert db.snapshot(id) == before
    (claim,) = db.claim(queue="q")
    assert claim.id == found.id


@pytest.mark.parametrize("reason", ["cancelled", "expired", "lost"])
def test_every_kind_of_failure(db: Database, reason: str) -> None:
    id = db.enqueue(max_lost=1)
    if reason == "cancelled":
        db.jobs.cancel(id)
    elif reason == "expired":
        db.end_life(id)
        db.expire()
    else:
        db.end_lease(*db.claim())
        db.reap()
    assert db.jobs.job(id).reason == reason
    copy = db.jobs.job(db.jobs.retry(id).id)
    assert (copy.origin, copy.state) == (id, "runnable")
    assert copy.expires_at is None or copy.expires_at > db.now() + datetime.timedelta(seconds=1)


@pytest.mark.parametrize("state", ["scheduled", "runnable", "claimed", "succeeded"])
def test_only_a_failed_job(db: Database, state: str) -> None:
    id = db.enqueue(delay=60.0 if state == "scheduled" else 0.0)
    if state in {"claimed", "succeeded"}:
        (claim,) = db.claim()
        if state == "succeeded":
            db.ack(claim)
    before = db.everything()
    with pytest.raises(lien.TransitionRefused, match=f"{state}: only a failed job"):
        db.jobs.retry(id)
    assert db.everything() == before


def test_a_live_job_of_the_same_key_answers_instead(db: Database) -> None:
    id = failed(db, unique_key="k")
    first = db.jobs.retry(id)
    assert first.created
    before = db.everything()
    assert db.jobs.retry(id) == Enqueued(first.id, created=False)
    assert db.everything() == before


def test_twice_without_a_key_makes_two(db: Database) -> None:
    id = failed(db)
    one, two = db.jobs.retry(id), db.jobs.retry(id)
    assert one.id != two.id
    assert [db.jobs.job(x.id).origin for x in (one, two)] == [id, id]


def test_two_operators_on_one_key_make_one(db: Database) -> None:
    for round_ in range(10):
        id = failed(db, unique_key=f"k{round_}")
        found = together(*[lambda failed=id: db.jobs.retry(failed)] * 3)  # type: ignore[misc]
        assert len({job.id for job in found}) == 1
        assert sum(job.created for job in found) == 1
        db.claim(10)


def test_a_copy_of_a_copy(db: Database) -> None:
    id = failed(db)
    copy = db.jobs.retry(id)
    db.ack(db.claim()[0], "fail", final=True, error="e")
    again = db.jobs.retry(copy.id)
    assert db.jobs.job(again.id).origin == copy.id


def test_awaited(db: Database) -> None:
    id = failed(db)

    async def main() -> Enqueued:
        found = await db.jobs.aretry(id)
        assert (await db.jobs.ajob(found.id)).origin == id
        assert len(await db.jobs.aattempts(id)) == 1
        assert len(await db.jobs.alist()) == 2
        with pytest.raises(lien.TransitionRefused):
            await db.jobs.aretry(found.id)
        await db.jobs.aclose()
        return found

    assert asyncio.run(main()).created
