"""mypy --strict on the page of right and wrong calls."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def test_right_calls_pass_and_wrong_ones_are_errors(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--warn-unused-ignores", "--cache-dir"]
    command += [str(tmp_path), "--config-file", str(ROOT / "pyproject.toml"), str(HERE / "api.py")]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
