"""`ctx.transaction()`: the effect and the acknowledgement are one commit, on every engine."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import lien
from lien import State
from tests.worker.kit import Place, wait_until

OTHER = "00000000-0000-0000-0000-000000000001"


@pytest.fixture
def effects(place: Place) -> Place:
    """A business table beside the jobs."""
    place.sql("CREATE TABLE effect (job_id bigint, note text)")
    return place


def write(connection: Any, ctx: lien.Context, note: str = "") -> None:
    mark = "%s" if type(connection).__module__.startswith("psycopg") else "?"
    connection.execute(f"INSERT INTO effect VALUES ({mark}, {mark})", (ctx.job_id, note))


async def awrite(connection: Any, ctx: lien.Context) -> None:
    if type(connection).__module__.startswith("psycopg"):
        await connection.execute("INSERT INTO effect VALUES (%s, '')", (ctx.job_id,))
    else:
        write(connection, ctx)


def effects_of(place: Place, job_id: int) -> int:
    return int(place.sql(f"SELECT count(*) FROM effect WHERE job_id = {job_id}")[0][0])


def settle_in(place: Place, kind: str, body: Any = None) -> lien.Task[..., Any]:
    """A task whose effect is written in its transaction; ``body`` is called inside the block."""
    if kind == "thread":

        @place.jobs.task(name="settle", retry=lien.Backoff(0.05, 0.05))
        def settle(ctx: lien.Context) -> None:
            with ctx.transaction() as connection:
                write(connection, ctx)
                if body is not None:
                    body(ctx, connection)

        return settle

    @place.jobs.task(name="settle", retry=lien.Backoff(0.05, 0.05))
    async def asettle(ctx: lien.Context) -> None:
        async with ctx.transaction() as connection:
            await awrite(connection, ctx)
            if body is not None:
                body(ctx, connection)

    return asettle


KINDS = pytest.mark.parametrize("kind", ["thread", "loop"])


@KINDS
def test_the_effect_and_the_success_are_one(effects: Place, kind: str) -> None:
    job = settle_in(effects, kind).enqueue().id
    with effects.worker():
        effects.wait_state(job, State.SUCCEEDED)
    assert effects_of(effects, job) == 1
    assert effects.outcomes(job) == ["succeeded"]


@KINDS
def test_what_raises_inside_leaves_nothing_and_is_tried_again(effects: Place, kind: str) -> None:
    def fail_first(ctx: lien.Context, connection: Any) -> None:
        if ctx.attempt == 1:
            raise ValueError("not yet")

    job = settle_in(effects, kind, fail_first).enqueue().id
    with effects.worker():
        effects.wait_state(job, State.SUCCEEDED)
    assert effects_of(effects, job) == 1
    assert effects.outcomes(job) == ["failed", "succeeded"]


@KINDS
def test_a_stale_claim_rolls_everything_back(effects: Place, kind: str) -> None:  # noqa: C901 - two twins
    """Another claimant has the job by the time of the commit."""
    seen: list[BaseException] = []

    @effects.jobs.task(name="settle")
    def settle(ctx: lien.Context) -> None:
        if ctx.attempt > 1:
            return
        try:
            with ctx.transaction() as connection:
                if type(connection).__module__ != "sqlite3":
                    effects.sql(f"UPDATE lien_job SET claim_token = '{OTHER}' WHERE id = {ctx.job_id}")
                write(connection, ctx)
                if type(connection).__module__ == "sqlite3":
                    connection.execute("UPDATE lien_job SET claim_token = ? WHERE id = ?", ("0" * 32, ctx.job_id))
        except lien.StaleClaim as error:
            seen.append(error)
            raise

    @effects.jobs.task(name="asettle")
    async def asettle(ctx: lien.Context) -> None:
        if ctx.attempt > 1:
            return
        try:
            async with ctx.transaction() as connection:
                if type(connection).__module__ != "sqlite3":
                    effects.sql(f"UPDATE lien_job SET claim_token = '{OTHER}' WHERE id = {ctx.job_id}")
                await awrite(connection, ctx)
                if type(connection).__module__ == "sqlite3":
                    connection.execute("UPDATE lien_job SET claim_token = ? WHERE id = ?", ("0" * 32, ctx.job_id))
        except lien.StaleClaim as error:
            seen.append(error)
            raise

    job = (settle if kind == "thread" else asettle).enqueue().id
    with effects.worker():
        wait_until(lambda: bool(seen), "the stale claim")
    assert "rolled back" in str(seen[0])
    assert effects_of(effects, job) == 0


@KINDS
def test_a_handler_that_raises_after_the_block_has_succeeded(effects: Place, kind: str, caplog: Any) -> None:
    @effects.jobs.task(name="late")
    def late(ctx: lien.Context) -> None:
        with ctx.transaction() as connection:
            write(connection, ctx)
        raise ValueError("too late to matter")

    @effects.jobs.task(name="alate")
    async def alate(ctx: lien.Context) -> None:
        async with ctx.transaction() as connection:
            await awrite(connection, ctx)
        raise ValueError("too late to matter")

    job = (late if kind == "thread" else alate).enqueue().id
    with effects.worker():
        effects.wait_state(job, State.SUCCEEDED)
    assert effects_of(effects, job) == 1
    assert effects.outcomes(job) == ["succeeded"]
    assert "raised after its transaction had committed: it has succeeded" in caplog.text


def test_a_second_block_is_refused(effects: Place) -> None:
    said: list[str] = []

    @effects.jobs.task(name="twice")
    def twice(ctx: lien.Context) -> None:
        with ctx.transaction() as connection:
            write(connection, ctx)
        try:
            with ctx.transaction():
                pass
        except lien.UsageError as error:
            said.append(str(error))

    job = twice.enqueue().id
    with effects.worker():
        effects.wait_state(job, State.SUCCEEDED)
        wait_until(lambda: bool(said), "the refusal")
    assert "one ctx.transaction() in an attempt" in said[0]


@KINDS
def test_a_commit_inside_the_block_is_refused(effects: Place, kind: str) -> None:
    """The user's commit would part the effect from the acknowledgement."""

    def commit(ctx: lien.Context, connection: Any) -> None:
        if type(connection).__name__ == "AsyncConnection":
            raise RuntimeError("awaited elsewhere: psycopg refuses it as in the synchronous case")
        connection.commit()

    task = settle_in(effects, kind, commit)
    job = task.using(max_failures=1).enqueue().id
    with effects.worker():
        effects.wait_state(job, State.FAILED)
    assert effects.outcomes(job) == ["failed"]


