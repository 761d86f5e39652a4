"""Handlers: how arguments reach them, how results are kept, what is no result."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

import lien
from lien.machine import Reason, State
from tests.worker.kit import AT_ONCE, Place


def test_coroutines_functions_and_both_at_once(place):
    @place.jobs.task
    def add(a: int, b: int) -> int:
        return a + b

    @place.jobs.task
    async def aadd(a: int, b: int) -> int:
        return a + b

    calls = [task.call(a=n, b=1) for n in range(20) for task in (add, aadd)]
    ids = [done.id for done in place.jobs.enqueue_many(calls)]
    place.burst()
    for n, id in enumerate(ids):
        assert json.loads(str(place.job(id).result)) == n // 2 + 1
    place.check(ids)


VALUES = [
    None,
    0,
    False,
    "",
    [],
    {},
    2**70,
    -0.5,
    1e308,
    "žluťoučký 🐎",
    {"a": [1, {"b": None}]},
    "x" * 100_000,
]


def test_results_are_kept_exactly(place):
    @place.jobs.task
    def give(n: int) -> object:
        return VALUES[n]

    ids = [give.enqueue(n=n).id for n in range(len(VALUES))]
    place.burst()
    for value, id in zip(VALUES, ids, strict=True):
        record = place.job(id)
        assert record.state is State.SUCCEEDED
        kept = None if record.result is None else json.loads(record.result)
        assert kept == value
        assert type(kept) is type(value)


BAD = {
    "nan": (lambda: float("nan"), "nan"),
    "inf": (lambda: {"a": [float("inf")]}, "result['a'][0]"),
    "nul": (lambda: "a\x00", "NUL"),
    "surrogate": (lambda: "\ud800", "surrogate"),
    "set": (lambda: {1}, "set"),
    "object": (object, "object"),
    "keys": (lambda: {1: 2}, "key 1"),
    "large": (lambda: "x" * 300_000, "300002 bytes"),
    "deep": (lambda: functools.reduce(lambda a, _: [a], range(500), 1), "deeper"),
    "digits": (lambda: 10**5000, "digits"),
}


def test_payload_03_a_result_that_cannot_be_kept_is_still_a_success(place):
    @place.jobs.task
    def thread(which: str) -> object:
        return BAD[which][0]()

    @place.jobs.task
    async def loop(which: str) -> object:
        return BAD[which][0]()

    ids = {task.enqueue(which=which).id: which for which in BAD for task in (thread, loop)}
    place.burst()
    for id, which in ids.items():
        record = place.job(id)
        assert record.state is State.SUCCEEDED
        assert BAD[which][1] in json.loads(str(record.result))["why"]


CORRUPT = ["", "{", "[1]", "7", '"x"', "null", "{'a': 1}", '{"n": NaN}', '{"n": 1e999}']


def test_payload_05_stored_arguments_that_cannot_be_read(place):
    """Failed with the reason, the raw text kept, the worker unharmed; or refused by storage."""
    stored: dict[int, str] = {}
    for text in CORRUPT:
        job = place.task("mark").enqueue(n=1).id
        try:
            place.sql("UPDATE lien_job SET args = :text WHERE id = :id", text=text, id=job)
        except Exception as error:  # noqa: BLE001 - each driver has its own
            assert type(error).__module__.partition(".")[0] in {"psycopg", "sqlite3"}  # noqa: PT017
            assert place.job(job).args == '{"n":1}'
        else:
            stored[job] = text
    assert stored
    good = place.task("mark").enqueue(n=2).id
    place.burst()
    assert place.job(good).state is State.SUCCEEDED
    for job, text in stored.items():
        record = place.job(job)
        assert (record.state, record.reason) == (State.FAILED, Reason.PERMANENT), text
        assert "stored" in str(record.last_error)
        assert record.args == text


def test_payload_05_postgresql_refuses_arguments_that_are_no_object(postgres: Place):
    import psycopg

    postgres.task("mark").enqueue(n=1)
    for text in ("[1]", "7", "null", '"x"'):
        with pytest.raises(psycopg.errors.CheckViolation):
            postgres.sql("UPDATE lien_job SET args = :text", text=text)


NAMES = (
    "self",
    "cls",
    "task",
    "job",
    "args",
    "kwargs",
    "context",
    "ctx",
    "queue",
    "priority",
    "key",
    "id",
    "timeout",
    "delay",
    "on",
    "named",
    "name",
    "function",
)


def test_payload_07_keywords_with_internal_names(place):
    got: list[object] = []

    @place.jobs.task
    def spread(**kwargs: int) -> None:
        got.append(kwargs)

    @place.jobs.task
    async def listed(  # noqa: PLR0917
        self, cls, task, job, args, kwargs, context, ctx, queue, priority, key, id,
        timeout,  # noqa: ASYNC109 - a name like any other here
        delay, on, named, name, function,
    ) -> None:  # fmt: skip
        got.append({key: value for key, value in locals().items() if key in NAMES})

    values = {name: n for n, name in enumerate(NAMES)}
    spread.enqueue(**values)
    listed.enqueue(**values)
    spread.using(queue="default").enqueue(**values)
    spread.enqueue_many([values])
    place.burst(concurrency=1)
    assert got == [values] * 4


def test_payload_07_positional_only_and_spread(place):
    got: list[object] = []

    @place.jobs.task
    def only(a, b=2, /, *, c=3) -> None:
        got.append((a, b, c))

    @place.jobs.task
    def many(a, *rest, c=3, **more) -> None:
        got.append((a, rest, c, more))

    @place.jobs.task
    def shadow(a, /, **more) -> None:
        got.append((a, more))

    @place.jobs.task
    def context(ctx: lien.Context, a, /, *rest) -> None:
        got.append((ctx.attempt, a, rest))

    only.enqueue(1)
    only.enqueue(1, 9, c=8)
    many.enqueue(1)
    many.enqueue(1, 2, 3, c=4, d=5)
    shadow.enqueue(1, b=2)
    context.enqueue(5, 6, 7)
    place.burst(concurrency=1)
    assert got == [
        (1, 2, 3),
        (1, 9, 8),
        (1, (), 3, {}),
        (1, (2, 3), 4, {"d": 5}),
        (1, {"b": 2}),
        (1, 5, (6, 7)),
    ]


def test_a_signature_that_changed_with_a_deploy_fails_the_attempt_not_the_job(place):
    other = place.other()

    @other.task(name="greet", retry=AT_ONCE)
    def before(name: str) -> None:
        pass

    job = before.enqueue(name="Ada").id
    other.close()

    @place.jobs.task(name="greet")
    def after(first: str, last: str) -> None:
        pass

    worker = place.start()
    wait = worker.wait_for("retrying", job_id=job)
    assert "do not fit task greet" in str(wait.error)
    worker.stop()
    assert place.job(job).state in {State.SCHEDULED, State.RUNNABLE}

    last = place.other()

    @last.task(name="greet")
    def again(name: str) -> str:
        return name

    worker = place.start(last)
    assert place.wait_state(job, State.SUCCEEDED).result == '"Ada"'
    worker.stop()
    last.close()


def test_the_context_says_which_attempt_it_is(place):
    seen: list[tuple[object, ...]] = []

    @place.jobs.task(retry=AT_ONCE)
    def look(ctx: lien.Context) -> None:
        seen.append((ctx.job_id, ctx.attempt, ctx.fence, ctx.idempotency_key, ctx.task, ctx.queue))
        assert not ctx.stale
        ctx.check()
        if ctx.attempt < 3:
            raise lien.Retry(after=0)

    job = look.enqueue().id
    with place.worker():
        place.wait_state(job, State.SUCCEEDED)
    assert [row[:2] for row in seen] == [(job, 1), (job, 2), (job, 3)]
    fences = [row[2] for row in seen]
    assert fences == sorted(set(fences))
    assert len({row[3] for row in seen}) == 1
    assert {row[4:] for row in seen} == {("look", "default")}


def test_coroutines_share_one_loop(place):
    loops: set[int] = set()
    threads: set[int] = set()

    @place.jobs.task
    async def where() -> None:
        loops.add(id(asyncio.get_running_loop()))
        threads.add(threading.get_ident())

    for _ in range(10):
        where.enqueue()
    place.burst()
    assert len(loops) == len(threads) == 1
    assert threading.get_ident() not in threads


def test_threads_are_reused(place):
    threads: set[int] = set()

    @place.jobs.task
    def where() -> None:
        threads.add(threading.get_ident())

    for _ in range(40):
        where.enqueue()
    place.burst(concurrency=3)
    assert len(threads) <= 3


@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_coroutine_that_nobody_awaited_is_no_success(place):
    """A plain decorator around a coroutine function hides that it is one."""
    ran: list[int] = []

    async def real() -> None:
        ran.append(1)

    def plain() -> object:
        return real()

    job = place.jobs.task(plain).enqueue().id
    place.burst()
    assert ran or place.job(job).state is not State.SUCCEEDED


@pytest.mark.parametrize("kind", ["generator", "asynchronous"])
def test_a_generator_function_is_refused_or_fails(place, kind):
    """Its body would not run at all, and that must not look like success."""

    def generator() -> Iterator[int]:
        yield 1

    async def asynchronous() -> AsyncIterator[int]:
        yield 1

    try:
        task = place.jobs.task({"generator": generator, "asynchronous": asynchronous}[kind])
    except lien.UsageError:
        return
    job = task.enqueue().id
    place.burst()
    assert place.job(job).state is not State.SUCCEEDED


class Thing:
    pass


@pytest.mark.parametrize("kind", ["thread", "loop"])
def test_an_encoder_that_raises_takes_no_slot_along(place, kind):
    """The users' own encoder runs after the handler: the work is done, and the worker goes on."""

    def encode(thing: Thing) -> object:
        raise RuntimeError("broken encoder")

    place.jobs.codec.register(Thing, encode)

    @place.jobs.task(name="thread")
    def in_thread() -> object:
        return Thing()

    @place.jobs.task(name="loop")
    async def on_loop() -> object:
        return Thing()

    ids = [place.jobs.tasks[kind].enqueue().id for _ in range(3)]
    with place.worker(concurrency=1, grace=1.0):
        place.wait_finished(3)
    assert {place.job(id).state for id in ids} == {State.SUCCEEDED}


def test_burst_ends_when_nothing_is_left(place):
    done: list[int] = []

    @place.jobs.task
    def chain(n: int) -> None:
        done.append(n)
        if n:
            chain.enqueue(n=n - 1)

    chain.enqueue(n=5)
    later = chain.using(delay=3600).enqueue(n=0).id
    place.burst()
    assert done == [5, 4, 3, 2, 1, 0]
    assert place.job(later).state is State.SCHEDULED
    assert place.claimed() == 0


def test_a_hook_that_raises_harms_nobody(place):
    from lien.worker import Settings, Worker
    from tests.worker.kit import settings

    def bad(event: object) -> None:
        raise ValueError("hook")

    place.task("mark").enqueue(n=1)
    seen: list[object] = []
    worker = Worker(place.jobs, Settings(**settings(burst=True)), hooks=(bad, seen.append))
    assert worker.run() == 0
    assert place.finished() == 1
    assert seen
