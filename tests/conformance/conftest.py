"""The one fixture module of the conformance suite: the same tests on every engine.

A new engine adds one entry to MAKERS. `@pytest.mark.only("postgresql")` limits a test to engines that
have the thing at all (LISTEN, EXPLAIN, a server to lose); no verb may be limited so.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

import lien
from tests.conformance.kit import TABLES, Database

ENGINES = ("sqlite", "postgresql")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "only(*engines): the engines that have what is tested here")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "engine" in metafunc.fixturenames:
        mark = metafunc.definition.get_closest_marker("only")
        metafunc.parametrize("engine", mark.args if mark else ENGINES, scope="module")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = config.getoption("engine") or ENGINES
    dropped = [item for item in items if _engine(item) not in {None, *wanted}]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item not in set(dropped)]


def _engine(item: pytest.Item) -> str | None:
    callspec = getattr(item, "callspec", None)
    engine: str | None = callspec.params.get("engine") if callspec else None
    return engine


@pytest.fixture(scope="session")
def sqlite_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated database file, to be copied."""
    path = tmp_path_factory.mktemp("template") / "lien.sqlite3"
    jobs = lien.Lien(f"sqlite:///{path}")
    jobs.migrate()
    jobs.close()
    return path


@pytest.fixture(scope="session")
def postgres_database(request: pytest.FixtureRequest) -> Iterator[str]:
    """A migrated database, shared by the tests of this process one after the other."""
    server = request.getfixturevalue("postgres_server")
    url = server.create_database()
    jobs = lien.Lien(url)
    jobs.migrate()
    jobs.close()
    yield url
    server.drop_database(url)


def _on_sqlite(request: pytest.FixtureRequest) -> str:
    path = request.getfixturevalue("tmp_path") / "lien.sqlite3"
    shutil.copy(request.getfixturevalue("sqlite_file"), path)
    return f"sqlite:///{path}?durability=normal"


def _on_postgres(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue("postgres_database")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        for table in (*TABLES, "lien_sleeper"):
            connection.execute(f"DELETE FROM lien.{table}".encode())
    return url


MAKERS: dict[str, Callable[[pytest.FixtureRequest], str]] = {
    "sqlite": _on_sqlite,
    "postgresql": _on_postgres,
}
EMPTY = {"sqlite": "sqlite_url", "postgresql": "postgres_url"}
FASTER = {"sqlite": "?durability=normal"}  # nobody cuts the power here


@pytest.fixture
def db(engine: str, request: pytest.FixtureRequest) -> Iterator[Database]:
    """A migrated, empty database."""
    database = Database(MAKERS[engine](request))
    yield database
    database.close()


@pytest.fixture
def jobs(db: Database) -> lien.Lien:
    """Lien on a migrated, empty database."""
    return db.jobs


@pytest.fixture
def empty_url(engine: str, request: pytest.FixtureRequest) -> str:
    """The URL of a database of its own without any tables."""
    url: str = request.getfixturevalue(EMPTY[engine])
    return url + FASTER.get(engine, "")


@pytest.fixture
def own(empty_url: str) -> Iterator[Database]:
    """A migrated, empty database that no other test ever sees: for what cannot be swept away."""
    database = Database(empty_url)
    database.jobs.migrate()
    yield database
    database.close()