def test_a_commit_by_hand_is_refused(effects: Place) -> None:
    """Past the driver's own guard."""
    task = settle_in(effects, "thread", lambda ctx, connection: connection.execute("COMMIT"))
    job = task.using(max_failures=1).enqueue().id
    with effects.worker():
        effects.wait_state(job, State.FAILED)
    assert effects.outcomes(job) == ["failed"]
    assert "committed or rolled back inside its block" in str(effects.job(job).last_error)


@KINDS
def test_a_follow_up_exists_only_with_the_commit(effects: Place, kind: str) -> None:
    ran = threading.Event()

    @effects.jobs.task(name="follow")
    def follow() -> None:
        ran.set()

    def enqueue(ctx: lien.Context, connection: Any) -> None:
        if type(connection).__name__ != "AsyncConnection":
            follow.using(connection).enqueue()
        if ctx.attempt == 1:
            raise ValueError("not yet")

    @effects.jobs.task(name="with_follow_up", retry=lien.Backoff(0.05, 0.05))
    async def with_follow_up(ctx: lien.Context) -> None:
        async with ctx.transaction() as connection:
            await follow.using(connection).aenqueue()
            if ctx.attempt == 1:
                raise ValueError("not yet")

    task = settle_in(effects, kind, enqueue) if kind == "thread" else with_follow_up
    job = task.enqueue().id
    with effects.worker():
        effects.wait_state(job, State.SUCCEEDED)
        assert ran.wait(10)
    assert len([record for record in effects.jobs.list() if record.task == "follow"]) == 1


def test_on_sqlite_another_writer_is_refused_inside_the_block(sqlite: Place) -> None:
    """It would wait for the lock that its own block holds."""
    said: list[str] = []

    @sqlite.jobs.task(name="nested")
    def nested(ctx: lien.Context) -> None:
        with ctx.transaction():
            try:
                nested.using().enqueue()
            except lien.UsageError as error:
                said.append(str(error))

    job = nested.enqueue().id
    with sqlite.worker():
        sqlite.wait_state(job, State.SUCCEEDED)
    assert "task.using(connection).enqueue" in said[0]


def test_a_context_of_ones_own_has_no_transaction() -> None:
    from uuid import UUID

    from lien.model import Claim

    claim = Claim(1, 1, "x", "{}", "default", 2, 0, 1, 0, 1, 0, 1.0, 1.0, 1.0, UUID(int=1))
    with pytest.raises(lien.UsageError, match="not made by a worker"):
        lien.Context(claim, "x", threading.Event()).transaction()
