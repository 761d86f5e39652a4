"""Migrations read from an engine's ``schema`` folder."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.resources import files

from lien.engines.contract import Migration
from lien.sqlfile import Statement

_STEP = re.compile(r"^-- step: (.+)\n", re.MULTILINE)
_FILE = re.compile(r"(\d{4})_(\w+)\.sql")


def load_migrations(package: str, place: Callable[[str], str]) -> tuple[Migration, ...]:
    """The migrations of an engine, in order. A step is what stands between two ``-- step:`` lines."""
    found = []
    for entry in sorted(files(package).joinpath("schema").iterdir(), key=lambda e: e.name):
        match = _FILE.fullmatch(entry.name)
        if match is None:
            continue
        parts = _STEP.split(place(entry.read_text("utf-8")))[1:]
        steps = tuple(
            (title, Statement(f"{match[2]}_{i}", text.strip()))
            for i, (title, text) in enumerate(zip(parts[::2], parts[1::2], strict=True))
        )
        found.append(Migration(int(match[1]), match[2], steps))
    return tuple(found)
