"""Types of arguments and options: what is accepted, and what is said when it is not."""

from __future__ import annotations

import datetime
import json
import re
from typing import TYPE_CHECKING, Any

import click

from lien.cli.text import line
from lien.errors import UsageError
from lien.task import checked_name

if TYPE_CHECKING:
    _Type = click.ParamType[Any]
else:  # click before 8.3 has no type variable there
    _Type = click.ParamType

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)?", re.ASCII)
MAX_ID = 2**63 - 1
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


class Duration(_Type):
    """Seconds, as ``10``, ``10s``, ``5m``, ``2h``, ``1d``."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Seconds as a float."""
        if isinstance(value, int | float):
            return float(value)
        match = _DURATION.fullmatch(value.strip())
        if match is None:
            self.fail(f"{line(value)!r} is not a duration: write 10, 10s, 5m, 2h or 1d", param, ctx)
        return float(match[1]) * _UNITS[match[2] or "s"]


class Moment(_Type):
    """An ISO 8601 moment with its time zone."""

    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """An aware datetime."""
        if isinstance(value, datetime.datetime):
            return value
        try:
            moment = datetime.datetime.fromisoformat(value.strip())
        except ValueError:
            self.fail(f"{line(value)!r} is not a moment: write it as in 2026-12-24T18:00Z", param, ctx)
        if moment.utcoffset() is None:
            text = moment.isoformat()
            self.fail(
                f"{line(value)!r} has no time zone: write {text}Z for UTC, or {text}+01:00",
                param,
                ctx,
            )
        return moment


class JobId(_Type):
    """A job's id."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """An integer that can be an id."""
        if isinstance(value, int):
            return value
        if re.fullmatch(r"--?[A-Za-z].*", value):  # a misspelt option, see commands that take ids
            raise click.NoSuchOption(line(value), ctx=ctx)
        if not re.fullmatch(r"[0-9]{1,30}", value, re.ASCII) or not 1 <= int(value) <= MAX_ID:
            self.fail(f"{line(value)!r} is not a job id: give an integer from 1 to {MAX_ID}", param, ctx)
        return int(value)


class Name(_Type):
    """A name of a queue, task or key."""

    def __init__(self, name: str) -> None:
        self.name = name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The name as given."""
        try:
            return checked_name(self.name, value)
        except UsageError as error:
            self.fail(line(str(error)), param, ctx)


class Queues(_Type):
    """Names of queues with commas between."""

    name = "queues"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The names, each once."""
        if isinstance(value, tuple):
            return value
        names = [name.strip() for name in value.split(",")]
        try:
            return tuple(dict.fromkeys(checked_name("queue", name) for name in names))
        except UsageError as error:
            self.fail(f"{line(value)!r}: {line(str(error))}", param, ctx)


class Arguments(_Type):
    """A task's arguments as JSON: an object by name, an array by position."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """A dict or a list."""
        if not isinstance(value, str):
            return value
        try:
            parsed = json.loads(value, object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            why = str(error) if isinstance(error, ValueError) else "nested too deep"
            self.fail(
                f"not JSON ({line(why)}): write an object with the arguments by name, as in "
                """'{"order_id": 7}'""",
                param,
                ctx,
            )
        if not isinstance(parsed, dict | list):
            self.fail(
                f"a JSON {_kind(parsed)} is not arguments: write an object, as in "
                """'{"order_id": 7}'""",
                param,
                ctx,
            )
        return parsed


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    named = dict(pairs)
    if len(named) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the name {twice!r} twice in one object")
    return named


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    return "text" if isinstance(value, str) else "number"
