"""The command line ``lien``: stdout is data, stderr is talk, exit codes are in `lien.cli.errors`."""

from __future__ import annotations

from lien.cli.root import main

__all__ = ["main"]
