"""The demo, run as users run it: its books balance, and it leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from lien import clock
from lien.demo import ledger, tables

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STOPPED = "stopped with SIGSTOP"


class Demo:
    """A way to run it in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("LIEN_")}
        self.env |= {"TMPDIR": str(folder), "NO_COLOR": "1"}

    def start(self, *options: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "lien", "demo", *options],
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *options: str) -> dict[str, Any]:
        process = self.start("--json", *options)
        out, err = process.communicate(timeout=70)
        assert process.returncode == 0, out + err
        document: dict[str, Any] = json.loads(out)
        assert all(line["balances"] for line in document["ledger"]), document
        return document

    def left(self) -> list[str]:
        return [path.name for path in self.folder.glob("lien-demo-*")]


@pytest.fixture
def demo(tmp_path: Path) -> Demo:
    folder = tmp_path / "tmp folder?"
    folder.mkdir()
    return Demo(folder)


@pytest.fixture
def options(engine_url: str) -> list[str]:
    """The demo makes its own SQLite file; a PostgreSQL is given to it."""
    return [] if engine_url.startswith("sqlite") else ["--url", engine_url]


@pytest.fixture
def schemas(engine_url: str) -> Iterator[Any]:
    def look() -> list[str]:
        if engine_url.startswith("sqlite"):
            return []
        with psycopg.connect(engine_url) as connection:
            rows = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'lien_demo_%'")
            return [name for (name,) in rows]

    return look


def test_books_balance_and_nothing_is_left(demo, options, schemas):
    document = demo.run("--orders", "60", *options)
    assert document["balances"] is True
    assert document["kept"] is None
    poison = document["timeline"][0]
    assert (poison["state"], poison["reason"]) == ("failed", "lost")
    assert [a["outcome"] for a in poison["attempts"]] == ["lost"] * 3
    assert len({a["worker"] for a in poison["attempts"]}) == 3
    assert demo.left() == []
    assert schemas() == []


def test_ledger_sees_what_is_wrong(demo, engine_url, options):
    kept = demo.run("--orders", "20", "--keep", *options)["kept"]
    schema = kept.get("schema")
    with closing(tables.connect(kept["url"], schema)) as connection:
        assert ledger.balances(ledger.compute(connection))
        for damage, line in (
            ("DELETE FROM receipt WHERE order_id = 20", "their receipts, sent exactly once"),
            ("DELETE FROM shop_order WHERE id = 20", "orders committed"),
            ("DELETE FROM late_ack", "late acknowledgements refused"),
            (
                "DELETE FROM lien_attempt WHERE attempt = 2",
                "jobs whose attempts are not 1 to n, one row each",
            ),
            ("DELETE FROM job_start", "processes that the poison killed"),
            ("DELETE FROM lien_history", "their jobs, one each, succeeded"),
        ):
            tables.run(connection, damage)
            wrong = [entry.name for entry in ledger.compute(connection) if not entry.balances]
            assert line in wrong, damage


def test_people_see_timeline_and_ledger(demo):
    process = demo.start("--orders", "20")
    out, err = process.communicate(timeout=70)
    assert process.returncode == 0, out + err
    assert "✓ their receipts, sent exactly once" in out
    assert "✗" not in out
    assert "The books balance." in out
    assert STOPPED in err
    assert "\x1b" not in out + err


@pytest.mark.parametrize(
    "ending",
    [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full)],
    ids=["INT", "TERM"],
)
def test_interrupted_it_leaves_nothing(demo, options, schemas, ending):
    process = demo.start(*options)
    workers = _workers_when_one_is_stopped(process)
    process.send_signal(ending)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert _gone(workers)
    assert demo.left() == []
    assert schemas() == []


def test_killed_it_leaves_no_process(demo):
    process = demo.start()
    workers = _workers_when_one_is_stopped(process)
    process.kill()
    process.communicate(timeout=30)
    assert _gone(workers)


def test_other_databases_are_refused(demo):
    process = demo.start("--url", "sqlite:///mine.db")
    _, err = process.communicate(timeout=30)
    assert process.returncode == 2
    assert "of its own" in err


def test_a_server_that_is_away_is_said(demo):
    process = demo.start("--url", "postgresql://me:hush@127.0.0.1:1/shop")
    out, err = process.communicate(timeout=30)
    assert process.returncode == 3
    assert "cannot be reached" in err
    assert "hush" not in out + err
    assert demo.left() == []


def _workers_when_one_is_stopped(process: subprocess.Popen[str]) -> list[int]:
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        seen.append(line)
        if STOPPED in line:
            break
    workers = [pid for pid, parent, _ in _processes() if parent == process.pid]
    assert len(workers) >= 3, seen
    return workers


def _processes() -> list[tuple[int, int, str]]:
    told = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,stat="],  # noqa: S607 - wherever it is
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    rows = (line.split() for line in told.splitlines())
    return [(int(pid), int(parent), state) for pid, parent, state in rows]


def _gone(pids: list[int]) -> bool:
    """Whether they end within 10 s; one that only waits to be reaped has ended."""
    deadline = clock.monotonic() + 10.0
    while clock.monotonic() < deadline:
        alive = {pid for pid, _, state in _processes() if not state.startswith("Z")}
        if not alive & set(pids):
            return True
        clock.sleep(0.05)
    return False
