"""The command ``lien`` itself: its commands, loaded when they are asked for, and the way out of every one."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

import lien
from lien.cli import errors
from lien.cli.invocation import Invocation
from lien.cli.options import Group

_COMMANDS = {
    "init": ("lien.cli.init:init", "Write an example app into this folder."),
    "migrate": ("lien.cli.migrate:migrate", "Create or upgrade the tables."),
    "worker": ("lien.cli.worker:worker", "Run jobs until stopped."),
    "enqueue": ("lien.cli.enqueue:enqueue", "Enqueue one job; prints its id."),
    "jobs": ("lien.cli.jobs:jobs", "List, show, cancel and retry jobs."),
    "demo": ("lien.demo:command", "See it work, and survive, in a minute."),
}
_EXITS = "Exit codes:\n\n\b\n" + "\n".join(f"{int(code):>4}  {meaning}" for code, meaning in errors.MEANINGS.items())


class Root(Group):
    """The group of all commands; turns every error into its exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - a hook of click
        """The commands in the order in which one meets them."""
        return _commands()

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - the same
        """Import a command's module and nothing else."""
        if cmd_name not in _commands():
            return None
        module, _, name = _COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - the same
        """Write the list of commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][1]) for name in _commands()])

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command line and leave with its exit code."""
        given = list(sys.argv[1:] if args is None else args)
        options = given[: given.index("--")] if "--" in given else given
        invocation = Invocation(json="--json" in options, verbose=bool({"-v", "--verbose"} & set(options)))
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):  # a terminal that has no ✓ shows \u2713
                stream.reconfigure(errors="backslashreplace")
        del standalone_mode, windows_expand_args
        extra |= {"complete_var": complete_var, "standalone_mode": False, "obj": invocation}
        try:
            code = super().main(given, prog_name or "lien", **extra) or errors.Exit.OK
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the last one to see it
            code = _told(error, invocation)
        if not errors.flush():
            sys.stdout = None
            code = code or errors.Exit.FAILED
        sys.exit(int(code))


def _told(error: BaseException, invocation: Invocation) -> errors.Exit:
    try:
        return errors.report(error, invocation)
    except BrokenPipeError:
        return errors.exit_code(error)


def _commands() -> list[str]:
    demo = importlib.util.find_spec("lien.demo")
    return [name for name in _COMMANDS if name != "demo" or demo is not None]


@click.version_option(lien.__version__, prog_name="lien", message="%(prog)s %(version)s")
class _Options:
    """Carries the options of the root alone."""


root = Root(
    "lien",
    help="Durable jobs for Python, in your own database.\n\nstdout is data, stderr is talk.",
    epilog=_EXITS,
    params=list(reversed(getattr(_Options, "__click_params__", []))),
)


def main() -> NoReturn:
    """Entry point of the console script."""
    root.main()
    raise AssertionError("unreachable")
