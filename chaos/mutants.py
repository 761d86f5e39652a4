"""mutants"""
from __future__ import annotations

from typing import Any


def mutate(engine: Any) -> None: ...
