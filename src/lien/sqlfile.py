"""Named statements read from .sql files, and their ``:parameters`` rendered for a driver.

A file is valid SQL for every tool. Statements are separated by ``-- name: x`` lines; ``-- transition: y`` names the
arrows of the state machine that a statement makes. The only thing replaced is where the tables live: the schema
``lien.`` (PostgreSQL) or the prefix ``lien_`` (elsewhere), once, at load.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_TRANSITION = re.compile(r"^-- transition: ([\w, ]+)\n", re.MULTILINE)
# A parameter, a string literal or a quoted name, a comment. A cast is written CAST(x AS t), so a colon is always a
# parameter.
_TOKEN = re.compile(r"""(?<![:\w]):([a-z_]\w*)|('(?:[^']|'')*'|"(?:[^"]|"")*")|(--[^\n]*)""")
_PLACE = re.compile(r"--[^\n]*|'(?:[^']|'')*'|\blien\.(?=\w)")


@dataclass(frozen=True, slots=True)
class Statement:
    """One named statement as its file has it."""

    name: str
    text: str
    transitions: tuple[str, ...] = ()
    _rendered: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    def render(self, style: str) -> str:
        """The text with parameters as the driver wants them: ``named`` (:x) or ``pyformat`` (%(x)s)."""
        hit = self._rendered.get(style)
        if hit is None:
            hit = self._rendered[style] = _render(self.text, style)
        return hit


def _render(text: str, style: str) -> str:
    def replace(match: re.Match[str]) -> str:
        parameter, quoted, comment = match.groups()
        if comment is not None:
            return ""
        if quoted is not None:
            return quoted.replace("%", "%%") if style == "pyformat" else quoted
        return f"%({parameter})s" if style == "pyformat" else f":{parameter}"

    if style == "pyformat":
        # Between tokens a percent sign is an operator; it needs doubling as well.
        pieces: list[str] = []
        end = 0
        for match in _TOKEN.finditer(text):
            pieces += [text[end : match.start()].replace("%", "%%"), replace(match)]
            end = match.end()
        return "".join([*pieces, text[end:].replace("%", "%%")])
    return _TOKEN.sub(replace, text)


def placed_in_schema(schema: str) -> Callable[[str], str]:
    """Replace the schema ``lien.`` by another one, quoted; inside string literals too (``'lien.lien_fence'``)."""
    quoted = '"' + schema.replace('"', '""') + '".'

    def place(match: re.Match[str]) -> str:
        found = match[0]
        if found.startswith("'"):
            return found.replace("lien.lien_", quoted.replace("'", "''") + "lien_")
        return found if found.startswith("--") else quoted

    return lambda text: _PLACE.sub(place, text)


def placed_with_prefix(prefix: str) -> Callable[[str], str]:
    """Replace the prefix ``lien_`` of every table, index, view and trigger."""
    return lambda text: re.sub(r"\blien_", lambda _: prefix, text)


def parse(source: str) -> dict[str, Statement]:
    """Statements of one file's text, by name."""
    parts = _NAME.split(source)[1:]
    statements = {}
    for name, body in zip(parts[::2], parts[1::2], strict=True):
        arrows = _TRANSITION.search(body)
        text = _TRANSITION.sub("", body).strip().rstrip(";")
        names = tuple(x.strip() for x in arrows[1].split(",")) if arrows else ()
        if name in statements:
            raise ValueError(f"statement {name} is there twice")
        statements[name] = Statement(name, text, names)
    return statements


def load(package: str, place: Callable[[str], str] = lambda text: text) -> dict[str, Statement]:
    """All statements of the .sql files directly in a package, by name."""
    statements: dict[str, Statement] = {}
    for entry in sorted(files(package).iterdir(), key=lambda e: e.name):
        if entry.name.endswith(".sql"):
            found = parse(place(entry.read_text("utf-8")))
            if double := statements.keys() & found.keys():
                raise ValueError(f"{package}: {sorted(double)} in more than one file")
            statements |= found
    return statements
