"""Options, names and signatures of tasks: every bad value is one clear error with the fix in it."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest

import lien
from lien.context import Context
from lien.task import Signature


@pytest.fixture
def jobs() -> lien.Lien:
    """A Lien that no test here connects."""
    return lien.Lien("sqlite:///never-opened.db")


@pytest.fixture
def send(jobs: lien.Lien) -> lien.Task[..., Any]:
    """A task with one required and one optional argument."""

    @jobs.task(queue="mail")
    def send(order_id: int, note: str = "") -> None: ...

    return send


BAD_OPTIONS = [
    ({"delay": -1}, "delay is -1: give seconds from 0 to 3.16224e+09 (100 years)"),
    ({"delay": float("nan")}, "delay is nan: give seconds from 0 to 3.16224e+09 (100 years)"),
    ({"delay": "5m"}, "delay is '5m': give a number of seconds"),
    ({"delay": True}, "delay is True: give a number of seconds"),
    ({"delay": datetime.timedelta(days=-1)}, "delay is -86400.0: give seconds from 0 to 3.16224e+09 (100 years)"),
    (
        {"at": datetime.datetime(2030, 1, 1)},  # noqa: DTZ001 - the point of the test
        "at is datetime.datetime(2030, 1, 1, 0, 0), which has no time zone: use datetime.now(UTC) + …",
    ),
    ({"at": 5}, "at is 5: give an aware datetime, or a number of seconds instead"),
    ({"at": datetime.datetime(1, 1, 1, tzinfo=datetime.UTC)}, "give a year from 1971 to 9000"),
    ({"delay": 1, "at": datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)}, "give delay=… or at=…, not both"),
    (
        {"priority": "urgent"},
        "priority is 'urgent': give one of critical, high, normal, low, or 0 (critical) to 3 (low)",
    ),
    ({"priority": 4}, "priority is 4: give one of critical, high, normal, low, or 0 (critical) to 3 (low)"),
    ({"priority": True}, "priority is True: give one of critical, high, normal, low, or 0 (critical) to 3 (low)"),
    ({"queue": ""}, "queue has 0 characters: give a text of 1 to 200"),
    ({"queue": "x" * 201}, "queue has 201 characters: give a text of 1 to 200"),
    ({"queue": 0}, "queue is 0: give a text"),
    ({"queue": "a\x00b"}, "queue contains NUL (\\x00), which databases cannot store as text: remove it"),
    ({"unique": ""}, "unique key has 0 characters: give a text of 1 to 200"),
    ({"unique": False}, "unique key is False: give a text"),
    ({"unique": "\ud800"}, "unique key contains a lone surrogate"),
    ({"timeout": 0}, "timeout is 0: give seconds from 0.001 to"),
    ({"expires": -1}, "expires is -1: give seconds from 0.001 to"),
    ({"max_failures": 0}, "max_failures is 0: give an integer from 1 to 1000000"),
    ({"max_lost": 1.5}, "max_lost is 1.5: give an integer from 1 to 1000000"),
    ({"max_interrupted": True}, "max_interrupted is True: give an integer from 1 to 1000000"),
    ({"retry": 5}, "retry is 5: give a lien.Backoff(base=…, cap=…)"),
]


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS, ids=lambda x: str(x)[:40])
def test_a_bad_option_is_refused_with_the_fix(send: lien.Task[..., Any], options: Any, message: str) -> None:
    """At using(), before anything is written."""
    with pytest.raises(lien.UsageError) as caught:
        send.using(**options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"), [case for case in BAD_OPTIONS if not {"at", "delay", "unique"} & case[0].keys()]
)
def test_the_decorator_checks_the_same(jobs: lien.Lien, options: Any, message: str) -> None:
    """A task with a bad option never comes to be."""
    with pytest.raises(lien.UsageError) as caught:
        jobs.task(**options)
    assert message in str(caught.value)


def test_an_unknown_option_is_named(jobs: lien.Lien) -> None:
    """A slip of the pen is no setting."""
    with pytest.raises(lien.UsageError, match=r"there is no option max_failure$"):
        jobs.task(max_failure=3)  # type: ignore[call-overload]


@pytest.mark.parametrize("name", [" ", "0", "Ä" * 200, "trailing ", "a.b/c%d", "\t", "🦆"])
def test_odd_names_are_kept_exactly(send: lien.Task[..., Any], name: str) -> None:
    """Nothing that is a text is taken for not given."""
    job = send.using(queue=name, unique=name).call(1).job
    assert (job.queue, job.unique_key) == (name, name)


def test_two_functions_of_one_name_need_names(jobs: lien.Lien) -> None:
    """Jobs of one would be run by the other."""
    jobs.task(_module_level)
    other: Any = lambda: None  # noqa: E731
    other.__name__, other.__module__ = "_module_level", "elsewhere"
    with pytest.raises(
        lien.UsageError, match=r"two functions are registered as task '_module_level'.*@jobs.task\(name="
    ):
        jobs.task(other)
    jobs.task(name="another")(other)
    assert set(jobs.tasks) == {"_module_level", "another"}


def _module_level() -> None: ...


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "missing a required argument: 'order_id'"),
        ((1, "a", "b"), {}, "too many positional arguments"),
        ((1,), {"order_id": 2}, "multiple values for argument 'order_id'"),
        ((1,), {"nope": 2}, "got an unexpected keyword argument 'nope'"),
    ],
)
def test_a_wrong_signature_is_refused_at_enqueue(
    send: lien.Task[..., Any], args: Any, kwargs: Any, message: str
) -> None:
    """The message has the task, its signature and what does not fit."""
    with pytest.raises(lien.SignatureError) as caught:
        send.enqueue(*args, **kwargs)
    assert str(caught.value) == f"task send(order_id: 'int', note: 'str' = '') -> 'None': {message}".replace(
        " -> 'None'", ""
    )


def test_a_bad_call_among_many_is_named_by_its_index(send: lien.Task[..., Any]) -> None:
    """And nothing is written."""
    with pytest.raises(lien.SignatureError, match=r"^call 2: task send"):
        send.enqueue_many([{"order_id": 1}, {"order_id": 2}, {"order": 3}])
    with pytest.raises(lien.PayloadError, match=r"^call 1: arguments\['order_id'\] is a builtins.set"):
        send.enqueue_many([{"order_id": 1}, {"order_id": {1}}])


NAMES = ("self", "cls", "task", "job", "args", "kwargs", "context", "queue", "priority", "key", "id", "timeout", "on")


def test_every_keyword_reaches_the_handler(jobs: lien.Lien) -> None:
    """Options are passed to using(), so that no name is taken from the handler."""
    seen: dict[str, Any] = {}

    def take(**given: Any) -> None:
        seen.update(given)

    task: lien.Task[..., Any] = jobs.task(take)
    job = task.call(**{name: i for i, name in enumerate(NAMES)}).job
    args, kwargs = task.arguments(json.loads(job.args), _context())
    take(*args, **kwargs)
    assert seen == {name: i for i, name in enumerate(NAMES)}


def _every_kind(a: int, /, b: int, *rest: int, c: int, **more: int) -> tuple[Any, ...]:
    return a, b, rest, c, more


def _with_context(ctx: Context, a: int) -> tuple[Any, ...]:
    return type(ctx), a


def _with_words(ctx: lien.Context, /, a: int = 3, *, b: int = 4) -> tuple[Any, ...]:
    return type(ctx), a, b


def _context_by_another_name(context: int, ctx: int) -> tuple[Any, ...]:
    return context, ctx


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "expected"),
    [
        (_every_kind, (1, 2, 3, 4), {"c": 5, "d": 6}, (1, 2, (3, 4), 5, {"d": 6})),
        (_every_kind, (1, 2), {"c": 5}, (1, 2, (), 5, {})),
        (_every_kind, (1,), {"b": 2, "c": 5}, (1, 2, (), 5, {})),
        (_with_context, (), {"a": 1}, (Context, 1)),
        (_with_words, (7,), {}, (Context, 7, 4)),
        (_with_words, (), {"b": 9}, (Context, 3, 9)),
        (_context_by_another_name, (1, 2), {}, (1, 2)),
    ],
)
def test_arguments_come_back_as_they_went(function: Any, args: Any, kwargs: Any, expected: Any) -> None:
    """By way of a JSON object."""
    signature = Signature(function, "x")
    stored = json.loads(json.dumps(signature.named(args, kwargs)))
    positional, named = signature.positioned(stored, _context())
    assert function(*positional, **named) == expected


def test_a_context_without_annotation_is_hinted_at() -> None:
    """The first thing that people forget."""

    def settle(ctx: Any, invoice: int) -> None: ...

    with pytest.raises(lien.SignatureError, match=r"'ctx'; annotate it as lien.Context"):
        Signature(settle, "settle").named((), {"invoice": 1})


def test_stored_arguments_of_an_older_signature_are_told() -> None:
    """What a deploy can do."""

    def settle(invoice: int, currency: str) -> None: ...

    with pytest.raises(lien.SignatureError, match=r"stored arguments \['invoice'\] do not fit task settle"):
        Signature(settle, "settle").positioned({"invoice": 1}, _context())


def test_a_task_can_be_called_directly(send: lien.Task[..., Any], jobs: lien.Lien) -> None:
    """Without any database; a Context must be one's own then."""
    double: lien.Task[..., int] = jobs.task(name="double")(lambda n: 2 * n)
    assert double(4) == 8
    with pytest.raises(lien.UsageError, match=r"wants a Context: call with_context.function\(ctx, …\)"):
        jobs.task(name="with_context")(_with_context)(a=1)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("shop", "the database URL is not a database URL: write postgresql://user@host/database or sqlite:///file.db"),
        ("mssql://x/y", "is a URL of another kind of database: Lien works with postgresql:// and sqlite:///"),
        ("sqlite://shop.db", "names no file: write sqlite:///file.db or sqlite:////absolute/path/file.db"),
        ("sqlite:///:memory:", "names no file"),
        ("u:hunter2@h", "is not a database URL"),
    ],
)
def test_a_bad_url_is_refused(url: str, message: str) -> None:
    """At first use, with what to write instead and without secrets."""
    with pytest.raises(lien.UsageError) as caught:
        _ = lien.Lien(url).store
    assert message in str(caught.value)


def test_no_url_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """LIEN_URL is looked at when it is needed, not at import."""
    monkeypatch.delenv("LIEN_URL", raising=False)
    jobs = lien.Lien()
    with pytest.raises(lien.UsageError, match=r"no database: write lien.Lien\('postgresql://…'\) or set LIEN_URL"):
        _ = jobs.store


@pytest.mark.parametrize("job_id", [0, -1, 2**63, "1", 1.0, True, None])
def test_an_odd_id_is_refused(jobs: lien.Lien, job_id: Any) -> None:
    """Before any query."""
    with pytest.raises(lien.UsageError, match="is not a job id: give an integer from 1 to 9223372036854775807"):
        jobs.cancel(job_id)


def _context() -> Context:
    import threading
    from uuid import UUID

    from lien.model import Claim

    claim = Claim(1, 1, "x", "{}", "default", 2, 0, 1, 0, 1, 0, 1.0, 1.0, 1.0, UUID(int=1))
    return Context(claim, "test", threading.Event())
