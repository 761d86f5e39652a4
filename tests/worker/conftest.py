"""A migrated database of its own for each test, and workers that end with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import PostgresServer
from tests.worker.kit import Place
from tests.worker.proxy import Proxy


@pytest.fixture
def place(engine_url: str, tmp_path: Path) -> Iterator[Place]:
    """On every engine."""
    place = Place(engine_url, tmp_path)
    yield place
    place.close()


@pytest.fixture
def postgres(postgres_url: str, tmp_path: Path) -> Iterator[Place]:
    """On PostgreSQL only."""
    place = Place(postgres_url, tmp_path)
    yield place
    place.close()


@pytest.fixture
def sqlite(sqlite_url: str, tmp_path: Path) -> Iterator[Place]:
    """On SQLite only."""
    place = Place(sqlite_url, tmp_path)
    yield place
    place.close()


@pytest.fixture
def owned(own_postgres_server: PostgresServer, tmp_path: Path) -> Iterator[Place]:
    """On a PostgreSQL server that the test may stop."""
    place = Place(own_postgres_server.create_database(), tmp_path)
    yield place
    if own_postgres_server.pid is None:
        own_postgres_server.start()
    place.close()


@pytest.fixture
def proxy(postgres: Place) -> Iterator[Proxy]:
    """A way to the database that can be cut."""
    proxy = Proxy(postgres.url)
    yield proxy
    proxy.close()
