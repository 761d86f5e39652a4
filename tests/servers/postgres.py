"""A private PostgreSQL server: own folder, own port, own account, certain to end with us.

Nothing outside the server's folder is written. As root, the server runs as an account without
rights (PostgreSQL refuses root). A keeper process (`keeper.py`) does all the cleaning up: it acts
when its pipe closes, so that `close`, a normal exit and SIGKILL take the same way.
"""

from __future__ import annotations

import atexit
import os
import random
import re
import secrets
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal, Self

from tests.servers import binaries, keeper
from tests.servers.databases import Databases

NOBODY = 65534
PORT_TRIES = 5
# Below the ports that Linux hands out to connections, so that a stopped server finds its own free.
PORTS = range(20_000, 32_000)
DEFAULTS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": 200,
    "shared_buffers": "64MB",
    "timezone": "UTC",
}

Mode = Literal["fast", "immediate"]


class PostgresServer:
    """A server with databases that vanish with it.

        with PostgresServer() as server:
            url = server.create_database()

    Without `with`: `start`, then `close` when done. A stopped server can be started again; it
    keeps its port, its data and its settings.
    """

    def __init__(self, bin_dir: Path | None = None) -> None:
        self.bin_dir = bin_dir or binaries.find_binaries()
        self.folder = _reachable_folder() / f"lien-pg-{secrets.token_hex(6)}"
        self.data = self.folder / "data"
        self.port = 0
        self._settings: dict[str, Any] = {"unix_socket_directories": self.folder, **DEFAULTS}
        self._account: dict[str, Any] = {"cwd": self.folder, "env": _environment(self.folder)}
        # The keeper first: a folder that exists has someone who will remove it.
        self._keeper = _start_keeper(self.folder)
        atexit.register(self.close)
        self.folder.mkdir(mode=0o700)
        if os.geteuid() == 0:
            self._leave_root()
        self.version = binaries.version_of(self.bin_dir)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, *, fsync: bool | None = None, **settings: Any) -> Self:
        """Start and wait until it answers.

        Args:
            fsync: whether a commit waits for the disk; None is as before, and off at first. Even
                then a commit survives an `immediate` stop, as the system has it.
            settings: further settings of PostgreSQL, kept for later starts.
        """
        if not self.data.exists():
            self._initdb()
            fsync = bool(fsync)
        if fsync is not None:
            names = ("fsync", "full_page_writes")
            self._settings.update(dict.fromkeys(names, "on" if fsync else "off"))
        self._settings.update(settings)
        self._start_on_some_port()
        return self

    def stop(self, mode: Mode = "fast") -> None:
        """Stop and wait until it is gone; `immediate` is a crash of the server."""
        self._run("pg_ctl", "-D", self.data, "-m", mode, "-w", "stop")

    def restart(self, mode: Mode = "fast") -> None:
        """Stop and start again on the same port."""
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """Stop at once and remove the folder. Closing twice is harmless."""
        atexit.unregister(self.close)
        if self._keeper.stdin:
            self._keeper.stdin.close()
        self._keeper.wait()

    @property
    def pid(self) -> int | None:
        """The id of the server's main process; None when it does not run."""
        return keeper.server_pid(self.folder)

    @property
    def log(self) -> str:
        """All that the server has logged."""
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def databases(self) -> Databases:
        """The running server without the power to stop it."""
        return Databases(f"postgresql://postgres@127.0.0.1:{self.port}/postgres", self.bin_dir)

    def url(self, dbname: str = "postgres") -> str:
        """The URL of one database of this server."""
        return self.databases.url(dbname)

    def create_database(self) -> str:
        """Create an empty database with a name of its own and return its URL."""
        return self.databases.create_database()

    def drop_database(self, url: str) -> None:
        """Drop the database of this URL, cutting off who is still connected to it."""
        self.databases.drop_database(url)

    def _leave_root(self) -> None:
        if not binaries.readable_by_all(self.bin_dir):
            self.bin_dir = binaries.copy_of(self.bin_dir, self.folder / "programs")
        self._account |= {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        os.chown(self.folder, NOBODY, NOBODY)

    def _initdb(self) -> None:
        options = ("--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C")
        self._run("initdb", "-D", self.data, "--no-sync", *options)

    def _start_on_some_port(self) -> None:
        for _ in range(PORT_TRIES):
            port = self.port or free_port()
            logged = len(self.log)
            try:
                self._start_on(port)
            except RuntimeError:
                # A port that was ours before is part of the URLs people hold: no other will do.
                if self.port or not re.search(r"could not bind|in use", self.log[logged:]):
                    raise
            else:
                self.port = port
                return
        raise RuntimeError(f"each of {PORT_TRIES} free ports was taken before PostgreSQL had it")

    def _start_on(self, port: int) -> None:
        lines = [f"{name} = {_quoted(value)}" for name, value in self._settings.items()]
        (self.data / "postgresql.conf").write_text("\n".join([*lines, f"port = {port}", ""]))
        self._run("pg_ctl", "-D", self.data, "-l", self.folder / "log", "-w", "-t", "60", "start")

    def _run(self, program: str, *arguments: object) -> None:
        # Into a file: a server that inherits a pipe would keep it open for ever.
        with tempfile.TemporaryFile("w+") as said:
            command = [self.bin_dir / program, *map(str, arguments)]
            done = subprocess.run(command, check=False, stdout=said, stderr=subprocess.STDOUT, **self._account)
            said.seek(0)
            if done.returncode:
                tail = "\n".join(self.log.splitlines()[-20:])
                raise RuntimeError(f"{program} {arguments} failed:\n{said.read()}{tail}")


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on at this moment."""
    while True:
        port = random.choice(PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def _reachable_folder() -> Path:
    """Where temporary folders go; as root TMPDIR may be a place that the server cannot reach."""
    candidates = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]  # noqa: S108 -- only to put a fresh private folder in
    if os.geteuid() == 0:
        candidates = [path for path in candidates if binaries.readable_by_all(path)]
    return candidates[0].resolve()


def _environment(folder: Path) -> dict[str, str]:
    """Not ours: PGDATA, PGPORT and their like would speak to another server."""
    return {"PATH": "/usr/bin:/bin", "HOME": str(folder), "LC_ALL": "C", "TZ": "UTC"}


def _start_keeper(folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", "-S", keeper.__file__, str(folder), str(os.getpid())]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def _quoted(value: object) -> str:
    return "'" + str(value).replace("'", "''") + "'"
