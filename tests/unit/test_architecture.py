"""Arrows point down, imports stay light, files stay small."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "lien"
MODULES = sorted(SOURCE.rglob("*.py"))
HEAVY = [
    "psycopg",
    "lien.worker",
    "lien.drivers.psycopg",
    "lien.drivers.sqlite",
    "multiprocessing",
    "click",
]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)


def named(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def test_layers_point_down() -> None:
    done = run(str(Path(sys.executable).with_name("lint-imports")), "--no-cache")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def modules_after(statement: str) -> set[str]:
    program = f"{statement}\nimport json, sys\nprint(json.dumps(list(sys.modules)))"
    done = run(sys.executable, "-X", "utf8", "-c", program)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("heavy", HEAVY)
def test_lien_is_light(heavy: str) -> None:
    assert heavy not in modules_after("import lien")


def test_pure_modules_import_no_database() -> None:
    # A bare package in place of lien/__init__.py, which opens the whole front door.
    bare = (
        f"import sys, types; lien = sys.modules['lien'] = types.ModuleType('lien'); lien.__path__ = [{str(SOURCE)!r}]"
    )
    names = "codec, commands, errors, machine, model, policy, sqlfile"
    loaded = modules_after(f"{bare}\nfrom lien import {names}")
    assert "lien.machine" in loaded
    assert not loaded & {"psycopg", "sqlite3", "asyncio"}


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_a_module_is_short_and_says_what_it_is_for(path: Path) -> None:
    source = path.read_text("utf-8")
    assert len(source.splitlines()) <= 400, "split it"
    doc = ast.get_docstring(ast.parse(source))
    assert doc, "no docstring"
    first = doc.splitlines()[0]
    assert first.endswith((".", ":")) or len(doc.splitlines()) > 1


@pytest.mark.parametrize("path", [p for p in MODULES if "engines" in p.parts], ids=named)
def test_engines_await_nothing(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    waiting = (ast.AsyncFunctionDef, ast.Await, ast.AsyncWith, ast.AsyncFor)
    assert not [node.lineno for node in ast.walk(tree) if isinstance(node, waiting)]


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_only_the_clock_asks_the_machine_for_the_time(path: Path) -> None:
    if path.name == "clock.py":
        return
    calls = [ast.unparse(n.func) for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.Call)]
    assert not {"time.time", "time.sleep", "datetime.now", "datetime.datetime.now"} & set(calls)


def test_the_package_is_typed() -> None:
    assert (SOURCE / "py.typed").exists()
