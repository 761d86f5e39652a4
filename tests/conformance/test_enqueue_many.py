"""Enqueue of many: row for row what single calls write, all or none, and repeatable under reserved ids."""

from __future__ import annotations

import asyncio
import datetime
import random
from typing import Any

import pytest

import lien
from lien.model import Enqueued, NewJob
from tests.conformance.kit import Database, new, together

FAR = datetime.datetime(2100, 5, 6, 7, 8, 9, 123_456, datetime.UTC)
PAST = datetime.datetime(2001, 5, 6, 7, 8, 9, 654_321, datetime.UTC)
OWN = {"id", "created_at"}


def many(db: Database, jobs: list[NewJob], **kwargs: Any) -> list[Enqueued]:
    found: list[Enqueued] = db.run(db.engine.enqueue_many, jobs, **kwargs)
    return found


def mixed(n: int) -> list[NewJob]:
    dice = random.Random(7)
    return [
        new(
            dice.choice(["work", "mail"]),
            args='{"text":"tab\\t back\\\\ line\\n \\"q\\" ü \U0001f600","n":' + f"{i}}}",
            queue=dice.choice(["default", "q\tu\\e"]),
            headers=dice.choice([None, '{"t":"\\\\N"}']),
            priority=dice.randrange(4),
            at=dice.choice([FAR, PAST]),
            expires=dice.choice([None, 0.001, 1e6]),
            unique_key=dice.choice([None, None, f"k{i}"]),
            timeout=dice.choice([0.1, 3600.0]),
            max_failures=dice.randrange(1, 30),
            max_lost=dice.randrange(1, 30),
            max_interrupted=dice.randrange(1, 30),
            backoff_base=dice.random(),
            backoff_cap=1e9 / 3,
            origin=dice.choice([None, 2**53 + 1]),
        )
        for i in range(n)
    ]


def rows(db: Database, ids: list[int]) -> list[dict[str, Any]]:
    found = [db.job(id) for id in ids]
    assert all(found)
    return [{k: v for k, v in row.items() if k not in OWN} for row in found if row]


def test_bulk_writes_what_single_calls_write(db: Database) -> None:
    """ENQUEUE-05."""
    jobs = mixed(200)
    single = rows(db, [db.run(db.engine.enqueue, job).id for job in jobs])
    db.query("DELETE FROM lien_job")
    bulk = rows(db, [job.id for job in many(db, jobs)])
    assert bulk == single


def test_relative_times_of_bulk(db: Database) -> None:
    before = db.now()
    jobs = many(db, [new(), new(delay=50.0), new(delay=50.0, unique_key="k", expires=5.0)])
    after = db.now()
    plain, later, keyed = (db.jobs.job(job.id) for job in jobs)
    assert (plain.state, later.state, keyed.state) == ("runnable", "scheduled", "scheduled")
    second = datetime.timedelta(seconds=1)
    assert before <= plain.available_at <= after
    for record in (later, keyed):
        assert before + 50 * second <= record.available_at <= after + 50 * second
    assert keyed.expires_at == keyed.available_at + 5 * second


def test_ids_are_in_the_order_of_the_calls(db: Database) -> None:
    jobs = [new(args=f'{{"i":{i}}}', unique_key=f"k{-i}" if i % 3 else None) for i in range(60)]
    found = many(db, jobs)
    ids = [job.id for job in found]
    assert ids == sorted(set(ids))
    assert [db.jobs.job(id).args for id in ids] == [job.args for job in jobs]
    assert all(job.created for job in found)


def test_nothing_is_written_for_nothing(db: Database) -> None:
    assert db.jobs.enqueue_many([]) == []
    assert db.jobs.task(lambda: None, name="x").enqueue_many(iter([])) == []
    assert db.counts() == (0, 0, 0)


def test_ten_thousand(db: Database) -> None:
    task = db.jobs.task(lambda i: None, name="work")
    found = task.enqueue_many({"i": i} for i in range(10_000))
    assert len({job.id for job in found}) == 10_000
    assert db.counts() == (10_000, 0, 0)
    assert db.jobs.job(found[7_000].id).args == '{"i":7000}'


def test_calls_of_several_tasks(db: Database) -> None:
    mail = db.jobs.task(lambda to: None, name="mail")
    pay = db.jobs.task(lambda n: None, name="pay")
    found = db.jobs.enqueue_many([mail.call(to="a"), pay.using(delay=60).call(2), mail.call("b")])
    records = [db.jobs.job(job.id) for job in found]
    assert [(r.task, r.args) for r in records] == [
        ("mail", '{"to":"a"}'),
        ("pay", '{"n":2}'),
        ("mail", '{"to":"b"}'),
    ]
    assert [str(r.state) for r in records] == ["runnable", "scheduled", "runnable"]


