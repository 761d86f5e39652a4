"""Servers and databases for all tests, and the rule that CI skips nothing.

Knows nothing of Lien: what is inside a database is the business of the folders below.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.servers import Databases, NoPostgres, PostgresServer, SharedPostgres

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

# Engine -> the fixture with the URL of a fresh empty database.
ENGINES = {"sqlite": "sqlite_url", "postgresql": "postgres_url"}
# Fixtures that make a test useless when its engine is not wanted.
FIXTURES = {
    "sqlite": {"sqlite_url"},
    "postgresql": {"own_postgres_server", "postgres_server", "postgres_url"},
}
SHARED = pytest.StashKey[SharedPostgres]()
HANDED = "lien_postgres"


def in_ci() -> bool:
    return os.environ.get("CI") == "true"


@pytest.fixture(scope="session")
def postgres_server(pytestconfig: pytest.Config) -> Databases:
    """The server of this run, where anyone may create databases; nobody may stop it."""
    try:
        return pytestconfig.stash[SHARED].databases()
    except NoPostgres as missing:
        pytest.skip(str(missing))


@pytest.fixture
def own_postgres_server(pytestconfig: pytest.Config) -> Iterator[PostgresServer]:
    """A running server for this test alone, to be stopped, restarted or killed."""
    try:
        server = PostgresServer(pytestconfig.stash[SHARED].bin_dir)
    except NoPostgres as missing:
        pytest.skip(str(missing))
    with server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: Databases) -> Iterator[str]:
    """The URL of a fresh empty PostgreSQL database."""
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of a SQLite database that does not exist yet."""
    return f"sqlite:///{tmp_path / 'lien.sqlite3'}"


@pytest.fixture
def engine_url(request: pytest.FixtureRequest) -> str:
    """The URL of a fresh empty database, once for each engine."""
    return request.getfixturevalue(ENGINES[request.param])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--engine",
        action="append",
        choices=list(ENGINES),
        metavar="NAME",
        help="test only this engine (may be repeated): " + ", ".join(ENGINES),
    )


def pytest_configure(config: pytest.Config) -> None:
    workerinput: dict[str, Any] = getattr(config, "workerinput", {})
    config.stash[SHARED] = SharedPostgres(workerinput.get(HANDED))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Called in the controller of pytest-xdist, before each worker starts."""
    if "postgresql" in _engines(node.config):
        node.workerinput[HANDED] = node.config.stash[SHARED].hand_over()


def pytest_unconfigure(config: pytest.Config) -> None:
    if SHARED in config.stash:
        config.stash[SHARED].close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "engine_url" in metafunc.fixturenames:
        metafunc.parametrize("engine_url", _engines(metafunc.config), indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    unwanted = set().union(*(FIXTURES[name] for name in ENGINES if name not in _engines(config)))
    kept: list[pytest.Item] = []
    dropped: list[pytest.Item] = []
    for item in items:
        names = set(getattr(item, "fixturenames", ()))
        (dropped if unwanted & names else kept).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if in_ci() and report.skipped and not hasattr(report, "wasxfail"):
        _fail(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if in_ci() and report.skipped:
        _fail(report)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = {
        str(report.longrepr[-1])
        for report in terminalreporter.stats.get("skipped", [])
        if "no PostgreSQL" in str(report.longrepr)
    }
    for reason in reasons:
        terminalreporter.section("PostgreSQL WAS NOT TESTED", red=True, bold=True)
        terminalreporter.line(reason)


def _engines(config: pytest.Config) -> list[str]:
    return config.getoption("engine") or list(ENGINES)


def _fail(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = report.longrepr
    if isinstance(reason, tuple):
        reason = "{}:{}: {}".format(*reason)
    report.outcome = "failed"
    report.longrepr = f"{reason}\nCI=true: a skipped test proves nothing, so it counts as failed."
