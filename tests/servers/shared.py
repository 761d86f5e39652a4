"""One server for a whole test run, started by the first who asks.

With pytest-xdist the controller starts it and hands it to the workers as plain values.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.servers.binaries import NoPostgres
from tests.servers.databases import Databases
from tests.servers.postgres import PostgresServer

Handed = dict[str, str | None]


class SharedPostgres:
    """The server of LIEN_TEST_PG_URL, the one that the controller handed over, or our own."""

    def __init__(self, handed: Handed | None = None) -> None:
        self._server: PostgresServer | None = None
        self._databases: Databases | None = None
        self._missing = handed["missing"] if handed else None
        if handed and handed["url"]:
            bin_dir = Path(handed["bin_dir"]) if handed["bin_dir"] else None
            self._databases = Databases(handed["url"], bin_dir)
        elif url := os.environ.get("LIEN_TEST_PG_URL"):
            self._databases = Databases(url)

    def databases(self) -> Databases:
        """The server; it is started now if it does not run yet.

        Raises:
            NoPostgres: there is none to be had on this machine.
        """
        if self._missing:
            raise NoPostgres(self._missing)
        if self._databases is None:
            self._server = PostgresServer().start()
            self._databases = self._server.databases
        return self._databases

    @property
    def bin_dir(self) -> Path | None:
        """The programs of the server, once known; None leaves the choice to who starts one."""
        return self._databases.bin_dir if self._databases else None

    def hand_over(self) -> Handed:
        """What a worker needs to use this server, or to know why there is none."""
        try:
            databases = self.databases()
        except NoPostgres as missing:
            return {"missing": str(missing), "url": None, "bin_dir": None}
        bin_dir = str(databases.bin_dir) if databases.bin_dir else None
        return {"missing": None, "url": databases.admin_url, "bin_dir": bin_dir}

    def close(self) -> None:
        """Stop the server if it is ours."""
        if self._server:
            self._server.close()
