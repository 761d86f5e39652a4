"""Runs the examples of README.md and docs/: `make docs`, or `pytest docs README.md`.

Each page is one test file and has an empty folder of its own as the current directory.

* A ``python`` block runs; later blocks of the page see what earlier ones defined. A block whose first line is
  ``# name.py`` is also saved under that name, so that commands can use it.
* A ``console`` block runs each line that begins with ``$``. The lines below it are the output expected, up to moments,
  durations and names of workers; ``...`` stands for anything, and ``exit code N`` for an end that is no success.
* Blocks of other languages (``sh``, ``sql``, ``ini``, ``yaml``) are for reading.
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from sybil import Example, Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.integration.pytest import pytest_integration as integration
from sybil.parsers.markdown import CodeBlockParser, SkipParser

import lien
from tests.servers import NoPostgres, SharedPostgres

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 30.0
_FILE = re.compile(r"# (\w+\.py)\n")
_VARIABLE = (
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)"), "MOMENT"),
    (re.compile(r"[\w.-]+:\d+:[0-9a-f]{8}"), "WORKER"),
    (re.compile(r"\b\d+(\.\d+)? (ms|s|m|h|d)\b"), "DURATION"),
    (re.compile(r"(?m)(\bSQLite|\bPostgreSQL) [\w.]+"), r"\1 VERSION"),
    (re.compile(r"[ \t]+"), " "),
)
_RUN = PythonEvaluator()
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Postgres:
    """One server for all pages, started by the first that asks."""

    def __init__(self) -> None:
        self._server = SharedPostgres()

    def new_database(self) -> str:
        """The URL of an empty database."""
        try:
            return self._server.databases().create_database()
        except NoPostgres as missing:
            pytest.skip(str(missing))

    def close(self) -> None:
        """Stop the server if it is ours."""
        self._server.close()


POSTGRES = Postgres()


class Page:
    """The folder and the environment of one page."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="lien-docs-")
        self._before = (Path.cwd(), dict(os.environ), list(sys.path), set(sys.modules))
        os.chdir(self._folder.name)
        sys.path.insert(0, self._folder.name)
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        os.environ |= {"NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
        os.environ.pop("LIEN_URL", None)

    def close(self) -> None:
        """Put everything back."""
        folder, environment, path, modules = self._before
        os.chdir(folder)
        os.environ.clear()
        os.environ |= environment
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            if "lien-docs-" in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]
        self._folder.cleanup()


def setup(namespace: dict[str, Any]) -> None:
    namespace["_page"] = Page()
    namespace["new_postgres_database"] = POSTGRES.new_database


def teardown(namespace: dict[str, Any]) -> None:
    for value in list(namespace.values()):
        if isinstance(value, lien.Lien):
            value.close()
    namespace["_page"].close()


def python(example: Example) -> None:
    """Run a block; save it first when it is a file."""
    text = str(example.parsed)
    if match := _FILE.match(text):
        Path(match[1]).write_text(text, "utf-8")
    _RUN(example)


def console(example: Example) -> str | None:
    """Run the commands of a block one by one; what is wrong with their output, if anything."""
    for part in re.split(r"(?m)^\$ ", str(example.parsed))[1:]:
        lines = part.split("\n")
        command = [lines.pop(0)]
        while command[-1].endswith("\\"):
            command.append(lines.pop(0))
        wanted = "\n".join(lines).strip()
        done = subprocess.run(
            ["/bin/sh", "-c", "\n".join(command)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        found = done.stdout.strip()
        code = done.returncode if done.returncode >= 0 else 128 - done.returncode  # as shells say it
        if code and "exit code" not in wanted:
            return f"$ {command[0]}\nexit code {code}:\n{found}"
        found += f"\nexit code {code}" if "exit code" in wanted else ""
        if wanted and not doctest.OutputChecker().check_output(_steady(wanted), _steady(found), _FLAGS):
            return f"$ {command[0]}\nexpected:\n{wanted}\n\ngot:\n{found}"
    return None


def _steady(text: str) -> str:
    for pattern, word in _VARIABLE:
        text = pattern.sub(word, text)
    return text.strip() + "\n"


SYBIL = Sybil(
    parsers=[CodeBlockParser("python", python), CodeBlockParser("console", console), SkipParser()],
    patterns=["README.md", "docs/*.md", "docs/**/*.md"],
    path=str(ROOT),
    setup=setup,
    teardown=teardown,
)


class _Pages:
    """A plugin of its own, as the hooks of a conftest do not see files above its folder."""

    pytest_collect_file = staticmethod(integration(SYBIL))


def pytest_configure(config: pytest.Config) -> None:
    if not config.pluginmanager.has_plugin("lien-pages"):
        config.pluginmanager.register(_Pages(), "lien-pages")


def pytest_unconfigure() -> None:
    POSTGRES.close()
