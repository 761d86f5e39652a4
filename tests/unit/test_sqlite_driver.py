"""The SQLite driver on its own and on borrowed connections, and the hints of commits."""

from __future__ import annotations

import datetime
import sqlite3
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lien.commands import Begin, Commit, Fetch, Many, Op, Pipe, Rollback, Script, run
from lien.drivers import commit_watch
from lien.drivers import sqlite as driver_module
from lien.drivers.inotify import FileWatch, Unwatchable
from lien.drivers.sqlite import CommitWatch, SqliteConnector, SqliteDriver
from lien.engines.sqlite import Sqlite
from lien.errors import UsageError
from lien.machine import State
from lien.model import ClaimRequest, Lane, NewJob, Promote
from lien.sqlfile import Statement

ENGINE = Sqlite()
JOB = NewJob(task="work", args="{}")
KEYED = NewJob(task="work", args="{}", unique_key="k")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lien.sqlite3"


@pytest.fixture
def connector(path: Path) -> SqliteConnector:
    return SqliteConnector(path)


@pytest.fixture
def own(connector: SqliteConnector) -> Iterator[SqliteDriver]:
    driver = connector.connect()
    for migration in ENGINE.migrations:
        assert run(ENGINE.migrate(migration), driver)
    yield driver
    driver.close()


def count(own: SqliteDriver, where: str = "true") -> int:
    found: int = own.connection.execute(f"SELECT count(*) FROM lien_job WHERE {where}").fetchone()[0]
    return found


def sql(text: str, **params: Any) -> Fetch:
    return Fetch(Statement("test", text), params)


# -- own connections --


def test_connections_are_set_up_for_jobs(own: SqliteDriver, connector: SqliteConnector) -> None:
    def setting(driver: SqliteDriver, name: str) -> Any:
        return driver.connection.execute(f"PRAGMA {name}").fetchone()[0]

    assert setting(own, "journal_mode") == "wal"
    assert setting(own, "busy_timeout") == 10_000
    assert setting(own, "synchronous") == 2
    normal = SqliteConnector(connector._path, durability="normal").connect()
    assert setting(normal, "synchronous") == 1
    normal.close()


@pytest.mark.parametrize("path", ["", ":memory:", "file::memory:?cache=shared"])
def test_a_database_in_memory_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="path of a file"):
        SqliteConnector(path)


def test_an_unknown_durability_is_refused(path: Path) -> None:
    with pytest.raises(UsageError, match="durability"):
        SqliteConnector(path, durability="some")  # type: ignore[arg-type]


def test_a_missing_folder_is_the_drivers_own_error(path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError, match="unable to open"):
        SqliteConnector(path.parent / "nowhere" / "x.db").connect()


def test_many_connections_to_a_fresh_file_at_once(connector: SqliteConnector) -> None:
    start = threading.Barrier(8)
    done: list[bool] = []

    def migrate() -> None:
        start.wait()
        driver = connector.connect()
        done.extend(run(ENGINE.migrate(m), driver) for m in ENGINE.migrations)
        driver.close()

    threads = [threading.Thread(target=migrate) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == [False] * 7 + [True]


def test_a_failed_operation_leaves_nothing_behind(own: SqliteDriver) -> None:
    bad = NewJob(task="work", args="[]")
    with pytest.raises(sqlite3.IntegrityError, match="lien_job_args"):
        run(ENGINE.enqueue_many([KEYED, JOB, bad]), own)
    assert not own.connection.in_transaction
    assert count(own) == 0
    assert run(ENGINE.enqueue(JOB), own).id == 1


def test_begin_takes_the_write_lock(own: SqliteDriver, connector: SqliteConnector) -> None:
    other = connector.connect()
    other.connection.execute("PRAGMA busy_timeout = 0")
    own.execute(Begin())
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute(Begin())
    other.abandon()
    own.execute(Rollback())
    other.execute(Begin())
    other.abandon()
    assert not other.connection.in_transaction
    other.close()


def test_one_moment_for_a_transaction(own: SqliteDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100, 200))
    monkeypatch.setattr(driver_module.clock, "host_time_us", lambda: next(ticks))
    now = sql("SELECT :now, ':now'")
    assert own.execute(now) == [(100, ":now")]
    answers = own.execute(Pipe((Begin(), now, Many(now.statement, [{}, {}]), Commit())))
    assert answers == [[], [(101, ":now")], [[(101, ":now")], [(101, ":now")]], []]
    assert own.execute(now) == [(102, ":now")]


