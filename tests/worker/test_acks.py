"""Acknowledgements: written once, whatever breaks, and never taken for what they are not."""

from __future__ import annotations

import asyncio
import random
import signal
import threading

import pytest

import lien
from lien.machine import Reason, State
from tests.worker.apps import astep
from tests.worker.kit import AT_ONCE, Place, wait_until
from tests.worker.proxy import Proxy


class TwoArguments(Exception):
    def __init__(self, one: object, two: object) -> None:
        super().__init__(f"{one}{two}")
        self.two = two


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class NoText(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]  # noqa: PLE0307 - that is the point


class BadAttributes(Exception):
    def __getattribute__(self, name: str) -> object:
        if name in {"__notes__", "args"}:
            raise RuntimeError("not even that")
        return super().__getattribute__(name)


def _chained() -> BaseException:
    error = ValueError("outer")
    error.__cause__ = Silent()
    error.__context__ = error
    return error


def _unpicklable() -> BaseException:
    error = ValueError("holds a lock")
    error.lock = threading.Lock()  # type: ignore[attr-defined]
    return error


def _noted() -> BaseException:
    error = ValueError("noted")
    error.__notes__ = [object(), "\x00", "\ud800"]  # type: ignore[assignment]
    return error


MONSTERS = {
    "two-arguments": (lambda: TwoArguments("a", "b"), "TwoArguments: ab"),
    "unpicklable": (_unpicklable, "ValueError: holds a lock"),
    "silent": (Silent, "Silent"),
    "no-text": (NoText, "NoText"),
    "bad-attributes": (lambda: BadAttributes("x"), "BadAttributes"),
    "chained": (_chained, "ValueError: outer"),
    "noted": (_noted, "ValueError: noted"),
    "nul": (lambda: ValueError("a\x00b"), "ValueError: a\\x00b"),
    "surrogate": (lambda: ValueError("\ud800"), "ValueError: \\ud800"),
    "huge": (lambda: ValueError("x" * 5_000_000), "ValueError: x"),
    "many-lines": (lambda: ValueError("a\nb\r\nc"), "ValueError: a b c"),
    "empty": (ValueError, "ValueError"),
    "group": (lambda: ExceptionGroup("g", [ValueError("in")]), "ExceptionGroup: g"),
    "base-group": (
        lambda: BaseExceptionGroup("g", [KeyboardInterrupt()]),
        "BaseExceptionGroup: g",
    ),
}


def test_ack_03_exceptions_of_every_kind_are_ordinary_failures(place):
    @place.jobs.task(max_failures=1)
    def thread(which: str) -> None:
        raise MONSTERS[which][0]()  # noqa: RSE102 - a function, no class

    @place.jobs.task(max_failures=1)
    async def loop(which: str) -> None:
        raise MONSTERS[which][0]()  # noqa: RSE102 - a function, no class

    ids = {
        (kind, which): task.enqueue(which=which).id
        for kind, task in (("thread", thread), ("loop", loop))
        for which in MONSTERS
    }
    place.burst()
    for (kind, which), id in ids.items():
        record = place.job(id)
        assert (record.state, record.reason) == (State.FAILED, Reason.EXHAUSTED), (kind, which)
        (attempt,) = place.jobs.attempts(id)
        assert attempt.outcome == "failed"
        assert attempt.error.startswith(MONSTERS[which][1]), (kind, which, attempt.error)
        assert "\n" not in attempt.error
        assert len(attempt.error) < 3000
        assert len(attempt.traceback) < 25_000
        assert record.last_error
    place.check(ids.values())


def test_ack_03_a_deep_recursion_is_a_failure(place):
    def dive(n: int) -> int:
        return dive(n + 1) + 1

    @place.jobs.task(max_failures=1)
    def deep() -> None:
        dive(0)

    job = deep.enqueue().id
    place.burst()
    assert place.jobs.attempts(job)[0].error.startswith("RecursionError")


@pytest.mark.parametrize("kills", [6, pytest.param(40, marks=pytest.mark.full)])
def test_ack_05_processes_killed_at_random_points(place, kills):
    place.with_app().guard()
    tasks = ("works", "aworks")
    ids: set[int] = set()
    dice = random.Random(kills)
    for round_ in range(kills):
        calls = [place.task(tasks[n % 2]).call(n=n) for n in range(60)]
        ids |= {done.id for done in place.jobs.enqueue_many(calls)}
        worker = place.process(concurrency=20)
        begun = len(place.starts())
        some = begun + dice.randrange(1, 40)
        wait_until(lambda some=some: len(place.starts()) >= some, f"some starts ({round_})")
        worker.kill()
    with place.worker(concurrency=20):
        place.wait_finished(len(ids), 100)
    place.check(ids)
    assert {row[0] for row in place.sql("SELECT state FROM lien_history")} == {"succeeded"}


