"""``python -m lien.demo``: the same as ``lien demo``."""

from __future__ import annotations

from lien.demo import command

command(prog_name="lien demo")
