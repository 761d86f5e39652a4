"""`Lien`, the one object that users make: it registers tasks, enqueues, cancels, looks."""

from __future__ import annotations

import asyncio
import datetime
import inspect
import os
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from lien import clock
from lien.codec import MAX_PAYLOAD_BYTES, Codec
from lien.context import Context
from lien.errors import DatabaseUnavailable, JobNotFound, TransitionRefused, UnknownTask, UsageError
from lien.machine import State
from lien.migrate import Migrations
from lien.model import AttemptRecord, Enqueued, JobFilter, JobRecord, NewJob
from lien.policy import Backoff
from lien.store import Store
from lien.task import Call, Options, Task, checked_name, checked_options

P = ParamSpec("P")
R = TypeVar("R")

_MAX_ID = 2**63 - 1
_OF_ONE_JOB = frozenset({"delay", "at", "unique"})
_AGAIN_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)


class Lien:
    """Durable jobs in one database.

    Args:
        url: ``postgresql://…`` or ``sqlite:///file.db``; default: the environment's ``LIEN_URL``, read at first use.
        schema: on PostgreSQL the schema of the tables, elsewhere their prefix; default: the environment's
            ``LIEN_SCHEMA``, else ``lien`` and ``lien_``.
        max_payload_bytes: the largest arguments or result accepted, in bytes of JSON.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        schema: str | None = None,
        max_payload_bytes: int = MAX_PAYLOAD_BYTES,
    ) -> None:
        self.codec = Codec(max_payload_bytes)
        self.tasks: dict[str, Task[..., Any]] = {}
        self._url = url
        self._schema = schema
        self._store: Store | None = None

    def __repr__(self) -> str:
        return f"<Lien {self._store.masked_url if self._store else '(not used yet)'}, {len(self.tasks)} tasks>"

    @property
    def store(self) -> Store:
        """The database behind this object, opened at first use.

        Raises:
            UsageError: no URL, or one that Lien does not know.
        """
        if self._store is None:
            url = self._url or os.environ.get("LIEN_URL")
            if not url:
                raise UsageError("no database: write lien.Lien('postgresql://…') or set LIEN_URL")
            schema = self._schema if self._schema is not None else os.environ.get("LIEN_SCHEMA")
            self._store = Store(url, schema)
        return self._store

    @property
    def url(self) -> str | None:
        """The URL given, if one was; it may hold a password."""
        return self._url

    @property
    def schema(self) -> str | None:
        """The schema or prefix given, if one was."""
        return self._schema

    def rebind(self, url: str, *, schema: str | None = None) -> None:
        """Work on another database from now on, with the same tasks: for tests and tools.

        Args:
            url: of the other database.
            schema: there; default: as before.
        """
        self.close()
        self._url = url
        self._schema = schema if schema is not None else self._schema
        self._store = None

    # ── tasks ──

    @overload
    def task(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> Task[P, Coroutine[Any, Any, R]]: ...
    @overload
    def task(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        queue: str | None = None,
        priority: str | int | None = None,
        timeout: float | datetime.timedelta | None = None,
        retry: Backoff | None = None,
        max_failures: int | None = None,
        max_lost: int | None = None,
        max_interrupted: int | None = None,
        expires: float | datetime.timedelta | None = None,
    ) -> _Decorator: ...
    def task(self, *function: Any, **options: Any) -> Any:
        """Register a function as a task, as ``@jobs.task`` or ``@jobs.task(queue="mail", timeout=30)``.

        Args:
            function: what a worker is to call; plain or ``async``.
            name: what the job rows carry; default: the function's name. Keep it when you rename the function.
            options: as of `Task.using`.

        Raises:
            UsageError: an option that cannot be, or another function of this name is registered.
        """
        name = options.pop("name", None)
        if of_one_job := sorted(_OF_ONE_JOB & options.keys()):
            raise UsageError(f"{', '.join(of_one_job)}: not an option of a task; give it to using(…) of each job")
        checked = checked_options(Options(), **options)
        if function:
            return self._register(function[0], name, checked)
        return lambda function: self._register(function, name, checked)

    def _register(self, function: Callable[..., Any], name: str | None, options: Options) -> Task[..., Any]:
        if not callable(function) or isinstance(function, type):
            raise UsageError(f"{function!r} is not a function that can be a task")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise UsageError(f"{function!r} is a generator, which nobody would run to its end: return instead of yield")
        name = checked_name("task name", name if name is not None else getattr(function, "__name__", ""))
        known = self.tasks.get(name)
        if known is not None and known.function.__module__ != function.__module__:
            raise UsageError(
                f"two functions are registered as task {name!r}, from {known.function.__module__} and "
                f"{function.__module__}: give one of them @jobs.task(name=…)"
            )
        task: Task[..., Any] = Task(self, function, name, options)
        self.tasks[name] = task
        return task

    def task_named(self, name: str) -> Task[..., Any]:
        """A registered task.

        Raises:
            UnknownTask: there is none of this name; the message lists those there are.
        """
        try:
            return self.tasks[name]
        except KeyError:
            names = ", ".join(sorted(self.tasks)) or "none"
            raise UnknownTask(f"no task {name!r} is registered here (registered: {names})") from None

    # ── enqueue ──

    def enqueue_many(self, calls: Iterable[Call], *, on: object = None) -> list[Enqueued]:
        """Write the jobs of many calls (of any tasks), all or none, in this order.

        Args:
            calls: made by ``task.call(…)`` or ``task.using(…).call(…)``.
            on: the caller's connection.
        """
        return self.enqueue_jobs([call.job for call in calls], on)

    async def aenqueue_many(self, calls: Iterable[Call], *, on: object = None) -> list[Enqueued]:
        """The same, awaited."""
        return await self.aenqueue_jobs([call.job for call in calls], on)

    def enqueue_jobs(self, jobs: list[NewJob], on: object) -> list[Enqueued]:
        """Write rows that are already checked; what all the ways to enqueue come down to."""
        store = self.store
        engine = store.engine
        if not jobs:
            return []
        if on is not None:
            if len(jobs) == 1:
                return [store.run_on(on, engine.enqueue, jobs[0])]
            return store.run_on(on, engine.enqueue_many, jobs)
        ids = store.run(engine.reserve, len(jobs)) if engine.reserves_ids else None
        try:
            if len(jobs) == 1:
                return [store.run(engine.enqueue, jobs[0], id=ids[0] if ids else None)]
            return store.run(engine.enqueue_many, jobs, ids=ids)
        except DatabaseUnavailable:
            if not ids:
                raise
        error: DatabaseUnavailable | None = None
        for pause in _AGAIN_PAUSES:
            clock.sleep(pause)
            try:
                return store.run(engine.enqueue_again, jobs, ids)
            except DatabaseUnavailable as again:
                error = again
        raise _unknown(ids) from error

    async def aenqueue_jobs(self, jobs: list[NewJob], on: object) -> list[Enqueued]:
        """The same, awaited."""
        store = self.store
        engine = store.engine
        if not jobs:
            return []
        if on is not None:
            if len(jobs) == 1:
                return [await store.arun_on(on, engine.enqueue, jobs[0])]
            return await store.arun_on(on, engine.enqueue_many, jobs)
        ids = await store.arun(engine.reserve, len(jobs)) if engine.reserves_ids else None
        try:
            if len(jobs) == 1:
                return [await store.arun(engine.enqueue, jobs[0], id=ids[0] if ids else None)]
            return await store.arun(engine.enqueue_many, jobs, ids=ids)
        except DatabaseUnavailable:
            if not ids:
                raise
        error: DatabaseUnavailable | None = None
        for pause in _AGAIN_PAUSES:
            await asyncio.sleep(pause)  # noqa: TID251 - a back-off
            try:
                return await store.arun(engine.enqueue_again, jobs, ids)
            except DatabaseUnavailable as again:
                error = again
        raise _unknown(ids) from error

    # ── operators ──

    def cancel(self, job_id: int) -> State:
        """Cancel a job: a waiting one ends now (FAILED), a running one is told to stop (CLAIMED).

        Raises:
            JobNotFound: no such job.
            TransitionRefused: it is already over.
        """
        checked_id(job_id)
        state = self.store.run(self.store.engine.cancel, job_id)
        if state is None:
            raise _refused(job_id, self.job(job_id), "cancel")
        return state

    async def acancel(self, job_id: int) -> State:
        """The same, awaited."""
        checked_id(job_id)
        state = await self.store.arun(self.store.engine.cancel, job_id)
        if state is None:
            raise _refused(job_id, await self.ajob(job_id), "cancel")
        return state

    def retry(self, job_id: int) -> Enqueued:
        """Enqueue a copy of a failed job, which names it as its origin; the failed one stays as it is.

        Raises:
            JobNotFound: no such job.
            TransitionRefused: it has not failed.
        """
        checked_id(job_id)
        copy = self.store.run(self.store.engine.copy_failed, job_id)
        if copy is None:
            raise _refused(job_id, self.job(job_id), "retry")
        return copy

    async def aretry(self, job_id: int) -> Enqueued:
        """The same, awaited."""
        checked_id(job_id)
        copy = await self.store.arun(self.store.engine.copy_failed, job_id)
        if copy is None:
            raise _refused(job_id, await self.ajob(job_id), "retry")
        return copy

    def job(self, job_id: int) -> JobRecord:
        """A job as storage has it.

        Raises:
            JobNotFound: no such job.
        """
        checked_id(job_id)
        return _found(job_id, self.store.run(self.store.engine.show, job_id))

    async def ajob(self, job_id: int) -> JobRecord:
        """The same, awaited."""
        checked_id(job_id)
        return _found(job_id, await self.store.arun(self.store.engine.show, job_id))

    def attempts(self, job_id: int) -> Sequence[AttemptRecord]:
        """The attempts of a job that have ended, oldest first; empty for an unknown job."""
        checked_id(job_id)
        return self.store.run(self.store.engine.attempts, job_id)

    async def aattempts(self, job_id: int) -> Sequence[AttemptRecord]:
        """The same, awaited."""
        checked_id(job_id)
        return await self.store.arun(self.store.engine.attempts, job_id)

    def list(self, filter: JobFilter | None = None) -> Sequence[JobRecord]:
        """A page of jobs, newest first."""
        return self.store.run(self.store.engine.list, filter or JobFilter())

    async def alist(self, filter: JobFilter | None = None) -> Sequence[JobRecord]:
        """The same, awaited."""
        return await self.store.arun(self.store.engine.list, filter or JobFilter())

    # ── schema and end ──

    @property
    def migrations(self) -> Migrations:
        """The schema of the tables: what is applied, what is pending."""
        return Migrations(self.store)

    def migrate(self) -> Sequence[str]:
        """Create or upgrade the tables; the names of the migrations that this call applied."""
        return self.migrations.apply()

    def close(self) -> None:
        """Close the connections kept for later calls."""
        if self._store is not None:
            self._store.close()

    async def aclose(self) -> None:
        """The same, awaited: also those kept for this event loop."""
        if self._store is not None:
            await self._store.aclose()


class _Decorator:
    """What ``@jobs.task(…)`` is to a type checker."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> Task[P, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...
    def __call__(self, function: Any, /) -> Any:
        raise NotImplementedError


def checked_id(job_id: object) -> int:
    """A job's id.

    Raises:
        UsageError: not an integer from 1 to 2^63-1.
    """
    if isinstance(job_id, bool) or not isinstance(job_id, int) or not 1 <= job_id <= _MAX_ID:
        raise UsageError(f"{job_id!r} is not a job id: give an integer from 1 to {_MAX_ID}")
    return job_id


def _found(job_id: int, record: JobRecord | None) -> JobRecord:
    if record is None:
        raise JobNotFound(f"there is no job {job_id}")
    return record


def _refused(job_id: int, record: JobRecord, verb: str) -> TransitionRefused:
    what = str(record.state) + (f" ({record.reason})" if record.reason else "")
    if verb == "retry" and record.state is not State.FAILED:
        return TransitionRefused(f"job {job_id} is {what}: only a failed job can be retried")
    return TransitionRefused(f"job {job_id} is already {what}: nothing to {verb}")


def _unknown(ids: list[int]) -> DatabaseUnavailable:
    which = f"job {ids[0]}" if len(ids) == 1 else f"jobs {ids[0]} … {ids[-1]}"
    return DatabaseUnavailable(
        f"the connection broke while {which} was being enqueued, and the database has not come back: "
        f"look for that id before you enqueue again"
    )