def test_a_script_stays_in_its_transaction(own: SqliteDriver) -> None:
    own.execute(Begin())
    text = "CREATE TABLE a (x TEXT DEFAULT ';'); -- it; is\n\nINSERT INTO a VALUES ('x;\ny');\n-- end"
    own.execute(Script(Statement("script", text)))
    assert own.execute(sql("SELECT x FROM a")) == [("x;\ny",)]
    own.abandon()
    assert own.execute(sql("SELECT count(*) FROM sqlite_master WHERE name = 'a'")) == [(0,)]


def test_idle_polls_write_and_lock_nothing(own: SqliteDriver, connector: SqliteConnector) -> None:
    other = connector.connect()
    other.execute(Begin())  # somebody else holds the lock
    before = Path(connector._path + "-wal").stat()
    own.connection.execute("PRAGMA busy_timeout = 0")
    wish = ClaimRequest(
        lanes=(Lane("default", 2, None),), limit=5, tasks=("work",), token=uuid.uuid4(), worker="w", lease=60.0
    )
    cycle = run(ENGINE.cycle([], wish, Promote(None, 10)), own)
    assert not cycle.claims
    assert cycle.next_due is None
    assert run(ENGINE.reap(10), own) == []
    assert run(ENGINE.expire(10), own) == 0
    after = Path(connector._path + "-wal").stat()
    assert (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size)
    other.close()


def test_alive(own: SqliteDriver) -> None:
    assert own.alive()
    own.close()
    own.close()
    assert not own.alive()


def test_a_deleted_file_is_not_alive(own: SqliteDriver, path: Path) -> None:
    path.unlink()
    assert not own.alive()


def test_prefix_of_all_names(path: Path) -> None:
    engine = Sqlite("shop_")
    driver = SqliteConnector(path).connect()
    for migration in engine.migrations:
        run(engine.migrate(migration), driver)
    names = [row[0] for row in driver.execute(sql("SELECT name FROM sqlite_master"))]
    assert all(name.startswith(("shop_", "sqlite_")) for name in names)
    assert [job.id for job in run(engine.enqueue_many([JOB, KEYED]), driver)] == [1, 2]
    driver.close()


@pytest.mark.parametrize("prefix", ["", "1x", "a b", 'a"', "sqlite_", "é"])
def test_a_prefix_that_is_no_name_is_refused(prefix: str) -> None:
    with pytest.raises(UsageError, match="prefix"):
        Sqlite(prefix)


# -- borrowed connections --


class Autocommit(sqlite3.Connection):
    """What Python 3.12 opens with autocommit=True: isolation_level then says nothing."""

    autocommit = True
    isolation_level = ""


def legacy(level: str | None) -> Callable[[Path], sqlite3.Connection]:
    return lambda path: sqlite3.connect(path, isolation_level=level)  # type: ignore[arg-type]


def autocommit_on(path: Path) -> sqlite3.Connection:
    if hasattr(sqlite3, "LEGACY_TRANSACTION_CONTROL"):
        return sqlite3.connect(path, autocommit=True)  # type: ignore[call-arg,unused-ignore]
    return sqlite3.connect(path, factory=Autocommit, isolation_level=None)


def autocommit_off(path: Path) -> sqlite3.Connection:
    if hasattr(sqlite3, "LEGACY_TRANSACTION_CONTROL"):
        return sqlite3.connect(path, autocommit=False)  # type: ignore[call-arg,unused-ignore]
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN")
    return connection


IMPLICIT = {
    "legacy": legacy(""),
    "deferred": legacy("DEFERRED"),
    "immediate": legacy("IMMEDIATE"),
    "exclusive": legacy("EXCLUSIVE"),
    "autocommit off": autocommit_off,
}
EXPLICIT = {"isolation none": legacy(None), "autocommit on": autocommit_on}
OPS: dict[str, Callable[[], Op[Any]]] = {
    "one": lambda: ENGINE.enqueue(JOB),
    "keyed": lambda: ENGINE.enqueue(KEYED),
    "many": lambda: ENGINE.enqueue_many([JOB, KEYED, JOB]),
}