def test_ack_07_the_answer_to_a_commit_is_lost(postgres: Place, proxy: Proxy):
    """The repeated acknowledgement finds its attempt closed: success, counted once."""
    job = postgres.task("hold").enqueue(name="a").id
    worker = postgres.process(url=proxy.url, lease=60.0).ready()
    postgres.wait_starts(1)
    token = postgres.sql("SELECT claim_token FROM lien_job")[0][0]
    # Renewals bear the token as well: at this lease there is none before the cut.
    proxy.cut_after = lambda data: token.bytes in data or token.hex.encode() in data
    postgres.folder.allow("a")
    worker.wait_for("succeeded", job_id=job)
    assert proxy.cuts == 1
    assert postgres.outcomes(job) == ["succeeded"]
    assert not worker.seen("stale")
    assert worker.drain() == 0
    postgres.check([job])


@pytest.mark.parametrize("round_", range(3))
def test_connections_cut_at_random_under_load(postgres: Place, proxy: Proxy, round_):
    postgres.with_app().guard()
    ids = {postgres.task("works").enqueue(n=n).id for n in range(200)}
    worker = postgres.process(url=proxy.url, concurrency=10).ready()
    dice = random.Random(round_)
    for _ in range(8):
        before = postgres.finished()
        more = dice.randrange(1, 15)
        wait_until(lambda b=before, m=more: postgres.finished() >= min(b + m, 200), "work goes on")
        proxy.cut()
    postgres.wait_finished(200)
    assert worker.drain() == 0
    postgres.check(ids)
    assert postgres.sql("SELECT count(*) FROM lien_attempt WHERE outcome = 'lost'") == [(0,)]


def test_an_orphaned_claim_is_given_back_and_runs_once(postgres: Place, proxy: Proxy):
    """The claim committed, its answer was lost: nobody runs it, until the token is asked for."""
    job = postgres.task("hold").enqueue(name="a").id
    proxy.cut_after = lambda data: b"orphan-claim" in data and b"ahold" in data
    postgres.process(url=proxy.url, lease=60.0, identity="orphan-claim")
    postgres.wait_starts(1)
    assert proxy.cuts == 1
    postgres.folder.allow("a")
    record = postgres.wait_state(job, State.SUCCEEDED)
    assert record.lost == record.interrupted == 0
    assert postgres.outcomes(job) == ["released", "succeeded"]
    assert len(postgres.starts()) == 1


def test_ack_01_the_database_is_away_when_the_job_ends(owned: Place, own_postgres_server):
    job = owned.task("hold").enqueue(name="a").id
    worker = owned.process(lease=30.0).ready()
    owned.wait_starts(1)
    own_postgres_server.stop("fast")
    owned.folder.allow("a")
    worker.wait_for("disconnected")
    own_postgres_server.start()
    worker.wait_for("succeeded", job_id=job)
    assert owned.outcomes(job) == ["succeeded"]
    assert len(owned.starts()) == 1
    assert worker.drain() == 0
    owned.check([job])


def test_ack_01_handlers_cannot_take_the_connections_of_the_worker(place):
    """TX-05: every handler sits on all the connections it can get."""
    taken, go = [], threading.Event()

    @place.jobs.task
    def greedy() -> None:
        taken.extend(place.raw() for _ in range(3))
        place.jobs.list()
        go.wait(60)

    ids = [greedy.enqueue().id for _ in range(8)]
    with place.worker(concurrency=8):
        wait_until(lambda: len(taken) == 24, "all are taken")
        wait_until(place.renewed(ids[0], 2), "renewals go on")
        go.set()
        place.wait_finished(8)
    for connection in taken:
        connection.close()
    place.check(ids)


@pytest.mark.parametrize("table", ["lien_history", "lien_attempt"])
def test_an_ack_that_storage_refuses_takes_no_other_along(place, table):
    """One job of the batch can be written in no way at all; the others are, and the worker goes on."""
    ids = [place.task("ahold").enqueue(name="a").id for _ in range(8)]
    bad = ids[3]
    place.poison(table, bad, "id" if table == "lien_history" else "job_id")
    with place.worker(concurrency=8):
        place.wait_starts(8)
        place.folder.allow("a")
        place.wait_finished(7)
        after = place.task("mark").enqueue(n=1).id
        place.wait_state(after, State.SUCCEEDED)
        assert place.job(bad).state is not State.SUCCEEDED


