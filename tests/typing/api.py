"""What a type checker must accept and refuse; checked by mypy --strict, never run.

A wrong call carries the error code that it must raise: when the error vanishes, the ignore is unused
and the check fails.
"""

from __future__ import annotations

import datetime
from collections.abc import Coroutine, Sequence
from typing import Any, assert_type

import lien

jobs = lien.Lien("sqlite:///typing.db")


@jobs.task
def settle(invoice: int, note: str = "") -> float:
    return float(invoice) + len(note)


@jobs.task(queue="mail", timeout=30, retry=lien.Backoff(base=5, cap=3600), max_failures=10)
async def send(order_id: int, *, to: str) -> str:
    return f"{order_id}{to}"


@jobs.task
def with_context(ctx: lien.Context, invoice: int) -> None:
    ctx.check()


@jobs.task(priority="high", expires=datetime.timedelta(hours=1))
async def with_context_async(ctx: lien.Context, invoice: int) -> int:
    return ctx.attempt + invoice


@jobs.task
def no_arguments() -> None: ...


def right(connection: object) -> None:
    assert_type(settle.enqueue(7), lien.Enqueued)
    settle.enqueue(7, "n")
    settle.enqueue(invoice=7, note="n")
    assert_type(settle(7), float)
    settle.using(connection, delay=1).enqueue(7, note="n")
    settle.using(on=connection, at=datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC), priority=0, unique="k").enqueue(
        7
    )
    settle.using(expires=datetime.timedelta(1), timeout=1, retry=lien.Backoff()).enqueue(7)
    settle.using(queue="q", max_failures=1, max_lost=2, max_interrupted=3).call(7)
    assert_type(settle.call(7), lien.Call)
    assert_type(jobs.enqueue_many([settle.call(1), send.call(2, to="x")]), list[lien.Enqueued])
    jobs.enqueue_many([settle.call(1)], on=connection)
    settle.enqueue_many([{"invoice": 1}, {"invoice": 2}])
    send.enqueue(1, to="x")
    with_context.enqueue(7)
    with_context.using(delay=1.5).enqueue(invoice=7)
    with_context_async.enqueue(7)
    no_arguments.enqueue()
    coroutine: Coroutine[Any, Any, str] = send(1, to="x")
    coroutine.close()
    assert_type(jobs.job(1), lien.JobRecord)
    assert_type(jobs.job(1).state, lien.State)
    assert_type(jobs.job(1).available_at, datetime.datetime)
    assert_type(jobs.attempts(1), Sequence[lien.AttemptRecord])
    assert_type(jobs.cancel(1), lien.State)
    assert_type(jobs.retry(1), lien.Enqueued)
    assert_type(jobs.migrate(), Sequence[str])


async def right_awaited(connection: object) -> None:
    assert_type(await settle.aenqueue(7), lien.Enqueued)
    await send.using(connection, delay=60).aenqueue(1, to="x")
    assert_type(await settle.aenqueue_many([{"invoice": 1}]), list[lien.Enqueued])
    assert_type(await jobs.aenqueue_many([settle.call(1)], on=connection), list[lien.Enqueued])
    assert_type(await jobs.ajob(1), lien.JobRecord)
    assert_type(await jobs.acancel(1), lien.State)
    assert_type(await jobs.aretry(1), lien.Enqueued)
    assert_type(await send(1, to="x"), str)


def wrong_arguments(connection: object) -> None:
    settle.enqueue()  # type: ignore[call-arg]
    settle.enqueue("7")  # type: ignore[arg-type]
    settle.enqueue(7, 8)  # type: ignore[arg-type]
    settle.enqueue(7, "n", 9)  # type: ignore[call-arg]
    settle.enqueue(invoice="7")  # type: ignore[arg-type]
    settle.enqueue(invoices=7)  # type: ignore[call-arg]
    settle.enqueue(7, delay=1)  # type: ignore[call-arg]
    settle.using(connection, delay=1).enqueue()  # type: ignore[call-arg]
    settle.using(connection, delay=1).enqueue("7")  # type: ignore[arg-type]
    settle.using(connection, delay=1).enqueue(invoices=7)  # type: ignore[call-arg]
    settle.using(connection, delay=1).call("7")  # type: ignore[arg-type]
    settle.call()  # type: ignore[call-arg]
    settle.call(7, note=8)  # type: ignore[arg-type]
    settle("7")  # type: ignore[arg-type]
    send.enqueue(1, "x")  # type: ignore[call-arg]
    send.enqueue(1)  # type: ignore[call-arg]
    send.enqueue(1, to=2)  # type: ignore[arg-type]
    with_context.enqueue(7, 8)  # type: ignore[call-arg]
    with_context.enqueue(ctx=None, invoice=7)  # type: ignore[call-arg]
    with_context.enqueue("7")  # type: ignore[arg-type]
    with_context_async.using().enqueue("7")  # type: ignore[arg-type]
    no_arguments.enqueue(1)  # type: ignore[call-arg]


async def wrong_arguments_awaited(connection: object) -> None:
    await settle.aenqueue("7")  # type: ignore[arg-type]
    await settle.aenqueue(invoices=7)  # type: ignore[call-arg]
    await settle.using(connection, delay=1).aenqueue("7")  # type: ignore[arg-type]
    await send.using(connection).aenqueue(1)  # type: ignore[call-arg]
    await with_context.aenqueue()  # type: ignore[call-arg]


def wrong_options(connection: object) -> None:
    settle.using(connection, 1)  # type: ignore[call-arg]
    settle.using(delays=1)  # type: ignore[call-arg]
    settle.using(delay="1")  # type: ignore[arg-type]
    settle.using(at="2030-01-01")  # type: ignore[arg-type]
    settle.using(unique=7)  # type: ignore[arg-type]
    settle.using(queue=7)  # type: ignore[arg-type]
    settle.using(retry=5)  # type: ignore[arg-type]
    settle.using(max_failures="3")  # type: ignore[arg-type]
    jobs.task(queues="mail")  # type: ignore[call-overload]
    jobs.task(timeout="30")  # type: ignore[call-overload]
    lien.Lien(7)  # type: ignore[arg-type]
    lien.Lien("sqlite:///x.db", prefix="x")  # type: ignore[call-arg]


def wrong_uses() -> None:
    jobs.enqueue_many([settle])  # type: ignore[list-item]
    settle.enqueue_many([1])  # type: ignore[list-item]
    assert settle.enqueue(7).state  # type: ignore[attr-defined]
    jobs.job("7")  # type: ignore[arg-type]
    lien.Snooze(after="5")  # type: ignore[arg-type]
    lien.Retry(after="5")  # type: ignore[arg-type]
    job = jobs.job(1)
    job.attempt = 2  # type: ignore[misc]
