"""What a driver's error *is*, in one place and without importing any driver."""

from __future__ import annotations

import re
from enum import Enum

from lien.errors import DatabaseError, DatabaseUnavailable, LienError, SchemaError


class Kind(Enum):
    """What to do about it."""

    DISCONNECTED = "the connection is of no more use, or the server cannot be written to"
    RETRYABLE = "a lost race: the same operation may be started again"
    SCHEMA = "tables or columns are missing"
    REFUSED = "this statement can never succeed with these values"
    OTHER = "anything else"


# https://www.postgresql.org/docs/current/errcodes-appendix.html
_DISCONNECTED_STATES = frozenset({"0A000", "25006", "25P03", "26000", "42P05", "57P01", "57P02", "57P03", "57P05"})
_DISCONNECTED_CLASSES = frozenset({"08", "53", "58"})  # connection, resources (disk, memory), system
_RETRYABLE_STATES = frozenset({"40001", "40P01", "55P03"})
_SCHEMA_STATES = frozenset({"42P01", "3F000", "42703", "42883"})
_REFUSED_CLASSES = frozenset({"22", "23", "54", "P0"})  # data, constraints, limits, raised by a trigger

# https://www.sqlite.org/rescode.html, primary codes
_SQLITE_BUSY = frozenset({5, 6})
_SQLITE_GONE = frozenset({8, 10, 11, 14, 26})  # read-only, I/O, corrupt, cannot open, not a database
_SQLITE_REFUSED = frozenset({18, 19, 20})  # too big, constraint, mismatch


_DRIVERS = frozenset({"psycopg", "sqlite3"})


def from_driver(error: BaseException) -> bool:
    """Whether a driver (or the system below it) raised it; anything else is a fault of a program."""
    return type(error).__module__.partition(".")[0] in _DRIVERS or isinstance(error, OSError)


def classify(error: BaseException) -> Kind:
    """The kind of a driver's error; OTHER for whatever is not one."""
    module = type(error).__module__.partition(".")[0]
    if module == "psycopg":
        return _postgres(error)
    if module == "sqlite3":
        return _sqlite(error)
    if isinstance(error, OSError):
        return Kind.DISCONNECTED
    return Kind.OTHER


def _postgres(error: BaseException) -> Kind:  # noqa: PLR0911 - a table
    state: str | None = getattr(error, "sqlstate", None)
    if state is None:
        # Without a code the error is the client's own: the connection broke, or never came to be.
        if _is_a(error, "OperationalError", "InterfaceError"):
            return Kind.DISCONNECTED
        return Kind.REFUSED if _is_a(error, "DataError", "ProgrammingError") else Kind.OTHER
    if state in _DISCONNECTED_STATES or state[:2] in _DISCONNECTED_CLASSES:
        return Kind.DISCONNECTED
    if state in _RETRYABLE_STATES:
        return Kind.RETRYABLE
    if state in _SCHEMA_STATES:
        return Kind.SCHEMA
    if state[:2] in _REFUSED_CLASSES:
        return Kind.REFUSED
    return Kind.OTHER


def _sqlite(error: BaseException) -> Kind:
    code: int | None = getattr(error, "sqlite_errorcode", None)
    primary = None if code is None else code & 0xFF
    if primary in _SQLITE_BUSY:
        return Kind.RETRYABLE
    if primary in _SQLITE_GONE:
        return Kind.DISCONNECTED
    if primary in _SQLITE_REFUSED:
        return Kind.REFUSED
    if primary == 1 and re.search(r"no such (table|column|view)|has no column named", str(error)):
        return Kind.SCHEMA
    if _is_a(error, "ProgrammingError") and "closed" in str(error):
        return Kind.DISCONNECTED
    return Kind.OTHER


def _is_a(error: BaseException, *names: str) -> bool:
    return any(cls.__name__ in names for cls in type(error).__mro__)


def translate(error: BaseException, where: str) -> LienError:
    """Lien's own error for a driver's one; ``where`` is the database's URL with its secrets masked."""
    line = first_line(error)
    hint = next((f"; {fix}" for words, fix in _HINTS if words in line), "")
    match classify(error):
        case Kind.DISCONNECTED:
            return DatabaseUnavailable(f"{where} cannot be reached: {line}{hint}")
        case Kind.SCHEMA:
            return SchemaError(
                f"{where} has no (or older) Lien tables, or is another database than meant: run `lien migrate` ({line})"
            )
        case Kind.RETRYABLE:
            return DatabaseError(f"{where} was busy for too long, nothing was changed: {line}")
        case _:
            return DatabaseError(f"{where}: {line}{hint}")


_HINTS = (
    ("Connection refused", "is the server running there?"),
    ("password authentication failed", "check user and password in the URL"),
    ("does not exist", "check the name in the URL, or create it"),
    ("permission denied", "GRANT the rights that the page “On PostgreSQL” lists to this role"),
    ("unable to open database file", "does its folder exist, and may this user write to it?"),
)


def first_line(error: BaseException) -> str:
    """The first line of an error's text, with passwords in URLs masked."""
    text = str(error).strip().partition("\n")[0].strip() or type(error).__name__
    return mask_secrets(text)


def mask_secrets(text: str) -> str:
    """Replace passwords in URLs and in ``password=…`` by stars."""
    # The query first, then up to the last @: a password may have an @ of its own.
    text = re.sub(r"(?i)([?&](?:ssl)?passw(?:or)?d=)[^&\s]+", r"\1***", text)
    text = re.sub(r"(\w+://[^\s:/@]*):\S+@", r"\1:***@", text)
    return re.sub(
        r"(?i)\b((?:ssl)?password|passfile|secret|token)(\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&]+)",
        r"\1\2***",
        text,
    )
