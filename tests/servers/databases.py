"""Creates and drops databases on a server, whoever runs it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Databases:
    """A running server as the tests see it.

    `bin_dir` holds the server's programs (psql, pg_dump ...), or is None when the server is not
    ours and only its URL is known.
    """

    admin_url: str
    bin_dir: Path | None = None

    def url(self, dbname: str) -> str:
        """The URL of one database of this server."""
        return urlsplit(self.admin_url)._replace(path=f"/{dbname}").geturl()

    def create_database(self) -> str:
        """Create an empty database with a name of its own and return its URL."""
        name = f"lien_{secrets.token_hex(6)}"
        self._run(sql.SQL("create database {} template template0").format(sql.Identifier(name)))
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Drop the database of this URL, cutting off who is still connected to it."""
        name = urlsplit(url).path.removeprefix("/")
        statement = sql.SQL("drop database if exists {} with (force)")
        self._run(statement.format(sql.Identifier(name)))

    @property
    def version(self) -> tuple[int, int]:
        """Major and minor version of the server."""
        with psycopg.connect(self.admin_url, connect_timeout=10) as connection:
            return divmod(connection.info.server_version, 10_000)

    def _run(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.admin_url, autocommit=True, connect_timeout=10) as connection:
            connection.execute(statement)
