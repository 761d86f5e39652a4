"""The command line as people meet it: a real process in a folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from lien.cli.root import root

Cli = Callable[..., subprocess.CompletedProcess[str]]


@dataclass(frozen=True)
class Said:
    """What a command line ended with."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def usage(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """The same inside this process, for command lines that are refused before anything is imported."""
    monkeypatch.chdir(folder)
    for name in [name for name in os.environ if name.startswith("LIEN_")]:
        monkeypatch.delenv(name)

    def run(*args: str) -> Said:
        with pytest.raises(SystemExit) as left:
            root.main(list(args))
        out, err = capsys.readouterr()
        return Said(left.value.code, out, err)

    return run


APP = """
import sys, threading, lien
jobs = lien.Lien()
@jobs.task
async def greet(name: str) -> str:
    return f"Hello, {name}!"
@jobs.task(queue="sums", max_failures=3)
def add(ctx: lien.Context, a: int, b: int, /) -> int:
    return a + b
@jobs.task
def breaks(text: str = "x") -> None:
    raise ValueError(f"bad \\x1b[31m{text}\\nsecond line")
@jobs.task(max_failures=1)
def dies() -> None:
    raise RuntimeError("never again")
@jobs.task
def stubborn() -> None:
    sys.stdout.write('{"what": "inside"}\\n')  # in one piece: the worker writes lines of its own
    sys.stdout.flush()
    threading.Event().wait(60)
"""


def environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LIEN_", "PG", "NO_COLOR", "PYTHON"))}
    return kept | more


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with an app that takes its URL from the environment."""
    path = tmp_path / "project"
    path.mkdir()
    (path / "shop.py").write_text(APP)
    return path


@pytest.fixture
def cli(folder: Path) -> Cli:
    """Run ``lien …`` in the project; ``env`` is added to an environment without settings."""

    def run(
        *args: str, env: dict[str, str] | None = None, given: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "lien", *args],
            cwd=folder,
            env=environment(**(env or {})),
            input=given,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


@pytest.fixture
def at(engine_url: str, cli: Cli) -> Cli:
    """The same on a migrated database, with the app."""
    env = {"LIEN_URL": engine_url, "LIEN_APP": "shop:jobs"}
    assert cli("migrate", env=env).returncode == 0
    return lambda *args, given=None: cli(*args, env=env, given=given)
