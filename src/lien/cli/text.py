"""Text for a terminal: what is stored may hold anything, so it is escaped; tables, durations, ages."""

from __future__ import annotations

import datetime
import unicodedata
from collections.abc import Sequence

from lien import clock

_ELLIPSIS = "…"
_SECOND = 1.0
_UNITS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "m"))
# Control, format (bidirectional overrides too), surrogate, private, unassigned; line and paragraph separators.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def line(text: str) -> str:
    """The text on one line, with everything that a terminal would obey shown as an escape instead."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_shown(c) if unicodedata.category(c) in _HIDDEN else c for c in text)


def block(text: str) -> str:
    """The same for text of several lines: line breaks and tabs stay."""
    return "\n".join("\t".join(map(line, row.split("\t"))) for row in text.split("\n"))


def _shown(character: str) -> str:
    if character in "\n\r\t":
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}[character]
    code = ord(character)
    if code < 0x100:  # noqa: PLR2004 - what fits two hex digits
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"  # noqa: PLR2004 - four


def width(text: str) -> int:
    """Columns that the text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def cut(text: str, columns: int) -> str:
    """The text in at most so many columns."""
    if width(text) <= columns:
        return text
    while text and width(text) > columns - 1:
        text = text[:-1]
    return text + _ELLIPSIS


def table(head: Sequence[str], rows: Sequence[Sequence[str]], columns: int | None) -> list[str]:
    """Aligned lines. The last column is cut to what is left of ``columns`` (None: never)."""
    widths = [max(map(width, column)) for column in zip(head, *rows, strict=True)]
    lines = []
    for row in (head, *rows):
        *cells, last = row
        padded = [c + " " * (w - width(c)) for c, w in zip(cells, widths, strict=False)]
        text = "  ".join([*padded, ""])
        if columns is not None:
            last = cut(last, max(columns - width(text), 8))
        lines.append((text + last).rstrip())
    return lines


def duration(seconds: float) -> str:
    """A length of time as people read it."""
    if seconds < _SECOND:
        return f"{seconds * 1000:.0f} ms"
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:.1f}".removesuffix(".0") + " s"


def now() -> datetime.datetime:
    """By this machine's clock, for ages on a screen only."""
    return datetime.datetime.fromtimestamp(clock.host_time_us() / 1e6, tz=datetime.UTC)


def since(moment: datetime.datetime, at: datetime.datetime) -> float:
    """Seconds from a moment until ``at``, never below zero: two machines' clocks differ."""
    return max((at - moment).total_seconds(), 0.0)


def stamp(moment: datetime.datetime) -> str:
    """A moment, exactly, in UTC."""
    return moment.astimezone(datetime.UTC).isoformat().replace("+00:00", "Z")
