"""Tasks: a function registered under a name, its options, and the typed ways to enqueue it."""

from __future__ import annotations

import datetime
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from lien.codec import Codec, checked_text
from lien.context import Context
from lien.errors import PayloadError, SignatureError, UsageError
from lien.model import DEFAULT_QUEUE, MAX_NAME_CHARS, PRIORITIES, Enqueued, NewJob
from lien.policy import (
    DEFAULT_MAX_FAILURES,
    DEFAULT_MAX_INTERRUPTED,
    DEFAULT_MAX_LOST,
    DEFAULT_TIMEOUT,
    Backoff,
    budget,
    moment,
    seconds,
)

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Door(Protocol):
    """What a task needs of the `Lien` it belongs to."""

    codec: Codec

    def enqueue_jobs(self, jobs: list[NewJob], on: object) -> list[Enqueued]:
        """Write jobs, all or none."""

    async def aenqueue_jobs(self, jobs: list[NewJob], on: object) -> list[Enqueued]:
        """The same on the running event loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How jobs of a task are to be treated; ``using`` overrides them for one enqueue. Durations are in seconds."""

    queue: str = DEFAULT_QUEUE
    priority: int = PRIORITIES["normal"]
    timeout: float = DEFAULT_TIMEOUT
    retry: Backoff = field(default_factory=Backoff)
    max_failures: int = DEFAULT_MAX_FAILURES
    max_lost: int = DEFAULT_MAX_LOST
    max_interrupted: int = DEFAULT_MAX_INTERRUPTED
    expires: float | None = None
    delay: float = 0.0
    at: datetime.datetime | None = None
    unique: str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One job to come: a task with checked arguments and options. Made by ``task.call(…)``."""

    job: NewJob


class Task(Generic[P, R_co]):
    """A registered function. Calling it runs it here and now; ``enqueue`` hands it to a worker."""

    def __init__(self, door: Door, function: Callable[..., Any], name: str, options: Options) -> None:
        self.function = function
        self.name = name
        self.options = options
        self._door = door
        self._signature = Signature(function, name)
        self.is_async = inspect.iscoroutinefunction(function)
        self.__name__ = getattr(function, "__name__", name)
        self.__doc__ = function.__doc__

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run the function itself, without any job."""
        if self._signature.takes_context:
            raise UsageError(
                f"task {self.name} wants a Context: call {self.name}.function(ctx, …) with one of your own"
            )
        result: R_co = self.function(*args, **kwargs)
        return result

    def __repr__(self) -> str:
        return f"<Task {self.name} on {self.options.queue}>"

    def using(  # noqa: PLR0913 - each is an option of the job
        self,
        on: object = None,
        *,
        delay: float | datetime.timedelta | None = None,
        at: datetime.datetime | None = None,
        priority: str | int | None = None,
        unique: str | None = None,
        queue: str | None = None,
        expires: float | datetime.timedelta | None = None,
        timeout: float | datetime.timedelta | None = None,
        retry: Backoff | None = None,
        max_failures: int | None = None,
        max_lost: int | None = None,
        max_interrupted: int | None = None,
    ) -> Bound[P, R_co]:
        """The same task with options for what is enqueued next.

        Args:
            on: the caller's connection: the job is written in its transaction and exists only if that commits.
            delay: seconds from the moment of the enqueue statement (not of the commit).
            at: an aware datetime instead.
            priority: ``critical``, ``high``, ``normal``, ``low``, or 0 to 3.
            unique: at most one live job of this queue has this key; a second enqueue answers with the first one's id.
            queue: another queue than the task's.
            expires: seconds after it became available after which it ends, if no worker has it just then.
            timeout: seconds that an attempt may take.
            retry: another backoff.
            max_failures: attempts that may fail.
            max_lost: attempts that may end with the worker's silence.
            max_interrupted: attempts that may be cut short by a draining worker.

        Raises:
            UsageError: a value that cannot mean anything sensible.
        """
        options = checked_options(
            self.options,
            delay=delay,
            at=at,
            priority=priority,
            unique=unique,
            queue=queue,
            expires=expires,
            timeout=timeout,
            retry=retry,
            max_failures=max_failures,
            max_lost=max_lost,
            max_interrupted=max_interrupted,
        )
        return Bound(self, on, options)

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """Enqueue on a connection of Lien's own; see `Bound.enqueue`."""
        return self._door.enqueue_jobs([self.job(self.options, args, kwargs)], None)[0]

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """Enqueue on a connection of Lien's own; see `Bound.aenqueue`."""
        return (await self._door.aenqueue_jobs([self.job(self.options, args, kwargs)], None))[0]

    def enqueue_many(self, calls: Iterable[Mapping[str, Any]]) -> list[Enqueued]:
        """Enqueue many on a connection of Lien's own; see `Bound.enqueue_many`."""
        return self._door.enqueue_jobs(self.jobs(self.options, calls), None)

    async def aenqueue_many(self, calls: Iterable[Mapping[str, Any]]) -> list[Enqueued]:
        """Enqueue many on a connection of Lien's own; see `Bound.enqueue_many`."""
        return await self._door.aenqueue_jobs(self.jobs(self.options, calls), None)

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> Call:
        """A checked call for `Lien.enqueue_many`."""
        return Call(self.job(self.options, args, kwargs))

    def job(self, options: Options, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> NewJob:
        """The row to write for a call."""
        named = self._signature.named(args, kwargs)
        return NewJob(
            task=self.name,
            args=self._door.codec.encode(named, "arguments") if named else "{}",
            queue=options.queue,
            priority=options.priority,
            delay=options.delay,
            at=options.at,
            unique_key=options.unique,
            expires=options.expires,
            timeout=options.timeout,
            max_failures=options.max_failures,
            max_lost=options.max_lost,
            max_interrupted=options.max_interrupted,
            backoff_base=options.retry.base,
            backoff_cap=options.retry.cap,
        )

    def jobs(self, options: Options, calls: Iterable[Mapping[str, Any]]) -> list[NewJob]:
        """The rows to write for many calls; an error names the index of its call."""
        jobs = []
        for index, kwargs in enumerate(calls):
            try:
                jobs.append(self.job(options, (), kwargs))
            except (PayloadError, SignatureError) as error:
                raise type(error)(f"call {index}: {error}") from error
        return jobs

    def arguments(self, named: Mapping[str, Any], context: Context) -> tuple[list[Any], dict[str, Any]]:
        """How to call the function with stored arguments.

        Raises:
            SignatureError: they do not fit the function as it is now.
        """
        return self._signature.positioned(named, context)


class Bound(Generic[P, R_co]):
    """A task with a connection and options, made by ``task.using(…)``."""

    __slots__ = ("_on", "_options", "_task")

    def __init__(self, task: Task[P, R_co], on: object, options: Options) -> None:
        self._task = task
        self._on = on
        self._options = options

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """Write the job: in the transaction of the given connection, or in one of its own.

        Raises:
            SignatureError: the arguments do not fit the task.
            PayloadError: an argument cannot be stored.
            UnsupportedConnection: Lien knows no such connection.
            DatabaseError: the database refused or is away (on the caller's connection: its driver's own error).
        """
        return self._task._door.enqueue_jobs([self._task.job(self._options, args, kwargs)], self._on)[0]  # noqa: SLF001

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """The same, awaited."""
        jobs = [self._task.job(self._options, args, kwargs)]
        return (await self._task._door.aenqueue_jobs(jobs, self._on))[0]  # noqa: SLF001

    def enqueue_many(self, calls: Iterable[Mapping[str, Any]]) -> list[Enqueued]:
        """Write one job for each set of keyword arguments, all or none, in this order.

        Raises:
            SignatureError, PayloadError: as `enqueue`; the message names the index of the call.
        """
        return self._task._door.enqueue_jobs(self._task.jobs(self._options, calls), self._on)  # noqa: SLF001

    async def aenqueue_many(self, calls: Iterable[Mapping[str, Any]]) -> list[Enqueued]:
        """The same, awaited."""
        return await self._task._door.aenqueue_jobs(self._task.jobs(self._options, calls), self._on)  # noqa: SLF001

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> Call:
        """A checked call, with these options, for `Lien.enqueue_many`; the connection is given there."""
        if self._on is not None:
            raise UsageError("give the connection to enqueue_many(…, on=connection), not to using() of each call")
        return Call(self._task.job(self._options, args, kwargs))


class Signature:
    """How a function's arguments become a JSON object and come back."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._name = name
        parameters = list(inspect.signature(function).parameters.values())
        self.takes_context = bool(parameters) and _is_context(function, parameters[0])
        if self.takes_context:
            parameters = parameters[1:]
        self._signature = inspect.Signature(parameters)
        self._leading = [p for p in parameters if p.kind is inspect.Parameter.POSITIONAL_ONLY]
        self._spread = next((p.name for p in parameters if p.kind is inspect.Parameter.VAR_POSITIONAL), None)
        self._extra = next((p.name for p in parameters if p.kind is inspect.Parameter.VAR_KEYWORD), None)
        if self._spread is not None:  # what stands before *args must be passed by position as well
            self._leading = [p for p in parameters if p.kind in _POSITIONAL]
        # Most signatures are a fixed set of names, and then two set comparisons say what bind() would say.
        self._fixed = not self._leading and self._spread is None and self._extra is None
        self._names = frozenset(p.name for p in parameters)
        self._required = frozenset(p.name for p in parameters if p.default is inspect.Parameter.empty)

    def _fits(self, kwargs: Mapping[str, Any]) -> bool:
        return self._fixed and self._required <= kwargs.keys() <= self._names

    def named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by name. Positional-only ones are stored by their name too, ``*args`` as ``"*args"``."""
        if not args and self._fits(kwargs):
            return dict(kwargs)
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            hint = ""
            if "'ctx'" in str(error) or "'context'" in str(error):
                hint = "; annotate it as lien.Context if the worker is to pass it"
            raise SignatureError(f"task {self._name}{self._signature}: {error}{hint}") from None
        named: dict[str, Any] = dict(bound.arguments)
        if self._spread is not None and self._spread in named:
            named[f"*{self._spread}"] = list(named.pop(self._spread))
        if self._extra is not None:
            extra = named.pop(self._extra, {})
            if both := named.keys() & extra.keys():
                raise SignatureError(f"task {self._name}: {sorted(both)} given by position and by name")
            named |= extra
        return named

    def positioned(self, named: Mapping[str, Any], context: Context) -> tuple[list[Any], dict[str, Any]]:
        """The way back: stored arguments as the function takes them."""
        kwargs = dict(named)
        args: list[Any] = [context] if self.takes_context else []
        if self._fits(kwargs):
            return args, kwargs
        for parameter in self._leading:
            if parameter.name not in kwargs:
                break
            args.append(kwargs.pop(parameter.name))
        if self._spread is not None:
            args += kwargs.pop(f"*{self._spread}", [])
        try:
            self._signature.bind(*args[self.takes_context :], **kwargs)
        except TypeError as error:
            raise SignatureError(
                f"stored arguments {sorted(named)} do not fit task {self._name}{self._signature}: {error}"
            ) from None
        return args, kwargs


def _is_context(function: Callable[..., Any], parameter: inspect.Parameter) -> bool:
    """Whether the first parameter asks for the Context: by its annotation alone, never by its name."""
    annotation = parameter.annotation
    if parameter.kind not in _POSITIONAL or annotation is inspect.Parameter.empty:
        return False
    if isinstance(annotation, str):
        try:
            annotation = typing.get_type_hints(function).get(parameter.name)
        except Exception:  # noqa: BLE001 - some other annotation cannot be resolved here; the words will do
            return parameter.annotation in {"Context", "lien.Context"}
    return annotation is Context


def checked_name(what: str, value: object) -> str:
    """A name of a queue, task or key: any text of 1 to 200 characters, kept exactly.

    Raises:
        UsageError: it is something else.
    """
    if not isinstance(value, str):
        raise UsageError(f"{what} is {value!r}: give a text")
    if not value or len(value) > MAX_NAME_CHARS:
        raise UsageError(f"{what} has {len(value)} characters: give a text of 1 to {MAX_NAME_CHARS}")
    try:
        return checked_text(value, what)
    except PayloadError as error:
        raise UsageError(str(error)) from None


def checked_options(base: Options, **given: Any) -> Options:  # noqa: C901, PLR0912 - a table of checks
    """Options with those given put over a base, each checked.

    Raises:
        UsageError: the name of the option, what is wrong with it, and what to give.
    """
    changes: dict[str, Any] = {}
    for name, value in given.items():
        if value is None:
            continue
        match name:
            case "queue":
                changes[name] = checked_name("queue", value)
            case "unique":
                changes[name] = checked_name("unique key", value)
            case "priority":
                changes[name] = _priority(value)
            case "delay":
                changes[name] = _duration(name, value)
            case "timeout" | "expires":
                changes[name] = _duration(name, value, least=0.001)
            case "max_failures" | "max_lost" | "max_interrupted":
                changes[name] = budget(name, value)
            case "retry":
                if not isinstance(value, Backoff):
                    raise UsageError(f"retry is {value!r}: give a lien.Backoff(base=…, cap=…)")
                changes[name] = value
            case "at":
                changes[name] = moment("at", value)
            case _:
                raise UsageError(f"there is no option {name}")
    if "delay" in changes and "at" in changes:
        raise UsageError("give delay=… or at=…, not both")
    return replace(base, **changes) if changes else base


def _priority(value: object) -> int:
    if isinstance(value, str) and value in PRIORITIES:
        return PRIORITIES[value]
    if isinstance(value, int) and not isinstance(value, bool) and value in PRIORITIES.values():
        return value
    raise UsageError(f"priority is {value!r}: give one of {', '.join(PRIORITIES)}, or 0 (critical) to 3 (low)")


def _duration(name: str, value: object, *, least: float = 0.0) -> float:
    if isinstance(value, datetime.timedelta):
        value = value.total_seconds()
    return seconds(name, value, least=least)  # type: ignore[arg-type]