@pytest.fixture(params=OPS.values(), ids=OPS)
def op(request: pytest.FixtureRequest) -> Callable[[], Op[Any]]:
    made: Callable[[], Op[Any]] = request.param
    return made


@pytest.fixture(params=IMPLICIT.values(), ids=IMPLICIT)
def implicit(request: pytest.FixtureRequest, path: Path, own: SqliteDriver) -> Iterator[Any]:
    with closing(request.param(path)) as connection:
        yield connection


@pytest.fixture(params=EXPLICIT.values(), ids=EXPLICIT)
def explicit(request: pytest.FixtureRequest, path: Path, own: SqliteDriver) -> Iterator[Any]:
    with closing(request.param(path)) as connection:
        yield connection


@pytest.fixture(params=[*IMPLICIT.values(), *EXPLICIT.values()], ids=[*IMPLICIT, *EXPLICIT])
def any_connection(request: pytest.FixtureRequest, path: Path, own: SqliteDriver) -> Iterator[Any]:
    with closing(request.param(path)) as connection:
        yield connection


def begin(connection: sqlite3.Connection) -> None:
    if not connection.in_transaction:
        connection.execute("BEGIN")


def on(connection: sqlite3.Connection, op: Op[Any]) -> Any:
    return run(op, SqliteDriver(connection, borrowed=True))


def test_commit_of_the_caller_decides(implicit: Any, own: SqliteDriver, op: Any) -> None:
    on(implicit, op())
    assert implicit.in_transaction
    assert count(own) == 0
    implicit.commit()
    assert count(own) > 0


def test_rollback_of_the_caller_decides(implicit: Any, own: SqliteDriver, op: Any) -> None:
    on(implicit, op())
    implicit.rollback()
    assert count(own) == 0
    on(implicit, op())
    implicit.commit()
    assert count(own) > 0


def test_a_connection_in_autocommit_commits_at_once(explicit: Any, own: SqliteDriver, op: Any) -> None:
    on(explicit, op())
    assert not explicit.in_transaction
    assert count(own) > 0


def test_an_explicit_transaction_is_joined(explicit: Any, own: SqliteDriver, op: Any) -> None:
    explicit.execute("BEGIN")
    on(explicit, op())
    assert explicit.in_transaction
    assert count(own) == 0
    explicit.execute("ROLLBACK")
    assert count(own) == 0


def test_rollback_to_a_savepoint_of_the_caller(any_connection: Any, own: SqliteDriver, op: Any) -> None:
    begin(any_connection)
    on(any_connection, ENGINE.enqueue(NewJob(task="first", args="{}")))
    any_connection.execute("SAVEPOINT mine")
    on(any_connection, op())
    any_connection.execute("ROLLBACK TO mine")
    any_connection.execute("RELEASE mine")
    any_connection.execute("COMMIT")
    assert count(own) == count(own, "task = 'first'") == 1


def test_a_failed_operation_leaves_the_callers_work(any_connection: Any, own: SqliteDriver) -> None:
    begin(any_connection)
    on(any_connection, ENGINE.enqueue(JOB))
    for _ in range(2):
        with pytest.raises(sqlite3.IntegrityError):
            on(any_connection, ENGINE.enqueue_many([JOB, KEYED, NewJob(task="", args="{}")]))
    assert any_connection.in_transaction
    any_connection.execute("COMMIT")
    assert count(own) == 1


def test_reading_opens_no_transaction(path: Path, own: SqliteDriver) -> None:
    id = run(ENGINE.enqueue(JOB), own).id
    with closing(sqlite3.connect(path)) as connection:
        assert on(connection, ENGINE.show(id)).id == id
        assert not connection.in_transaction


