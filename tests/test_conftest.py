"""The rules of conftest.py itself: engines can be chosen, and CI accepts no skip."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

SAMPLE = """
import pytest

def test_engine(engine_url): assert engine_url
def test_needs_postgres(postgres_url): raise AssertionError("not selected")
"""


def run_sample(folder: Path, text: str, *options: str, **env: str) -> tuple[int, str]:
    sample = folder / f"test_{secrets.token_hex(4)}.py"
    sample.write_text(text)
    command = [sys.executable, "-m", "pytest", "-c", "pyproject.toml", "--rootdir", ".", "-vv"]
    command += ["-p", "tests.conftest", "-p", "no:cacheprovider", *options, str(sample)]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, env=os.environ | env)
    return done.returncode, done.stdout + done.stderr


def test_one_engine_can_be_chosen(tmp_path: Path) -> None:
    code, said = run_sample(tmp_path, SAMPLE, "--engine=sqlite")
    assert code == 0, said
    assert "test_engine[sqlite]" in said
    assert "1 passed, 1 deselected" in said


@pytest.mark.parametrize(
    "text",
    [
        "import pytest\n\ndef test_it(): pytest.skip('too tired')",
        "import pytest\n\n@pytest.mark.skipif(True, reason='too tired')\ndef test_it(): pass",
        "import pytest\npytest.skip('too tired', allow_module_level=True)",
    ],
    ids=["call", "mark", "module"],
)
def test_ci_does_not_accept_a_skip(tmp_path: Path, text: str) -> None:
    code, said = run_sample(tmp_path, text, CI="")
    assert code in {0, 5}, said
    code, said = run_sample(tmp_path, text, CI="true")
    assert code in {1, 2}, said
    assert "too tired" in said
    assert "counts as failed" in said


def test_an_expected_failure_is_no_skip(tmp_path: Path) -> None:
    text = "import pytest\n\n@pytest.mark.xfail\ndef test_it(): assert False"
    code, said = run_sample(tmp_path, text, CI="true")
    assert code == 0, said


def test_a_machine_without_postgres_is_told_so_loudly(tmp_path: Path) -> None:
    hidden = """
import pytest
from tests.servers import binaries

@pytest.fixture(autouse=True, scope="session")
def hide():
    binaries._is_complete = lambda _: False

def test_it(postgres_url): pass
"""
    code, said = run_sample(tmp_path, hidden, CI="", LIEN_TEST_PG_URL="")
    assert code == 0, said
    assert "PostgreSQL WAS NOT TESTED" in said
    code, said = run_sample(tmp_path, hidden, CI="true", LIEN_TEST_PG_URL="")
    assert code == 1, said
    assert "set LIEN_TEST_PG_URL" in said