def test_awaited(db: Database) -> None:
    task = db.jobs.task(lambda i: None, name="work")

    async def main() -> list[Enqueued]:
        found = await task.aenqueue_many([{"i": i} for i in range(3)])
        found += await task.using(delay=5).aenqueue_many([{"i": 3}, {"i": 4}])
        found += await db.jobs.aenqueue_many([task.call(i=5), task.call(i=6)])
        assert await db.jobs.aenqueue_many([]) == []
        await db.jobs.aclose()
        return found

    found = asyncio.run(main())
    assert [db.jobs.job(job.id).args for job in found] == [f'{{"i":{i}}}' for i in range(7)]


@pytest.mark.parametrize("bad", [{"i": "a\x00"}, {"i": float("nan")}, {"j": 1}, {}])
def test_a_bad_member_is_named_and_nothing_is_written(db: Database, bad: dict[str, Any]) -> None:
    task = db.jobs.task(lambda i: None, name="work")
    with pytest.raises((lien.PayloadError, lien.SignatureError), match="call 2"):
        task.enqueue_many([{"i": 0}, {"i": 1}, bad, {"i": 3}])
    assert db.counts() == (0, 0, 0)


@pytest.mark.parametrize("keyed", [False, True])
def test_a_member_that_the_database_refuses_undoes_all(db: Database, keyed: bool) -> None:
    jobs = [new(unique_key=f"k{i}" if keyed else None) for i in range(5)]
    jobs[3] = new(priority=9, unique_key="z" if keyed else None)
    with pytest.raises(lien.DatabaseError):
        many(db, jobs)
    assert db.counts() == (0, 0, 0)
    assert len(many(db, jobs[:3])) == 3  # the connection is as good as before


def test_a_key_that_comes_twice_makes_one_job(db: Database) -> None:
    found = many(db, [new(unique_key="a"), new(), new(unique_key="b"), new(unique_key="a")])
    assert [job.created for job in found] == [True, True, True, False]
    assert found[3].id == found[0].id
    again = many(db, [new(unique_key="b"), new(unique_key="c")])
    assert again[0] == Enqueued(found[2].id, created=False)
    assert again[1].created
    assert db.counts() == (4, 0, 0)


def test_equal_keys_in_opposite_order_do_not_deadlock(db: Database) -> None:
    for round_ in range(10):
        keys = [f"{round_}-{i}" for i in range(20)]
        jobs = [new(unique_key=key) for key in keys]
        one, two = together(lambda: many(db, jobs), lambda: many(db, jobs[::-1]))  # noqa: B023
        assert [job.id for job in one] == [job.id for job in two[::-1]]
        assert sum(job.created for job in one + two) == 20
    assert db.counts() == (200, 0, 0)


# -- under reserved ids: the enqueue whose outcome is unknown is sent again --


def ids_for(db: Database, n: int) -> list[int]:
    if db.engine.reserves_ids:
        ids: list[int] = db.run(db.engine.reserve, n)
        return ids
    return [1000 + i for i in range(n)]


def again(db: Database, jobs: list[NewJob], ids: list[int]) -> list[Enqueued]:
    found: list[Enqueued] = db.run(db.engine.enqueue_again, jobs, ids)
    return found


def test_reserved_ids_are_used_in_order(db: Database) -> None:
    ids = ids_for(db, 4)
    jobs = [new(), new(unique_key="k"), new(), new(unique_key="k")]
    found = many(db, jobs, ids=ids)
    assert [job.id for job in found] == [*ids[:3], ids[1]]
    assert sorted(db.states()) == ids[:3]


@pytest.mark.parametrize("arrived", [False, True])
def test_again_makes_no_second_job(db: Database, arrived: bool) -> None:
    ids = ids_for(db, 3)
    jobs = [new(args='{"a":1}'), new(unique_key="k"), new(delay=60.0)]
    if arrived:
        many(db, jobs, ids=ids)
    before = db.everything()
    for _ in range(2):
        assert [job.id for job in again(db, jobs, ids)] == ids
    assert sorted(db.states()) == ids
    assert not arrived or db.everything() == before


def test_again_after_some_are_over_changes_nothing(db: Database) -> None:
    ids = ids_for(db, 3)
    jobs = [new(), new(), new(unique_key="k")]
    many(db, jobs, ids=ids)
    for claim in db.claim(3):
        if claim.id != ids[1]:
            db.ack(claim)
    before = db.everything()
    found = again(db, jobs, ids)
    assert [job.id for job in found] == ids
    assert all(job.created for job in found)
    assert db.everything() == before


def test_again_finds_that_somebody_else_has_the_key(db: Database) -> None:
    older = db.enqueue(unique_key="k")
    ids = ids_for(db, 2)
    found = again(db, [new(unique_key="k"), new()], ids)
    assert found == [Enqueued(older, created=False), Enqueued(ids[1])]
    assert sorted(db.states()) == [older, ids[1]]
