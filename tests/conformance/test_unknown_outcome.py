"""The connection breaks while a write is under way, before or after the server had it: nothing is lost or doubled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import lien
from lien.errors import DatabaseUnavailable
from tests.conformance.kit import Database, ack
from tests.conformance.proxy import Proxy

pytestmark = pytest.mark.only("postgresql")
COMMIT = b"COMMIT\x00"  # the statement itself, not READ COMMITTED
delivered = pytest.mark.parametrize("delivered", [True, False], ids=["delivered", "undelivered"])


@pytest.fixture
def proxy(db: Database) -> Iterator[Proxy]:
    with Proxy(db.url) as running:
        yield running


@pytest.fixture
def far(proxy: Proxy) -> Iterator[Database]:
    """The same database behind the proxy."""
    database = Database(proxy.url)
    yield database
    database.close()


@delivered
@pytest.mark.parametrize("options", [{}, {"unique": "k"}, {"delay": 60}], ids=str)
def test_an_enqueue_makes_one_job(
    db: Database, far: Database, proxy: Proxy, delivered: bool, options: dict[str, Any]
) -> None:
    task = far.jobs.task(lambda n: None, name="work")
    proxy.cut(b"INSERT INTO", delivered=delivered)
    job = task.using(**options).enqueue(7)
    assert proxy.cuts == 1
    assert job.created
    assert list(db.states()) == [job.id]
    assert db.jobs.job(job.id).args == '{"n":7}'


@pytest.mark.parametrize(("marker", "delivered"), [(b"COPY", False), (COMMIT, False), (COMMIT, True)])
def test_an_enqueue_of_many_makes_each_once(
    db: Database, far: Database, proxy: Proxy, delivered: bool, marker: bytes
) -> None:
    task = far.jobs.task(lambda n: None, name="work")
    calls = [task.using(unique=f"k{n}" if n % 3 == 0 else None).call(n) for n in range(20)]
    proxy.cut(marker, delivered=delivered)
    found = far.jobs.enqueue_many(calls)
    assert proxy.cuts == 1
    assert sorted(db.states()) == [job.id for job in found]
    assert [db.jobs.job(job.id).args for job in found] == [f'{{"n":{n}}}' for n in range(20)]
    assert all(job.created for job in found)


@delivered
def test_awaited(db: Database, far: Database, proxy: Proxy, delivered: bool) -> None:
    task = far.jobs.task(lambda n: None, name="work")

    async def main() -> list[lien.Enqueued]:
        proxy.cut(b"INSERT INTO", delivered=delivered)
        found = [await task.aenqueue(1)]
        proxy.cut(COMMIT, delivered=delivered)
        found += await task.aenqueue_many([{"n": 2}, {"n": 3}])
        await far.jobs.aclose()
        return found

    found = asyncio.run(main())
    assert proxy.cuts == 2
    assert sorted(db.states()) == [job.id for job in found]
    assert all(job.created for job in found)


@pytest.mark.parametrize("marker", [b"nextval", b"INSERT INTO"])
def test_a_job_that_ran_meanwhile_is_not_made_again(db: Database, far: Database, proxy: Proxy, marker: bytes) -> None:
    """The first try was committed, and a worker has already finished the job when the second comes."""
    task = far.jobs.task(lambda n: None, name="work")
    again = far.engine.enqueue_again

    def late(*args: Any, **kwargs: Any) -> Any:
        for claim in db.claim(5):
            db.ack(claim)
        return again(*args, **kwargs)

    far.engine.enqueue_again = late  # type: ignore[method-assign]
    proxy.cut(marker, delivered=True)
    job = task.enqueue(1)
    if marker == b"nextval":  # nothing was written yet: other ids will do
        assert db.states() == {job.id: "runnable"}
        return
    assert db.states() == {job.id: "succeeded"}
    assert db.counts() == (0, 1, 1)


def test_an_unknown_outcome_that_stays_unknown_names_the_id(db: Database, far: Database, proxy: Proxy) -> None:
    task = far.jobs.task(lambda n: None, name="work")
    far.run(far.engine.reserve, 1)
    (reserved,) = db.query("SELECT last_value FROM lien_job_id_seq")
    proxy.cut(b"INSERT INTO", delivered=True)
    stop = far.engine.enqueue_again

    def gone(*args: Any, **kwargs: Any) -> Any:
        proxy.stop()
        return stop(*args, **kwargs)

    far.engine.enqueue_again = gone  # type: ignore[method-assign]
    with pytest.raises(DatabaseUnavailable, match=f"job {reserved[0] + 1} "):
        task.enqueue(1)
    assert list(db.states()) == [reserved[0] + 1]


ENDS: dict[str, tuple[str, dict[str, Any]]] = {
    "succeed": ("succeed", {}),
    "result": ("succeed", {"result": "1"}),
    "retry": ("fail", {"error": "e", "delay": 60.0}),
    "final": ("fail", {"error": "e", "final": True}),
    "snooze": ("snooze", {"delay": 60.0}),
    "release": ("release", {"started": True}),
}


@delivered
@pytest.mark.parametrize("end", list(ENDS))
def test_a_repeated_ack_says_what_happened(
    db: Database, far: Database, proxy: Proxy, delivered: bool, end: str
) -> None:
    """ACK-07."""
    kind, fields = ENDS[end]
    claim = db.claimed()
    mine = ack(claim, kind, **fields)
    proxy.cut(b"lien_attempt", delivered=delivered)
    with pytest.raises(DatabaseUnavailable):
        far.finish(mine)
    assert proxy.cuts == 1
    again = far.finish(mine)
    if delivered:
        assert (again.ended, again.unacknowledged) == ([], [mine])
        assert far.find_closed(mine) == {claim.id}
    else:
        assert [e.id for e in again.ended] == [claim.id]
    record = db.jobs.job(claim.id)
    assert record.failures == (kind == "fail")
    assert record.interrupted == (kind == "release")
    assert len(db.jobs.attempts(claim.id)) == 1


@delivered
def test_a_claim_that_nobody_heard_of_is_found_by_its_token(
    db: Database, far: Database, proxy: Proxy, delivered: bool
) -> None:
    ids = db.enqueue_n(3)
    request = far.request(2)
    proxy.cut(b"claimed_by", delivered=delivered)
    with pytest.raises(DatabaseUnavailable):
        far.cycle(claim=request)
    orphans = far.run(far.engine.orphans, [request.token])
    assert [o.id for o in orphans] == (ids[:2] if delivered else [])
    far.finish(*orphans)
    assert set(db.states().values()) == {"runnable"}


@delivered
@pytest.mark.parametrize("verb", ["renew", "cancel", "reap", "retry"])
def test_other_writes_can_be_sent_again(db: Database, far: Database, proxy: Proxy, delivered: bool, verb: str) -> None:
    claim = db.claimed(unique_key="k")
    if verb == "reap":
        db.end_lease(claim)
    if verb == "retry":
        db.ack(claim, "fail", error="e", final=True)
    verbs: dict[str, tuple[bytes, Callable[[], Any]]] = {
        "renew": (b"lease_expires_at", lambda: far.renew(claim)),
        "cancel": (b"cancel_requested", lambda: far.jobs.cancel(claim.id)),
        "reap": (b"lease_expires_at", far.reap),
        "retry": (COMMIT, lambda: far.jobs.retry(claim.id)),
    }
    marker, call = verbs[verb]
    proxy.cut(marker, delivered=delivered)
    with pytest.raises(DatabaseUnavailable):
        call()
    assert proxy.cuts == 1
    answer = call()
    if verb == "renew":
        assert answer.renewed == {claim.id}
    if verb == "cancel":
        assert answer == "claimed"
    if verb == "reap":
        assert len(answer) == (not delivered)
        assert db.jobs.job(claim.id).lost == 1
    if verb == "retry":
        assert answer.created is not delivered
        assert db.counts()[0] == 1


def test_a_callers_connection_that_breaks_is_the_callers(db: Database, proxy: Proxy) -> None:
    """Nothing is repeated behind the caller's back: the transaction is gone, and the job with it."""
    task = db.jobs.task(lambda n: None, name="work")
    far = Database(proxy.url)
    connection = far.connect()
    task.using(connection).enqueue(1)
    proxy.cut(b"INSERT INTO", delivered=False)
    with pytest.raises(DatabaseUnavailable):
        task.using(connection).enqueue(2)
    far.close()
    assert db.counts() == (0, 0, 0)