def test_settings_of_the_caller_are_kept_and_do_no_harm(any_connection: Any, own: SqliteDriver) -> None:
    level = any_connection.isolation_level
    any_connection.row_factory = sqlite3.Row
    any_connection.text_factory = bytes
    begin(any_connection)
    first = on(any_connection, ENGINE.enqueue(KEYED))
    again = on(any_connection, ENGINE.enqueue(KEYED))
    assert (again.id, again.created) == (first.id, False)
    record = on(any_connection, ENGINE.show(first.id))
    assert (record.task, record.state, record.unique_key) == ("work", State.RUNNABLE, "k")
    assert record.created_at.tzinfo is datetime.UTC
    assert any_connection.row_factory is sqlite3.Row
    assert any_connection.text_factory is bytes
    assert any_connection.isolation_level == level


def test_the_effect_and_the_job_commit_together(path: Path, own: SqliteDriver) -> None:
    own.execute(sql("CREATE TABLE orders (id INTEGER)"))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO orders VALUES (1)")
        on(connection, ENGINE.enqueue(JOB))
        connection.rollback()
        with connection:
            connection.execute("INSERT INTO orders VALUES (2)")
            on(connection, ENGINE.enqueue(JOB))
    assert own.execute(sql("SELECT id FROM orders")) == [(2,)]
    assert count(own) == 1


# -- hints of commits --


@pytest.fixture(params=["inotify", "looking"])
def told(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> bool:
    (tmp_path / "probe").touch()
    try:
        FileWatch(str(tmp_path / "probe")).close()
    except Unwatchable:
        return False
    if request.param == "inotify":
        return True

    def refuse(_path: str) -> FileWatch:
        raise Unwatchable("not here")

    monkeypatch.setattr(commit_watch, "FileWatch", refuse)
    return False


@pytest.fixture
def watches(told: bool, own: SqliteDriver, connector: SqliteConnector) -> Iterator[tuple[CommitWatch, CommitWatch]]:
    pair = connector.wakeup("any"), connector.wakeup("any")
    assert all(watch.told is told for watch in pair)
    yield pair
    for watch in pair:
        watch.close()


class Waiting:
    """A thread inside `wait`, and what it answered."""

    def __init__(self, watch: CommitWatch) -> None:
        self._answer: list[bool] = []
        self._thread = threading.Thread(target=lambda: self._answer.append(watch.wait(60.0)))
        self._thread.start()

    def answer(self) -> bool:
        self._thread.join(30)
        return self._answer[0]


def test_a_commit_wakes_all_watches(watches: Any, own: SqliteDriver) -> None:
    for _ in range(20):
        waiting = [Waiting(watch) for watch in watches]
        run(ENGINE.enqueue(JOB), own)
        assert [w.answer() for w in waiting] == [True, True]


def test_a_commit_before_the_wait_is_not_missed(watches: Any, own: SqliteDriver) -> None:
    run(ENGINE.enqueue(JOB), own)
    assert watches[0].wait(60.0)
    assert not watches[0].wait(0.0)
    assert watches[1].wait(0.0)


def test_nothing_happens(watches: Any) -> None:
    assert not watches[0].wait(0.05)


def test_what_is_not_committed_wakes_nobody(watches: Any, own: SqliteDriver) -> None:
    own.execute(sql("PRAGMA cache_size = 1"))
    for end, woken in ((Rollback(), False), (Commit(), True)):
        own.execute(Begin())
        for _ in range(200):  # more than the cache holds: it is written to the log before the commit
            run_inside(ENGINE.enqueue(NewJob(task="work", args='{"x":"' + "x" * 5000 + '"}')), own)
        assert not watches[0].wait(0.05)
        waiting = Waiting(watches[0])
        own.execute(end)
        if not woken:
            watches[0].interrupt()
        assert waiting.answer() is woken


def run_inside(op: Op[Any], driver: SqliteDriver) -> None:
    command = next(op)
    with pytest.raises(StopIteration):
        op.send(driver.execute(command))


def test_an_interruption_ends_the_wait(watches: Any) -> None:
    waiting = Waiting(watches[0])
    watches[0].interrupt()
    assert waiting.answer() is False
    for _ in range(100_000):  # more than a pipe holds
        watches[1].interrupt()
    while watches[1].wait(0.0):
        pass


def test_a_log_that_is_gone_is_an_error(told: bool, own: SqliteDriver, connector: SqliteConnector) -> None:
    watch = connector.wakeup("any")
    if told:
        Path(connector._path + "-wal").unlink()
        with pytest.raises(FileNotFoundError):
            watch.wait(60.0)
    watch.close()