def test_a_result_that_storage_refuses_is_a_permanent_failure(place):
    """The work is not done again, the reason can be read, the other acks of the batch get through."""

    @place.jobs.task
    async def answer(n: int) -> str:
        await astep()
        return "poison" if n == 5 else "fine"

    place.sql(
        "CREATE FUNCTION public.no() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE 'not this one' USING ERRCODE = '22000'; END $$"
        if place.is_postgres
        else "SELECT 1"
    )
    place.sql(
        "CREATE TRIGGER no BEFORE INSERT ON lien_history FOR EACH ROW"
        " WHEN (NEW.result::text LIKE '%poison%') EXECUTE FUNCTION public.no()"
        if place.is_postgres
        else "CREATE TRIGGER no BEFORE INSERT ON lien_history WHEN NEW.result LIKE '%poison%'"
        " BEGIN SELECT RAISE(ABORT, 'not this one'); END"
    )
    ids = [answer.enqueue(n=n).id for n in range(12)]
    with place.worker(concurrency=12):
        place.wait_finished(12)
    assert [place.job(id).state for id in ids].count(State.SUCCEEDED) == 11
    record = place.job(ids[5])
    assert (record.state, record.reason) == (State.FAILED, Reason.PERMANENT)
    assert "result not storable" in str(place.jobs.attempts(ids[5])[0].error)
    place.check(ids)


def test_an_ack_after_the_lease_was_taken_is_stale_and_changes_nothing(place):
    go = threading.Event()
    starts: list[int] = []

    @place.jobs.task(retry=lien.Backoff(base=3600.0, cap=3600.0))
    def slow() -> str:
        starts.append(1)
        go.wait(60)
        return "too late"

    job = slow.enqueue().id
    with place.worker() as worker:
        wait_until(lambda: starts, "it has started")
        place.sql(f"UPDATE lien_job SET lease_expires_at = {place.ago(1)}")
        wait_until(lambda: place.run(place.engine.reap, 10), "it is taken back")
        go.set()
        event = worker.wait_for("stale", job_id=job)
    assert "too late" in str(event.error)
    assert not worker.seen("succeeded")
    record = place.job(job)
    assert (record.state, record.result, record.lost) == (State.SCHEDULED, None, 1)
    assert place.outcomes(job) == ["lost"]


def test_an_expired_claim_that_nobody_took_may_still_be_acknowledged(place):
    """P5: a late one whose token still stands is accepted."""
    job = place.task("hold").enqueue(name="a").id
    worker = place.process(lease=1.0).ready()
    place.wait_starts(1)
    worker.signal(signal.SIGSTOP)
    wait_until(lambda: place.job(job).lease_expired, "the lease is over")
    place.folder.allow("a")
    worker.signal(signal.SIGCONT)
    assert place.wait_state(job, State.SUCCEEDED).attempt == 1
    assert worker.drain() == 0


def test_success_wins_over_a_cancel_request(place):
    began, go = threading.Event(), threading.Event()

    @place.jobs.task
    def work(ctx: lien.Context) -> str:
        began.set()
        while not ctx.cancel_requested:
            go.wait(0.02)
        return "done anyway"

    job = work.enqueue().id
    with place.worker():
        assert began.wait(20)
        assert place.jobs.cancel(job) is State.CLAIMED
        assert place.wait_state(job, State.SUCCEEDED).result == '"done anyway"'
    with pytest.raises(lien.TransitionRefused, match="already succeeded"):
        place.jobs.cancel(job)


def test_a_waiting_job_that_is_cancelled_never_runs(place):
    job = place.task("mark").enqueue(n=1).id
    later = place.task("mark").using(delay=3600).enqueue(n=2).id
    assert place.jobs.cancel(job) is place.jobs.cancel(later) is State.FAILED
    place.burst()
    assert place.folder.notes("marks") == []
    assert {place.job(id).reason for id in (job, later)} == {Reason.CANCELLED}


def test_a_cancelled_coroutine_may_clean_up(place):
    cleaned = threading.Event()
    began = threading.Event()

    @place.jobs.task
    async def tidy() -> None:
        began.set()
        try:
            while True:
                await astep()
        finally:
            await asyncio.shield(astep())
            cleaned.set()

    job = tidy.enqueue().id
    with place.worker():
        assert began.wait(20)
        place.jobs.cancel(job)
        place.wait_state(job, State.FAILED)
    assert cleaned.is_set()
    assert place.outcomes(job) == ["cancelled"]


def test_a_cancel_request_outlives_the_worker(place):
    """Reaped or released, a flagged job ends as cancelled and never starts again."""
    job = place.task("hold").using(retry=AT_ONCE).enqueue(name="a").id
    worker = place.process().ready()
    place.wait_starts(1)
    worker.kill()
    assert place.jobs.cancel(job) is State.CLAIMED
    with place.worker():
        record = place.wait_state(job, State.FAILED)
    assert record.reason is Reason.CANCELLED
    assert len(place.starts()) == 1
