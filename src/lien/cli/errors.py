"""Exit codes, and what is said about an error: the one place for both."""

from __future__ import annotations

import json
import sys
import traceback
from enum import IntEnum

import click

from lien.cli.invocation import Invocation
from lien.cli.text import block, line
from lien.errors import (
    DatabaseUnavailable,
    JobNotFound,
    PayloadError,
    SchemaError,
    ServerTooOld,
    SignatureError,
    TransitionRefused,
    UnknownTask,
    UnsupportedConnection,
    UsageError,
)


class Exit(IntEnum):
    """What the shell is told."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    SCHEMA = 4
    REFUSED = 5
    IGNORED = 7
    INTERRUPTED = 130


MEANINGS = {
    Exit.OK: "done",
    Exit.FAILED: "failed: the message says why",
    Exit.USAGE: "usage: an option, an argument, the app or the task's arguments are wrong",
    Exit.UNREACHABLE: "the database cannot be reached",
    Exit.SCHEMA: "the tables are missing or behind (run `lien migrate`), or the server is too old",
    Exit.REFUSED: "not found, or refused by the state of things",
    Exit.IGNORED: "worker: a handler ignored its cancellation",
    Exit.INTERRUPTED: "interrupted",
}

_CODES: tuple[tuple[type[BaseException], Exit], ...] = (
    (DatabaseUnavailable, Exit.UNREACHABLE),
    (SchemaError, Exit.SCHEMA),
    (ServerTooOld, Exit.SCHEMA),
    (JobNotFound, Exit.REFUSED),
    (TransitionRefused, Exit.REFUSED),
    (UsageError, Exit.USAGE),
    (SignatureError, Exit.USAGE),
    (PayloadError, Exit.USAGE),
    (UnknownTask, Exit.USAGE),
    (UnsupportedConnection, Exit.USAGE),
    (click.UsageError, Exit.USAGE),
    (click.Abort, Exit.INTERRUPTED),
    (KeyboardInterrupt, Exit.INTERRUPTED),
)


class Refused(Exception):
    """The command will not do it as things are (a file is in the way, say)."""


def exit_code(error: BaseException) -> Exit:
    """The exit code for an error."""
    if isinstance(error, Refused):
        return Exit.REFUSED
    return next((code for kind, code in _CODES if isinstance(error, kind)), Exit.FAILED)


def as_json(error: BaseException, invocation: Invocation) -> dict[str, object]:
    """The error as a part of a JSON document."""
    return {
        "code": int(exit_code(error)),
        "type": type(error).__name__,
        "message": invocation.scrub(message(error)),
    }


def report(error: BaseException, invocation: Invocation) -> Exit:
    """Say what went wrong, on stderr and with ``--json`` on stdout too; the exit code."""
    code = exit_code(error)
    if code is Exit.INTERRUPTED:
        click.echo("interrupted", err=True)
    else:
        head = click.style("error:", fg="red", bold=True)
        text = line(invocation.scrub(message(error)))
        click.echo(f"{head} {text}", err=True, color=invocation.color)
    if invocation.verbose and not isinstance(error, click.ClickException | click.Abort):
        trace = "".join(traceback.format_exception(error))
        click.echo(block(invocation.scrub(trace)).rstrip(), err=True)
    elif hint := _hint(error):
        click.echo(hint, err=True)
    if invocation.json:
        click.echo(json.dumps({"error": as_json(error, invocation)}))
    return code


def message(error: BaseException) -> str:
    """What happened, in one line; an error nobody foresaw is named by its class."""
    if isinstance(error, click.ClickException):
        return error.format_message()
    text = str(error).strip()
    if exit_code(error) is Exit.INTERRUPTED:
        return "interrupted"
    if type(error).__module__.startswith("lien."):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _hint(error: BaseException) -> str | None:
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return f"Try '{error.ctx.command_path} --help'."
    if isinstance(error, click.ClickException | click.Abort | KeyboardInterrupt):
        return None
    if type(error).__module__.startswith("lien."):
        return None
    return "(run with -v for the traceback)"


def flush() -> bool:
    """Write out what is buffered; whether the reader was still there."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return False
    return True
